"""The trace of an algorithm, step by step, and its result."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F64
from fattn_probe.lab.study.memory import SlowMemory
from fattn_probe.lab.study.problem import exp_below


@dataclass(frozen=True, eq=False)
class RowState:
    """The running softmax of a tile's rows after a step: `maximum` m and sum `total` l; `before` is m before it."""

    before: F64
    maximum: F64
    total: F64

    @property
    def rescale(self) -> F64:
        """e^(m_before - m): the factor on the earlier sums; 0 where there were none."""
        return exp_below(self.before, self.maximum)

    @property
    def rescaled(self) -> npt.NDArray[np.bool_]:
        """Rows with earlier sums whose maximum rose: only these are really rescaled."""
        return np.isfinite(self.before) & (self.maximum > self.before)


@dataclass(frozen=True, eq=False)
class StudyStep:
    """One step on some queries and KV rows, and the slow-memory elements that it read and wrote.

    `what` is "tile" (a tile of scores joins the running softmax), "combine" (a part joins it), or the name of a step
    that does not change the softmax. `worker` is the split or the CUDA block. `rows` are the queries, of `heads` when
    several are computed at once. `visible` is False if the mask hides all of them.
    """

    what: str
    rows: slice
    kv: slice
    state: RowState | None
    reads: int
    writes: int
    worker: int
    heads: slice
    visible: bool


@dataclass(frozen=True, eq=False)
class StudyResult:
    """Output, log-sum-exp and trace; `reads` and `writes` count elements by array.

    `out` (n_q, hsv) and `lse` (n_q) of one head; a fully masked row has 0 and -inf.
    """

    out: F64
    lse: F64
    trace: tuple[StudyStep, ...]
    reads: Mapping[str, int]
    writes: Mapping[str, int]

    @property
    def reads_total(self) -> int:
        """Elements read from all arrays."""
        return sum(self.reads.values())

    @property
    def writes_total(self) -> int:
        """Elements written, to all arrays."""
        return sum(self.writes.values())


class Trace:
    """Collects the steps; each gets the traffic since the previous one."""

    def __init__(self, hbm: SlowMemory) -> None:
        self.steps: list[StudyStep] = []
        self.heads = slice(0, 1)
        self._hbm = hbm
        self._seen = (0, 0)

    def step(
        self,
        what: str,
        rows: slice,
        kv: slice,
        state: tuple[F64, F64, F64] | None = None,
        *,
        worker: int = 0,
        visible: bool = True,
    ) -> None:
        """Record a finished step; `state` is m before it, m, and l."""
        now = self._hbm.reads.total(), self._hbm.writes.total()
        reads, writes = (new - old for new, old in zip(now, self._seen, strict=True))
        rows_state = None if state is None else RowState(*(array.copy() for array in state))
        self.steps.append(StudyStep(what, rows, kv, rows_state, reads, writes, worker, self.heads, visible))
        self._seen = now

    def result(self) -> StudyResult:
        """O and L from slow memory, with the trace."""
        hbm = self._hbm
        return StudyResult(hbm.array("O"), hbm.array("L"), tuple(self.steps), dict(hbm.reads), dict(hbm.writes))
