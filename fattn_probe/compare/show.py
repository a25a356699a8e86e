"""Verdict rows for people (rich) and for programs (JSON)."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fattn_probe.compare.command import Difference, Row, count
from fattn_probe.compare.metrics import Coordinate, Metrics, Tolerance
from fattn_probe.compare.verdict import Status

STYLES = {
    Status.PASS: "green",
    Status.FAIL: "bold red",
    Status.CHANGED: "yellow",
    Status.UNSUPPORTED: "dim",
    Status.LOST: "magenta",
}
COLUMNS = ("case", "on", "kernel", "NMSE\nallowed", "max abs error\nat seq, query, head, d", "verdict")


def render(rows: Sequence[Row]) -> RenderableType:
    """A table of the rows, then a paragraph for each that did not pass, then the count."""
    table = Table(*COLUMNS, box=SIMPLE_HEAD, leading=1)
    for row in rows:
        table.add_row(*_cells(row))
    explained = [_explanation(row) for row in rows if row.verdict.status is not Status.PASS]
    return Group(table, *explained, _counted(rows))


def render_difference(difference: Difference) -> RenderableType:
    """Two captures side by side, in a sentence; their kernels too where they differ."""
    status = Text(difference.status.value, STYLES[difference.status])
    head = Text.assemble(f"{difference.a} and {difference.b}: ", status, f", {difference.reason}")
    if difference.kernels_a == difference.kernels_b:
        return head
    kernels = [f"  {name}: {', '.join(spellings) or 'no kernel launched'}" for name, spellings in _kernels(difference)]
    return Group(head, *(Text(line) for line in kernels))


def rows_as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON document: `counts` (by status) and `rows`.

    A row has case, on, status, reason, tolerance (nmse, max_abs), kernel, kernels, upstream (null or passes, nmse,
    reason) and metrics (null or elements, nmse, max_abs, worst, mean_error, bias, nan, inf, unwritten, first_bad);
    worst and first_bad are null or sequence, query, head, d. A number that is not finite is null.
    """
    counts = {status.value: number for status, number in count(rows).items()}
    return {"counts": counts, "rows": [_row_as_json(row) for row in rows]}


def difference_as_json(difference: Difference) -> dict[str, Any]:
    """The JSON document of two captures.

    Keys a, b, status, reason, kernels_a, kernels_b, elements, equal_bits, share, nmse, max_abs, worst.
    """
    names = {"a": difference.a, "b": difference.b, "status": difference.status.value, "reason": difference.reason}
    kernels = {"kernels_a": list(difference.kernels_a), "kernels_b": list(difference.kernels_b)}
    likeness = {**asdict(difference.likeness), "share": difference.likeness.share}
    return names | kernels | _plain(likeness)


def _cells(row: Row) -> list[Text]:
    """A row's words; a kernel breaks before its template arguments, so that the table fits 100 columns."""
    status = row.verdict.status
    kernel = row.kernel.replace("<", "\n<", 1) or ("-" if row.verdict.metrics is None else "no attention kernel")
    words = [row.case, row.on, kernel, *_numbers(row.verdict.metrics, row.tolerance)]
    return [*(Text(word) for word in words), Text(status.value, STYLES[status])]


def _numbers(metrics: Metrics | None, tolerance: Tolerance) -> tuple[str, str]:
    """NMSE, and the largest error and its place, as the table shows them."""
    if metrics is None:
        return ("-", "-")
    largest, place = f"{metrics.max_abs:.2e}", metrics.worst
    if not metrics.all_finite:
        largest, place = f"{metrics.nan + metrics.inf + metrics.unwritten} not finite", metrics.first_bad
    return (f"{metrics.nmse:.2e}\n{tolerance.nmse:.0e}", f"{largest}\n{_short(place)}")


def _short(place: Coordinate | None) -> str:
    return "-" if place is None else f"{place.sequence}, {place.query}, {place.head}, {place.d}"


def _explanation(row: Row) -> Text:
    """Why a row did not pass, and whether upstream's test would have."""
    status = row.verdict.status
    text = Text.assemble((status.value, STYLES[status]), f" {row.case} on {row.on}: {row.verdict.reason}")
    if status is Status.FAIL and row.upstream is not None:
        ending = "passes" if row.upstream.passes else "fails too"
        text.append(f"; by upstream's bound it {ending} ({row.upstream.reason})")
    return text


def _counted(rows: Sequence[Row]) -> Text:
    parts = [f"{number} {status.value}" for status, number in count(rows).items() if number]
    return Text(", ".join(parts) or "nothing to compare", style="bold")


def _kernels(difference: Difference) -> list[tuple[str, tuple[str, ...]]]:
    return [(difference.a, difference.kernels_a), (difference.b, difference.kernels_b)]


def _row_as_json(row: Row) -> dict[str, Any]:
    verdict = row.verdict
    return {
        "case": row.case,
        "on": row.on,
        "status": verdict.status.value,
        "reason": verdict.reason,
        "tolerance": {"nmse": row.tolerance.nmse, "max_abs": row.tolerance.max_abs},
        "kernel": row.kernel,
        "kernels": list(row.kernels),
        "upstream": None if row.upstream is None else _plain(asdict(row.upstream)),
        "metrics": None if verdict.metrics is None else _plain(asdict(verdict.metrics)),
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """The same with null for numbers JSON has no word for."""
    odd = [key for key, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
    return values | dict.fromkeys(odd)
