"""The mask of one group of heads, and the content of its tiles."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fattn_probe.arrays import F64, Floats

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
