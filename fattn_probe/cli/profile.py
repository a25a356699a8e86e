"""The command line of `profile`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import scratch
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.setup import BuildFlags, Simulate, Where
from fattn_probe.lab.profile.command import Profiled, check_targets, device_of, profile_case, profile_program
from fattn_probe.lab.profile.show import document, render, write_roofline
from fattn_probe.lab.program.build import Program
from fattn_probe.lab.program.execute import ProgramSettings
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation

PROGRAMS = (".cu", ".hip")
OF_BUILD = ("source", "patch", "quants")
"""Flags that select llama.cpp's build; they cannot be used with a program."""


def profile(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            help="Shipped scenarios by name, files, or folders of files. Or one CUDA program (.cu, .hip), and its own "
            "arguments after `--`.",
            metavar="SCENARIO|PROGRAM",
            autocompletion=flags.complete_scenario,
        ),
    ],
    *,
    where: Where,
    build: Annotated[BuildFlags, offered(*OF_BUILD)],
    simulate: Annotated[Simulate, offered("threads")],
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the roofline in this .png or .svg file.", dir_okay=False)
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Count a kernel's instructions, bank conflicts, sectors and bytes, with the simulator or Nsight Compute."""
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise InputError(f"--plot {plot}: the file's name must end in .png or .svg")
    if plot is not None:
        setup.require_matplotlib()
    targets = setup.targets_of(where)
    check_targets(targets)
    if is_program(words[0]):
        origins = {flag: context.get_parameter_source(flag) for flag in OF_BUILD}
        # Compare names, not classes: some versions of typer include their own click.
        given = [f"--{flag}" for flag, origin in origins.items() if origin is not None and origin.name != "DEFAULT"]
        if given:
            are = "are" if given[1:] else "is"
            raise InputError(f"{', '.join(given)} {are} for scenarios; {words[0]} is a program")
        settings = ProgramSettings(tuple(words[1:]), where.timeout, keeps_output=as_json)
        done = [profile_program(Program(Path(words[0])), targets, settings, setup.simulation_of(simulate))]
    else:
        programs = [word for word in words if is_program(word)]
        if programs:
            raise InputError(f"{programs[0]} is a program: profile programs one at a time, without scenarios")
        done = profiled_cases(
            [flags.scenario_path(word) for word in words], targets, setup.run_options(build, where, simulate)
        )
    gpus = {str(target): device_of(target) for target in targets}
    if plot is not None:
        write_roofline(done, gpus, plot)
    show(document(done, gpus), lambda: render(done, gpus), as_json)


def is_program(word: str) -> bool:
    """Whether a word names a CUDA or HIP program."""
    return Path(word).suffix in PROGRAMS


def profiled_cases(paths: Sequence[Path], targets: list[Target], options: RunOptions) -> list[Profiled]:
    """Profile each case of the scenarios on each target."""
    cases = cases_of(paths)
    with scratch() as folder, Activity(NOTES, len(cases) * len(targets)) as activity:

        def session(options: RunOptions, engine: str) -> Session:
            work = [(case, [target for target in targets if target.engine == engine]) for case in cases]
            return setup.prepared_session(options, work, activity)

        counting = replace(options.simulation, counts=folder / "counts")
        simulated = session(replace(options, flavour="count", simulation=counting), "sim")
        measured = session(replace(options, simulation=Simulation()), "cuda")
        activity.step("counting")
        return [profile_case(simulated, measured, case, targets) for case in cases]
