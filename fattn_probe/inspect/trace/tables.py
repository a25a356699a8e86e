"""The numbers of a traced step as text tables, for the whole warp or one lane."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F64
from fattn_probe.inspect.trace.fragments import Places, WarpFragments
from fattn_probe.inspect.trace.reference import TracedStep, TracedTile
from fattn_probe.tables import Table

CELLS = 8
"""Numbers per line."""


def step_tables(tile: TracedTile, step: TracedStep) -> Iterator[tuple[str, Table]]:
    """KQ and P along KV rows and VKQ along d, each with a title, for each column that exists."""
    rows = [int(row) for row in step.kv_rows]
    yield f"kb0 {step.kb0}: KQ before the mask", _matrix(tile, step.KQ, "KV row", rows)
    yield f"kb0 {step.kb0}: P", _matrix(tile, step.P, "KV row", rows)
    yield f"kb0 {step.kb0}: VKQ after the step", _matrix(tile, step.VKQ, "d", range(step.VKQ.shape[1]))


def _matrix(tile: TracedTile, matrix: F64, along: str, labels: Sequence[int]) -> Table:
    lines = [
        _padded((tile.query[column], tile.head[column], labels[start]), matrix[column, start : start + CELLS])
        for column in np.flatnonzero(tile.exists)
        for start in range(0, len(labels), CELLS)
    ]
    return _numbers(("query", "head", along, *(f"+{cell}" for cell in range(CELLS))), lines)


def _padded(place: Sequence[int], values: F64) -> tuple[str, ...]:
    words = [*map(str, place), *(f"{value:.3g}" for value in values)]
    return (*words, *[""] * (len(place) + CELLS - len(words)))


def lane_tables(fragments: WarpFragments, tile: TracedTile, step: TracedStep, lane: int) -> Iterator[tuple[str, Table]]:
    """The registers of one lane in order, next to their expected values."""
    KQ = fragments.KQ_places(step.KQ.shape[1] // fragments.kv_per_tile * fragments.KQ.ne)
    along = np.searchsorted(np.unique(KQ.along), KQ.along)
    values = (step.KQ, step.exact_KQ, step.P)
    lines = _lines(tile, Places(KQ.column - fragments.first_column, along), lane, values, step.kv_rows)
    yield (
        f"kb0 {step.kb0}, lane {lane}: KQ_C",
        _numbers(("number", "query", "head", "KV row", "KQ", "exact KQ", "P"), lines),
    )
    VKQ = fragments.VKQ_places(step.VKQ.shape[1] // fragments.d_per_tile * 2 * fragments.VKQ.ne)
    values = (step.VKQ_before, step.VKQ, step.exact_VKQ)
    d = np.arange(step.VKQ.shape[1])
    lines = _lines(tile, Places(VKQ.column - fragments.first_column, VKQ.along), lane, values, d)
    yield (
        f"kb0 {step.kb0}, lane {lane}: VKQ_C",
        _numbers(("number", "query", "head", "d", "before", "after", "exact"), lines),
    )


def _lines(
    tile: TracedTile, places: Places, lane: int, values: Sequence[F64], labels: npt.NDArray[np.intp]
) -> list[tuple[str, ...]]:
    """One line per number of the lane; places are indices into the warp's matrices."""
    pairs = zip(places.column[lane], places.along[lane], strict=True)
    return [
        (
            *map(str, (number, tile.query[column], tile.head[column], labels[along])),
            *(f"{matrix[column, along]:.6g}" for matrix in values),
        )
        for number, (column, along) in enumerate(pairs)
    ]


def _numbers(columns: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> Table:
    return Table(columns, tuple(lines), frozenset(columns))
