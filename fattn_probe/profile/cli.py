"""The command line of `profile`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags, setup
from fattn_probe.activity import Activity
from fattn_probe.console import NOTES, show
from fattn_probe.device import Target, every_device, parse_targets
from fattn_probe.errors import InputError
from fattn_probe.profile.command import Profiled, check_targets, device_of, profile_case, profile_program
from fattn_probe.profile.document import document
from fattn_probe.profile.show import render
from fattn_probe.program.execute import Settings
from fattn_probe.program.source import Program
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario.files import cases_of
from fattn_probe.scratch import scratch
from fattn_probe.source import DEFAULT_SOURCE

PROGRAMS = (".cu", ".hip")
BUILD_FLAGS = ("source", "patch", "quants")


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
    on: flags.On = "",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the roofline into a file, .png or .svg.", dir_okay=False)
    ] = None,
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    quants: flags.Quants = "",
    threads: flags.Threads = None,
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Count what kernels do: instructions, bank conflicts, sectors, bytes; by the simulator, or by Nsight Compute."""
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise InputError(f"--plot {plot}: the file's name must end in .png or .svg")
    if plot is not None:
        setup.require_matplotlib()
    targets = list(parse_targets(on or setup.chooser(NOTES)(), every_device(devices)))
    check_targets(targets)
    simulation = Simulation(threads=threads)
    if is_program(words[0]):
        check_flags(context, words[0])
        settings = Settings(tuple(words[1:]), timeout, keeps_output=as_json)
        done = [profile_program(Program(Path(words[0])), targets, settings, simulation)]
    else:
        chosen = setup.BuildFlags(source, patch, quants=quants)
        done = profiled_cases(scenario_paths(words), chosen, targets, simulation, timeout)
    gpus = {str(target): device_of(target) for target in targets}
    if plot is not None:
        from fattn_probe.profile.plot import write_roofline  # matplotlib, only if a picture is wanted

        write_roofline(done, gpus, plot)
    show(document(done, gpus), lambda: render(done, gpus), as_json)


def is_program(word: str) -> bool:
    """Whether a word names a CUDA or HIP program."""
    return Path(word).suffix in PROGRAMS


def check_flags(context: typer.Context, program: str) -> None:
    """InputError for flags that select llama.cpp's build, since a program has none."""
    given = [f"--{flag}" for flag in BUILD_FLAGS if is_given(context, flag)]
    if given:
        raise InputError(f"{', '.join(given)} {'are' if given[1:] else 'is'} for scenarios; {program} is a program")


def is_given(context: typer.Context, flag: str) -> bool:
    """Whether the user gave a flag."""
    source = context.get_parameter_source(flag)
    return source is not None and source.name != "DEFAULT"  # by name: some versions of typer have a click of their own


def scenario_paths(words: Sequence[str]) -> list[Path]:
    """The scenario files or folders that words name; InputError for a program among them."""
    programs = [word for word in words if is_program(word)]
    if programs:
        raise InputError(f"{programs[0]} is a program: profile programs one at a time, without scenarios")
    return [flags.scenario_path(word) for word in words]


def profiled_cases(
    paths: Sequence[Path], chosen: setup.BuildFlags, targets: list[Target], simulation: Simulation, timeout: float
) -> list[Profiled]:
    """Each case of the scenarios on each target."""
    cases = cases_of(paths)
    with scratch() as folder, Activity(NOTES, len(cases) * len(targets)) as activity:

        def session(options: RunOptions, engine: str) -> Session:
            work = [(case, [target for target in targets if target.engine == engine]) for case in cases]
            return setup.prepared_session(options, work, activity)

        counting = replace(simulation, counts=folder / "counts")
        options = chosen.run_options(NOTES, counting, timeout=timeout)
        simulated = session(replace(options, flavour="count"), "sim")
        measured = session(replace(options, simulation=Simulation()), "cuda")
        activity.step("counting")
        return [profile_case(simulated, measured, case, targets) for case in cases]
