"""The tiles that each CUDA block works on, computed in the same way as in the kernels.

The stream-K kernel (`flash_attn_ext_f16`) numbers the KV steps of all output tiles consecutively, and gives each block
an equal share. In the other kernels (`flash_attn_tile`, `flash_attn_ext_vec`), `gridDim.y` blocks take turns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import TypeVar

from fattn_probe.base.arrays import Indices

Number = TypeVar("Number", int, Indices)
Tile = tuple[int, int, int, int]
TILE = ("sequence", "z_KV", "zt_gqa", "jt")
"""The names of a tile's coordinates."""

Limits = Mapping[tuple[int, int], int]
"""Maps (sequence, jt) to the KV step at which the visible part of a scanned mask ends."""


@dataclass(frozen=True)
class Grid:
    """The shape of the work: the KV steps per tile (`iter_k`), and the number of tiles along each axis.

    There are `ne03 * ne12 * iter_z_gqa * iter_j` output tiles: sequences, K/V heads, head groups, query tiles.
    """

    iter_k: int
    iter_j: int
    iter_z_gqa: int
    ne12: int
    ne03: int


@dataclass(frozen=True)
class TileWork:
    """One block's work on one output tile: KV steps `range(kb0_start, kb0_stop, kb0_step)` of `iter_k`.

    A step is `nbatch_fa` KV rows. The tile has `ncols1` queries, starting at `jt * ncols1`, and `ncols2` heads,
    starting at `zt_gqa * ncols2` among the heads of K/V head `z_KV`. With `needs_fixup`, another block processes the
    tile's first steps; with `is_fixup`, its last steps. From step `kb0_limit` on, the scanned mask hides everything; it
    is None if the mask was not scanned. `read`: these values were read from the running kernel, not derived.
    """

    sequence: int
    z_KV: int
    zt_gqa: int
    jt: int
    kb0_start: int
    kb0_stop: int
    kb0_step: int = 1
    needs_fixup: bool = False
    is_fixup: bool = False
    kb0_limit: int | None = None
    read: bool = field(default=True, compare=False)

    @property
    def tile(self) -> Tile:
        """The output tile, (sequence, z_KV, zt_gqa, jt)."""
        return self.sequence, self.z_KV, self.zt_gqa, self.jt

    @property
    def steps(self) -> range:
        """The KV steps; empty if the block processes none of the tile's steps."""
        return range(self.kb0_start, self.kb0_stop, self.kb0_step)

    @property
    def writes(self) -> bool:
        """Whether the block writes dst itself; otherwise a second kernel adds its part."""
        return not self.is_fixup and self.kb0_step == 1


BlockPart = tuple[int, TileWork]
"""A block, and its work on a tile."""


@dataclass(frozen=True)
class BlockWork:
    """A CUDA block: its linear index, its position in the grid, its share of the stream-K work, its tiles in order.

    `kbc` and `kbc_stop` are None for kernels without stream-K. `sm` is None if unknown, as on the simulator.
    """

    block: int
    blockIdx: tuple[int, int, int]
    kbc: int | None
    kbc_stop: int | None
    tiles: tuple[TileWork, ...]
    sm: int | None = field(default=None, compare=False)


def ntiles(grid: Grid) -> int:
    """The number of output tiles."""
    return grid.ne03 * grid.ne12 * grid.iter_z_gqa * grid.iter_j


def tiles_in(grid: Grid) -> list[Tile]:
    """All output tiles, in the order of their numbers."""
    return list(product(range(grid.ne03), range(grid.ne12), range(grid.iter_z_gqa), range(grid.iter_j)))


def tile_at(index: Number, grid: Grid) -> tuple[Number, Number, Number, Number]:
    """The output tile with number `index`, or several tiles; past the last tile, `sequence` is `ne03` or more."""
    rest, jt = divmod(index, grid.iter_j)
    rest, zt_gqa = divmod(rest, grid.iter_z_gqa)
    sequence, z_KV = divmod(rest, grid.ne12)
    return sequence, z_KV, zt_gqa, jt


def index_of(tile: Tile, grid: Grid) -> int:
    """The number of a tile, the inverse of `tile_at`."""
    return tile_index(*tile, grid)


def tile_index(sequence: Number, z_KV: Number, zt_gqa: Number, jt: Number, grid: Grid) -> Number:
    """`index_of` for integers or arrays of integers."""
    return ((sequence * grid.ne12 + z_KV) * grid.iter_z_gqa + zt_gqa) * grid.iter_j + jt


def in_grid(tile: Tile, grid: Grid) -> bool:
    """Whether a tile is inside the grid."""
    extents = (grid.ne03, grid.ne12, grid.iter_z_gqa, grid.iter_j)
    return all(0 <= place < extent for place, extent in zip(tile, extents, strict=True))


