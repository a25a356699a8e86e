"""The computation for one K/V head: its query rows, block by block, over its KV rows, with its tiles of the mask."""

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

    A tile's content is determined once, even if several groups share the planes: give them the same `known`.
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
        """Add a tile, times the slopes, to logits (rows, kv); the rows are all queries of each head in turn."""
        part = self.planes[:, queries, kv].astype(np.float64)
        if not (self.slopes == 1.0).all():
            part = part * self.slopes[:, None, None]
        logits.reshape(len(self.slopes), -1, logits.shape[1])[...] += part


def _content(tile: Floats) -> Content:
    if tile.dtype == np.float16:  # most tiles are all 0 or all -inf, and comparing bits takes a tenth of the time
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


@dataclass(frozen=True)
class KVHead:
    """The KV rows of one K/V head."""

    K: Rows
    V: Rows
    seq: int
    head: int

    def load(self, rows: slice, room: "Room") -> "KVBlock":
        """Load some of the rows into the workspace."""
        k, v = room.k[: rows.stop - rows.start], room.v[: rows.stop - rows.start]
        k[...] = self.K[self.seq, self.head, rows]
        v[...] = self.V[self.seq, self.head, rows]
        return KVBlock(rows, k, v, longest(k))


@dataclass(frozen=True)
class KVBlock:
    """Some KV rows as float64: k (kv, hsk), v (kv, hsv), and the length of the longest key."""

    rows: slice
    k: F64
    v: F64
    longest: float


@dataclass(frozen=True)
class Room:
    """A workspace that all blocks of a head reuse, because fresh memory pages take as much time as exp."""

    k: F64
    v: F64
    logits: F64
    product: F64

    @classmethod
    def of(cls, head: KVHead, rows: int, kv: int) -> "Room":
        """A workspace for blocks of `rows` query rows by `kv` KV rows."""
        hsk, hsv = head.K.shape[3], head.V.shape[3]
        return cls(np.empty((kv, hsk)), np.empty((kv, hsv)), np.empty(rows * kv), by_columns(rows, hsv))


@dataclass
class RowBlock:
    """Query rows that read the same KV rows: q (rows, hsk), scaled; the rows are all queries of each head in turn."""

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

    def hidden(self, kv: slice) -> bool:
        """Whether the mask hides these KV rows from all rows."""
        return self.mask is not None and self.mask.content(self.queries, kv).hidden

    def take(self, kv: KVBlock, params: Params, room: Room) -> None:
        """Add some KV rows to the running softmax."""
        rows = len(self.q)
        logits = np.matmul(self.q, kv.k.T, out=room.logits[: rows * len(kv.k)].reshape(rows, -1))
        cap(logits, params.logit_softcap)
        bound = params.logit_softcap or self.longest * kv.longest
        if self.mask is not None:
            content = self.mask.content(self.queries, kv.rows)
            if not content.clean:
                self.mask.add_to(logits, self.queries, kv.rows)
            bound += content.size * self.mask.slopes.max()
        self.state.add(logits, kv.v, bound=bound, room=room.product[:rows])


def attend(blocks: Sequence[RowBlock], head: KVHead, step: int, params: Params) -> None:
    """Add all KV rows to every block, `step` at a time; masked tiles are skipped."""
    room = Room.of(head, max(len(block.q) for block in blocks), min(step, head.K.shape[2]))
    with np.errstate(invalid="ignore", over="ignore"):  # inputs may be NaN or infinite
        for rows in slices(head.K.shape[2], step):
            seeing = [block for block in blocks if not block.hidden(rows)]
            if seeing:
                kv = head.load(rows, room)
            for block in seeing:
                block.take(kv, params, room)


def longest(rows: F64) -> float:
    """The largest Euclidean length of a row; |q.k| is at most the product of two lengths."""
    return float(np.sqrt(np.einsum("ij,ij->i", rows, rows).max()))


def slices(length: int, step: int) -> Iterator[slice]:
    """The range 0..length in pieces of `step`."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
