"""The command line of `ops`."""

from typing import Annotated

import typer

from fattn_probe import flags, setup
from fattn_probe.console import NOTES, show
from fattn_probe.errors import InputError
from fattn_probe.ops import Timeouts, live, render
from fattn_probe.ops.options import Mode
from fattn_probe.ops.session import run_ops_on
from fattn_probe.run.session import Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.source import DEFAULT_SOURCE


def ops(
    mode: Annotated[Mode, typer.Argument(help="Upstream's mode: test, perf or support.")] = "test",
    only: Annotated[
        str, typer.Option("--filter", help="Only cases whose parameters match this regular expression.")
    ] = "",
    on: flags.On = "",
    silence: Annotated[
        float, typer.Option(callback=flags.seconds, help="Seconds of silence before a case is lost.")
    ] = 300.0,
    workers: Annotated[
        int, typer.Option(min=1, max=flags.MOST_THREADS, help="Parallel workers: upstream's -j, if the source has it.")
    ] = 1,
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    check: flags.Check = False,
    folder: flags.BuildFolder = None,
    timeout: flags.Timeout = 3600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Run the FLASH_ATTN_EXT cases of upstream's test-backend-ops."""
    target, *more = setup.targets_of(on, devices, NOTES)
    if more:
        raise InputError("ops runs on one target at a time")
    options = setup.BuildFlags(source, patch, check=check, folder=folder).run_options(NOTES, Simulation())
    session = Session(options, setup.build_progress(NOTES))
    with live(NOTES) as on_result:
        report = run_ops_on(
            session,
            target,
            mode,
            only=only or None,
            timeouts=Timeouts(silence, timeout),
            on_result=on_result,
            workers=workers,
        )
    show(report.as_dict(), lambda: render(report), as_json)
    if problem := report.problem():
        raise problem
