"""Terminal output of `ops`: a live line during the run, then the failures."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.text import Text

from fattn_probe.base.console import rewrite
from fattn_probe.base.tables import Table
from fattn_probe.daily.ops.parse import OpResult, OpsReport
from fattn_probe.daily.ops.rounds import OnResult
from fattn_probe.llama.build.command import status_line
from fattn_probe.llama.build.ninja import Progress

STYLES = {"ok": "green", "fail": "bold red", "not-supported": "yellow", "lost": "magenta"}


@contextmanager
def live(console: Console) -> Iterator[OnResult]:
    """Keep a line on the terminal with the results so far; yields the callback for `run_ops`.

    Only results update the line, because a build may show its own line before or between them.
    """
    start, done, failed = time.monotonic(), 0, 0

    def show(result: OpResult, total: int) -> None:
        nonlocal done, failed
        done += 1
        failed += result.status == "fail"
        label = f"{failed} failed, {short(result.case)}" if failed else short(result.case)
        if console.is_terminal:
            rewrite(console, status_line(Progress(done, max(total, done), label, time.monotonic() - start)))

    try:
        yield show
    finally:
        if console.is_terminal and done:
            rewrite(console, Text(""))


def short(case: str) -> str:
    """The first parameters of a case, enough to recognise it."""
    return ",".join(case.partition("(")[2].rstrip(")").split(",")[:7]) or case


def render(report: OpsReport) -> Group:
    """Render the counts, each failure with its message, and in perf mode a table of times."""
    parts = ", ".join(f"{count} {status}" for status, count in report.counts.items() if count)
    head = Text(f"{report.description or report.command[0]}: {parts or 'no case'} in {report.seconds:.1f} s")
    failures = [
        Text(f"{result.status}: {result.case}\n  {result.message}", STYLES[result.status]) for result in report.failures
    ]
    stopped = [Text(f"stopped: {report.stopped}", "bold")] if report.stopped else []
    columns = ("case", "us/run", "GFLOP/s", "runs")
    timed = []
    for result in report.results:
        if result.us_per_run is not None:
            speed = "" if result.gflops is None else f"{result.gflops:.2f}"
            timed.append((result.case, f"{result.us_per_run:.2f}", speed, f"{result.runs}"))
    tables = [Table(columns, tuple(timed), frozenset(columns[1:]), frozenset({"case"}))] if timed else []
    return Group(*tables, head, *failures, *stopped)
