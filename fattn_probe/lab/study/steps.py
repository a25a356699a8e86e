"""A trace as plain records: each step, with the softmax state of one query."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fattn_probe.lab.study.trace import RowState, StudyStep

JOINS = ("tile", "combine")


@dataclass(frozen=True)
class StepRow:
    """A step; queries and KV rows are [first, last + 1). `maximum`, `total`, `rescale` are of the tile's last query.

    `again` rows had earlier sums; the maximum of `rose` of them rose, and only these are really rescaled. All are None
    if the step does not change the softmax; `rescale` is also None if there was nothing to rescale.
    """

    step: int
    what: str
    worker: int
    queries: tuple[int, int]
    kv: tuple[int, int]
    maximum: float | None
    total: float | None
    rescale: float | None
    rose: int | None
    again: int | None
    reads: int
    writes: int
    visible: bool


@dataclass(frozen=True)
class Summary:
    """Totals of a trace: tiles, tiles hidden by the mask, and how often rescaling mattered."""

    tiles: int
    hidden: int
    rows: int
    rose: int


def rows_of(trace: Sequence[StudyStep], head: int) -> tuple[StepRow, ...]:
    """The steps of one head; use head 0 for a trace of a single head."""
    return tuple(_row(number, step, head) for number, step in enumerate(trace, 1))


def summary_of(trace: Sequence[StudyStep]) -> Summary:
    """The totals; a row counts at each visit, except before its first unmasked KV row."""
    tiles = [step for step in trace if step.what == "tile"]
    states = [step.state for step in trace if step.state is not None]
    seen = sum(int(np.isfinite(state.before).sum()) for state in states)
    rose = sum(int(state.rescaled.sum()) for state in states)
    return Summary(len(tiles), sum(not step.visible for step in tiles), seen, rose)


def _row(number: int, step: StudyStep, head: int) -> StepRow:
    state = step.state and _of_head(step.state, head - step.heads.start)
    return StepRow(
        step=number,
        what=step.what,
        worker=step.worker,
        queries=(step.rows.start, step.rows.stop),
        kv=(step.kv.start, step.kv.stop),
        maximum=None if state is None else float(state.maximum[-1]),
        total=None if state is None else float(state.total[-1]),
        rescale=None if state is None or np.isneginf(state.before[-1]) else float(state.rescale[-1]),
        rose=None if state is None else int(state.rescaled.sum()),
        again=None if state is None else int(np.isfinite(state.before).sum()),
        reads=step.reads,
        writes=step.writes,
        visible=step.visible,
    )


def _of_head(state: RowState, head: int) -> RowState:
    """The rows of one head of a tile."""
    if state.maximum.ndim == 1:
        return state
    return RowState(state.before[head], state.maximum[head], state.total[head])
