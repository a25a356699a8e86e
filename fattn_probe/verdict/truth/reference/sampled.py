"""Check a large case by a sample: sampled rows exactly; other rows must be finite and inside V's convex hull.

K, V and the mask are generated block by block, only where needed: a mask of 1,048,576 x 8,192 alone would take 16 GiB.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, F64, I64, Bools, Floats, Indices
from fattn_probe.base.errors import InputError, NoAnswerError
from fattn_probe.base.workers import blas_threads, spread
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.draw import mask_rows_read, queries_read, some_rows, visible
from fattn_probe.cases.scenario.inputs import GeneratedRows, root_bytes
from fattn_probe.cases.scenario.mask import sees_something
from fattn_probe.verdict.truth.reference.adapter import stored_rows
from fattn_probe.verdict.truth.reference.attention import alibi_slopes
from fattn_probe.verdict.truth.reference.engine import MINUS_INFINITY, GroupMask, RowBlock, attend, slices
from fattn_probe.verdict.truth.reference.shapes import Rows, Shape

Tensors = Mapping[str, Any]
STEP = 2048  # KV rows at a time; with fewer, the threads that generate them wait for each other
MANY = 8  # the largest number of edges of one kind that are sampled
RNG = 77
ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Sample:
    """The exact answers of sampled rows, and bounds for all rows.

    `rows` are (sequence, query, head), sorted like dst's first axes; `reference` is (rows, hsv), `lse` (rows). `low`
    and `high`, (n_seq, n_head, hsv), are the smallest and largest V over the KV rows that any query may see, counting 0
    if there are sinks; infinite in heads that were left out.
    """

    rows: I64
    reference: F64
    lse: F64
    low: F64
    high: F64

    def of(self, dst: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sampled rows of an output (n_seq, n_q, n_head, hsv)."""
        found: npt.NDArray[Any] = dst[tuple(self.rows.T)]
        return found

    def implausible(self, dst: npt.NDArray[np.float32], slack: float | F64 = 0.0, among: I64 | None = None) -> I64:
        """The rows (sequence, query, head) of an output that are not finite, or outside the hull by more than `slack`.

        The slack is absolute: one number, or (n_seq, n_head, hsv). With `among`, only these rows are examined. A fully
        masked row is 0, or NaN if a kernel divides 0 by 0; `fully_masked` says which rows these are.
        """
        low, high = (self.low - slack).astype(np.float32), (self.high + slack).astype(np.float32)
        if among is not None:
            parts = [among[piece] for piece in slices(len(among), ROWS_AT_ONCE)]
            return np.concatenate([part[_outside(dst[tuple(part.T)], low, high, part)] for part in parts])
        wrong = np.empty(dst.shape[:3], bool)
        for seq, query in np.ndindex(dst.shape[:2]):
            row = dst[seq, query]
            wrong[seq, query] = ~((row >= low[seq]) & (row <= high[seq]) & np.isfinite(row)).all(axis=1)
        return np.argwhere(wrong)


def _outside(values: F32, low: F32, high: F32, rows: I64) -> Bools:
    """Whether each of these rows (rows, hsv) is not finite, or outside the hull of its head."""
    at = (rows[:, 0], rows[:, 2])
    return np.asarray(~((values >= low[at]) & (values <= high[at]) & np.isfinite(values)).all(axis=1))


