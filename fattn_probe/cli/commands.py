"""The table of commands; the module of a command is imported when the command is used."""

import functools
import inspect
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from fattn_probe.base.console import show
from fattn_probe.base.errors import InputError
from fattn_probe.cli.expand import with_flags

COMMANDS = {
    "demo": (
        "demo:demo",
        "Run a scenario on a simulated H200, judge its output, and inspect the kernel with gdb.",
    ),
    "doctor": ("doctor:doctor", "Check what works on this machine, and show how to install what is missing."),
    "run": ("run:run", "Run scenarios, and list the kernels that ran."),
    "plan": ("run:plan", "Show the kernels that GPUs of the catalogue would launch, without running them."),
    "inspect": (
        "inspect:inspect",
        "Run an op under gdb or cuda-gdb, and show tensors, the choice of the kernel, tiling and each block's work.",
    ),
    "debug": (
        "inspect:debug",
        "Open gdb or cuda-gdb at the first line of a case's kernel; adds `fattn tensors|launch|blocks|tile`.",
    ),
    "capture": ("capture:capture", "Run a prompt through a model, and record its attention ops as case files."),
    "compare": (
        "compare:compare",
        "Judge the output of scenarios by an exact float64 reference and the error model, or compare two captures.",
    ),
    "ops": ("ops:ops", "Run the FLASH_ATTN_EXT cases of upstream's test-backend-ops."),
    "triage": (
        "triage:triage",
        "Run a prompt through a model, and name the first op that is wrong: attention, a different op, or none.",
    ),
    "reproduce": (
        "reproduce:reproduce",
        "Write a reproduction without fattn-probe: a line for upstream's test, a patch to it, or a C++ file.",
    ),
    "regress": ("regress:regress", "Run a suite, and report what changed since the last accepted run."),
    "history": ("history:history_app", "Results of all regression runs: list, accept, export, report, merge."),
    "hook": ("hook:hook_app", "A git hook that judges changed attention kernels before a push: install, run."),
    "suite": ("shipped:suite_app", "Suites of scenarios, for regress."),
    "diff": (
        "regress:diff",
        "Compare an old and a new llama.cpp on the same inputs: kernel, launch, bits, error.",
    ),
    "bisect": ("regress:bisect", "Find the first llama.cpp release that fails a case, and show how it fails."),
    "build": (
        "build:build",
        "Build llama.cpp's CUDA backend, with the kernels that scenarios need; without scenarios, runs add theirs.",
    ),
    "source": ("source:source_app", "Fetch and describe llama.cpp trees."),
    "patch": ("shipped:patch_app", "Patches, for --patch."),
    "scenario": ("scenario:scenario_app", "List, show, check and create scenario files."),
    "device": ("device:device_app", "The catalogue of simulated GPUs."),
    "cache": ("cache:cache_app", "The folder of sources, builds and shared objects."),
    "study": (
        "study:study",
        "Trace an attention algorithm through one head, tile by tile, and compare all algorithms on it.",
    ),
    "profile": (
        "profile:profile",
        "Count what kernels do: instructions, bank conflicts, sectors, bytes; by the simulator, or by Nsight Compute.",
    ),
    "program": (
        "program:program",
        "Compile and run your own CUDA or HIP program on a simulated or a real GPU.",
    ),
    "kernel": ("kernel:kernel_app", "Other attention kernels, for compare --kernel."),
    "coverage": (
        "coverage:coverage",
        "Count the lines and branches of the attention kernels and their dispatch that suites execute.",
    ),
    "mutate": (
        "mutate:mutate",
        "Plant small faults in the attention kernels and their dispatch, and count those that a suite detects.",
    ),
    "fuzz": (
        "fuzz:fuzz",
        "Judge random scenarios, and shrink failing ones to the smallest that still fails.",
    ),
}
"""For each name, the function or group of commands, as `module:attribute` of `cli`, and its help."""
GROUPS = {
    "Look": ["demo", "doctor", "run", "plan", "inspect", "debug", "capture"],
    "Check": ["compare", "ops", "triage", "reproduce"],
    "Nightly": ["regress", "history", "hook", "suite", "diff", "bisect"],
    "Build": ["build", "source", "patch", "scenario", "device", "cache"],
    "Learn and measure": ["study", "profile", "program", "kernel", "coverage", "mutate", "fuzz"],
}
"""The groups of commands in `--help`."""


