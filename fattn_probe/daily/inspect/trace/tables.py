"""The numbers of a traced step as text tables, for the whole warp or one lane."""

from collections.abc import Iterator, Sequence

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.base.tables import Table
from fattn_probe.daily.inspect.trace.fragments import WarpFragments
from fattn_probe.daily.inspect.trace.reference import TracedStep, TracedTile

CELLS = 8
"""Numbers per line."""


def step_tables(tile: TracedTile, step: TracedStep) -> Iterator[tuple[str, Table]]:
    """KQ and P along KV rows and VKQ along d, each with a title, for each column that exists."""
    rows = [int(row) for row in step.kv_rows]
    yield f"kb0 {step.kb0}: KQ before the mask", _matrix(tile, step.KQ, "KV row", rows)
    yield f"kb0 {step.kb0}: P", _matrix(tile, step.P, "KV row", rows)
    yield f"kb0 {step.kb0}: VKQ after the step", _matrix(tile, step.VKQ, "d", range(step.VKQ.shape[1]))


def _matrix(tile: TracedTile, matrix: F64, along: str, labels: Sequence[int]) -> Table:
    lines = []
    for column in np.flatnonzero(tile.exists):
        for start in range(0, len(labels), CELLS):
            words = [f"{value:.3g}" for value in matrix[column, start : start + CELLS]]
            place = (str(tile.query[column]), str(tile.head[column]), str(labels[start]))
            lines.append((*place, *words, *[""] * (CELLS - len(words))))
    columns = ("query", "head", along, *(f"+{cell}" for cell in range(CELLS)))
    return Table(columns, tuple(lines), frozenset(columns))


def lane_tables(fragments: WarpFragments, tile: TracedTile, step: TracedStep, lane: int) -> Iterator[tuple[str, Table]]:
    """The registers of one lane in order, next to their expected values."""
    KQ = fragments.KQ_places(step.KQ.shape[1] // fragments.kv_per_tile * fragments.KQ.ne)
    VKQ = fragments.VKQ_places(step.VKQ.shape[1] // fragments.d_per_tile * 2 * fragments.VKQ.ne)
    rows, d = np.searchsorted(np.unique(KQ.along), KQ.along), np.arange(step.VKQ.shape[1])
    of_KQ = {"KQ": step.KQ, "exact KQ": step.exact_KQ, "P": step.P}
    of_VKQ = {"before": step.VKQ_before, "after": step.VKQ, "exact": step.exact_VKQ}
    for name, along, column, at, labels, values in (
        ("KQ_C", "KV row", KQ.column, rows, step.kv_rows, of_KQ),
        ("VKQ_C", "d", VKQ.column, VKQ.along, d, of_VKQ),
    ):
        pairs = zip(column[lane] - fragments.first_column, at[lane], strict=True)
        lines = [
            (
                *map(str, (number, tile.query[of_warp], tile.head[of_warp], labels[place])),
                *(f"{matrix[of_warp, place]:.6g}" for matrix in values.values()),
            )
            for number, (of_warp, place) in enumerate(pairs)
        ]
        columns = ("number", "query", "head", along, *values)
        yield f"kb0 {step.kb0}, lane {lane}: {name}", Table(columns, tuple(lines), frozenset(columns))