def choose_rows(
    case: Case,
    *,
    seams: Iterable[int] = (),
    rows: Iterable[tuple[int, int, int]] = (),
    random: int = 8,
    tile: int = 256,
) -> I64:
    """The rows (sequence, query, head) to sample, sorted.

    In every head of every sequence: the first and the last query; queries on both sides of each seam (a query where a
    tile begins); queries where the mask's pattern changes; queries whose last visible KV row is next to a multiple of
    `tile`; and `random` further queries, different in each head. `rows` are added, such as those at stream-K seams.
    """
    first, stop = visible(case.recipe.mask, case.mask_shape, np.arange(case.op.sizes.n_q))
    bends = [np.flatnonzero(np.diff(end, 2)) + 1 for end in (first, stop) if case.op.sizes.n_q > 2]
    around = [np.concatenate([bend, bend + 1]) for bend in bends]
    crossing = [np.flatnonzero((stop % tile == rest) & (np.diff(stop, prepend=-1) != 0)) for rest in (0, 1)]
    queries = {0, case.op.sizes.n_q - 1} | {q for seam in seams for q in (seam - 1, seam)}
    queries |= {int(query) for kind in (*around, *crossing) for query in spaced(kind, MANY)}
    always = np.array(sorted(q for q in queries if 0 <= q < case.op.sizes.n_q))
    rng = np.random.default_rng((case.seed, RNG))
    chosen = {tuple(row) for row in rows}
    for seq, head in np.ndindex(case.op.sizes.n_seq, case.op.sizes.n_head):
        here = np.concatenate([always, rng.integers(0, case.op.sizes.n_q, random)])
        chosen |= {(seq, int(query), head) for query in here}
    axes = (case.op.sizes.n_seq, case.op.sizes.n_q, case.op.sizes.n_head)
    outside = [row for row in chosen if not all(0 <= i < n for i, n in zip(row, axes, strict=True))]
    if outside:
        raise InputError(f"case {case.name} of {axes} (sequences, queries, heads) has no row {min(outside)}")
    return np.array(sorted(chosen), np.int64)


