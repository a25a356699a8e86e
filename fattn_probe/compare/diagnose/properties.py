"""The properties of rows and columns that errors may depend on: axes, remainders, tiles, blocks, seams, masks."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import Bools, Indices
from fattn_probe.compare.diagnose.label_words import along, either, every, named, within
from fattn_probe.compare.diagnose.patterns import Labelling, Spelling
from fattn_probe.launch.geometry import Geometry

Shape = tuple[int, int, int, int]
STEPS = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, eq=False)
class MaskFacts:
    """What the mask hides by KV step: `hidden` (n_seq, n_q, steps) marks steps of which a row sees nothing."""

    hidden: Bools

    @classmethod
    def of(cls, mask: npt.NDArray[Any], n_seq: int, n_q: int, rows: int) -> "MaskFacts":
        """The facts of a mask (n_seq or 1, 1, n_q or more, n_kv), for steps of `rows` KV rows; heads share the mask."""
        seen = ~np.isneginf(mask[:, 0, :n_q])
        padded = np.zeros((*seen.shape[:2], -(-seen.shape[2] // rows) * rows), np.bool_)
        padded[..., : seen.shape[2]] = seen
        hidden: Bools = ~np.any(padded.reshape(*seen.shape[:2], -1, rows), axis=3)
        return cls(hidden[np.arange(n_seq) % len(hidden)])

    def properties(self) -> Iterator[tuple[str, str, Bools]]:
        """Words for the rows with a property and for those without, and the rows that have it, (n_seq, n_q)."""
        hidden = self.hidden
        first: Bools = np.asarray(hidden[..., 0])
        last: Bools = ~np.asarray(hidden[..., -1])
        whole: Bools = np.all(hidden, axis=2)
        yield "fully masked rows", "rows that are not fully masked", whole
        yield "rows whose first KV tile is fully masked", "rows that see their first KV tile", first
        yield "rows that see the last KV tile", "rows whose last KV tile is fully masked", last
        late: Bools = np.any(hidden[..., :-1] & ~hidden[..., 1:], axis=2)
        yield "rows with a masked KV tile before a visible one", "rows with none before a visible one", late


def labellings(shape: Shape, group: int, geometry: Geometry | None, mask: MaskFacts | None) -> list[Labelling]:
    """All properties of an output (n_seq, n_q, n_head, hsv) with `group` query heads per K/V head."""
    found = [*_axes(shape, group), *_remainders(shape)]
    if geometry is not None:
        found += [*_tiles(shape, geometry), *_blocks(shape, geometry)]
    if mask is not None:
        found += _masks(shape, mask)
    return [labelling for labelling in found if labelling.size > 1]


def _axes(shape: Shape, group: int) -> Iterator[Labelling]:
    n_seq, n_q, n_head, hsv = shape
    sequence, query, head = np.ogrid[:n_seq, :n_q, :n_head]
    yield _rows(sequence, shape, partial(along, "sequence", "sequences", n_seq), n_seq, 3.0)
    yield _rows(query, shape, partial(along, "query", "queries", n_q), n_q, 3.0)
    yield _rows(head, shape, partial(along, "head", "heads", n_head), n_head, 3.0)
    if group > 1:
        n_head_kv = n_head // group
        yield _rows(head // group, shape, partial(along, "K/V head", "K/V heads", n_head_kv), n_head_kv, 3.5)
        yield _rows(head % group, shape, partial(within, "head", "group", group), group, 4.0, ordered=False)
    yield Labelling("columns", np.arange(hsv), hsv, partial(along, "d", "d", hsv), 3.0)


def _remainders(shape: Shape) -> Iterator[Labelling]:
    _, n_q, _, hsv = shape
    query = np.arange(n_q)[None, :, None]
    for step in STEPS:
        if 2 * step <= hsv:
            yield Labelling("columns", np.arange(hsv) % step, step, partial(every, "column", "d", step), 5.0)
        if 2 * step <= n_q:
            yield _rows(query % step, shape, partial(every, "query", "query", step), step, 5.0)


def _tiles(shape: Shape, geometry: Geometry) -> Iterator[Labelling]:
    _, n_q, n_head, _ = shape
    query, head = np.arange(n_q)[None, :, None], np.arange(n_head)[None, None]
    ncols1, ncols2 = geometry.kernel.ncols1, geometry.kernel.ncols2
    if 1 < ncols1 < n_q:
        yield _rows(query % ncols1, shape, partial(within, "query", "tile", ncols1), ncols1, 4.0)
        count = geometry.grid.iter_j
        yield _rows(query // ncols1, shape, partial(along, "query tile", "query tiles", count), count, 4.0)
    if 1 < ncols2 < geometry.group:
        group, count = head % geometry.group // ncols2, geometry.grid.iter_z_gqa
        yield _rows(group, shape, partial(along, "head group", "head groups", count), count, 4.0)


def _blocks(shape: Shape, geometry: Geometry) -> Iterator[Labelling]:
    """The block that does a tile's end, and the seams inside tiles."""
    index = geometry.indices(shape[:3])
    shares = geometry.parts
    last = np.array([parts[-1].block if parts else 0 for parts in shares])
    size = int(last.max()) + 1
    turns = not geometry.kernel.family.stream_k
    if len(np.unique(last)) > 1:
        yield _rows(last[index], shape, partial(along, "CUDA block", "CUDA blocks", size), size, 5.0)
    if turns:
        return
    shared = np.array([len(parts) > 1 for parts in shares], np.intp)
    if 0 < shared.sum() < len(shared):
        words = partial(either, "tiles that several CUDA blocks share", "tiles that one CUDA block does alone")
        yield _rows(shared[index], shape, words, 2, 4.0, ordered=False)
    if shared.any():
        seams = [_seam([part.block for part in parts]) for parts in shares]
        names = ["tiles without a seam", *dict.fromkeys(seam for seam in seams if seam)]
        place = np.array([names.index(seam) if seam else 0 for seam in seams])
        yield _rows(place[index], shape, partial(named, tuple(names)), len(names), 5.0)


def _seam(blocks: list[int]) -> str:
    if len(blocks) < 2:
        return ""
    if len(blocks) == 2:
        return f"the seam between blocks {blocks[0]} and {blocks[1]}"
    return f"the seams of blocks {blocks[0]} to {blocks[-1]}"


def _masks(shape: Shape, mask: MaskFacts) -> Iterator[Labelling]:
    for yes, no, which in mask.properties():
        if 0 < which.sum() < which.size:
            yield _rows(which[..., None].astype(np.intp), shape, partial(either, yes, no), 2, 4.0, ordered=False)


def _rows(labels: Indices, shape: Shape, words: Spelling, size: int, bits: float, *, ordered: bool = True) -> Labelling:
    return Labelling("rows", np.broadcast_to(labels, shape[:3]), size, words, bits, ordered)
