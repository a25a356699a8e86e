"""The command line of `run` and `plan`."""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.cases import MOST_REPEATS
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.setup import BuildFlags, Simulate, Where
from fattn_probe.machine.run import command as running
from fattn_probe.machine.run.simulator import Simulation


def run(
    paths: flags.Scenarios,
    *,
    where: Where,
    build: BuildFlags,
    simulate: Simulate,
    captures: Annotated[
        Path | None,
        typer.Option("--captures", file_okay=False, help="Write a GGUF capture of each run to this folder."),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, max=MOST_REPEATS, help="Number of timed runs; the median is shown.")
    ] = 1,
    as_json: flags.Json = False,
) -> None:
    """Run scenarios, and list the kernels that ran."""
    work = setup.work_of(cases_of(paths), where)
    options = setup.run_options(build, where, simulate, repeat=repeat)
    with Activity(NOTES, setup.number_of(work)) as activity:
        session = setup.prepared_session(options, work, activity)
        activity.step("running")
        done = list(activity.each(running.run_cases(session, work, captures), attrgetter("status")))
    show(running.run_json(done), lambda: running.render_run(done), as_json)
    running.raise_if_failed(done)


def plan(
    paths: flags.Scenarios,
    where: Annotated[Where, offered("on", "devices")],
    build: Annotated[BuildFlags, offered("source", "patch", "quants")],
    as_json: flags.Json = False,
) -> None:
    """Show the kernels that GPUs in the catalogue would launch, without running them."""
    work = setup.work_of(cases_of(paths), where, simulated=True)
    running.check_simulated(work)
    options = replace(setup.run_options(build), simulation=Simulation(dry=True))
    with Activity(NOTES, setup.number_of(work)) as activity:
        session = setup.prepared_session(options, work, activity)
        activity.step("reading the launches")
        done = list(activity.each(running.plan_cases(session, work), attrgetter("status")))
    show(running.run_json(done), lambda: running.render_plan(done), as_json)
    running.raise_if_failed(done)
