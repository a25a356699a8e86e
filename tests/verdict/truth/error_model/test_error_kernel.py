from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.llama.launch.architecture import CDNA1, CDNA2, CDNA3, GFX906, RDNA1, RDNA2, RDNA3, RDNA4
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.llama.launch.tiles import Grid, tile_at, tiles_of
from fattn_probe.verdict.truth.error_model import kernel
from fattn_probe.verdict.truth.error_model.kernel import Sinking, Split, pieces_of, steps_of
from fattn_probe.verdict.truth.error_model.rounding import HALF, SINGLE
from tests.made import case_with, launch_of
from tests.verdict.truth.models import kernel_of

F16_TYPES = "(ggml_type)1, (ggml_type)1"
NO = "false, false, false"
Q8_TYPES = "(ggml_type)8, (ggml_type)8"


def op_of(**fields):
    return case_with(**{"hsk": 128, "n_head": 8, "n_head_kv": 2, "n_q": 16, "n_kv": 1024} | fields).op


def launch(kernel, threads, grid=(64, 1, 1), wave=32):
    return launch_of(kernel, grid, (wave, threads // wave, 1))


@pytest.mark.parametrize(
    ("kernel", "threads", "arch", "split"),
    [
        ("flash_attn_ext_f16<64, 64, 8, 8, false, false, false>", 128, 90, Split(1, 4, 1, 1, 16)),
        ("flash_attn_ext_f16<128, 128, 2, 4, false, false, false>", 128, 90, Split(1, 2, 4, 1, 16)),
        ("flash_attn_ext_f16<256, 256, 8, 2, false, false, false>", 256, 90, Split(1, 1, 4, 1, 16)),
        ("flash_attn_ext_f16<64, 64, 4, 8, false, false, false>", 128, 75, Split(1, 2, 2, 2, 8)),
        ("flash_attn_ext_f16<64, 64, 64, 1, false, false, false>", 128, 70, Split(1, 4, 2, 2, 4)),
        ("flash_attn_tile<40, 40, 1, 2, false>", 128, 90, Split(1, 64, 2, 1, 1)),
        (f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128, 90, Split(4, 8, 4, 1, 1)),
        (f"flash_attn_ext_vec<128, 1, {Q8_TYPES}, false>", 128, 90, Split(4, 32, 1, 1, 1)),
        ("flash_attn_tile<128, 128, 1, 2, false>", 256, GFX906, Split(1, 32, 4, 1, 1)),
        ("flash_attn_tile<128, 128, 1, 2, false>", 64, RDNA2, Split(1, 32, 1, 1, 1)),
        (f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128, GFX906, Split(4, 8, 4, 1, 1)),
        ("flash_attn_ext_f16<128, 128, 2, 8, false, false, false>", 64, RDNA3, Split(1, 1, 2, 8, 2)),
        ("flash_attn_ext_f16<128, 128, 4, 8, false, false, false>", 128, RDNA4, Split(1, 2, 2, 4, 4)),
        ("flash_attn_ext_f16<128, 128, 4, 8, false, false, false>", 256, CDNA1, Split(1, 2, 2, 4, 4)),
        ("flash_attn_ext_f16<64, 64, 2, 8, false, false, false>", 256, CDNA3, Split(1, 1, 4, 2, 8)),
    ],
)
def test_a_launch_says_how_kv_rows_go_to_accumulators(kernel, threads, arch, split):
    wave = 64 if "f16<" in kernel and arch in (CDNA1, CDNA3) else 32
    assert kernel_of(op_of(), [launch(kernel, threads, wave=wave)], arch).split == split


def test_what_is_rounded_to_what_on_amd():
    def mma(D, arch, wave=32):
        return kernel_of(op_of(hsk=D), [launch(f"flash_attn_ext_f16<{D}, {D}, 8, 2, {NO}>", 128, wave=wave)], arch)

    tile = kernel_of(op_of(), [launch("flash_attn_tile<128, 128, 4, 1, false>", 128)], GFX906)
    vec = kernel_of(op_of(), [launch(f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128)], RDNA2)
    q8 = kernel_of(op_of(type_V="q8_0"), [launch(f"flash_attn_ext_vec<128, 1, {Q8_TYPES}, false>", 128)], RDNA2)
    assert [k.accumulator for k in (tile, vec, q8)] == [HALF, HALF, HALF]
    assert [k.q for k in (tile, vec, q8)] == ["f16", "f16 twice", "q8_1"]
    assert not tile.products_f16 and q8.converts_V
    scaled = Sinking(block=0, warps=slice(None), flushes=False, factor=HALF)  # all sums of the block that has the sink
    assert (tile.sinking, vec.sinking) == (scaled, replace(scaled, to_maximum=True))
    kernels = [mma(128, RDNA3), mma(80, RDNA3), mma(80, RDNA4), mma(128, CDNA2, 64)]
    assert [k.accumulator for k in kernels] == [HALF, SINGLE, HALF, SINGLE]
    assert not any(k.fast_math for k in (tile, vec, *kernels))
    assert [k.joining for k in kernels] == ["f32", "f32 from f16", "f32", "f32 from f16"]
    assert tile.assumed == vec.assumed == kernel.ASSUMED_DOT2 and not q8.assumed
    for name in ("tile<128, 128, 4, 1, false>", f"ext_vec<128, 1, {F16_TYPES}, false>"):
        assert not any(kernel_of(op_of(), [launch(f"flash_attn_{name}", 128)], arch).assumed for arch in (90, RDNA3))
    assert [bool(k.assumed) for k in kernels] == [False, False, True, False]  # RDNA4 is a gfx1200
    assert [k.least_factor for k in kernels] == [0, 0, 0, 2.0**-14]
    one = launch(f"flash_attn_ext_f16<128, 128, 8, 2, {NO}>", 128, wave=64)
    older = kernel_of(op_of(), [one], CDNA3, replace(default_constants(), cdna_in_f32=False))
    assert (older.accumulator, older.joining, older.split.group) == (HALF, "f32", 16)


def test_what_is_rounded_to_what():
    mma = kernel_of(op_of(), [launch("flash_attn_ext_f16<128, 128, 8, 8, false, false, false>", 128)], 90)
    vec = kernel_of(op_of(), [launch(f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128)], 90)
    pascal = kernel_of(op_of(), [launch("flash_attn_tile<128, 128, 4, 1, false>", 128)], 61)
    volta = kernel_of(op_of(), [launch("flash_attn_tile<128, 128, 4, 1, false>", 128)], 70)
    quantised = op_of(type_K="q8_0")
    q8 = kernel_of(quantised, [launch(f"flash_attn_ext_vec<128, 1, {Q8_TYPES}, false>", 128)], 90)
    fallback = kernel_of(quantised, [launch(f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128)], 90)
    assert all(k.fast_math for k in (mma, vec, pascal))
    assert [k.accumulator for k in (mma, vec, pascal, volta)] == [HALF, SINGLE, SINGLE, HALF]
    assert [k.q for k in (mma, vec, pascal, volta, q8)] == ["f16 twice", "f32", "f32", "f16", "q8_1"]
    assert [k.converts_K for k in (mma, vec, pascal, q8, fallback)] == [True, False, True, False, True]


MMA_128, TILE_256 = f"f16<128, 128, 8, 2, {NO}>", "tile<256, 256, 4, 1, false>"
F16, BF16, Q8 = (f"vec<256, 1, {types}, false>" for types in (F16_TYPES, "(ggml_type)30, (ggml_type)30", Q8_TYPES))
LANES = {
    MMA_128: [(RDNA4, 32, 1), (RDNA3, 64, 1)],
    TILE_256: [(RDNA2, 256, 1), (RDNA3, 128, 1)],
    BF16: [(RDNA3, 256, 8)],
}
LANES |= {F16: [(61, 256, 16), (RDNA2, 256, 8), (RDNA3, 128, 8)], Q8: [(CDNA1, 64, 4), (RDNA1, 64, 2)]}


@pytest.mark.parametrize(("kernel", "case"), [(kernel, case) for kernel, found in LANES.items() for case in found])
def test_partial_sums_of_a_logit_are_a_walk_to_it_on_each_lane_and_then_pairwise(kernel, case):
    """Products are added one after another or, by a dot product, two or four at once (fattn-*.cuh)."""
    (arch, additions, lanes), name = case, f"flash_attn_{'' if kernel == TILE_256 else 'ext_'}{kernel}"
    each, rounds = additions // lanes, range(lanes.bit_length() - 1)
    shares = [(at + 1) / additions for at in range(each)] * lanes + [2.0**-n for n in rounds for _ in range(2**n)]
    expected = np.square(shares).sum(), np.multiply(shares, 1 - np.array(shares)).sum()
    assert kernel_of(op_of(hsk=256), [launch(name, 128)], arch).chain == pytest.approx(expected, rel=0.07)


def test_no_prediction_for_a_kernel_that_is_not_known(monkeypatch):
    assert kernel_of(op_of(), [launch("mul_mat_vec<1>", 128)], 90) is None
    monkeypatch.setattr(kernel, "BY_FAMILY", {})
    assert kernel_of(op_of(), [launch("flash_attn_tile<128, 128, 4, 1, false>", 128)], 61) is None


def test_stream_k_seams_are_those_of_the_inspected_arithmetic_and_other_kernels_take_turns():
    op = op_of(n_q=40, n_kv=1000)
    kernel = kernel_of(op, [launch("flash_attn_ext_f16<128, 128, 8, 4, false, false, false>", 128, (23, 1, 1))], 90)
    geometry, grid = kernel.geometry, Grid(iter_k=16, iter_j=5, iter_z_gqa=1, ne12=2, ne03=1)
    assert isinstance(geometry, Geometry) and geometry.grid == grid
    found: dict = {}
    for block in range(23):
        for tile in tiles_of(block * 160 // 23, (block + 1) * 160 // 23, grid):
            found.setdefault(tile.tile, []).append(tile.steps)
    for index in range(10):
        _, z_KV, _, jt = tile_at(index, grid)
        place = geometry.tile_of(0, 8 * jt + 5, 4 * z_KV + 3)
        assert place == tile_at(index, grid)
        assert pieces_of(geometry, place) == tuple(found[place])
    op = op_of(n_q=1, n_kv=1024)
    kernel = kernel_of(op, [launch(f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128, (1, 3, 8))], 90)
    geometry = kernel.geometry
    pieces = pieces_of(geometry, geometry.tile_of(0, 0, 0))
    assert [list(piece) for piece in pieces] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert steps_of(pieces, 8).tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_the_largest_weight_is_the_source_s():
    one = launch("flash_attn_ext_f16<128, 128, 8, 8, false, false, false>", 128)
    first_era = replace(default_constants(), max_offset=float(np.float32(0.6931)))
    assert kernel_of(op_of(), [one], 90).largest_weight == 0.125
    assert kernel_of(op_of(), [one], 90, first_era).largest_weight == 0.5
