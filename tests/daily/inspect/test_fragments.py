from pathlib import Path

import numpy as np
import pytest

from fattn_probe.daily.inspect.trace.fragments import LANES, LAYOUTS, Fragment, WarpFragments
from tests.daily.inspect.traced import NARROW, VOLTA, WIDE, fragments_of

KINDS = pytest.mark.parametrize(
    ("kind", "ncols1", "ncols2"),
    [(WIDE, 8, 8), (WIDE, 32, 1), (WIDE, 16, 1), (NARROW, 2, 4), (NARROW, 8, 1), (NARROW, 2, 8), (VOLTA, 32, 1)],
    ids=lambda value: "" if isinstance(value, tuple) else str(value),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_layout_holds_every_element_once(layout):
    i, j = Fragment(*layout).place()
    assert sorted(zip(i.ravel().tolist(), j.ravel().tolist(), strict=True)) == [
        (a, b) for a in range(layout[0]) for b in range(layout[1])
    ]


# PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": of a lane's groupID = lane / 4 and
# threadID_in_group = lane % 4, rows and columns of the accumulators c0 to c3 and of the f16 operands A and B
PTX_C = {0: (0, 0), 1: (0, 1), 2: (8, 0), 3: (8, 1)}
PTX_A = {0: (0, 0), 1: (8, 0), 2: (0, 4), 3: (8, 4)}
PTX_B = {0: (0, 0), 1: (0, 4)}


@pytest.mark.parametrize("lane", range(LANES))
def test_tiles_are_the_fragments_of_the_instruction(lane):
    group, within = divmod(lane, 4)
    c, a, b = (Fragment(*shape).place() for shape in ((16, 8, "float"), (16, 8, "half2"), (8, 8, "half2")))
    assert {r: (c[0][lane, r], c[1][lane, r]) for r in PTX_C} == {
        r: (group + row, 2 * within + column) for r, (row, column) in PTX_C.items()
    }
    assert {r: (a[0][lane, r], a[1][lane, r]) for r in PTX_A} == {
        r: (group + row, within + pair) for r, (row, pair) in PTX_A.items()
    }
    assert {r: (b[0][lane, r], b[1][lane, r]) for r in PTX_B} == {
        r: (group + column, within + pair) for r, (column, pair) in PTX_B.items()
    }


AMD = np.load(Path(__file__).parents[2] / "native/data/amd_layouts.npz")
"""Register, lane and first bit of each element of the sums D, [row][column], as AMD's calculator has them."""


@pytest.mark.parametrize(
    ("fragment", "instructions"),
    [
        (Fragment(16, 16, "float", 64, "mfma"), ["gfx942/v_mfma_f32_16x16x16_f16"]),
        (Fragment(16, 16, "float", 32, "rdna3"), ["gfx1100/v_wmma_f32_16x16x16_f16"]),
        (Fragment(16, 16, "float", 32, "rdna4"), ["gfx1201/v_wmma_f32_16x16x16_f16"]),
        # two products, of the even and of the odd rows of V's transpose
        (
            Fragment(16, 16, "half2", 32, "rdna3"),
            ["gfx1100/v_wmma_f16_16x16x16_f16", "gfx1100/v_wmma_f16_16x16x16_f16/high"],
        ),
        (Fragment(16, 16, "half2", 32, "rdna4 scrambled"), ["gfx1201/v_wmma_f16_16x16x16_f16"] * 2),
        (Fragment(16, 8, "half2", 32, "rdna4"), ["gfx1201/v_wmma_f16_16x16x16_f16"]),
    ],
    ids=str,
)
def test_sums_of_amd_lie_where_its_calculator_says(fragment, instructions):
    columns, along = fragment.halves()
    for product, instruction in enumerate(instructions):
        register, lane, first = np.moveaxis(AMD[f"{instruction}/D"][0].astype(int), -1, 0)
        number = 2 * register + first // 16 if fragment.T == "half2" else register
        number += product * columns.shape[1] // 2 * (fragment.layout == "rdna4 scrambled")
        row, column = np.mgrid[:16, :16]
        assert (columns[lane, number] == column).all()
        assert (along[lane, number] == row * len(instructions) + product).all()
    assert fragment.known


def test_a_product_through_the_fragments_is_the_product():
    # What mma.m16n8k16 does: lane by lane the operands are taken apart, and the result is put together again
    rng = np.random.default_rng(1)
    A, B = rng.normal(size=(16, 16)), rng.normal(size=(16, 8))
    a, b, c = (Fragment(*shape).place() for shape in ((16, 8, "half2"), (8, 8, "half2"), (16, 8, "float")))
    registers_A = np.stack([A[a[0], 2 * a[1]], A[a[0], 2 * a[1] + 1]], axis=-1)
    registers_B = np.stack([B[2 * b[1], b[0]], B[2 * b[1] + 1, b[0]]], axis=-1)
    total = np.zeros((16, 8))
    for group in range(4):  # threadID_in_group: which k a lane holds
        rows, columns = np.arange(8) * 4 + group, np.arange(8) * 4 + group
        for half in range(2):
            for k in range(2):
                left = np.concatenate([registers_A[rows, 2 * k, half], registers_A[rows, 2 * k + 1, half]])
                total += np.outer(left, registers_B[columns, k, half])
    assert np.allclose(total, A @ B)
    assert np.allclose(total[c], (A @ B)[c])


@KINDS
def test_the_warps_of_a_block_cover_its_KQ_once(kind, ncols1, ncols2):
    nbatch_fa = 64
    seen = []
    for warp in range(4):
        fragments = fragments_of(kind, ncols1, ncols2, warp)
        numbers = nbatch_fa // fragments.np // fragments.kv_per_tile * fragments.KQ.ne
        assert fragments.nbatch_fa(numbers) == nbatch_fa
        places = fragments.KQ_places(numbers)
        seen += list(zip(places.column.ravel(), places.along.ravel(), strict=True))
    warps = 4 * fragments.cols_per_warp // fragments.np
    assert sorted(seen) == [(column, row) for column in range(warps) for row in range(nbatch_fa)]


@KINDS
def test_a_warp_holds_every_d_of_its_columns_once_and_a_lane_their_maxima(kind, ncols1, ncols2):
    fragments = fragments_of(kind, ncols1, ncols2, warp=3)
    places = fragments.VKQ_places(128 // fragments.d_per_tile * 2 * fragments.VKQ.ne)
    columns = range(fragments.first_column, fragments.first_column + fragments.cols_per_warp)
    seen = sorted(zip(places.column.ravel(), places.along.ravel(), strict=True))
    assert seen == [(column, d) for column in columns for d in range(128)]
    fragments = fragments_of(kind, ncols1, ncols2, warp=2)
    own = fragments.KQ_places(fragments.KQ.ne).column
    maxima = fragments.state_columns()
    for lane in range(LANES):
        assert set(maxima[lane]) == set(own[lane])


def test_four_warps_share_eight_columns():
    assert [fragments_of(NARROW, 2, 4, warp).first_column for warp in range(4)] == [0, 0, 0, 0]
    assert fragments_of(NARROW, 2, 4).np == 4
    assert [fragments_of(WIDE, 8, 8, warp).first_column for warp in range(4)] == [0, 16, 32, 48]


def test_fragments_follow_from_the_debuggers_types():
    document = {
        "template": {"DKQ": 64, "DV": 64, "ncols1": 8, "ncols2": 8, "nwarps": 4},
        "KQ": {"I": 16, "J": 16, "T": "float"},
        "VKQ": {"I": 16, "J": 8, "T": "half2"},
    }
    assert WarpFragments.of(document, 1) == fragments_of(WIDE, 8, 8, 1)
    assert not Fragment(16, 16, "half2").known