def wants_json(words: Sequence[str]) -> bool:
    """Whether these words of a command line ask for JSON; words after `--` belong to the program."""
    return "--json" in words[: words.index("--") if "--" in words else None]


def show_help(ctx: typer.Context, option: object, wanted: bool) -> None:
    """Print a command's help, with --json as a document, and exit."""
    if wanted and not ctx.resilient_parsing:
        text = ctx.get_help()
        show({"help": text}, lambda: Text(text, overflow="fold"), wants_json(sys.argv[1:]))
        raise typer.Exit


def with_our_help(option: Any) -> Any:  # noqa: ANN401 - the classes of options are click's
    """The option `--help`, whose output goes to the same place as all results."""
    if option is not None:
        option.callback = show_help
    return option


class Single(TyperCommand):
    """A command, with its flags grouped by the objects that they make (`options.py`)."""

    def parse_args(self, ctx: Any, args: Any) -> Any:  # noqa: ANN401
        """Read the words; InputError for an empty path, which Python reads as the current folder."""
        words = "\0".join(("", *args, ""))
        rest = super().parse_args(ctx, args)
        for param in self.get_params(ctx):
            names = [""] if param.param_type_name == "argument" else [f"\0{name}" for name in param.opts]
            given, empty = ctx.params.get(param.name), any(f"{name}{sep}\0" in words for name in names for sep in "\0=")
            if empty and Path() in (given if isinstance(given, list) else [given]):
                raise InputError(
                    f"{ctx.command_path}: {param.opts[0]} is empty: name a path (`.` is the current folder)"
                )
        return rest

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401
        """The option `--help`."""
        return with_our_help(super().get_help_option(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """List arguments, the command's own options, and shared options, each under its heading."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            own = "Arguments" if param.param_type_name == "argument" else "Options"
            heading = getattr(param, "rich_help_panel", None) or own
            if (record := param.get_help_record(ctx)) is not None:
                sections.setdefault(heading, []).append(record)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class Group(TyperGroup):
    """A command with subcommands."""

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401
        """The option `--help`."""
        return with_our_help(super().get_help_option(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """List the commands with their full help, of which click shows only the beginning."""
        rows = [(name, inspect.cleandoc(command.help or "")) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LazyCommand(Single):
    """A command that is imported when it gets its arguments; until then, it has only a name and help."""

    def __init__(self, name: str, place: str, about: str) -> None:
        super().__init__(name, help=about)
        self.place = place

    @functools.cached_property
    def loaded(self) -> Any:  # noqa: ANN401 - the classes of commands are click's, and typer does not name them
        """The command itself."""
        module, _, attribute = self.place.partition(":")
        found = getattr(import_module(f"fattn_probe.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            found.info.cls, found.rich_markup_mode = Group, None
            for command in found.registered_commands:
                command.cls, command.callback = Single, command.callback and with_flags(command.callback)
            return typer.main.get_group(found)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(self.name, cls=Single)(with_flags(found))
        return typer.main.get_command(single)

    def make_context(self, *args: Any, **rest: Any) -> Any:  # noqa: ANN401
        """The context in which click runs the command itself, shows its help, or completes its words."""
        return self.loaded.make_context(*args, **rest)


class Commands(Group):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        for name, (place, about) in COMMANDS.items():
            self.add_command(LazyCommand(name, place, about))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """List the commands in their groups."""
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in group])
