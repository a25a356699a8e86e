"""The inputs of the algorithms: one head with its K/V head, or a whole op."""

# ruff: noqa: E741  (O and l are the papers' names)

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F64
from fattn_probe.cases.op import Params, Sizes
from fattn_probe.cases.op.values import logits_of
from fattn_probe.verdict.truth.reference.attention import alibi_slopes
from fattn_probe.verdict.truth.reference.shapes import check_shapes

Index = int | slice


class SlowMemory:
    """Named arrays, with counts of the elements read and written.

    An algorithm reads its inputs only with `load` and writes its results only with `store`; intermediate values are
    on chip and not counted. `reads` and `writes` count elements, not bytes, by array name.
    """

    def __init__(self, **arrays: F64) -> None:
        self._arrays: dict[str, F64] = arrays
        self._at: Mapping[str, tuple[Index, ...]] = {}
        self.reads: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def allocate(self, name: str, *shape: int) -> None:
        """A new array filled with NaN, so that a read before the first write gives NaN."""
        self._arrays[name] = np.full(shape, np.nan)

    def at(self, **indices: tuple[Index, ...]) -> "SlowMemory":
        """A view that shares memory and counts, with a leading index for the named arrays: one head's K."""
        part = SlowMemory()
        part._arrays, part._at, part.reads, part.writes = self._arrays, indices, self.reads, self.writes
        return part

    def load(self, name: str, *index: Index) -> F64:
        """Load a part of an array: a copy on chip."""
        found = self._arrays[name][(*self._at.get(name, ()), *index)]
        self.reads[name] += found.size
        return found.copy()

    def store(self, name: str, value: F64, *index: Index) -> None:
        """Store a part of an array."""
        place = self._arrays[name][(*self._at.get(name, ()), *index)]
        place[...] = value
        self.writes[name] += place.size

    def array(self, name: str) -> F64:
        """The whole array, for the caller of the algorithm; the access is not counted."""
        return self._arrays[name]


NO_SINK = -np.inf


@dataclass(frozen=True)
class MaskRule:
    """How q.k becomes a logit, the same for all algorithms: scale, softcap, mask with ALiBi's slope, sink.

    `slope` and `sink` are numbers, or arrays (heads, 1, 1) and (heads, 1) when several heads are computed at once.
    """

    params: Params
    slope: F64 | float = 1.0
    sink: F64 | float = NO_SINK

    def logits(self, Q_i: F64, K_j: F64, mask_ij: F64 | None) -> F64:
        """S of a tile: Q_i (..., queries, hsk), K_j (kv, hsk), mask (..., queries, kv); S (..., queries, kv)."""
        return self.of_products(Q_i @ K_j.T, mask_ij)

    def of_products(self, product: F64, mask_ij: F64 | None) -> F64:
        """S of a tile whose products Q_i K_j^T are given."""
        return logits_of(product, self.params, None if mask_ij is None else self.slope * mask_ij)

    def start(self, Q_i: F64, hsv: int, *, with_sink: bool = True) -> tuple[F64, F64, F64]:
        """Initial O, l and m: 0, 0 and -inf; with a sink 0, 1 and the sink's logit.

        A sink is a logit whose V row is 0: it enters the maximum and the sum l, and adds nothing to O.
        """
        rows = Q_i.shape[:-1]
        m = np.broadcast_to(self.sink if with_sink else NO_SINK, rows).astype(np.float64)
        return np.zeros((*rows, hsv)), np.where(np.isneginf(m), 0.0, 1.0), m


@dataclass(frozen=True)
class StudyHead:
    """One head of one sequence: Q (n_q, hsk), K (n_kv, hsk), V (n_kv, hsv), mask (n_q, n_kv) or None."""

    Q: F64
    K: F64
    V: F64
    mask: F64 | None
    rule: MaskRule

    @property
    def n_q(self) -> int:
        """Queries."""
        return len(self.Q)

    @property
    def n_kv(self) -> int:
        """KV rows."""
        return len(self.K)

    @property
    def hsk(self) -> int:
        """Head size of Q and K, the papers' d."""
        return int(self.Q.shape[1])

    @property
    def hsv(self) -> int:
        """Head size of V and O, also d in the papers."""
        return int(self.V.shape[1])

    def slow_memory(self) -> SlowMemory:
        """Slow memory with Q, K, V and the mask, and space for O and L."""
        hbm = SlowMemory(Q=self.Q, K=self.K, V=self.V, **({} if self.mask is None else {"mask": self.mask}))
        hbm.allocate("O", self.n_q, self.hsv)
        hbm.allocate("L", self.n_q)
        return hbm


