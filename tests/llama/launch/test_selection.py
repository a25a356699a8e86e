"""Output tiles, and the blocks that some of them need."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.selection import chosen_tiles, flop_of, rows_of_tiles, select
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
from tests.made import launch_of

sizes_of = st.builds(
    lambda n_seq, heads, group, n_q, n_kv: Sizes(n_seq, heads * group, heads, n_q, n_kv, 64, 64),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(1, 600),
)


def op_of(sizes: Sizes) -> Op:
    return Op.contiguous(sizes, Params(scale=1.0), ("f16", "f16"), mask=True)


def mma(sizes, blocks):
    """A stream-K run with a scanned mask, of 8 queries x 4 heads a tile, with the fixup that upstream launches."""
    attention = launch_of("flash_attn_ext_f16<64, 64, 8, 4, false, false, false>", (blocks, 1, 1), order=1)
    geometry = geometry_of(op_of(sizes), [attention], 90)
    tiles = ntiles(geometry.grid)
    launches = [launch_of("flash_attn_mask_to_KV_max<8>", (geometry.grid.iter_j, sizes.n_seq, 1)), attention]
    if blocks % tiles == 0 and blocks > tiles:
        launches.append(launch_of("flash_attn_stream_k_fixup_uniform<64, 8, 4>", (tiles, 8, 4), order=2))
    elif tiles % blocks != 0:
        launches.append(launch_of("flash_attn_stream_k_fixup_general<64, 8, 4>", (blocks, 8, 4), order=2))
    return geometry, launches


def in_turn(sizes, turns):
    """A vec run, of 2 queries a tile, whose parts are combined."""
    grid = (-(-sizes.n_q // 2), turns, sizes.n_head * sizes.n_seq)
    attention = launch_of("flash_attn_ext_vec<64, 2, (ggml_type)1, (ggml_type)1, false>", grid)
    geometry = geometry_of(op_of(sizes), [attention], 90)
    rows = (sizes.n_q, sizes.n_head, sizes.n_seq)
    return geometry, [attention, launch_of("flash_attn_combine_results<64>", rows, order=1)]


def blocks_of(chosen):
    return {block for first, stop in chosen.ranges for block in range(first, stop)}


def some_tiles(data, geometry):
    return np.array(sorted(data.draw(st.sets(st.integers(0, ntiles(geometry.grid) - 1), min_size=1, max_size=5))))


@given(sizes_of, st.integers(1, 70), st.data())
def test_stream_k_runs_the_blocks_of_the_tiles_the_mask_scans_of_these_and_the_fixup_of_complete_tiles(
    sizes, blocks, data
):
    geometry, launches = mma(sizes, blocks)
    tiles = some_tiles(data, geometry)
    found = select(geometry, launches, sizes, tiles)
    wanted = {block for tile in tiles for block in geometry.parts[tile]}
    ran = blocks_of(found.launches[found.attention])
    idle = {
        block
        for block, (first, stop) in enumerate(zip(geometry.cuts, geometry.cuts[1:], strict=False))
        if first == stop
    }
    assert wanted <= ran <= wanted | idle
    complete = [tile for tile, parts in enumerate(geometry.parts) if parts.keys() <= ran]
    assert found.complete.tolist() == complete
    assert set(tiles) <= set(complete)
    touched = [tile_at(tile, geometry.grid) for tile, parts in enumerate(geometry.parts) if ran & parts.keys()]
    assert blocks_of(found.launches[0]) == {tile[0] * geometry.grid.iter_j + tile[3] for tile in touched}
    if len(launches) < 3:
        return
    x, fixed = launches[2].grid[0], blocks_of(found.launches[2])
    places = {block % x for block in fixed}
    assert fixed == {place + x * plane for place in places for plane in range(32)}
    divided = [tile for tile in complete if len(geometry.parts[tile]) > 1]
    uniform = "uniform" in launches[2].kernel
    assert places == (set(complete) if uniform else {max(geometry.parts[tile]) for tile in divided})


@given(sizes_of, st.integers(1, 4), st.data())
def test_blocks_that_take_turns_run_together_and_their_rows_are_combined(sizes, turns, data):
    geometry, launches = in_turn(sizes, turns)
    tiles = some_tiles(data, geometry)
    found = select(geometry, launches, sizes, tiles)
    assert blocks_of(found.launches[0]) == {block for tile in tiles for block in geometry.parts[tile]}
    rows = {(query, head, seq) for seq, query, head in rows_of_tiles(geometry, sizes, tiles).tolist()}
    assert blocks_of(found.launches[1]) == {
        (seq * sizes.n_head + head) * sizes.n_q + query for query, head, seq in rows
    }
    assert found.complete.tolist() == tiles.tolist()


@given(sizes_of, st.data())
def test_rows_of_tiles_are_those_that_the_geometry_puts_there(sizes, data):
    geometry, _ = mma(sizes, 7)
    tiles = some_tiles(data, geometry)
    numbers = geometry.indices((sizes.n_seq, sizes.n_q, sizes.n_head))
    assert {tuple(row) for row in rows_of_tiles(geometry, sizes, tiles)} == {
        *map(tuple, np.argwhere(np.isin(numbers, tiles)))
    }


def test_other_kernels_and_other_grids_run_whole():
    sizes = Sizes(2, 8, 2, 20, 512, 64, 64)
    geometry, launches = mma(sizes, 5)
    other = launch_of("dequantize_block_q8_0_f16<false>", (77, 1, 1))
    odd = launch_of("flash_attn_mask_to_KV_max<8>", (geometry.grid.iter_j + 1, 2, 1))
    found = select(geometry, [other, odd, *launches], sizes, np.array([0]))
    assert [one.ranges for one in found.launches[:2]] == [((0, 77),), ((0, odd.grid[0] * 2),)]
    assert found.attention == 3


@given(sizes_of, st.integers(1, 70), st.integers(1, 30))
def test_the_first_and_the_last_tile_are_always_chosen(sizes, blocks, most):
    geometry, _ = mma(sizes, blocks)
    for flop in (0.0, flop_of(geometry)):
        tiles = chosen_tiles(geometry, flop, max(3, most)).tolist()
        assert {0, ntiles(geometry.grid) - 1} <= set(tiles)
        assert len(tiles) == len(set(tiles)) <= max(3, most)
        shared = [tile for tile, parts in enumerate(geometry.parts) if len(parts) > 1]
        assert not shared or set(shared) & set(tiles)


def test_the_budget_limits_the_tiles():
    sizes = Sizes(1, 32, 4, 4096, 40960, 128, 128)
    attention = launch_of("flash_attn_ext_f16<128, 128, 8, 8, false, false, false>", (256, 1, 1))
    geometry = geometry_of(op_of(sizes), [attention], 90)
    assert flop_of(geometry) == op_of(sizes).sizes.flop
    few, more = (chosen_tiles(geometry, flop, 100) for flop in (flop_of(geometry) / 100, flop_of(geometry) / 10))
    assert 3 <= len(few) < len(more) < 100
    ran = select(geometry, [attention], sizes, more).launches[0]
    assert 0.05 < ran.number / ran.of <= 0.1


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


def test_tiles_of_a_share_between_seams_with_a_mask_and_of_nonsense():
    grid = Grid(iter_k=4, iter_j=1, iter_z_gqa=1, ne12=2, ne03=1)
    assert tiles_of(3, 4, grid) == (TileWork(0, 0, 0, 0, 3, 4, needs_fixup=True),)
    assert tiles_of(4, 5, grid) == (TileWork(0, 1, 0, 0, 0, 1, is_fixup=True),)
    assert tiles_of(1, 3, Grid(4, 1, 1, 1, 1)) == (TileWork(0, 0, 0, 0, 1, 3, is_fixup=True),)
    first, second = tiles_of(1, 6, Grid(4, 2, 1, 1, 1), {(0, 0): 2})
    assert first == TileWork(0, 0, 0, 0, 1, 2, needs_fixup=True, kb0_limit=2)
    assert second == TileWork(0, 0, 0, 1, 0, 2, is_fixup=True)
    assert len(tiles_of(-(2**31), 2**31, Grid(4, 1, 1, 2, 1))) == 4


def test_blocks_that_take_turns():
    grid = Grid(iter_k=10, iter_j=2, iter_z_gqa=2, ne12=2, ne03=2)
    assert tiles_in_turn((1, 2, 5), 4, grid) == (TileWork(1, 0, 1, 1, 2, 10, 4),)
    assert tiles_in_turn((1, 2, 5), 4, grid, {(1, 1): 3}) == (TileWork(1, 0, 1, 1, 2, 3, 4, kb0_limit=3),)
    assert len(blocks_in_turn((2, 4, 8), grid)) == 4 * ntiles(grid)
