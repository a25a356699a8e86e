"""The command line of `profile`."""

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


def profile(
    subject: Annotated[
        str,
        typer.Argument(
            help="A shipped scenario by name, a file, or a CUDA program (.cu, .hip).",
            metavar="SCENARIO|PROGRAM",
            autocompletion=flags.complete_scenario,
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The program's own arguments, after `--`.", metavar="-- ARGS")
    ] = None,
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
    targets = list(parse_targets(on or setup.chooser(NOTES)(), every_device(devices)))
    check_targets(targets)
    if Path(subject).suffix in PROGRAMS:
        settings = Settings(tuple(arguments or ()), timeout, keeps_output=True)
        done = [profile_program(Program(Path(subject)), targets, settings)]
    else:
        chosen = setup.BuildFlags(source, patch, quants=quants)
        done = profiled_cases(flags.scenario_path(subject), chosen, targets, Simulation(threads=threads), timeout)
    gpus = {str(target): device_of(target) for target in targets}
    if plot is not None:
        from fattn_probe.profile.plot import write_roofline  # matplotlib, only if a picture is wanted

        write_roofline(done, gpus, plot)
    show(document(done, gpus), lambda: render(done, gpus), as_json)


def profiled_cases(
    path: Path, chosen: setup.BuildFlags, targets: list[Target], simulation: Simulation, timeout: float
) -> list[Profiled]:
    """Each case of a scenario on each target."""
    cases = cases_of([path])
    with scratch() as folder, Activity(NOTES, len(cases) * len(targets)) as activity:

        def session(options: RunOptions, engine: str) -> Session:
            work = [(case, [target for target in targets if target.engine == engine]) for case in cases]
            return setup.prepared_session(options, work, activity)

        counting = Simulation(threads=simulation.threads, counts=folder / "counts")
        options = chosen.run_options(NOTES, counting, timeout=timeout)
        simulated = session(replace(options, flavour="count"), "sim")
        measured = session(replace(options, simulation=Simulation()), "cuda")
        activity.step("counting")
        return [profile_case(simulated, measured, case, targets) for case in cases]
