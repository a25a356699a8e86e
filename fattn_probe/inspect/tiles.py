"""Which tiles a CUDA block does, by the kernels' arithmetic.

The stream-K kernel (`flash_attn_ext_f16`) cuts all KV steps of all output tiles, in one row, into equal shares; the
others (`flash_attn_tile`, `flash_attn_ext_vec`) give each tile to `gridDim.y` blocks, which take turns.
"""

from collections.abc import Mapping

from fattn_probe.inspect.facts import BlockFacts, Grid, TileWork

Tile = tuple[int, int, int, int]
"""(sequence, z_KV, zt_gqa, jt)"""

Limits = Mapping[tuple[int, int], int]
"""(sequence, jt) to the first KV step that the scanned mask hides entirely, as do all after it."""


def ntiles(grid: Grid) -> int:
    """How many output tiles there are."""
    return grid.ne03 * grid.ne12 * grid.iter_z_gqa * grid.iter_j


def tile_at(index: int, grid: Grid) -> Tile:
    """The output tile that is number `index` in the row; one beyond the end has a `sequence` beyond `ne03`."""
    rest, jt = divmod(index, grid.iter_j)
    rest, zt_gqa = divmod(rest, grid.iter_z_gqa)
    sequence, z_KV = divmod(rest, grid.ne12)
    return sequence, z_KV, zt_gqa, jt


def index_of(tile: Tile, grid: Grid) -> int:
    """The tile's number in the row; `tile_at` back again."""
    sequence, z_KV, zt_gqa, jt = tile
    return ((sequence * grid.ne12 + z_KV) * grid.iter_z_gqa + zt_gqa) * grid.iter_j + jt


def in_grid(tile: Tile, grid: Grid) -> bool:
    """Whether there is such a tile."""
    extents = (grid.ne03, grid.ne12, grid.iter_z_gqa, grid.iter_j)
    return all(0 <= place < extent for place, extent in zip(tile, extents, strict=True))


def tiles_of(kbc: int, kbc_stop: int, grid: Grid, limits: Limits | None = None) -> tuple[TileWork, ...]:
    """The tiles of a stream-K block whose share is the KV steps `range(kbc, kbc_stop)` of the row of all tiles' steps.

    The block that does a tile's last step writes `dst`; each earlier one of that tile leaves its part for the fixup
    kernel. A share that runs out of the grid is followed for one tile, no further: it may be any number.

    A source without `iter_z_gqa` (before February 2026) divides `ne02/ncols2` head groups in the same order: there
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
    """The tile of a block of a kernel without stream-K: every `parallel_blocks`-th (`gridDim.y`) KV step of it."""
    jt, turn, zt = blockIdx
    tile = tile_at(zt * grid.iter_j + jt, grid)
    limit = _limit(tile, limits)
    stop = grid.iter_k if limit is None else min(grid.iter_k, limit)
    return (TileWork(*tile, turn, stop, parallel_blocks, kb0_limit=limit),)


def share_of(block: BlockFacts, grid: Grid, parallel_blocks: int, limits: Limits | None = None) -> tuple[TileWork, ...]:
    """What the arithmetic says of a block, of either kind."""
    if block.kbc is None or block.kbc_stop is None:
        return tiles_in_turn(block.blockIdx, parallel_blocks, grid, limits)
    return tiles_of(block.kbc, block.kbc_stop, grid, limits)


def limits_of(blocks: tuple[BlockFacts, ...]) -> dict[tuple[int, int], int]:
    """Where the scanned mask ends each query tile, as far as the blocks say."""
    works = (work for block in blocks for work in block.tiles)
    return {(work.sequence, work.jt): work.kb0_limit for work in works if work.kb0_limit is not None}


def parallel_blocks_of(blocks: tuple[BlockFacts, ...]) -> int:
    """`gridDim.y`: how many blocks take turns on a tile."""
    return 1 + max((block.blockIdx[1] for block in blocks), default=0)


def _limit(tile: Tile, limits: Limits | None) -> int | None:
    return None if limits is None else limits.get((tile[0], tile[3]))
