"""Where the CUDA blocks of a launch begin, against the tiles that inspection gives each block."""

from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.llama.launch.architecture import AMD
from fattn_probe.llama.launch.constants import SHIPPED
from fattn_probe.llama.launch.kernel import attention_of
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.llama.launch.tiles import Grid, index_of, ntiles, tiles_of
from fattn_probe.verdict.truth.rounding_model.arithmetic import NVIDIA, OF_AMD
from fattn_probe.verdict.truth.rounding_model.mma_plan import mma_plan_of
from fattn_probe.verdict.truth.rounding_model.operands import KernelOperands
from fattn_probe.verdict.truth.rounding_model.tile import TileMachine, tile_plan_of


def launch(kernel, values, grid=(8, 1, 1), block=(32, 4, 1)):
    return LaunchRecord(0, kernel, tuple(("", str(value)) for value in values), grid, block, 0)


def mma(ncols1, ncols2, arch=90, head=(128, 128), block=(32, 4, 1)):
    one = launch("flash_attn_ext_f16", [*head, ncols1, ncols2, "false", "false"], block=block)
    return mma_plan_of(attention_of([one], arch, SHIPPED), arch, SHIPPED)


@pytest.mark.parametrize("blocks", [1, 3, 7, 24, 25, 96, 200])
def test_blocks_begin_where_inspection_says(blocks):
    grid = Grid(iter_k=8, iter_j=3, iter_z_gqa=1, ne12=2, ne03=4)
    plan = mma(8, 8)
    plan = replace(plan, kernel=replace(plan.kernel, blocks=(blocks, 1, 1)))
    found = plan.begins(ntiles(grid), grid.iter_k)
    total = ntiles(grid) * grid.iter_k
    expected = np.zeros(found.shape, bool)
    for block in range(blocks):
        for work in tiles_of(block * total // blocks, (block + 1) * total // blocks, grid):
            expected[index_of(work.tile, grid), work.kb0_start] = True
    np.testing.assert_array_equal(found, expected)


def test_warps_share_a_column_where_there_are_fewer_columns_than_they_can_hold():
    assert [mma(*ncols).kernel.warps_per_column for ncols in ((1, 8), (4, 4), (4, 8), (8, 8))] == [4, 4, 2, 1]
    assert [mma(8, 8, arch).kernel.columns for arch in (70, 75, 90)] == [32, 16, 16]
    assert mma(1, 8).kernel.columns == 8


def test_k_is_multiplied_last_batch_first():
    order = mma(1, 16, head=(576, 512)).k_order
    assert order.tolist() == list(range(576))
    order = mma(4, 16, head=(576, 512), block=(32, 8, 1)).k_order
    assert order.tolist() == [*range(320, 576), *range(320)]


def test_every_row_of_a_chunk_is_summed_once():
    for plan in (mma(1, 8), mma(8, 8), mma(8, 8, 70)):
        assert sorted(plan.thread_rows.ravel().tolist()) == list(range(plan.chunk))


def tile(head, ncols1, ncols2, threads, arch=90):
    values = [head, head, ncols1, ncols2, "false"]
    one = launch("flash_attn_tile", values, block=(32, threads // 32, 1))
    return tile_plan_of(attention_of([one], arch, SHIPPED), arch, SHIPPED)


@pytest.mark.parametrize(
    ("arch", "head", "fused"),
    [
        # read in nvcc 13.0's SASS of these kernels for sm_75, 80, 86, 89, 90, 100 and 120: HFMA2 VKQ, scale, product
        (90, 40, {2: (128, True), 4: (128, True), 8: (128, True), 16: (256, False), 32: (256, False)}),
        (75, 72, {2: (128, False), 4: (128, True), 8: (256, False), 16: (256, False), 32: (256, False)}),
        # read in PTX of the code that __CUDA_ARCH__ 610 selects
        (61, 40, {2: (64, True), 4: (128, True), 8: (256, False), 16: (256, False), 32: (256, False)}),
        (61, 72, {2: (64, True), 4: (128, True), 8: (256, False), 16: (256, False), 32: (256, False)}),
        (61, 128, {2: (128, True), 4: (128, True), 8: (128, True), 16: (128, True), 32: (256, True)}),
    ],
)
def test_vkq_is_rescaled_by_a_multiply_add_where_no_branch_lies_between(arch, head, fused):
    plans = {ncols: tile(head, ncols, 1, threads, arch).fused for ncols, (threads, _) in fused.items()}
    assert plans == {ncols: is_fused for ncols, (_, is_fused) in fused.items()}


def test_amd_adds_exact_products_of_f16_to_a_float32_sum():
    """Where NVIDIA's kernel scales Q down, and rounds the products to f16."""
    Q, K = np.full((1, 2), 1 + 2**-10, np.float32), np.full((1, 2), 1 + 2**-9, np.float32)
    exact = Q.astype(np.float64) @ K.T
    found = [TileMachine(tile(64, 2, 1, 128, arch), None).logits(Q, K) for arch in (AMD + 0x906, 90)]
    assert [logits == exact for logits in found] == [True, False]


def last_steps(mask, *, scanned, n_kv=512, n_q=3):
    plan = tile(72, 2, 1, 128)
    plan = replace(plan, kernel=replace(plan.kernel, scanned=scanned))
    rows = np.zeros((1, 1, n_kv, 72), np.float32)
    queries = np.zeros((1, 1, n_q, 72), np.float32)
    operands = KernelOperands(queries, rows, rows, mask, None, np.ones(1, np.float32), np.float32(1), np.float32(0))
    return TileMachine(plan, operands).last_steps(0).tolist()


def test_the_last_step_of_a_scanned_mask_is_that_of_the_tile_of_queries():
    mask = np.full((1, 3, 512), -np.inf, np.float32)
    mask[0, 1, 10] = 0
    assert last_steps(mask, scanned=True) == [3, 3, -1]
    mask[0, 2, 300] = 0
    assert last_steps(mask, scanned=True) == [3, 3, 7]
    assert last_steps(mask, scanned=False) == [7, 7, 7]
    assert last_steps(None, scanned=False, n_kv=450) == [7, 7, 7]


@pytest.mark.parametrize(
    ("kernel", "values"),
    [
        ("flash_attn_stream_k_fixup_uniform", [64, 8, 8]),
        ("flash_attn_ext_f16", [48, 48, 8, 8, "false", "false"]),
        ("flash_attn_tile", [48, 48, 8, 8, "false"]),
    ],
)
def test_kernels_that_are_not_attention_or_of_unknown_sizes_are_not_described(kernel, values):
    assert attention_of([launch(kernel, values)], 90, SHIPPED) is None


@pytest.mark.parametrize("functions", [NVIDIA, OF_AMD])
def test_a_fully_masked_row_is_nan_without_a_warning(functions):
    assert np.isnan(functions.divided(np.zeros((1, 4), np.float32), np.zeros((1, 1), np.float32))).all()
