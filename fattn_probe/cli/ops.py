"""The command line of `ops`."""

from typing import Annotated

import typer

from fattn_probe.base.console import NOTES, show
from fattn_probe.base.errors import InputError
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.setup import BuildFlags, Where
from fattn_probe.daily.ops.parse import Mode
from fattn_probe.daily.ops.render import live, render
from fattn_probe.daily.ops.rounds import Timeouts, run_ops_on
from fattn_probe.machine.run.session import Session


def ops(
    mode: Annotated[Mode, typer.Argument(help="Upstream's mode: test, perf or support.")] = "test",
    *,
    only: Annotated[
        str, typer.Option("--filter", help="Only cases whose parameters match this regular expression.")
    ] = "",
    where: Annotated[Where, offered(timeout=3600.0)],
    silence: Annotated[
        float, typer.Option(callback=flags.seconds, help="Seconds of silence before a case is lost.")
    ] = 300.0,
    workers: Annotated[
        int,
        typer.Option(min=1, max=flags.MOST_THREADS, help="Parallel workers: upstream's -j, if the source has it."),
    ] = 1,
    build: Annotated[BuildFlags, offered("source", "patch", "check", "folder")],
    as_json: flags.Json = False,
) -> None:
    """Run the FLASH_ATTN_EXT cases of upstream's test-backend-ops."""
    target, *more = setup.targets_of(where)
    if more:
        raise InputError("ops runs on one target at a time")
    session = Session(setup.run_options(build), setup.build_progress(NOTES))
    with live(NOTES) as on_result:
        report = run_ops_on(
            session,
            target,
            mode,
            only=only or None,
            timeouts=Timeouts(silence, where.timeout),
            on_result=on_result,
            workers=workers,
        )
    show(report.as_dict(), lambda: render(report), as_json)
    if problem := report.problem():
        raise problem
