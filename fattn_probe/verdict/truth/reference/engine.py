"""The computation for one K/V head: its query rows, block by block, over its KV rows, with tiles of the mask."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fattn_probe.base.arrays import F64, Floats
from fattn_probe.cases.op import Params
from fattn_probe.cases.op.values import cap
from fattn_probe.verdict.truth.reference.shapes import Rows
from fattn_probe.verdict.truth.reference.softmax import RunningSoftmax, by_columns

MINUS_INFINITY = 0xFC00  # as f16


class Content(NamedTuple):
    """The content of a mask tile: all -inf, all 0, or the largest finite absolute value."""

    hidden: bool
    clean: bool
    size: float


@dataclass(frozen=True)
class GroupMask:
    """The mask of a group of heads: planes (group or 1, n_q, n_kv), and the heads' ALiBi slopes (group).

    A tile's content is determined once, even if several groups share the planes; such groups must share `known`.
    """

    planes: Floats
    slopes: F64
    known: dict[tuple[int, int], Content] = field(default_factory=dict)

    def content(self, queries: slice, kv: slice) -> Content:
        """The content of a tile; tiles always have the same boundaries, so their start identifies them."""
        at = (queries.start, kv.start)
        if at not in self.known:
            self.known[at] = _content(self.planes[:, queries, kv])
        return self.known[at]

    def add_to(self, logits: F64, queries: slice, kv: slice) -> None:
        """Add a tile, times the slopes, to logits (rows, kv); the rows are ordered by head, then by query."""
        part = self.planes[:, queries, kv].astype(np.float64)
        if not (self.slopes == 1.0).all():
            part = part * self.slopes[:, None, None]
        logits.reshape(len(self.slopes), -1, logits.shape[1])[...] += part


def _content(tile: Floats) -> Content:
    if tile.dtype == np.float16:  # most tiles are all 0 or all -inf, and comparing bits is ten times as fast
        bits = tile.view(np.uint16)
        least, largest = bits.min(), bits.max()
        if least == largest and largest in (0, MINUS_INFINITY):
            return Content(hidden=bool(largest), clean=not largest, size=0.0)
    part = tile.astype(np.float64)
    low, high = part.min(), part.max()
    if np.isneginf(low):
        size = np.abs(part, where=~np.isneginf(part), out=np.zeros_like(part)).max()
        return Content(hidden=bool(np.isneginf(high)), clean=False, size=float(size))
    return Content(hidden=False, clean=bool(low == high == 0.0), size=float(max(abs(low), abs(high))))


@dataclass
class RowBlock:
    """Query rows that read the same KV rows: q (rows, hsk), scaled; the rows are ordered by head, then by query."""

    q: F64
    queries: slice
    mask: GroupMask | None
    state: RunningSoftmax
    longest: float

    @classmethod
    def of(cls, q: F64, queries: slice, hsv: int, mask: GroupMask | None) -> "RowBlock":
        """A block from scaled queries (heads, queries, hsk); `queries` is their range in the mask."""
        flat = np.ascontiguousarray(q.reshape(-1, q.shape[2]))
        return cls(flat, queries, mask, RunningSoftmax.empty(len(flat), hsv), longest(flat))


def attend(blocks: Sequence[RowBlock], K: Rows, V: Rows, at: tuple[int, int], *, step: int, params: Params) -> None:
    """Add all KV rows of a K/V head to the running softmax of every block, `step` at a time; skips masked tiles.

    `at` is the sequence and the head. All tiles share a workspace, because fresh memory pages cost as much as exp.
    """
    (n_kv, hsk), hsv, most = K.shape[2:], V.shape[3], max(len(block.q) for block in blocks)
    step = min(step, n_kv)
    keys, values = np.empty((step, hsk)), np.empty((step, hsv))
    products, weighted = np.empty(most * step), by_columns(most, hsv)
    with np.errstate(invalid="ignore", over="ignore"):  # inputs may be NaN or infinite
        for rows in slices(n_kv, step):
            contents = [None if block.mask is None else block.mask.content(block.queries, rows) for block in blocks]
            if all(content is not None and content.hidden for content in contents):
                continue
            k, v = keys[: rows.stop - rows.start], values[: rows.stop - rows.start]
            k[...], v[...] = K[(*at, rows)], V[(*at, rows)]
            longest_key = longest(k)
            for block, content in zip(blocks, contents, strict=True):
                number = len(block.q)
                if content is not None and content.hidden:
                    continue
                logits = np.matmul(block.q, k.T, out=products[: number * len(k)].reshape(number, -1))
                cap(logits, params.logit_softcap)
                bound = params.logit_softcap or block.longest * longest_key
                if block.mask is not None and content is not None:
                    if not content.clean:
                        block.mask.add_to(logits, block.queries, rows)
                    bound += content.size * block.mask.slopes.max()
                block.state.add(logits, v, bound=bound, room=weighted[:number])


def longest(rows: F64) -> float:
    """The largest Euclidean length of a row; |q.k| is at most the product of two lengths."""
    return float(np.sqrt(np.einsum("ij,ij->i", rows, rows).max()))


def slices(length: int, step: int) -> Iterator[slice]:
    """The range from 0 to `length` in pieces of `step`."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
