"""The command line of `run` and `plan`."""

from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags, setup
from fattn_probe.activity import Activity
from fattn_probe.console import NOTES, show
from fattn_probe.run import command as running
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario.files import cases_of
from fattn_probe.source import DEFAULT_SOURCE


def run(
    paths: flags.Scenarios,
    on: flags.On = "",
    captures: Annotated[
        Path | None,
        typer.Option("--captures", file_okay=False, help="Write a GGUF capture of each run to this folder."),
    ] = None,
    repeat: flags.Repeat = 1,
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    debug: flags.Debug = False,
    check: flags.Check = False,
    sanitize: flags.Sanitize = "",
    quants: flags.Quants = "",
    folder: flags.BuildFolder = None,
    schedule: flags.Schedule = 0,
    threads: flags.Threads = None,
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Run scenarios, and list the kernels that ran."""
    chosen = setup.BuildFlags(source, patch, debug, check, sanitize, quants, folder)
    work = setup.work_of(cases_of(paths), on, devices, NOTES)
    options = chosen.run_options(
        NOTES, Simulation(schedule, threads), repeat=repeat, warmup=int(repeat > 1), timeout=timeout
    )
    with Activity(NOTES, setup.number_of(work)) as activity:
        session = setup.prepared_session(options, work, activity)
        activity.step("running")
        done = list(activity.each(running.run_cases(session, work, captures), attrgetter("status")))
    show(running.run_json(done), lambda: running.render_run(done), as_json)
    running.raise_if_failed(done)


def plan(
    paths: flags.Scenarios,
    on: flags.On = "",
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    quants: flags.Quants = "",
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Show the kernels that GPUs of the catalogue would launch, without running them."""
    work = setup.work_of(cases_of(paths), on, devices, NOTES, simulated=True)
    running.check_simulated(work)
    options = setup.BuildFlags(source, patch, quants=quants).run_options(NOTES, Simulation(dry=True))
    with Activity(NOTES, setup.number_of(work)) as activity:
        session = setup.prepared_session(options, work, activity)
        activity.step("reading the launches")
        done = list(activity.each(running.plan_cases(session, work), attrgetter("status")))
    show(running.run_json(done), lambda: running.render_plan(done), as_json)
    running.raise_if_failed(done)