@dataclass(frozen=True)
class OpArrays:
    """A whole FLASH_ATTN_EXT op, with arrays as `truth.reference.attention.attention` takes them, in float64."""

    Q: F64
    K: F64
    V: F64
    mask: F64 | None
    params: Params
    sinks: F64 | None = None

    @property
    def shape(self) -> Sizes:
        """The sizes; InputError if they are inconsistent."""
        return check_shapes(self.Q, self.K, self.V, self.mask, self.sinks)

    def rule(self, heads: slice) -> MaskRule:
        """The rule for several heads at once."""
        slopes = alibi_slopes(self.Q.shape[1], self.params.max_bias)[heads]
        sinks = NO_SINK if self.sinks is None else self.sinks[heads, None].astype(np.float64)
        return MaskRule(self.params, slopes[:, None, None], sinks)

    def head(self, sequence: int, head: int) -> StudyHead:
        """One head with its K/V head (h // group) and its mask."""
        kv = head // self.shape.group
        mask = self.mask
        if mask is not None:
            mask = mask[sequence % mask.shape[0], head % mask.shape[1], : self.shape.n_q]
        slope = float(alibi_slopes(self.Q.shape[1], self.params.max_bias)[head])
        rule = MaskRule(self.params, slope, NO_SINK if self.sinks is None else float(self.sinks[head]))
        return StudyHead(self.Q[sequence, head], self.K[sequence, kv], self.V[sequence, kv], mask, rule)


def tiles(length: int, size: int, start: int = 0) -> Iterator[slice]:
    """`range(start, length)` in tiles of `size`; the last may be smaller."""
    return (slice(first, min(first + size, length)) for first in range(start, length, size))


def count(length: int, size: int) -> int:
    """The number of tiles: T_r, T_c."""
    return -(-length // size)


def exp_below(x: F64, m: F64) -> F64:
    """e^(x - m) for x <= m, and 0 where x is -inf, even if m is also -inf (no unmasked KV row yet)."""
    return np.exp(x - np.where(np.isneginf(m), 0.0, m))


def rows_divided(O: F64, l: F64) -> F64:
    """diag(l)^-1 O, and 0 for a fully masked row."""
    return O / np.where(l == 0.0, 1.0, l)[..., None]


def log_sum_exp(m: F64, l: F64) -> F64:
    """L = m + log l, and -inf for a fully masked row."""
    with np.errstate(divide="ignore"):
        return m + np.log(l)


@dataclass(frozen=True, eq=False)
class RowState:
    """The running softmax of a tile's rows after a step: `maximum` m and sum `total` l; `before` is m before it."""

    before: F64
    maximum: F64
    total: F64

    @property
    def rescale(self) -> F64:
        """e^(m_before - m): the factor for the earlier sums; 0 for rows without earlier sums."""
        return exp_below(self.before, self.maximum)

    @property
    def rescaled(self) -> npt.NDArray[np.bool_]:
        """Marks the rows with earlier sums whose maximum rose: only these are really rescaled."""
        return np.isfinite(self.before) & (self.maximum > self.before)


@dataclass(frozen=True, eq=False)
class StudyStep:
    """One step on some queries and KV rows, and the slow-memory elements that it read and wrote.

    `what` is "tile" (a tile of scores joins the running softmax), "combine" (a part joins it), or the name of a step
    that does not change the softmax. `worker` is the split or the CUDA block. `rows` are the queries, `heads` the heads
    that are computed at once. `visible` is False if the mask hides all of these elements.
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
        """Record a finished step; `state` is m before the step, m after it, and l."""
        now = self._hbm.reads.total(), self._hbm.writes.total()
        reads, writes = (new - old for new, old in zip(now, self._seen, strict=True))
        rows_state = None if state is None else RowState(*(array.copy() for array in state))
        self.steps.append(StudyStep(what, rows, kv, rows_state, reads, writes, worker, self.heads, visible))
        self._seen = now

    def result(self) -> StudyResult:
        """O and L from slow memory, with the trace."""
        hbm = self._hbm
        return StudyResult(hbm.array("O"), hbm.array("L"), tuple(self.steps), dict(hbm.reads), dict(hbm.writes))


JOINS = ("tile", "combine")


@dataclass(frozen=True)
class StepRow:
    """A step; queries and KV rows are [first, last + 1). `maximum`, `total`, `rescale` belong to the tile's last query.

    `again` is the number of rows with earlier sums, `rose` the number of those whose maximum rose: only these are
    really rescaled. All are None if the step does not change the softmax. `rescale` is None without earlier sums.
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


def rows_of(trace: Sequence[StudyStep], head: int) -> tuple[StepRow, ...]:
    """The steps of one head; use head 0 for a trace of a single head."""
    found = []
    for number, step in enumerate(trace, 1):
        state = step.state
        if state is not None and state.maximum.ndim > 1:  # the rows of several heads
            place = head - step.heads.start
            state = RowState(state.before[place], state.maximum[place], state.total[place])
        row = StepRow(
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
        found.append(row)
    return tuple(found)


def summary_of(trace: Sequence[StudyStep]) -> dict[str, int]:
    """The totals of a trace: `tiles`, those `hidden` by the mask, `rows`, and those whose maximum `rose`.

    A row counts at each visit, except before its first unmasked KV row.
    """
    tiles = [step for step in trace if step.what == "tile"]
    states = [step.state for step in trace if step.state is not None]
    seen = sum(int(np.isfinite(state.before).sum()) for state in states)
    rose = sum(int(state.rescaled.sum()) for state in states)
    return {"tiles": len(tiles), "hidden": sum(not step.visible for step in tiles), "rows": seen, "rose": rose}
