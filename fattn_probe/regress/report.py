"""One page of a history: what the last runs gave, what changed, and how each case went through the nights."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from markupsafe import Markup

from fattn_probe.inspect.view.page import environment
from fattn_probe.inspect.view.tables import WordTable
from fattn_probe.regress.history import History
from fattn_probe.regress.judge import Change, Kind, changes
from fattn_probe.regress.records import Result, Run

NIGHTS = 60
WHY = {
    Kind.NEW_FAILURE: "the output is wrong now",
    Kind.SUPPORT_LOST: "the op falls back to the CPU now",
    Kind.SLOWER: "the same work takes longer",
    Kind.KERNEL: "other code computes this op; its rounding and its speed may differ",
    Kind.LAUNCH: "the work is divided otherwise",
    Kind.BITS: "the result is right, and not the same: caches and golden files notice",
    Kind.LOST: "nothing can be said",
    Kind.NOT_RUN: "nothing can be said",
}
MARKS = {"pass": "p", "fail": "f", "unsupported": "u", "lost": "l"}


@dataclass(frozen=True)
class Night:
    """One case in one run."""

    run: Run
    result: Result


def report(history: History, suite: str = "") -> str:
    """The page; of one suite if it is named."""
    last = {(run.identity.line, run.suite): run for run in history.runs(suite=suite)}
    sections = [_section(history, run) for run in last.values()]
    names = sorted({run.suite for run in last.values()})
    words = {"title": f"flash attention: {', '.join(names) or 'no runs yet'}", "sections": sections}
    return environment("fattn_probe.regress").get_template("report.html.j2").render(words)


def _section(history: History, run: Run) -> dict[str, Any]:
    results = history.results(run)
    baseline = history.baseline(run.identity.line, run.suite)
    found = changes(history.results(baseline), results) if baseline else ()
    nights = nights_of(history, run)
    return {
        "id": f"run-{run.uid[:8]}",
        "title": f"{run.identity.device}, {run.suite}",
        "run": _about(run),
        "baseline": f"{baseline.started[:16]}, {baseline.identity.source}" if baseline else "",
        "counts": dict(Counter(result.status for result in results.values())),
        "alarms": sum(change.alarm for change in found),
        "changes": change_table(found),
        "failures": [(result.name, result.reason) for result in results.values() if result.status == "fail"],
        "unjudged": [(result.name, result.reason) for result in results.values() if result.status == "lost"],
        "cases": [_case(result, nights.get(result.name, ())) for result in results.values()],
        "kernels": kernel_table(list(results.values())),
    }


def _about(run: Run) -> dict[str, str]:
    identity = run.identity
    about = {"source": identity.source, "build_number": identity.build_number, "patches": identity.patches}
    about |= {"started": run.started[:16], "driver": identity.driver, "machine": identity.machine}
    return {name: value for name, value in about.items() if value}


def nights_of(history: History, last: Run) -> dict[str, list[Night]]:
    """Each case through the last runs of a line and suite, the oldest first."""
    runs = history.runs(last.identity.line, last.suite)[-NIGHTS:]
    nights: dict[str, list[Night]] = {}
    for run in runs:
        for name, result in history.results(run).items():
            nights.setdefault(name, []).append(Night(run, result))
    return nights


def change_table(found: Sequence[Change]) -> WordTable:
    """What changed, alarms first, with why it matters."""
    ordered = sorted(found, key=lambda change: not change.alarm)
    rows = ((change.case, change.kind.value, change.words, WHY.get(change.kind, "")) for change in ordered)
    return WordTable(("case", "change", "", "why it matters"), tuple(rows))


def kernel_table(results: Sequence[Result]) -> WordTable:
    """Which template instances anything has exercised, and how often."""
    counted = Counter(record.spelling for result in results for record in result.kernels)
    rows = tuple((kernel, str(count)) for kernel, count in sorted(counted.items()))
    return WordTable(("kernel", "cases"), rows, frozenset({"cases"}))


def _case(result: Result, nights: Sequence[Night]) -> dict[str, Any]:
    kernel = result.kernels[0].spelling if result.kernels else ""
    nmse = result.metrics.get("nmse")
    times = [statistics.median(night.result.seconds) if night.result.seconds else None for night in nights]
    return {
        "name": result.name,
        "status": result.status,
        "kernel": kernel,
        "nmse": "" if nmse is None else f"{nmse:.2e}",
        "strip": Markup(strip(nights)),
        "errors": Markup(spark([_log(night.result.metrics.get("nmse")) for night in nights], least=1.0)),
        "times": Markup(spark(times, least=0.1 * max((time for time in times if time), default=0))),
    }


def _log(value: float | None) -> float | None:
    return math.log10(value) if value else None


def strip(nights: Sequence[Night]) -> str:
    """A square a night: its verdict by colour and letter, a bar in front of it where the bits changed."""
    return f'<svg class="strip" width="{9 * len(nights) + 1}" height="14" role="img">{"".join(_squares(nights))}</svg>'


def _squares(nights: Sequence[Night]) -> Iterator[str]:
    before = None
    for place, night in enumerate(nights):
        result = night.result
        changed = before is not None and result.output not in (None, before)
        said = f"{night.run.started[:10]} {night.run.identity.source}: {result.status}{', other bits' * changed}"
        mark = MARKS.get(result.status, "l")
        box = f'x="{9 * place + 1}" y="2" width="8" height="11"'
        yield f'<rect class="{mark}" {box}><title>{escape(said)}</title></rect>'
        if changed:
            yield f'<rect class="bits" x="{9 * place - 0.5}" y="0" width="2" height="14"/>'
        before = result.output or before


def spark(values: Sequence[float | None], least: float, width: float = 120, height: float = 22) -> str:
    """A line through the nights' values, nothing where there are fewer than two.

    Its height stands for at least `least`, so that noise looks like noise.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    spread = max(max(known) - min(known), least)
    low = (max(known) + min(known) - spread) / 2
    across = (width - 4) / max(len(values) - 1, 1)
    points = [
        f"{2 + place * across:.1f},{height - 3 - (value - low) / spread * (height - 6):.1f}"
        for place, value in enumerate(values)
        if value is not None
    ]
    return f'<svg class="spark" width="{width}" height="{height}"><polyline points="{" ".join(points)}"/></svg>'
