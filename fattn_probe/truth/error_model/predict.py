"""The expected error of an op, from its inputs and its launches."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F64, Floats, Indices
from fattn_probe.launch.constants import SHIPPED, Constants
from fattn_probe.launch.geometry import Geometry, geometry
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.launch.tiles import Tile
from fattn_probe.op import Op
from fattn_probe.truth.error_model.block import Block, Logits, Rows
from fattn_probe.truth.error_model.hyperbolic import tanh_error
from fattn_probe.truth.error_model.kernel import Kernel, kernel_of, pieces_of, steps_of
from fattn_probe.truth.error_model.operands import KVMoments, QRows, parts_of
from fattn_probe.truth.error_model.prediction import Heads, Prediction, largest_unsampled_loss
from fattn_probe.truth.error_model.rounding import HALF
from fattn_probe.truth.error_model.words import why
from fattn_probe.truth.reference.attention import alibi_slopes

Tensors = Mapping[str, Any]

BLOCK = 1 << 20
"""Logits that are processed at once."""
MOST = 1 << 21
"""Logits that are evaluated in all, by default: well below a second."""
MOST_VALUES = 1 << 27
"""Values of V that are evaluated in all."""


def predict(
    op: Op,
    tensors: Tensors,
    launches: Iterable[LaunchRecord],
    arch: int,
    *,
    constants: Constants = SHIPPED,
    most: int = MOST,
    among: Indices | None = None,
) -> Prediction | None:
    """The expected error of a correct kernel on an op; None if the launches hold no known attention kernel.

    `tensors` are the operands' values by name (Q, K, V, mask, sinks), their `ne` reversed, as `stored_rows` gives them.
    K and V are read one head at a time, the mask by sampled queries, which are chosen from `among` (default: all).
    `arch` is nvcc's number of the GPU's architecture: 61 Pascal, 70 Volta, 75 Turing, 80 to 89 Ampere and Ada, 90
    Hopper, 100 and 120 Blackwell; `constants` are those of the source. One float32 pass evaluates about `most` logits:
    if a case has more, evenly spaced queries stand for their neighbours. If K and V have more than `MOST_VALUES`
    values, evenly spaced heads do. Memory: O(n_kv), one block of logits, and arrays by row.
    """
    kernel = kernel_of(op, launches, arch, constants)
    if kernel is None:
        return None
    cut = geometry(op, kernel.launched)
    queries = _sample(op, most, np.arange(op.sizes.n_q) if among is None else among)
    kv_heads = _heads(op)
    found = np.zeros((len(fields(Rows)), op.sizes.n_seq, len(queries), op.sizes.n_head))
    heads: dict[tuple[int, int], KVMoments] = {}
    for seq, kv_head in product(range(op.sizes.n_seq), kv_heads.tolist()):
        k, v = (_head(tensors[name], seq, kv_head, op.sizes.n_kv) for name in "KV")
        kv = KVMoments.of(k, v, kernel, (op.type_K, op.type_V), V_is_K_view=op.V_is_K_view)
        heads[seq, kv_head] = kv.without_rows()
        job = _Head(op, tensors, kernel, cut, kv, seq, kv_head)
        for alike in job.groups(queries):
            for some in _split(alike, max(1, BLOCK // op.sizes.n_kv)):
                rows = job.rows(some)
                at = (seq, np.searchsorted(queries, [q for _, q in some]), [job.first + h for h, _ in some])
                for array, field in zip(found, fields(Rows), strict=True):
                    array[at] = getattr(rows, field.name)
    near, group = kv_heads[_nearest(kv_heads, op.sizes.n_head_kv)], op.sizes.group
    from_head = (near[:, None] * group + np.arange(group)).ravel()
    everywhere = Rows(*found[:, :, _nearest(queries, op.sizes.n_q)][..., from_head])
    moments = [heads[at] for at in product(range(op.sizes.n_seq), near.tolist())]
    heads_seen = np.isin(np.arange(op.sizes.n_head) // group, kv_heads)
    sampled = np.isin(np.arange(op.sizes.n_q), queries)[:, None] & heads_seen
    return _prediction(op, kernel, moments, everywhere, sampled)


def _sample(op: Op, most: int, among: Indices) -> Indices:
    """The sampled queries: all, or as many as `most` allows, always with the first and the last."""
    number = max(2, most // (op.sizes.n_kv * len(_heads(op)) * op.sizes.group * op.sizes.n_seq))
    return among[np.unique(np.linspace(0, len(among) - 1, min(number, len(among))).round().astype(np.intp))]


def _heads(op: Op) -> Indices:
    """The sampled K/V heads; all of them if ALiBi or sinks make heads differ."""
    values = op.sizes.n_kv * op.sizes.hsv * op.sizes.n_seq
    number = op.sizes.n_head_kv if op.params.max_bias > 0 or op.has_sinks else max(1, MOST_VALUES // values)
    return np.unique(np.linspace(0, op.sizes.n_head_kv - 1, min(number, op.sizes.n_head_kv)).round().astype(np.intp))


def _head(tensor: Any, seq: int, kv_head: int, n_kv: int) -> Floats:  # noqa: ANN401 (an array, or what makes its rows)
    """The rows of one head; a lazy tensor's rows are made in slices."""
    if isinstance(tensor, np.ndarray):
        return np.asarray(tensor[seq, kv_head])
    return np.concatenate([tensor[seq, kv_head, slice(p.start, min(p.stop, n_kv))] for p in parts_of(n_kv)])


