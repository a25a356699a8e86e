from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.llama.launch.tiles import (
    Grid,
    TileWork,
    blocks_in_turn,
    index_of,
    ntiles,
    stream_k_blocks,
    tile_at,
    tiles_in_turn,
    tiles_of,
)

grids = st.builds(Grid, st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))


def upstream(kbc, kbc_stop, grid):
    """The kernel's own loop: whole tiles or their last parts, then the rest, for the fixup."""
    found = []
    kb0_start = kbc % grid.iter_k
    kb0_stop = min(grid.iter_k, kb0_start + kbc_stop - kbc)
    while kbc < kbc_stop and kb0_stop == grid.iter_k:
        found.append(TileWork(*tile_at(kbc // grid.iter_k, grid), kb0_start, kb0_stop, needs_fixup=kb0_start > 0))
        kbc = (kbc // grid.iter_k + 1) * grid.iter_k
        kb0_start, kb0_stop = 0, min(grid.iter_k, kbc_stop - kbc)
    if kbc < kbc_stop:
        found.append(TileWork(*tile_at(kbc // grid.iter_k, grid), kb0_start, kb0_stop, is_fixup=True))
    return tuple(found)


@given(grids, st.integers(1, 60))
def test_stream_k_as_the_kernel_divides(grid, number):
    for block in stream_k_blocks(grid, number):
        assert block.tiles == upstream(block.kbc, block.kbc_stop, grid)


@given(grids)
def test_tiles_are_numbered_with_the_query_tile_fastest(grid):
    tiles = [tile_at(index, grid) for index in range(ntiles(grid))]
    assert tiles == sorted(set(tiles))
    assert [index_of(tile, grid) for tile in tiles] == list(range(ntiles(grid)))


def test_gqa_on_h200():
    grid = Grid(iter_k=4, iter_j=1, iter_z_gqa=1, ne12=2, ne03=1)
    assert tiles_of(3, 4, grid) == (TileWork(0, 0, 0, 0, 3, 4, needs_fixup=True),)
    assert tiles_of(4, 5, grid) == (TileWork(0, 1, 0, 0, 0, 1, is_fixup=True),)


def test_a_block_between_two_seams_of_one_tile_is_left_to_the_fixup():
    assert tiles_of(1, 3, Grid(4, 1, 1, 1, 1)) == (TileWork(0, 0, 0, 0, 1, 3, is_fixup=True),)


def test_the_mask_cuts_a_tile_short_but_not_the_share():
    limits = {(0, 0): 2}
    first, second = tiles_of(1, 6, Grid(4, 2, 1, 1, 1), limits)
    assert first == TileWork(0, 0, 0, 0, 1, 2, needs_fixup=True, kb0_limit=2)
    assert second == TileWork(0, 0, 0, 1, 0, 2, is_fixup=True)


def test_blocks_that_take_turns():
    grid = Grid(iter_k=10, iter_j=2, iter_z_gqa=2, ne12=2, ne03=2)
    assert tiles_in_turn((1, 2, 5), 4, grid) == (TileWork(1, 0, 1, 1, 2, 10, 4),)
    assert tiles_in_turn((1, 2, 5), 4, grid, {(1, 1): 3}) == (TileWork(1, 0, 1, 1, 2, 3, 4, kb0_limit=3),)
    assert len(blocks_in_turn((2, 4, 8), grid)) == 4 * ntiles(grid)


def test_a_share_that_is_nonsense_is_not_followed_forever():
    assert len(tiles_of(-(2**31), 2**31, Grid(4, 1, 1, 2, 1))) == 4
