"""The rules of tensor cores and special functions compared with an H200; where the blocks of a launch begin."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.llama.launch.architecture import AMD, generation_of
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.kernel import attention_of
from fattn_probe.llama.launch.tiles import Grid, index_of, ntiles, tiles_of
from fattn_probe.verdict.truth.rounding_model import compiled
from fattn_probe.verdict.truth.rounding_model.arithmetic import NVIDIA, OF_AMD
from fattn_probe.verdict.truth.rounding_model.functions import LOG2_E, ex2, exp, fma, half_of, lg2, power, rcp, tanh
from fattn_probe.verdict.truth.rounding_model.mma_plan import mma_plan_of
from fattn_probe.verdict.truth.rounding_model.operands import KernelOperands
from fattn_probe.verdict.truth.rounding_model.tensor_core import Factors, matrix_sum
from fattn_probe.verdict.truth.rounding_model.tile import TileMachine, tile_plan_of
from tests.made import launch_of

MEASURED = np.load(Path(__file__).parents[3] / "native/data/h200.npz")
HOPPER = generation_of(90)


def with_numpy(function):
    """The result of a function without the compiled sums."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(compiled, "library", lambda: None)
        return function()


def halves(name):
    return MEASURED[name].view(np.float16).astype(np.float32)


def same_bits(found, expected):
    nan = np.isnan(found) & np.isnan(expected)
    np.testing.assert_array_equal(np.where(nan, 0, found), np.where(nan, 0, expected))


@pytest.mark.parametrize("instruction", ["mma_f32_k16", "mma_f32_k8"])
def test_f32_accumulators_of_an_h200_in_every_bit(instruction):
    a, b = (Factors(halves(f"{instruction}_{name}")) for name in "ab")
    c, d = (MEASURED[f"{instruction}_{name}"].view(np.float32) for name in "cd")
    same_bits(matrix_sum(a, b, c, HOPPER), d)


def test_f16_accumulators_of_an_h200_in_every_bit():
    a, b, c, d = (halves(f"mma_f16_k16_{name}") for name in "abcd")
    same_bits(matrix_sum(Factors(a), Factors(b), c, HOPPER, HOPPER.k_half), d)


@pytest.mark.parametrize(("name", "function"), [("lg2", lg2), ("tanh", tanh)])
def test_functions_of_one_number(name, function):
    x, result = (MEASURED[f"{name}_{part}"].view(np.float32) for part in "xr")
    usual = x >= 2.0**-126 if name == "lg2" else np.full(x.shape, True)
    same_bits(function(x[usual & (x < np.inf)]), result[usual & (x < np.inf)])


def test_division_power_and_the_exponential_are_the_hardwares():
    x, y, result = (MEASURED[f"div_{part}"].view(np.float32) for part in "xyr")
    with np.errstate(all="ignore"):
        quotient = x * rcp(y)
    same_bits(np.where(np.abs(quotient) < 2.0**-126, 0, quotient), result)  # device code flushes subnormal numbers
    x, y, result = (MEASURED[f"pow_{part}"].view(np.float32) for part in "xyr")
    same_bits(power(x, y), result)
    x = np.array([0, -1, 1, -126, -126.5, 128, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(ex2(x), np.array([1, 0.5, 2, 2.0**-126, 0, np.inf, 0, np.nan], np.float32))
    x = np.linspace(-20, 0, 4001, dtype=np.float32)
    assert 0 < np.max(np.abs(exp(x) / np.exp2((x * LOG2_E).astype(np.float64)).astype(np.float32) - 1)) < 3e-7


def test_fused_product_rounds_once():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 4096)).astype(np.float32)
    c = (-a * b + np.float32(2.0**-30) * rng.standard_normal(4096)).astype(np.float32)
    exact = [fused(*each) for each in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(fma(a, b, c), np.array(exact, np.float32))


@pytest.mark.parametrize(
    ("a", "b", "c", "result"),
    [
        (2.0**-12, 2.0**-12, 1 + 2.0**-23, 1 + 2.0**-22),  # halfway: to the even one
        # 2^-70 below, which float64 cannot hold
        (2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23), 1 + 2.0**-23, 1 + 2.0**-23),
        # 2^-70 above 1 + 2^-24
        (2.0**-12 * (1 + 2.0**-23), -(2.0**-12) * (1 - 2.0**-23), 1 + 2.0**-23, 1 + 2.0**-23),
        # 2^-196 below, between subnormal numbers
        (2.0**-75 * (1 + 2.0**-23), 2.0**-75 * (1 - 2.0**-23), 2.0**-127 + 2.0**-149, 2.0**-127 + 2.0**-149),
    ],
)
def test_a_sum_halfway_in_float64(a, b, c, result):
    a, b, c = (np.full((3, 1), value, np.float32) for value in (a, b, c))
    np.testing.assert_array_equal(fma(a, b, c), np.full((3, 1), result, np.float32))
    np.testing.assert_array_equal(with_numpy(lambda: fma(a, b, c)), np.full((3, 1), result, np.float32))


