"""The expected error of an op, from its inputs and its launches."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, F64, I64, Bools, Floats, Indices, above
from fattn_probe.cases.op import Op
from fattn_probe.llama.launch.tiles import Tile
from fattn_probe.verdict.truth.error_model.block import Block, RowErrors, RowLogits
from fattn_probe.verdict.truth.error_model.kernel import Kernel, Pieces, pieces_of, steps_of
from fattn_probe.verdict.truth.error_model.operands import QK8_1, KVMoments, QRows, parts_of
from fattn_probe.verdict.truth.error_model.prediction import Heads, Prediction, largest_unsampled_loss, why
from fattn_probe.verdict.truth.error_model.rounding import HALF, OwnError, own_error, tanh_error
from fattn_probe.verdict.truth.reference.attention import alibi_slopes
from fattn_probe.verdict.truth.reference.sampled import spaced

Tensors = Mapping[str, Any]

BLOCK = 1 << 20
"""Logits processed at once."""
MOST = 1 << 21
"""The default limit on the number of evaluated logits, which take well under a second."""
MOST_VALUES = 1 << 27
"""The limit on the number of evaluated values of V."""
NO_ROWS = np.array([], np.intp)
"""An empty index: it keeps only the moments per head and channel, without the large arrays per KV row."""
LARGE_LOGIT = 1024
"""The largest |logit| for which float32 products are accurate enough."""
LARGEST = 1e15
"""The largest |K| or |V| that a row with a prediction may see, because squared errors are float32."""


def predict(op: Op, tensors: Tensors, kernel: Kernel, *, most: int = MOST) -> Prediction:
    """The expected error of a correct kernel on an op; `kernel_of` describes llama.cpp's kernels.

    `tensors` are the operands' values by name (Q, K, V, mask, sinks), their `ne` reversed, as `stored_rows` gives them.
    K and V are read one head at a time, the mask only for sampled queries. One float32 pass evaluates about `most`
    logits: if a case has more, evenly spaced queries represent their neighbours. If K and V have more than
    `MOST_VALUES` values, evenly spaced heads also represent their neighbours. Memory: O(n_kv), one block of logits, and
    arrays per row. Rows that see values above LARGEST have no prediction: NaN.
    """
    number = op.sizes.n_head_kv
    if op.params.max_bias <= 0 and not op.has_sinks:  # otherwise heads differ
        number = max(1, MOST_VALUES // (op.sizes.n_kv * op.sizes.hsv * op.sizes.n_seq))
    kv_heads = spaced(np.arange(op.sizes.n_head_kv), number)
    number = max(2, most // (op.sizes.n_kv * len(kv_heads) * op.sizes.group * op.sizes.n_seq))
    queries = spaced(np.arange(op.sizes.n_q), number)
    found = np.full((len(fields(RowErrors)), op.sizes.n_seq, len(queries), op.sizes.n_head), np.nan)
    shifts = np.full((*found.shape[1:], op.sizes.hsv), np.nan)
    heads: dict[tuple[int, int], KVMoments] = {}
    for job in _jobs(op, tensors, kernel, list(product(range(op.sizes.n_seq), kv_heads.tolist()))):
        heads[job.seq, job.kv_head] = job.kv.some(NO_ROWS)
        for some, rows, shift in job.evaluated(product(range(op.sizes.group), queries.tolist())):
            at = (job.seq, np.searchsorted(queries, [q for _, q in some]), [job.first + h for h, _ in some])
            shifts[at], found[:, *at] = shift, list(vars(rows).values())
    near, group = kv_heads[_nearest(kv_heads, op.sizes.n_head_kv)], op.sizes.group
    from_head = (near[:, None] * group + np.arange(group)).ravel()
    everywhere = RowErrors(*found[:, :, _nearest(queries, op.sizes.n_q)][..., from_head])
    shape = (op.sizes.n_seq, 1, op.sizes.n_head)
    moments = [heads[pair] for pair in product(range(op.sizes.n_seq), np.repeat(near, group).tolist())]
    heads_seen = np.isin(np.arange(op.sizes.n_head) // group, kv_heads)
    sampled = np.isin(np.arange(op.sizes.n_q), queries)[:, None] & heads_seen
    shifts = np.where(sampled[..., None], shifts[:, _nearest(queries, op.sizes.n_q)], np.nan)
    return _prediction(op, kernel, _moments(moments, shape), everywhere, sampled, shift=shifts)


def predict_rows(op: Op, tensors: Tensors, kernel: Kernel, rows: I64, *, most: int = MOST) -> Prediction:
    """The expected error for some rows (sequence, query, head), as if they were the queries of one head.

    Evenly spaced rows from a limited number of heads are evaluated, and represent the other rows.
    """
    pair = np.unique(rows[:, 0] * op.sizes.n_head_kv + rows[:, 2] // op.sizes.group, return_inverse=True)[1]
    number = int(pair.max()) + 1
    if op.params.max_bias <= 0 and not op.has_sinks:  # otherwise heads differ
        number = min(number, max(1, MOST_VALUES // (op.sizes.n_kv * op.sizes.hsv)))
    of_pairs = np.isin(pair, spaced(np.arange(int(pair.max()) + 1), number))
    chosen = spaced(np.flatnonzero(of_pairs), max(2, number, most // op.sizes.n_kv))
    found, shifts = np.full((len(fields(RowErrors)), len(chosen)), np.nan), np.full((len(rows), op.sizes.hsv), np.nan)
    moments: list[Any] = [None] * len(chosen)
    group, places = op.sizes.group, {tuple(rows[index].tolist()): place for place, index in enumerate(chosen)}
    pairs = sorted({(seq, head // group) for seq, _, head in places})
    for job in _jobs(op, tensors, kernel, pairs):
        here = [
            (head - job.first, query) for seq, query, head in places if (seq, head // group) == (job.seq, job.kv_head)
        ]
        moment = job.kv.some(NO_ROWS)
        for some, values, shift in job.evaluated(here):
            at = [places[job.seq, query, job.first + within] for within, query in some]
            shifts[chosen[at]], found[:, at] = shift, list(vars(values).values())
            for place in at:
                moments[place] = moment
    near = _nearest(chosen, len(rows))
    everywhere = RowErrors(*found[:, None, near, None])
    sampled = np.isin(np.arange(len(rows)), chosen)[None, :, None]
    heads = _moments([moments[place] for place in near], (1, len(rows), 1))
    return _prediction(op, kernel, heads, everywhere, sampled, shift=shifts[None, :, None])


def _jobs(op: Op, tensors: Tensors, kernel: Kernel, pairs: Iterable[tuple[int, int]]) -> "Iterator[_Head]":
    """The rows of each (sequence, K/V head), one after the other."""
    for seq, kv_head in pairs:
        parts = parts_of(op.sizes.n_kv)  # for a tensor whose rows are decoded when read
        k, v = (np.concatenate([tensors[name][seq, kv_head, part] for part in parts]) for name in "KV")
        k, v = without_hidden_large_values(k, v, tensors.get("mask"), seq)
        large = rows_beyond(LARGEST, k, v)
        k, v = _without_rows(k, large), _without_rows(v, large)
        kv = KVMoments.of(k, v, kernel, (op.type_K, op.type_V), V_is_K_view=op.V_is_K_view)
        own = own_error(v, kv.channel_mean) if kernel.accumulator is HALF and kernel.split.group == 1 else None
        yield _Head(op, tensors, kernel, kv, v, seq, kv_head, large, own)


def without_hidden_large_values(k: Floats, v: Floats, mask: object, seq: int) -> tuple[Floats, Floats]:
    """K (n_kv, hsk) and V (n_kv, hsv) with zeros in rows that no query sees and that have values beyond f16's range.

    A kernel that converts K or V turns such values into infinity. If the mask hides a row from every query, this is
    harmless as long as the kernel skips the row, and the row does not affect the error of any other.
    """
    if not isinstance(mask, np.ndarray):
        return k, v
    beyond = rows_beyond(HALF.largest, k, v)
    hidden = beyond[np.isneginf(mask[seq % len(mask)][..., beyond]).all(axis=(0, 1))]
    return _without_rows(k, hidden), _without_rows(v, hidden)


def rows_beyond(largest: float, *arrays: Floats) -> Indices:
    """The KV rows in which any array (n_kv, ...) has NaN or a magnitude above `largest`."""
    return np.flatnonzero(np.any([_beyond(values, largest) for values in arrays], axis=0))


def _beyond(values: Floats, largest: float) -> Bools:
    """Whether each row (n_kv, ...) has NaN or a magnitude above `largest`.

    NumPy compares f16 numbers slowly, one by one. As integers without sign bits, numbers are ordered by magnitude, with
    NaN on top: one fast pass shows that an ordinary array has no such row.
    """
    shifted = (np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}") << 1).max(initial=0)
    if float((shifted >> 1).view(values.dtype)) <= largest:
        return np.zeros(len(values), np.bool_)
    return above(np.abs(values).max(axis=1).astype(np.float64), largest)


def _without_rows(values: Floats, rows: Indices) -> Floats:
    """The values with zeros in some rows; the same array if no row is to be zeroed."""
    if not len(rows):
        return values
    values = values.copy()
    values[rows] = 0
    return values


def _nearest(places: Indices, length: int) -> Indices:
    """The index of the nearest place, for each of 0..length."""
    return np.searchsorted((places[1:] + places[:-1]) / 2, np.arange(length))


@dataclass(frozen=True)
class _Head:
    """The rows of one K/V head of one sequence; a row is (head within the group, query).

    `large` are the KV rows with values above LARGEST: a row that sees one has no prediction.
    """

    op: Op
    tensors: Tensors
    kernel: Kernel
    kv: KVMoments
    v: Floats
    seq: int
    kv_head: int
    large: Indices
    own_error: OwnError | None

    @property
    def first(self) -> int:
        """The first query head of this K/V head."""
        return self.kv_head * self.op.sizes.group

    def evaluated(self, rows: Iterable[tuple[int, int]]) -> Iterator[tuple[list[tuple[int, int]], RowErrors, F64]]:
        """The expected errors of rows and their `shift`, in groups whose KV rows the kernel divides in the same way."""
        alike: dict[tuple[Pieces, int | None], list[tuple[int, int]]] = {}
        tiles: dict[Tile, Pieces] = {}
        geometry, whole = self.kernel.geometry, range(-(-self.op.sizes.n_kv // self.kernel.split.rows))
        for within, query in rows:
            if geometry is None:
                alike.setdefault(((whole,), None), []).append((within, query))
                continue
            tile = geometry.tile_of(self.seq, query, self.first + within)
            if tile not in tiles:
                tiles[tile] = pieces_of(geometry, tile)
            alike.setdefault((tiles[tile], tile[3] if self.kernel.sparse else None), []).append((within, query))
        most = max(1, BLOCK // self.op.sizes.n_kv)
        for (pieces, _), group in alike.items():
            for some in (group[start : start + most] for start in range(0, len(group), most)):
                yield some, *self._of_alike(some, pieces)

    @np.errstate(over="ignore", under="ignore", invalid="ignore")
    def _of_alike(self, rows: list[tuple[int, int]], pieces: Pieces) -> tuple[RowErrors, F64]:
        """The expected errors of one group of rows; non-finite values mean no prediction."""
        within, query = (np.array(part) for part in zip(*rows, strict=True))
        heads, op = self.first + within, self.op
        scale = np.float32(op.params.scale)
        factor = float(scale / np.float32(op.params.logit_softcap) if op.params.logit_softcap else scale)
        q = QRows.of(self.tensors["Q"][self.seq, heads, query], factor, self.kernel)
        logits, kv, v = self._logits(q, heads, query), self.kv, self.v
        unknown = ~np.isneginf(logits.values[:, self.large]).all(axis=1)
        if self.kernel.sparse:
            seen = np.flatnonzero(~np.isneginf(logits.values).all(axis=0))
            logits = logits.some(seen)
            kv, v = kv.some(seen), v[seen]
        absent = -(-logits.values.shape[1] // self.kernel.split.rows)
        steps = np.minimum(steps_of(pieces, absent), absent)
        sinks = self.tensors.get("sinks")
        sink = None if sinks is None else np.asarray(sinks, np.float64).ravel()[heads]
        block = Block(self.kernel, steps, logits, q, kv, sink, self.own_error)
        found, times = block.rows(), 1.0  # how often a K/V row repeats, if the head's memory repeats
        for view in (op.tensors[name] for name in "KV"):
            root = op.roots[view.root]
            if root.period is not None:
                rows_in = root.period // root.nb[1]
                times = max(times, op.sizes.n_kv / (rows_in // math.gcd(view.nb[1] // root.nb[1], rows_in)))
        # identical rows have identical errors, which add up
        noise = ("logits", "weights", "guess", "sums", "values", "walk", "common", "rest")
        found = replace(found, **{name: times * getattr(found, name) for name in noise})
        known = RowErrors(*(np.where(unknown, np.nan, getattr(found, field.name)) for field in fields(RowErrors)))
        return known, block.shift(v)

    def _logits(self, q: QRows, heads: npt.NDArray[np.intp], query: npt.NDArray[np.intp]) -> RowLogits:
        exact, off = _products(q.exact, self.kv.k), None
        raw = exact.astype(np.float32, copy=False)
        if self.kernel.q != "f32" or self.kernel.converts_K:
            off = (_products(q.kernel, self.kv.kernel_k) - exact).astype(np.float32, copy=False)
            if self.kv.offset_K is not None:
                blocks_off = (q.kernel - q.exact).reshape(len(q.exact), -1, QK8_1).sum(axis=2)
                off += blocks_off @ self.kv.offset_K.T
        values, slope, cap = raw, None, np.float32(self.op.params.logit_softcap)
        if cap:
            tanh = np.tanh(raw)
            values, slope = cap * tanh, cap * (1 - tanh**2)
            off = None if off is None else slope * off
            if self.kernel.fast_math:
                off = cap * tanh_error(raw) + (0 if off is None else off)
        if "mask" in self.tensors:
            mask = self.tensors["mask"]
            planes = mask[self.seq % mask.shape[0], heads % mask.shape[1], query].astype(np.float32)
            factors = alibi_slopes(self.op.sizes.n_head, self.op.params.max_bias)[heads].astype(np.float32)
            values = values + planes * factors[:, None]
        return RowLogits(values, raw, off, slope)


def _products(q: F32, k: F32) -> Floats:
    """Q times K: in float32, or in float64 if logits are so large that float32 would be as inexact as the kernel."""
    logits = q @ k.T
    return q.astype(np.float64) @ k.T.astype(np.float64) if np.abs(logits).max(initial=0) > LARGE_LOGIT else logits


def _moments(heads: Sequence[KVMoments], shape: tuple[int, ...]) -> Heads:
    """The moments of V for an output of this `shape`, from those of its K/V heads."""

    def array(values: list[Any]) -> F64:
        found = np.array(values, np.float64)
        return found.reshape(*shape, *found.shape[1:])

    return Heads(
        mean=array([kv.mean_V for kv in heads]),
        mean_square=array([kv.mean_square_V for kv in heads]),
        mean_error=array([kv.mean_error_V for kv in heads]),
        size=array([np.sqrt(kv.channel_square / (kv.channel_square.mean() or 1.0)) for kv in heads]),
        mean_V=array([kv.channel_mean for kv in heads]),
        largest=array([kv.channel_largest for kv in heads]),
    )


def _prediction(
    op: Op, kernel: Kernel, moments: Heads, rows: RowErrors, sampled: npt.NDArray[np.bool_], *, shift: F64
) -> Prediction:
    """Assemble the prediction from the rows, arrays (n_seq, n_q, n_head), and the moments per head."""
    largest = moments.largest.max(axis=3)
    number = kernel.accumulator
    sums_overflow = rows.largest + kernel.largest_weight * largest > number.largest
    overflows = sums_overflow | (kernel.converts_V & (largest > HALF.largest))
    seen = np.broadcast_to(sampled, rows.loss.shape)
    explain = partial(why, op, kernel, rows)
    loss, zero_below = largest_unsampled_loss(rows), -math.log(max(2.0**-25, kernel.least_factor)) - kernel.max_offset
    return Prediction(rows, moments, number.half_ulp, seen, overflows, loss, explain, kernel.assumed, zero_below, shift)