def _nearest(places: Indices, length: int) -> Indices:
    """The index of the nearest place, for each of 0..length."""
    return np.searchsorted((places[1:] + places[:-1]) / 2, np.arange(length))


@dataclass(frozen=True)
class _Head:
    """The rows of one K/V head of one sequence; a row is (head within the group, query)."""

    op: Op
    tensors: Tensors
    kernel: Kernel
    cut: Geometry
    kv: KVMoments
    seq: int
    kv_head: int

    @property
    def first(self) -> int:
        """Its first head of Q."""
        return self.kv_head * self.op.sizes.group

    def groups(self, queries: npt.NDArray[np.intp]) -> Iterator[list[tuple[int, int]]]:
        """The rows, grouped by how the kernel divides their KV rows."""
        alike: dict[object, list[tuple[int, int]]] = {}
        tiles: dict[Tile, object] = {}
        for within in range(self.op.sizes.group):
            for query in queries.tolist():
                tile = self.cut.tile_of(self.seq, query, self.first + within)
                if tile not in tiles:
                    tiles[tile] = pieces_of(self.cut, tile)
                key = (tiles[tile], tile[3]) if self.kernel.launched.sparse else tiles[tile]
                alike.setdefault(key, []).append((within, query))
        yield from alike.values()

    def rows(self, rows: list[tuple[int, int]]) -> Rows:
        """The expected errors of one such group."""
        within, query = (np.array(part) for part in zip(*rows, strict=True))
        heads, op = self.first + within, self.op
        scale = np.float32(op.params.scale)
        factor = float(scale / np.float32(op.params.logit_softcap) if op.params.logit_softcap else scale)
        q = QRows.of(self.tensors["Q"][self.seq, heads, query], factor, self.kernel.q)
        logits, kv = self._logits(q, heads, query), self.kv
        if self.kernel.launched.sparse:
            seen = np.flatnonzero(~np.isneginf(logits.values).all(axis=0))
            logits = logits.some(seen)
            kv = kv.some(seen)
        pieces = pieces_of(self.cut, self.cut.tile_of(self.seq, int(query[0]), int(heads[0])))
        absent = -(-logits.values.shape[1] // self.kernel.split.rows)
        steps = np.minimum(steps_of(pieces, absent), absent)
        sinks = self.tensors.get("sinks")
        sink = None if sinks is None else np.asarray(sinks, np.float64).ravel()[heads]
        with np.errstate(over="ignore", under="ignore"):
            return Block(self.kernel, steps, logits, q, kv, sink).rows()

    def _logits(self, q: QRows, heads: npt.NDArray[np.intp], query: npt.NDArray[np.intp]) -> Logits:
        raw, off = q.exact @ self.kv.k.T, None
        if self.kernel.q != "f32" or self.kernel.converts_K:
            off = q.kernel @ self.kv.kernel_k.T - raw
            if self.kv.offset_K is not None:
                off += q.blocks_off() @ self.kv.offset_K.T
        values, slope, cap = raw, None, np.float32(self.op.params.logit_softcap)
        if cap:
            tanh = np.tanh(raw)
            values, slope = cap * tanh, cap * (1 - tanh**2)
            off = cap * tanh_error(raw) + (0 if off is None else slope * off)
        if "mask" in self.tensors:
            mask = self.tensors["mask"]
            planes = mask[self.seq % mask.shape[0], heads % mask.shape[1], query].astype(np.float32)
            factors = alibi_slopes(self.op.sizes.n_head, self.op.params.max_bias)[heads].astype(np.float32)
            values = values + planes * factors[:, None]
        return Logits(values, raw, off, slope)


def _split(rows: list[tuple[int, int]], most: int) -> Iterator[list[tuple[int, int]]]:
    return (rows[start : start + most] for start in range(0, len(rows), most))


def _prediction(
    op: Op, kernel: Kernel, heads: list[KVMoments], rows: Rows, sampled: npt.NDArray[np.bool_]
) -> Prediction:
    """Assemble the prediction from the rows, arrays (n_seq, n_q, n_head), and the moments by K/V head."""

    def by_head(values: list[Any]) -> F64:
        array = np.array(values, np.float64)
        array = array.reshape(op.sizes.n_seq, 1, op.sizes.n_head_kv, *array.shape[1:])
        return array.repeat(op.sizes.group, axis=2)

    moments = Heads(
        mean=by_head([kv.mean_V for kv in heads]),
        mean_square=by_head([kv.mean_square_V for kv in heads]),
        mean_error=by_head([kv.mean_error_V for kv in heads]),
        size=by_head([np.sqrt(kv.channel_square / (kv.channel_square.mean() or 1.0)) for kv in heads]),
        mean_V=by_head([kv.channel_mean for kv in heads]),
        largest=by_head([kv.channel_largest for kv in heads]),
    )
    largest = moments.largest.max(axis=3)
    number = kernel.accumulator
    sums_overflow = rows.largest + kernel.largest_weight * largest > number.largest
    overflows = sums_overflow | (kernel.converts_V & (largest > HALF.largest))
    seen = np.broadcast_to(sampled, rows.loss.shape)
    prediction = Prediction(rows, moments, number.half_ulp, seen, overflows, largest_unsampled_loss(rows), "")
    return replace(prediction, why=why(op, kernel, rows, prediction.causes))