def tiles_of(kbc: int, kbc_stop: int, grid: Grid, limits: Limits | None = None) -> tuple[TileWork, ...]:
    """The tiles of a stream-K block with the KV steps `range(kbc, kbc_stop)`, counted over all tiles.

    The block that processes a tile's last step writes `dst`; the fixup kernel adds the parts of the earlier blocks. A
    faulty kernel's share may be arbitrary, so at most one tile outside the grid is included.
    A source without `iter_z_gqa` (before February 2026) divides `ne02/ncols2` head groups in the same order; for it,
    `Grid` has `ne12 = K->ne[2]` and `iter_z_gqa = ne02/ncols2/ne12`, and the tiles are the same.
    """
    kbc = max(kbc, -grid.iter_k)
    end = min(kbc_stop, (ntiles(grid) + 1) * grid.iter_k)
    works = []
    while kbc < end:
        index, kb0_start = divmod(kbc, grid.iter_k)
        tile = tile_at(index, grid)
        kb0_stop = min(grid.iter_k, kb0_start + end - kbc)
        limit = _limit(tile, limits)
        last = kb0_stop == grid.iter_k
        shown = kb0_stop if limit is None else min(kb0_stop, limit)
        flags = {"needs_fixup": last and kb0_start > 0, "is_fixup": not last}
        works.append(TileWork(*tile, kb0_start, shown, 1, **flags, kb0_limit=limit))
        kbc += kb0_stop - kb0_start
    return tuple(works)


def tiles_in_turn(
    blockIdx: tuple[int, int, int], parallel_blocks: int, grid: Grid, limits: Limits | None = None
) -> tuple[TileWork, ...]:
    """The tile of a block in a kernel without stream-K; the block takes one in every `parallel_blocks` KV steps."""
    jt, turn, zt = blockIdx
    tile = tile_at(zt * grid.iter_j + jt, grid)
    limit = _limit(tile, limits)
    stop = grid.iter_k if limit is None else min(grid.iter_k, limit)
    return (TileWork(*tile, turn, stop, parallel_blocks, kb0_limit=limit),)


def cuts(steps: int, blocks: int) -> tuple[int, ...]:
    """The first KV step of each stream-K block, counted over all tiles, and the end of the last block.

    From `flash_attn_ext_f16` (fattn-mma-f16.cuh): `kbc = blockIdx.x * steps / gridDim.x`.
    """
    return tuple(block * steps // blocks for block in range(blocks + 1))


def stream_k_blocks(grid: Grid, number: int, limits: Limits | None = None) -> tuple[BlockWork, ...]:
    """The work of `number` stream-K blocks."""
    shares = pairwise(cuts(ntiles(grid) * grid.iter_k, number))
    return tuple(
        BlockWork(block, (block, 0, 0), *share, tiles_of(*share, grid, limits)) for block, share in enumerate(shares)
    )


def blocks_in_turn(gridDim: tuple[int, int, int], grid: Grid, limits: Limits | None = None) -> tuple[BlockWork, ...]:
    """The work of all blocks of a kernel without stream-K, launched with `gridDim`."""
    x, y, z = gridDim
    places = ((i, j, k) for k in range(z) for j in range(y) for i in range(x))
    return tuple(
        BlockWork(block, place, None, None, tiles_in_turn(place, y, grid, limits)) for block, place in enumerate(places)
    )


def share_of(block: BlockWork, grid: Grid, parallel_blocks: int, limits: Limits | None = None) -> tuple[TileWork, ...]:
    """The tiles that a block should have according to the kernels' arithmetic, with or without stream-K."""
    if block.kbc is None or block.kbc_stop is None:
        return tiles_in_turn(block.blockIdx, parallel_blocks, grid, limits)
    return tiles_of(block.kbc, block.kbc_stop, grid, limits)


def limits_of(blocks: tuple[BlockWork, ...]) -> dict[tuple[int, int], int]:
    """The KV step at which the scanned mask ends each query tile, from the blocks that report this step."""
    works = (work for block in blocks for work in block.tiles)
    return {(work.sequence, work.jt): work.kb0_limit for work in works if work.kb0_limit is not None}


def parallel_blocks_of(blocks: tuple[BlockWork, ...]) -> int:
    """`gridDim.y`: the number of blocks that take turns on a tile."""
    return 1 + max((block.blockIdx[1] for block in blocks), default=0)


def _limit(tile: Tile, limits: Limits | None) -> int | None:
    return None if limits is None else limits.get((tile[0], tile[3]))