def sample(case: Case, rows: I64, operands: Tensors | None = None, *, all_heads: bool = True) -> Sample:
    """The exact answers of these rows (sequence, query, head), and the hull; NoAnswerError if the data are not finite.

    `operands` are stored tensors (from `stored_rows`), or else `generated`. `all_heads`: the hull covers all heads.
    """
    operands, sizes, params = generated(case) if operands is None else operands, case.op.sizes, case.op.params.stored
    Q, K, group = np.asarray(operands["Q"]), operands["K"], sizes.group
    first, stop = visible(case.recipe.mask, case.mask_shape, queries_read(case))
    V = _Hull(operands["V"], int(first.min()), int(stop.max()))
    hull = (sizes.n_seq, sizes.n_head, sizes.hsv)
    answer = Sample(
        rows, np.empty((len(rows), sizes.hsv)), np.empty(len(rows)), np.full(hull, -np.inf), np.full(hull, np.inf)
    )
    sinks = np.asarray(operands["sinks"]).ravel() if "sinks" in operands else None
    chosen, masks = dict[int, I64](), dict[int, Floats]()  # each row of the mask is generated once
    if "mask" in operands:
        sequences = rows[:, 0] % operands["mask"].shape[0]
        chosen = {int(seq): np.unique(rows[sequences == seq, 1]) for seq in np.unique(sequences)}
        masks = {seq: operands["mask"][seq, 0 * queries, queries] for seq, queries in chosen.items()}

    def run(at: tuple[int, ...]) -> None:
        """Compute the sampled rows of the query heads that share one K/V head."""
        seq, kv_head = at
        mine = np.flatnonzero((rows[:, 0] == seq) & (rows[:, 2] // group == kv_head))
        if mine.size:
            (seqs, queries, own), mask = rows[mine].T, None
            if masks:
                plane, slopes = seq % operands["mask"].shape[0], alibi_slopes(sizes.n_head, params.max_bias)[own]
                mask = GroupMask(masks[plane][np.searchsorted(chosen[plane], queries)][:, None], slopes)
            q = Q[seqs, own, queries][:, None] * np.float64(params.factor)
            block = RowBlock.of(q, slice(0, 1), sizes.hsv, mask)
            attend([block], K, V, (seq, kv_head), step=STEP, params=params)
            if sinks is not None:
                block.state.add_sink(sinks[own].astype(np.float64))
            answer.reference[mine], answer.lse[mine] = block.state.mean(), block.state.log_sum_exp()
        V.read_the_rest(seq, kv_head)
        heads, zero = slice(kv_head * group, (kv_head + 1) * group), 0.0 if sinks is not None else np.nan
        answer.low[seq, heads] = np.fmin(V.low[seq, kv_head], zero)
        answer.high[seq, heads] = np.fmax(V.high[seq, kv_head], zero)

    read = {(int(seq), int(head) // group) for seq, _, head in rows}
    heads = list(np.ndindex(sizes.n_seq, sizes.n_head_kv)) if all_heads else sorted(read)
    spread(run, heads)
    at = tuple(np.array(heads).T)
    low, high = (end.reshape(sizes.n_seq, sizes.n_head_kv, -1)[at] for end in (answer.low, answer.high))
    if not (np.isfinite(answer.reference).all() and (low > -np.inf).all() and (high < np.inf).all()):
        raise NoAnswerError(f"case {case.name}: its data hold values that are NaN or infinite")
    return answer


def generated(case: Case) -> dict[str, Any]:
    """A case's tensors, generated row by row where possible; the values are those of `make_inputs`."""

    def stored(name: str) -> Floats:
        return np.asarray(stored_rows(case.op.tensors[name], {name: root_bytes(case, name)}))

    keep = blas_threads() + 1
    lazy: dict[str, Callable[[], Any]] = {name: partial(GeneratedRows, case, name, keep) for name in "KV"}
    lazy |= {"mask": partial(GeneratedMask, case)}
    repeats = {name: case.op.roots[view.root].period is not None for name, view in case.op.tensors.items()}
    return {name: lazy[name]() if name in lazy and not again else stored(name) for name, again in repeats.items()}


class GeneratedMask:
    """An f16 mask whose rows are generated on access by [sequence, heads, queries]; heads share them."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.shape = (case.mask_shape.n_seq, 1, case.op.sizes.n_q, case.op.sizes.n_kv)

    def __getitem__(self, at: tuple[int, Any, I64]) -> npt.NDArray[np.float16]:
        sequence, _, queries = at
        unique, place = np.unique(queries, return_inverse=True)
        mask = self._case.recipe.mask
        rows: npt.NDArray[np.float16] = some_rows(mask, self._case.mask_shape, sequence, unique)[place]
        return rows


def fully_masked(case: Case, rows: I64) -> Bools:
    """Whether each of these rows (sequence, query, head) sees no KV row; generates the mask only if necessary."""
    shape = case.mask_shape
    if not case.op.has_mask:
        return np.zeros(len(rows), np.bool_)
    sequences, queries = mask_rows_read(case, rows[:, 0], rows[:, 1])
    first, stop = visible(case.recipe.mask, shape, queries)
    found: Bools = first >= stop
    if sees_something(case.recipe.mask):
        return found
    places = np.stack([sequences, queries], axis=1)
    for seq, query in np.unique(places[~found], axis=0):
        made = some_rows(case.recipe.mask, shape, int(seq), np.array([query]))
        found[(places == (seq, query)).all(axis=1)] = bool((made.view(np.uint16) == MINUS_INFINITY).all())
    return found


class _Hull:
    """V, and the minimum and maximum of those rows from `first` to `stop` that have been read so far."""

    def __init__(self, V: Rows, first: int, stop: int) -> None:
        self.shape: Shape = V.shape
        self._V, self._first, self._stop = V, first, stop
        self._seen: set[tuple[int, int, int]] = set()
        self.low = np.full((*V.shape[:2], V.shape[3]), np.inf)
        self.high = -self.low

    def __getitem__(self, at: tuple[int, int, slice]) -> Floats:
        seq, head, rows = at
        values: Floats = np.asarray(self._V[at], np.float32)  # NumPy is slow in f16
        self._seen.add((seq, head, rows.start))
        inside = values[max(0, self._first - rows.start) : max(0, self._stop - rows.start)]
        if len(inside):
            np.minimum(self.low[seq, head], inside.min(axis=0), out=self.low[seq, head])
            np.maximum(self.high[seq, head], inside.max(axis=0), out=self.high[seq, head])
        return values

    def read_the_rest(self, seq: int, head: int) -> None:
        """Read the rows that no sampled row sees but another row may see."""
        for rows in slices(self.shape[2], STEP):
            if rows.stop > self._first and rows.start < self._stop and (seq, head, rows.start) not in self._seen:
                self[seq, head, rows]


def spaced(places: Indices, number: int) -> Indices:
    """At most `number` of the places, evenly spaced, including the first and the last."""
    return places[np.unique(np.linspace(0, len(places) - 1, min(number, len(places))).round().astype(np.intp))]
