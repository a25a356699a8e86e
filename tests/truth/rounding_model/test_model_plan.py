"""Where the CUDA blocks of a launch begin, against the tiles that inspection gives each block."""

import dataclasses

import numpy as np
import pytest

from fattn_probe.launch.constants import SHIPPED
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.launch.tiles import Grid, index_of, ntiles, tiles_of
from fattn_probe.truth.rounding_model.mma_plan import mma_plan_of
from fattn_probe.truth.rounding_model.tile import tile_plan_of
from fattn_probe.truth.rounding_model.vec import divided, vec_plan_of


def launch(kernel, values, grid=(8, 1, 1), block=(32, 4, 1)):
    return LaunchRecord(0, kernel, tuple(("", str(value)) for value in values), grid, block, 0)


def mma(ncols1, ncols2, arch=90, head=(128, 128), block=(32, 4, 1)):
    return mma_plan_of(
        launch("flash_attn_ext_f16", [*head, ncols1, ncols2, "false", "false"], block=block), arch, SHIPPED
    )


@pytest.mark.parametrize("blocks", [1, 3, 7, 24, 25, 96, 200])
def test_blocks_begin_where_inspection_says(blocks):
    grid = Grid(iter_k=8, iter_j=3, iter_z_gqa=1, ne12=2, ne03=4)
    plan = dataclasses.replace(mma(8, 8), blocks=blocks)
    found = plan.begins(ntiles(grid), grid.iter_k)
    total = ntiles(grid) * grid.iter_k
    expected = np.zeros(found.shape, bool)
    for block in range(blocks):
        for work in tiles_of(block * total // blocks, (block + 1) * total // blocks, grid):
            expected[index_of(work.tile, grid), work.kb0_start] = True
    np.testing.assert_array_equal(found, expected)


def test_warps_share_a_column_where_there_are_fewer_columns_than_they_can_hold():
    assert [mma(*ncols).warps for ncols in ((1, 8), (4, 4), (4, 8), (8, 8))] == [4, 4, 2, 1]
    assert [mma(8, 8, arch).columns for arch in (70, 75, 90)] == [32, 16, 16]
    assert mma(1, 8).columns == 8


def test_k_is_multiplied_last_batch_first():
    order = mma(1, 16, head=(576, 512)).k_order
    assert order.tolist() == list(range(576))
    order = mma(4, 16, head=(576, 512), block=(32, 8, 1)).k_order
    assert order.tolist() == [*range(320, 576), *range(320)]


def test_every_row_of_a_chunk_is_summed_once():
    for plan in (mma(1, 8), mma(8, 8), mma(8, 8, 70)):
        assert sorted(plan.thread_rows.ravel().tolist()) == list(range(plan.chunk))


def test_kernels_that_are_not_attention_have_no_plan():
    for plan_of in (mma_plan_of, vec_plan_of, tile_plan_of):
        assert plan_of(launch("flash_attn_stream_k_fixup_uniform", [64, 8, 8]), 90, SHIPPED) is None
    assert mma_plan_of(launch("flash_attn_ext_f16", [48, 48, 8, 8, "false", "false"]), 90, SHIPPED) is None
    assert tile_plan_of(launch("flash_attn_tile", [48, 48, 8, 8, "false"]), 90, SHIPPED) is None


def test_a_fully_masked_row_is_nan_without_a_warning():
    assert np.isnan(divided(np.zeros((1, 4), np.float32), np.array([[np.inf]], np.float32))).all()
