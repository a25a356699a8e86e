"""Registers that the loops of the tile and vec kernels leave, read back by column, KV row and d."""

import numpy as np
import pytest

from fattn_probe.daily.inspect.trace.lanes import WarpOfColumns
from fattn_probe.daily.inspect.trace.stages import ModelledRows, StoredRow
from fattn_probe.llama.launch.architecture import RDNA3
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import geometry
from fattn_probe.llama.launch.kernel import attention_of
from tests.daily.inspect.traced import small_case
from tests.made import CAUSAL, launch_of, shape

# two heads a K/V head, and a length that is no multiple of a step
CASE, INPUTS = small_case(shape(64, 4, 2, 3, 300, "sinks: true", CAUSAL))
# three queries, two of them to a block
VEC_CASE, VEC_INPUTS = small_case(shape(128, 2, 2, 3, 512, "sinks: true", CAUSAL))
LANES = 32
MMA_CASE, MMA_INPUTS = small_case(shape(64, 8, 1, 8, 256))


def rows_of(case, inputs, name, values, grid, warps, arch):
    launch = launch_of(f"{name}<{', '.join(map(str, values))}>", grid, (32, warps, 1))
    return ModelledRows(case, inputs, attention_of([launch], arch, default_constants()), arch, default_constants())


def tile(warps=4, ncols1=4, ncols2=1, arch=61):
    values, grid = (64, 64, ncols1, ncols2, "false"), (-(-3 // ncols1), 2, 4 // ncols2)
    return rows_of(CASE, INPUTS, "flash_attn_tile", values, grid, warps, arch)


def vec(arch=90):
    values = (128, 2, "GGML_TYPE_F16", "GGML_TYPE_F16", "false")
    return rows_of(VEC_CASE, VEC_INPUTS, "flash_attn_ext_vec", values, (2, 2, 2), 4, arch)


def half2(values, rows):
    return np.float16(values).view(np.uint16).tolist() if rows.half else values


def tile_lane(warp, x, turns, rows):
    """KQ_acc, KQ_max, KQ_sum and VKQ of a thread, by the loops of flash_attn_tile; columns that do not exist are 0."""
    kernel, by, y, cpy_ne = rows.kernel, warp.work.blockIdx[1], warp.warp, 4 if rows.arch >= 70 else 2
    ncols, nwarps, warp_size, DVp = kernel.ncols, kernel.warps, 32, 64
    cpw, np_ = max(1, ncols // nwarps), max(1, nwarps // ncols)
    KQ_acc, VKQ = [0.0] * (kernel.nbatch_fa // (np_ * warp_size) * cpw), [0.0] * (cpw * (DVp // 2) // warp_size * 2)
    KQ_max, KQ_sum = [0.0] * cpw, [0.0] * cpw
    for jc0 in range(cpw):
        if jc0 not in turns:
            continue
        turn = turns[jc0]
        KQ_max[jc0], KQ_sum[jc0] = float(turn.maximum[0, by]), float(turn.sums[0, by, y % np_, x])
        for i_KQ_0 in range(0, kernel.nbatch_fa, np_ * warp_size):
            i_KQ = i_KQ_0 + (y % np_) * warp_size + x
            KQ_acc[i_KQ_0 // (np_ * warp_size) * cpw + jc0] = float(turn.KQ[0, by, i_KQ])
        cpy_ne_D = min(cpy_ne // 2 if rows.half else cpy_ne, DVp // (2 if rows.half else 1) // warp_size)
        unit = 2 if rows.half else 1  # half2, or float
        for i0 in range(0, DVp // unit, warp_size * cpy_ne_D):
            for i1 in range(cpy_ne_D):
                for part in range(unit):
                    at = jc0 * (DVp // warp_size) + (i0 // warp_size + i1) * unit + part
                    VKQ[at] = float(turn.VKQ[0, by, y % np_, unit * (i0 + x * cpy_ne_D + i1) + part])
    return {"KQ": KQ_acc, "KQ_max": KQ_max, "KQ_sum": KQ_sum, "VKQ": half2(VKQ, rows)}


def vec_lane(warp, x, turns, rows):
    """KQ_reg, KQ_max, KQ_sum and VKQ of a thread, by the loops of flash_attn_ext_vec (f16 V, 16 bytes a copy)."""
    D, ncols, by, y, nthreads_V, rows_per_thread = 128, 2, warp.work.blockIdx[1], warp.warp, 8, 8
    found = {"KQ": [0.0] * ncols, "P": [0.0] * ncols, "KQ_max": [0.0] * ncols, "KQ_sum": [0.0] * ncols}
    VKQ = [0.0] * (ncols * D // nthreads_V)
    for j, turn in turns.items():
        found["KQ"][j], found["P"][j] = float(turn.KQ[0, by, y, x]), float(turn.P[0, by, y, x])
        found["KQ_max"][j], found["KQ_sum"][j] = float(turn.maximum[0, by, y]), float(turn.sums[0, by, y, x])
        for i_VKQ_0 in range(0, D // 2, nthreads_V * rows_per_thread // 2):
            for i_VKQ_1 in range(rows_per_thread // 2):
                i = i_VKQ_0 + x % nthreads_V * (rows_per_thread // 2) + i_VKQ_1
                for part in range(2):
                    at = (j * (D // 2) // nthreads_V + i_VKQ_0 // nthreads_V + i_VKQ_1) * 2 + part
                    VKQ[at] = float(turn.VKQ[0, by, y, x // nthreads_V, 2 * i + part])
    return found | {"VKQ": half2(VKQ, rows)}


def traced(rows, block, number, lane_of):
    """A warp, and the document of its readings; the kernel is right."""
    work = geometry(rows.case.op, rows.kernel).blocks()[block]
    warp, name, nbatch_fa = WarpOfColumns(rows, work, number), rows.kernel.family.name, rows.kernel.nbatch_fa
    reads = {read["anchor"]: read["values"] for read in warp.reads({key: ["file.cuh:1"] for key in ANCHORS})}
    readings = []

    def read(anchor, step, turns, before=None):
        for lane in range(LANES):
            values = lane_of(warp, lane, turns, rows)
            values = values | ({"VKQ": lane_of(warp, lane, before, rows)["VKQ"]} if before is not None else {})
            kept = {each: values[each] for each in reads[anchor]}
            readings.append({"anchor": anchor, "lane": lane, "step": step, "values": kept})

    steps = range(work.blockIdx[1], -(-rows.case.op.sizes.n_kv // nbatch_fa), rows.kernel.blocks[1])
    before: dict = {}
    for at_step, kb0 in enumerate(steps):
        turns = {at: of[at_step] for at, of in warp.turns.items()}
        read(f"{name}_logits", kb0 * nbatch_fa, turns, before)
        read(f"{name}_weights", kb0 * nbatch_fa, turns)
        before = turns
    read(f"{name}_last", None, before)
    if f"{name}_sunk" in reads:
        read(f"{name}_sunk", None, {at: warp._sunk(warp.columns[at], turn) for at, turn in before.items()})
    return warp, {"readings": readings, "stopped": []}


ANCHORS = [f"{name}_{line}" for name in ("tile", "vec") for line in ("logits", "weights", "last", "sunk")]
KERNELS = {
    "a column a warp": lambda: (tile(), 1, 2, tile_lane),
    "two columns a warp": lambda: (tile(warps=2), 0, 1, tile_lane),
    "two warps a column": lambda: (tile(ncols1=2), 0, 3, tile_lane),
    "two heads, in f16": lambda: (tile(ncols2=2, arch=90), 0, 1, tile_lane),
    "vec": lambda: (vec(), 0, 1, vec_lane),
    "vec, in f16": lambda: (vec(RDNA3), 0, 1, vec_lane),
    "vec, past the last query": lambda: (vec(), 1, 0, vec_lane),
}


@pytest.mark.parametrize("kind", KERNELS)
def test_registers_are_read_where_the_kernels_loops_put_them(kind):
    warp, document = traced(*KERNELS[kind]())
    stages = list(warp.stages(document, {}))
    assert {stage.quantity for stage in stages} >= {"KQ", "KQ_max", "KQ_sum", "VKQ", "steps done"}
    assert [stage.deviation for stage in stages] == [None] * len(stages)
    assert max(np.abs(stage.found[np.isfinite(stage.found)]).max() for stage in stages if stage.quantity == "VKQ") > 0.1


def test_lanes_that_a_warp_does_not_have_are_not_taken_for_its_own():
    """A launch of a block of 64 threads a row, where the kernel has warps of 32."""
    warp, document = traced(*KERNELS["a column a warp"]())
    document["readings"] = [reading | {"lane": reading["lane"] + LANES} for reading in document["readings"]]
    assert list(warp.stages(document, {})) == []


def test_a_wrong_number_is_named_with_its_column_row_and_lane_and_so_is_a_step_left_out():
    warp, document = traced(tile(warps=2), 0, 0, tile_lane)
    (wrong,) = (r for r in document["readings"] if (r["anchor"], r["step"], r["lane"]) == ("tile_logits", 0, 5))
    wrong["values"]["KQ"][1] += 1  # column 1 of the two that the warp has
    found = (stage.deviation for stage in warp.stages(document, {"tile_logits": "fattn-tile.cuh:9"}))
    deviation = next(filter(None, found))
    assert (deviation.where, deviation.quantity, deviation.place) == ("kb0 0", "KQ", "fattn-tile.cuh:9")
    assert deviation.at == {"query": 1, "head": 0, "KV row": 5, "lane": 5}
    assert deviation.count == 1
    rows, block, number, lane_of = KERNELS["a column a warp"]()
    warp, document = traced(rows, block, number, lane_of)
    last = max(r["step"] for r in document["readings"] if r["step"] is not None)
    document["readings"] = [r for r in document["readings"] if r["step"] != last]
    (left_out,) = (stage for stage in warp.stages(document, {}) if stage.quantity == "steps done")
    assert left_out.deviation.at == {"kb0": last // rows.kernel.nbatch_fa}
    assert (left_out.deviation.found, left_out.deviation.expected) == (0, 1)


@pytest.mark.parametrize("rows", [tile(), vec()], ids=["tile", "vec"])
def test_the_parts_of_a_row_give_the_models_output(rows):
    row = (0, 2, 1)
    stored = StoredRow(rows, geometry(rows.case.op, rows.kernel), row)
    parts = rows.parts(row)
    VKQ = [values.astype("<f4").tobytes().hex() for values in parts.VKQ[0]]
    meta = [
        np.stack(pair).astype("<f4").tobytes().hex() for pair in zip(parts.maximum[0], parts.rowsum[0], strict=True)
    ]
    dst = rows.output(row, parts).astype("<f4").tobytes().hex()
    texts = [text for pair in zip(VKQ, meta, strict=True) for text in pair]
    places = {"launched": "a.cuh:1", "finished": "a.cuh:2"}
    assert [stage.deviation for stage in stored.stages({"parts": [*texts, dst]}, places)] == [None] * 7
    texts[2] = np.zeros(rows.kernel.DV, "<f4").tobytes().hex()  # VKQ of the second block
    found = [stage.deviation for stage in stored.stages({"parts": [*texts, dst]}, places)]
    assert (found[5].where, found[5].quantity) == ("stored by block " + str([*stored.parts][1]), "VKQ")
    assert found[6] is not None  # dst is not the sum of these parts


def test_an_mma_rows_parts_are_read_from_the_fixup_buffer():
    """dst_fixup: (maximum, row sum) of the tiles' last blocks, then of the others, then VKQ of the others."""
    values = (64, 64, 8, 8, "false", "false", "false")
    rows = rows_of(MMA_CASE, MMA_INPUTS, "flash_attn_ext_f16", values, (4, 1, 1), 4, 90)
    plan = StoredRow(rows, geometry(rows.case.op, rows.kernel), (0, 3, 5)).plan()
    ncols, column, blocks, DV = 64, 3 * 8 + 5, 4, 64
    partial = [(anchor, buffer, offset // 4, count // 4) for anchor, buffer, offset, count in plan]
    dst = (3 * 8 + 5) * DV
    meta = "(long)dst_tmp_meta.ptr"
    expected = []
    for block in range(3):
        expected.append(("launched", meta, blocks * 4 * ncols + block * ncols * DV + column * DV, DV))
        expected.append(("launched", meta, 2 * ((blocks + block) * ncols + column), 2))
    expected += [("launched", "(long)KQV->data", dst, DV), ("launched", meta, 2 * (3 * ncols + column), 2)]
    assert partial == [*expected, ("finished", "(long)KQV->data", dst, DV)]