def fused(a, b, c):
    """a*b + c as the nearest float32, ties to even."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    near = np.float32(exact)
    around = (np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf)))
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


def test_rounding_to_f16_is_to_nearest_even_and_overflows():
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.standard_normal(4096) * 2.0 ** rng.integers(-30, 17, 4096), [65519.9, 65520, 1 + 2.0**-11]])
    with np.errstate(over="ignore"):
        for numbers in (x, x.astype(np.float32), x[:99], np.append(x, np.nan), np.array([], np.float32)):
            np.testing.assert_array_equal(half_of(numbers), numbers.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(("arch", "lost"), [(70, 2.0**-24), (86, 2.0**-25), (90, 2.0**-26), (120, 2.0**-26)])
def test_each_generation_keeps_its_extra_bits(arch, lost):
    """1 + the smallest power of two that survives the alignment, twice it, and -1."""
    rule = generation_of(arch)
    for small, kept in ((lost, 0.0), (2 * lost, 2 * lost)):
        a = Factors(np.array([[1, -1, small / 2.0**-14, 0]], np.float32))
        b = Factors(np.array([[1], [1], [2.0**-14], [0]], np.float32))
        assert matrix_sum(a, b, np.zeros((1, 1), np.float32), rule)[0, 0] == kept


def launch(kernel, values, grid=(8, 1, 1), block=(32, 4, 1)):
    return launch_of(f"{kernel}<{', '.join(map(str, values))}>", grid, block)


def mma(ncols1, ncols2, arch=90, head=(128, 128), block=(32, 4, 1)):
    one = launch("flash_attn_ext_f16", [*head, ncols1, ncols2, "false", "false"], block=block)
    return mma_plan_of(attention_of([one], arch, default_constants()), arch, default_constants())


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


def test_warps_share_columns_if_there_are_few_k_is_multiplied_last_batch_first_and_each_row_of_a_chunk_summed_once():
    assert [mma(*ncols).kernel.warps_per_column for ncols in ((1, 8), (4, 4), (4, 8), (8, 8))] == [4, 4, 2, 1]
    assert [mma(8, 8, arch).kernel.columns for arch in (70, 75, 90)] == [32, 16, 16]
    assert mma(1, 8).kernel.columns == 8
    order = mma(1, 16, head=(576, 512)).k_order
    assert order.tolist() == list(range(576))
    order = mma(4, 16, head=(576, 512), block=(32, 8, 1)).k_order
    assert order.tolist() == [*range(320, 576), *range(320)]
    for plan in (mma(1, 8), mma(8, 8), mma(8, 8, 70)):
        assert sorted(plan.thread_rows.ravel().tolist()) == list(range(plan.chunk))


def tile(head, ncols1, ncols2, threads, arch=90):
    one = launch("flash_attn_tile", [head, head, ncols1, ncols2, "false"], block=(32, threads // 32, 1))
    return tile_plan_of(attention_of([one], arch, default_constants()), arch, default_constants())


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
    assert attention_of([launch(kernel, values)], 90, default_constants()) is None


@pytest.mark.parametrize("functions", [NVIDIA, OF_AMD])
def test_a_fully_masked_row_is_nan_without_a_warning(functions):
    assert np.isnan(functions.divided(np.zeros((1, 4), np.float32), np.zeros((1, 1), np.float32))).all()
