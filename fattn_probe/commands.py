"""The table of commands; the module of a command is imported when the command is used."""

import functools
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "demo": (
        "fattn_probe.demo:demo",
        "Run a scenario on a simulated H200, judge its output, and inspect the kernel with gdb.",
    ),
    "doctor": (
        "fattn_probe.doctor.cli:doctor",
        "Check what works on this machine, and say how to install what is missing.",
    ),
    "run": ("fattn_probe.run.cli:run", "Run scenarios, and list the kernels that ran."),
    "compare": (
        "fattn_probe.compare.cli:compare",
        "Judge the output of scenarios by an exact float64 reference and the error model, or compare two captures.",
    ),
    "plan": (
        "fattn_probe.run.cli:plan",
        "Show the kernels that GPUs of the catalogue would launch, without running them.",
    ),
    "inspect": (
        "fattn_probe.inspect.cli:inspect",
        "Run an op under gdb or cuda-gdb, and show its tensors, its kernel and why, its tiling and each block's work.",
    ),
    "debug": (
        "fattn_probe.inspect.cli:debug",
        "Open gdb or cuda-gdb at the first line of a case's kernel; adds `fattn tensors|launch|blocks|tile`.",
    ),
    "program": (
        "fattn_probe.program.cli:program",
        "Compile and run a CUDA or HIP program of your own, on a simulated GPU or a real one.",
    ),
    "profile": (
        "fattn_probe.profile.cli:profile",
        "Count what kernels do: instructions, bank conflicts, sectors, bytes; by the simulator, or by Nsight Compute.",
    ),
    "capture": (
        "fattn_probe.models.cli:capture",
        "Run a prompt through a model, and record its attention ops as case files.",
    ),
    "reproduce": (
        "fattn_probe.reproduce.cli:reproduce",
        "Write what shows a failure without fattn-probe: a line for upstream's test, a patch to it, or one C++ file.",
    ),
    "triage": (
        "fattn_probe.triage.cli:triage",
        "Run a prompt through a model, and name the first op that is wrong: attention, another one, or none.",
    ),
    "study": (
        "fattn_probe.study.cli:study",
        "Trace an attention algorithm through one head, tile by tile, and compare all algorithms on it.",
    ),
    "regress": (
        "fattn_probe.regress.cli:regress",
        "Run a suite, and report what changed since the last accepted run.",
    ),
    "coverage": (
        "fattn_probe.detect.cli:coverage",
        "Count the lines and branches of the attention kernels and their dispatch that suites execute.",
    ),
    "mutate": (
        "fattn_probe.detect.mutate_cli:mutate",
        "Plant small faults in the attention kernels and their dispatch one by one, and count those a suite notices.",
    ),
    "fuzz": (
        "fattn_probe.fuzz.cli:fuzz",
        "Judge random scenarios, and shrink those that fail to the smallest that shows it.",
    ),
    "diff": (
        "fattn_probe.regress.cli:diff",
        "Compare two llama.cpp versions on the same inputs: kernel, launch, bits, error.",
    ),
    "bisect": (
        "fattn_probe.regress.cli:bisect",
        "Find the first llama.cpp release that fails a case, and how it fails.",
    ),
    "history": (
        "fattn_probe.regress.history_cli:history_app",
        "Results of all regression runs: list, accept, export, report, merge.",
    ),
    "ops": ("fattn_probe.ops.cli:ops", "Run the FLASH_ATTN_EXT cases of upstream's test-backend-ops."),
    "build": (
        "fattn_probe.build.cli:build",
        "Build llama.cpp's CUDA backend, with the kernels that scenarios need; without scenarios, runs add theirs.",
    ),
    "cache": ("fattn_probe.build.cache_cli:cache_app", "The folder of sources, builds and shared objects."),
    "kernel": ("fattn_probe.kernels.cli:kernel_app", "Attention kernels other than llama.cpp's, for compare --kernel."),
    "scenario": ("fattn_probe.scenario.cli:scenario_app", "List, show, check and create scenario files."),
    "suite": ("fattn_probe.shipped.cli:suite_app", "Suites of scenarios, for regress."),
    "patch": ("fattn_probe.shipped.cli:patch_app", "Patches, for --patch."),
    "source": ("fattn_probe.source.cli:source_app", "Fetch and describe llama.cpp trees."),
    "device": ("fattn_probe.device.cli:device_app", "The catalogue of simulated GPUs."),
}
"""By name: the function or group of commands, as `module:attribute`, and its help."""


class LazyCommand(TyperCommand):
    """A command of which only the name and the help are known until it gets its arguments."""

    def __init__(self, name: str, place: str, about: str) -> None:
        super().__init__(name, help=about)
        self.place = place

    @functools.cached_property
    def loaded(self) -> Any:  # noqa: ANN401 - the classes of commands are click's, and typer does not name them
        """The command itself."""
        module, _, attribute = self.place.partition(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            return typer.main.get_group(found)
        single = typer.Typer(add_completion=False)
        single.command(self.name)(found)
        return typer.main.get_command(single)

    def make_context(self, *args: Any, **rest: Any) -> Any:  # noqa: ANN401
        """The context in which click runs the command itself, shows its help, or completes its words."""
        return self.loaded.make_context(*args, **rest)


class Commands(TyperGroup):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        for name, (place, about) in COMMANDS.items():
            self.add_command(LazyCommand(name, place, about))
