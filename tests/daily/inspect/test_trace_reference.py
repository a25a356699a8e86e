"""A trace held against exact arithmetic, and as it is shown; the first value that is not finite."""

import io
import json
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.daily.inspect.pages import trace_picture, trace_section
from fattn_probe.daily.inspect.trace.checks import TracedOperands, accumulate, half_ulp, warp_inputs
from fattn_probe.daily.inspect.trace.find_nan import NaNSearch, in_dst, in_inputs, in_stages
from fattn_probe.daily.inspect.trace.fragments import block_arrays, steps_of, write_arrays
from fattn_probe.daily.inspect.trace.show import render_trace, trace_json
from fattn_probe.daily.inspect.trace.stages import Stage
from fattn_probe.llama.launch.tiles import BlockWork, TileWork
from tests.daily.inspect.traced import (
    CASE,
    INPUTS,
    NARROW,
    SCENARIO,
    VOLTA,
    WIDE,
    Warp,
    fragments_of,
    judge,
    small_case,
    whole,
)


def judged(kind=WIDE, ncols1=8, ncols2=2, *, warp=0, fault=None, work=None, case=CASE, inputs=INPUTS):
    work = work or whole()
    document = Warp(case, inputs, fragments_of(kind, ncols1, ncols2, warp), work, fault=fault).document()
    return judge(json.loads(json.dumps(document)), work, case=case, inputs=inputs, warp=warp)


@pytest.mark.parametrize(
    ("kind", "ncols1", "ncols2", "warp"),
    [(WIDE, 8, 2, 0), (WIDE, 8, 2, 3), (WIDE, 32, 2, 1), (NARROW, 4, 2, 2), (NARROW, 8, 2, 1), (VOLTA, 32, 2, 1)],
)
def test_a_right_warp_parts_nowhere(kind, ncols1, ncols2, warp):
    trace = judged(kind, ncols1, ncols2, warp=warp)
    assert trace.deviation is None
    assert [step.kb0 for step in trace.tiles[0].steps] == [0, 1, 2, 3, 4]
    assert {item.name for item in trace.tiles[0].steps[1].checked} == {
        *("KQ", "KQ_max", "KQ_max_scale", "P", "KQ_rowsum", "VKQ rescaled", "VKQ")
    }


SINKS = SCENARIO + "sinks: true\n"


@pytest.mark.parametrize("kind", [WIDE, NARROW, VOLTA])
@pytest.mark.parametrize("scenario", [SCENARIO, SINKS])
def test_the_end_of_a_tile_follows_from_its_last_step(kind, scenario):
    case, inputs = small_case(scenario)

    def fault(name, kb0, values):
        return values * np.float32(1.001) if name == "KQ_rowsum at the end" else values

    ncols1 = 32 if kind is VOLTA else 8
    last = judged(kind, ncols1, case=case, inputs=inputs).tiles[0].steps[-1]
    names = [item.name for item in last.checked if item.name.endswith("at the end")]
    assert names == ["KQ_max at the end", "KQ_rowsum at the end", "VKQ at the end"]
    assert last.deviations == ()
    deviation = judged(kind, ncols1, case=case, inputs=inputs, fault=fault).deviation
    assert (deviation.quantity, deviation.anchor, deviation.kv_row) == ("KQ_rowsum at the end", "sunk", None)


def test_sinks_are_added_where_a_tile_ends_and_by_the_first_warp_of_a_column():
    case, inputs = small_case(SINKS)
    end, part = whole(), replace(whole(), is_fixup=True)
    for work, warp, adds in ((end, 0, True), (end, 1, False), (part, 0, False)):
        operands = TracedOperands.of(case, inputs)
        columns = warp_inputs(operands, work, fragments_of(WIDE, 8, 2, warp))
        assert (columns.sink is not None) == adds
        if columns.sink is not None:
            assert columns.sink[columns.exists].tolist() == operands.sinks[columns.head[columns.exists]].tolist()


def test_subnormal_factors_count_where_the_gpu_does_not_flush_them():
    case, inputs = small_case(SCENARIO + "data: {K: {kind: uniform, scale: 5.0e-5}}\n")
    work, fragments = whole(), fragments_of(WIDE, 8, 2)
    document = Warp(case, inputs, fragments, work).document()
    assert judge(document, work, case=case, inputs=inputs).deviation is None
    assert judge(document, work, case=case, inputs=inputs, least=2.0**-14).deviation.quantity == "KQ"


def test_rounding_comes_near_its_bounds_and_adds_up_in_the_drift():
    steps = judged().tiles[0].steps
    ratios: dict = {}
    for step in steps:
        for item in step.checked:
            ratios[item.name] = max(ratios.get(item.name, 0), item.in_bounds)
    assert ratios["VKQ"] > 0.1
    assert ratios["VKQ rescaled"] > 0.5
    assert ratios["P"] > 0.02
    drifts = [float(np.abs(step.VKQ - step.exact_VKQ).max()) for step in steps]
    assert 0 < drifts[0] < 2e-3
    assert max(drifts) < 5e-3
    assert np.allclose(steps[-1].exact_KQ_rowsum, steps[-1].KQ_rowsum, rtol=1e-5)


def wrong(name, kb0, change):
    def fault(of, at, values):
        if (of, at) == (name, kb0):
            change(values)
        return values

    return fault


def at(index, factor=1.0, add=0.0):
    def change(values):
        values[index] = values[index] * factor + add

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("KQ", at((3, 5), add=1e-4)),
        ("KQ_max", at(2, add=1e-4)),
        ("KQ_max_scale", at(2, 1.001)),
        ("P", at((4, 7), 1.001)),
        ("KQ_rowsum", at((5, 1), 1.001)),
        ("VKQ rescaled", at((1, 9), 1.01)),
        ("VKQ", at((6, 3), add=0.02)),
    ],
)
@pytest.mark.parametrize("kb0", [1, 3])
def test_the_first_quantity_and_step_are_named(name, change, kb0):
    deviation = judged(fault=wrong(name, kb0, change)).deviation
    assert (deviation.quantity, deviation.kb0) == (name, kb0)


def test_a_wrong_number_is_named_by_query_head_and_row_and_a_wrong_offset_by_the_maximum():
    deviation = judged(fault=wrong("KQ", 2, at((5, 9), add=0.01)), work=whole(jt=1)).deviation
    # column 5 of ncols2 = 2 is query 8 + 2 and the second head of the group of K/V head 1; nbatch_fa is 64
    assert (deviation.query, deviation.head, deviation.kv_row, deviation.d) == (10, 3, 2 * 64 + 9, None)
    assert deviation.found - deviation.expected == pytest.approx(0.01, rel=1e-3)
    deviation = judged(fault=wrong("VKQ", 0, at((5, 9), add=0.1))).deviation
    assert (deviation.query, deviation.head, deviation.kv_row, deviation.d) == (2, 3, None, 9)
    document = Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), work := whole()).document()
    assert judge(document, work, offset=0.6931).deviation.quantity == "KQ_max"


def test_two_swapped_rows_of_V_are_found_in_their_step():
    swapped = {**INPUTS, "V": INPUTS["V"].copy()}
    rows = swapped["V"].reshape(CASE.op.sizes.n_head_kv, CASE.op.sizes.n_kv, -1)
    rows[1, [70, 71]] = rows[1, [71, 70]]
    trace = judge(Warp(CASE, swapped, fragments_of(WIDE, 8, 2), work := whole(jt=1)).document(), work)
    assert (trace.deviation.quantity, trace.deviation.kb0) == ("VKQ", 1)


def test_masked_keys_have_no_weight_and_a_column_that_does_not_exist_parts_nowhere():
    def fault(name, kb0, values):
        return np.where(values == 0, 0.01, values) if name == "P" and kb0 == 4 else values

    deviation = judged(WIDE, 32, 2, fault=fault).deviation
    assert (deviation.quantity, deviation.kb0, deviation.expected) == ("P", 4, 0.0)
    assert deviation.count > 1
    # 13 queries in tiles of 8: of the second tile 5 exist, columns 10 and up are past the last query
    assert judged(work=whole(jt=1), fault=wrong("KQ", 0, at((11, 3), add=1.0))).deviation is None


def test_what_a_tile_must_begin_with():
    document = Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), work := whole(kb0_start=2)).document()
    next(reading for reading in document["readings"] if reading["lane"] == 4)["values"]["KQ_rowsum"][1] = 0.5
    trace = judge(document, work)
    assert (trace.deviation.quantity, trace.deviation.lane) == ("KQ_rowsum at the start", 4)


def test_one_step_is_set_next_to_all_that_came_before():
    document = Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), work := whole()).document()
    one = [r for r in document["readings"] if r["kb0"] == 3 or (r["kb0"], r["anchor"]) == (4, "logits")]
    trace = judge({**document, "readings": one}, work)
    (step,) = trace.tiles[0].steps
    whole_trace = judged()
    assert np.array_equal(step.exact_VKQ, whole_trace.tiles[0].steps[3].exact_VKQ)
    assert np.array_equal(step.VKQ, whole_trace.tiles[0].steps[3].VKQ)
    assert trace.deviation is None


def test_lanes_that_were_not_read_leave_a_quantity_out():
    document = Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), work := whole(kb0_stop=2)).document()
    kept = [r for r in document["readings"] if (r["anchor"], r["lane"]) != ("rescaled", 7)]
    for reading in kept:
        if reading["lane"] == 9:
            reading["values"].pop("KQ_max_scale", None)
    document |= {"readings": kept, "stopped": ["signal", "SIGSEGV", "mma"]}
    trace = judge(document, work)
    checked = {item.name for item in trace.tiles[0].steps[1].checked}
    assert {name for name in checked if not name.endswith("at the end")} == {"KQ", "KQ_max", "P"}
    assert np.isnan(trace.tiles[0].steps[1].KQ_max_scale).all()
    assert trace.stopped == ("signal", "SIGSEGV", "mma")


def test_softcap_and_alibi():
    def cap(name, kb0, values):
        return np.float32(20) * np.tanh(values) if name == "KQ" else values

    for more in ("logit_softcap: 20", "max_bias: 8"):
        case, inputs = small_case(SCENARIO.replace("mask: {kind: causal}", f"mask: {{kind: alibi}}\n{more}"))
        if "softcap" in more:
            assert judged(case=case, inputs=inputs, fault=cap).deviation is None
            assert judged(case=case, inputs=inputs).deviation.quantity == "KQ"
        else:
            assert judged(WIDE, 16, 1, case=case, inputs=inputs, work=replace(whole(), zt_gqa=1)).deviation is None


def test_an_overflow_that_arithmetic_makes_is_no_deviation():
    text = SCENARIO.replace("mask: {kind: causal}", "data: {V: {kind: uniform, scale: 1, mean: 60000}}")
    case, inputs = small_case(text)
    with np.errstate(over="ignore", invalid="ignore"):
        trace = judged(WIDE, 16, 1, case=case, inputs=inputs)
    assert np.isinf(trace.tiles[0].steps[-1].VKQ).any()
    assert trace.deviation is None
    json.dumps(trace_json(trace), allow_nan=False)


def test_half_an_ulp_and_an_accumulator_is_bounded_by_its_roundings():
    # 2048 to 4095 lie 2 apart in f16, 1 to 2 lie 2^-10 apart, and all below 2^-14 lie 2^-24 apart
    assert half_ulp(np.array([3000.0, 1.5, 1e-7, 0.0, np.inf])).tolist() == [1.0, 2.0**-11, 2.0**-25, 2.0**-25, 16.0]
    rng = np.random.default_rng(3)
    P, V, start = rng.random((4, 64)), rng.normal(size=(64, 8)), rng.normal(size=(4, 8))
    total, bound = accumulate(start, P, V, 2)
    rounded = start
    for first in range(0, 64, 8):
        rounded = (rounded + P[:, first : first + 8] @ V[first : first + 8]).astype(np.float16).astype(np.float64)
    assert np.allclose(total, start + P @ V)
    assert (np.abs(rounded - total) <= bound).all()
    assert bound.max() < 0.05


def test_steps_of_readings_in_any_order():
    document = Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), whole(kb0_stop=3)).document()
    shuffled = list(document["readings"])
    np.random.default_rng(0).shuffle(shuffled)
    for a, b in zip(steps_of(document), steps_of({**document, "readings": shuffled}), strict=True):
        assert (a.tile, a.kb0, a.registers.keys()) == (b.tile, b.kb0, b.registers.keys())
        assert all(np.array_equal(a[name], b[name]) for name in a.registers)


SVG = "{http://www.w3.org/2000/svg}"


def shown(trace, **how):
    Console(file=(out := io.StringIO()), width=100).print(render_trace(trace, **how))
    return out.getvalue()


def dropped_key(name, kb0, values):
    if (name, kb0) == ("P", 1):
        values[2, 3] = 0.0
    return values


def test_a_line_a_step_and_all_numbers_fit_a_terminal():
    text = shown(judged())
    lines = text.splitlines()
    assert lines[0] == "warp 0 of block 2, one of 4 that share their columns"
    assert lines[1] == "sequence 0, query 0 to 7, head 2 to 3, kb0 0 to 4"
    assert [line.split()[0] for line in lines[4:9]] == ["0", "1", "2", "3", "4"]
    assert [line.split()[1] for line in lines[4:6]] == ["0-15", "64-79"]
    assert shown(judged(NARROW, 8)).splitlines()[4].split()[1] == "0-47*"
    assert "first deviation: none" in text
    assert max(len(line) for line in lines) <= 100
    text = shown(judged(work=whole(kb0_stop=1)), verbose=True)
    assert "KQ before the mask" in text
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_first_deviation_in_a_sentence_and_in_json():
    text = " ".join(shown(judged(fault=dropped_key)).split())
    # column 2 of ncols2 = 2: query 1, the first head of K/V head 1
    assert "kb0 1: P of query 1, head 2, KV row 67 (lane 9, number 1) is 0, not 0.0" in text
    assert "read at fattn-mma-f16.cuh:701" in text
    deviation = trace_json(judged(fault=dropped_key))["first_deviation"]
    assert (deviation["quantity"], deviation["kb0"], deviation["kv_row"], deviation["d"]) == ("P", 1, 67, None)
    assert deviation["words"].startswith("kb0 1: P of query 1")


def test_the_registers_of_a_lane():
    trace = judged(NARROW, 4)
    text = shown(trace, lane=5)
    step = trace.tiles[0].steps[0]
    first = next(line.split() for line in text.splitlines() if line.split()[:1] == ["0"] and len(line.split()) == 7)
    # lane 5 of an m16n8 accumulator: row 5 / 4 = 1, column 5 % 4 * 2 = 2, which is query 1 of the first head
    assert first[:4] == ["0", "1", "2", "1"]
    assert float(first[4]) == float(f"{step.KQ[2, 1]:.6g}")
    assert "kb0 0, lane 5: VKQ_C" in text


def test_a_program_that_ended_early_is_reported():
    document = Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), work := whole(kb0_stop=1)).document()
    document["stopped"] = ["signal", "SIGSEGV", "mma"]
    assert "ended before everything was read: signal SIGSEGV mma" in shown(judge(document, work))


def test_json_has_no_nan_or_infinity():
    case, inputs = small_case(SCENARIO.replace("{kind: causal}", "{kind: masked_tiles, leading: 256}"))
    document = trace_json(judged(case=case, inputs=inputs))
    assert '"-inf"' in json.dumps(document, allow_nan=False)
    assert document["first_deviation"] is None
    assert len(document["tiles"][0]["steps"]) == 5


def test_an_assumption_of_the_model_is_named_below_the_stages():
    trace = replace(judged(), stages=(stage("dst", "output", 0.0),), assumed="each sum rounds")
    assert "An assumption of the model: each sum rounds." in " ".join(shown(trace).split())
    assert "An assumption of the model: each sum rounds." in trace_section(trace)
    assert trace_json(trace)["assumed"] == "each sum rounds"


def stage(where, quantity, off, **more):
    """Four numbers of a stage, of which the third is off."""
    expected = np.array([1.0, 2.0, 3.0, np.inf], np.float32)
    found = expected + np.array([0, 0, off, 0], np.float32)
    return Stage(where, quantity, found, expected, np.array([1e-3]), {"d": np.arange(4)}, "fattn-common.cuh:9", **more)


def followed(off, **more):
    stages = (stage("stored by block 4", "VKQ", 0, stored=True), stage("dst", "output", off))
    return replace(judged(), stages=stages, row=(0, 1, 2), **more)


def test_stages_follow_the_steps():
    text = " ".join(shown(followed(0.5)).split())
    assert "output row sequence 0, query 1, head 2" in text
    assert "first deviation: dst: output of d 2 is 3.5, not 3, read at fattn-common.cuh:9" in text
    assert "1 of 1 stored quantities are within their bounds." in text
    assert "dst output 4 inf 0.5 1" in text  # not the largest finite one
    assert "stored by block 4 " not in text
    assert "stored by block 4 " in " ".join(shown(followed(0.5), verbose=True).split())
    assert "first deviation: none" in shown(followed(1e-4))  # within the bound
    assert "not followed to the end: no model" in shown(replace(judged(), missing="no model"))


def test_a_deviation_of_a_step_is_first_and_a_number_that_is_not_finite_is_one():
    assert replace(followed(0.5), tiles=judged(fault=dropped_key).tiles).deviation.quantity == "P"
    assert followed(np.nan).deviation.quantity == "output"
    nothing = replace(stage("dst", "output", 0), bound=np.array([np.nan]))
    assert nothing.deviation is None
    assert replace(nothing, found=nothing.found + 1).deviation.count == 3


def test_stages_in_json_and_on_the_page():
    document = trace_json(followed(0.5))
    json.dumps(document, allow_nan=False)
    assert document["first_deviation"]["words"] == "dst: output of d 2 is 3.5, not 3"
    assert document["first_deviation"]["place"] == "fattn-common.cuh:9"
    assert document["row"] == {"sequence": 0, "query": 1, "head": 2}
    assert [(each["where"], each["differing"]) for each in document["stages"]] == [("stored by block 4", 0), ("dst", 1)]
    assert document["stages"][1]["found"] == [1.0, 2.0, 3.5, "inf"]
    assert trace_section(followed(0.5)).count("<tr>") == 3
    assert "<table" not in trace_section(judged())


def test_the_picture_is_complete_in_itself():
    html = trace_picture(judged(fault=dropped_key))
    body = ElementTree.fromstring(f"<div>{html}</div>")
    assert html.count("<svg") == 2 * 2  # labels and picture
    images = [element for element in body.iter(f"{SVG}image")]
    assert len(images) == 2
    assert all(image.get("href").startswith("data:image/png;base64,") for image in images)
    assert [element for element in body.iter(f"{SVG}path") if element.get("class") == "bad"]
    assert "http" not in html.replace("http://www.w3.org", "")
    assert 'class="bad"' not in trace_picture(judged())


WORK = whole()


def written(path, documents):
    write_arrays(block_arrays(documents, (WORK,), {"case": "small"}), path)
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def warps_of_a_block():
    """Four warps, which share 16 columns: 8 queries of 2 heads."""
    fragments = [fragments_of(WIDE, 8, 2, warp) for warp in range(4)]
    return {at: Warp(CASE, INPUTS, one, WORK).document() for at, one in enumerate(fragments)}


def test_the_warps_of_a_block_hold_all_of_KQ(tmp_path):
    arrays = written(tmp_path / "block.npz", warps_of_a_block())
    assert arrays["kb0"].tolist() == [0, 1, 2, 3, 4]
    assert arrays["warp"].tolist() == [0, 1, 2, 3]
    assert (arrays["z_KV"] == 1).all()
    assert json.loads(str(arrays["about"])) == {"case": "small"}
    assert arrays["before.KQ_C"].shape == (5, 4, 32, arrays["KQ_C.column"].shape[-1])
    assert (arrays["before.KQ_C"].dtype, arrays["after.VKQ_C"].dtype) == (np.float32, np.float16)

    inputs = warp_inputs(TracedOperands.of(CASE, INPUTS), WORK, fragments_of(WIDE, 8, 2, 0))
    KQ = np.full((16, 64), np.nan)
    KQ[arrays["KQ_C.column"], arrays["KQ_C.kv_row"]] = arrays["before.KQ_C"][2]
    assert np.allclose(KQ, inputs.Q @ inputs.K[128:192].T, atol=1e-5)
    columns, d = arrays["VKQ_C.column"], arrays["VKQ_C.d"]
    places = set(zip(columns[0].flat, d[0].flat, strict=True))
    assert places == {(column, at) for column in range(16) for at in range(64)}
    assert np.array_equal(arrays["after.VKQ_C"][0], arrays["before.VKQ_C"][1])


def test_unread_registers_are_nan(tmp_path):
    documents = warps_of_a_block()
    lost = documents[1]["readings"]
    lost[:] = [reading for reading in lost if (reading["anchor"], reading["kb0"]) != ("rescaled", 3)]
    rescaled = written(tmp_path / "block.npz", documents)["rescaled.VKQ_C"]
    assert np.isnan(rescaled[3, 1]).all()
    assert np.isfinite(rescaled[3, 0]).all()


TEMPLATE = {"DKQ": 64, "DV": 64, "ncols1": 8, "ncols2": 2}
SOURCE = {
    "fattn-mma-f16.cuh": "a\n                            dstk_val.x /= KQ_rowsum_j;\n",
    "fattn-common.cuh": "a\nb\n    *dst = dst_val / rowsum;\n",
}


def blocks_of(*kb0):
    """The tile of queries 0 to 7 of K/V head 1, cut into pieces, each a block's second tile."""
    other = TileWork(0, 0, 0, 1, 3, 5)
    pieces = [TileWork(0, 1, 0, 0, start, stop) for start, stop in pairwise(kb0)]
    return tuple(BlockWork(at, (at, 0, 0), None, None, (other, piece)) for at, piece in enumerate(pieces))


class Followed:
    """The blocks of an op, traced in NumPy; `asked` lists the traced warps."""

    def __init__(self, case=CASE, inputs=INPUTS, blocks=None, fault=None):
        self.case, self.inputs, self.blocks, self.fault = case, inputs, blocks or blocks_of(0, 5), fault
        self.asked = []

    def read(self, block, warp, tiles):
        self.asked.append((block.block, warp, tiles))
        fragments = fragments_of(WIDE, 8, 2, warp)
        with np.errstate(all="ignore"):
            document = Warp(self.case, self.inputs, fragments, block.tiles[tiles - 1], fault=self.fault).document()
        return document | {"readings": [reading | {"tile": tiles - 1} for reading in document["readings"]]}

    def hunt(self, dst, tmp_path):
        for name, text in SOURCE.items():
            (tmp_path / name).write_text(text)
        choice = Choice("mma_f16", "flash_attn_ext_f16<64,64,8,2>", TEMPLATE, {})
        facts = Facts({}, choice=choice, launch={"block_dim": [32, 4, 1]}, blocks=self.blocks)
        operands = TracedOperands.of(self.case, self.inputs)
        last = in_dst(dst)
        return last and NaNSearch(operands, facts, self.read, tmp_path).origin(last)


def dst_of(case=CASE, bad=()):
    dst = np.zeros((1, case.op.sizes.n_q, case.op.sizes.n_head, case.op.sizes.hsv), np.float32)
    for place in bad:
        dst[place] = np.nan
    return dst


def test_inputs_are_checked_first_and_a_mask_may_hold_minus_infinity():
    assert in_inputs(CASE, INPUTS) is None
    spoilt = {**INPUTS, "V": INPUTS["V"].copy()}
    # V is f16, ne = {64, 300, 2}: element 3 of row 7 of head 1
    spoilt["V"].view(np.float16).reshape(2, 300, 64)[1, 7, 3] = np.inf
    found = in_inputs(CASE, spoilt)
    assert (found.tensor, found.value, found.at) == ("V", np.inf, {"i0": 3, "i1": 7, "i2": 1, "i3": 0})
    assert "V[3, 7, 1, 0] of the inputs is inf" in found.words
    spoilt = {**INPUTS, "mask": INPUTS["mask"].copy()}
    spoilt["mask"].view(np.float16)[5] = np.nan
    assert in_inputs(CASE, spoilt).at["i0"] == 5


def test_nothing_is_traced_if_all_values_are_finite(tmp_path):
    followed = Followed()
    assert followed.hunt(dst_of(), tmp_path) is None
    assert not followed.asked


@pytest.mark.parametrize(
    ("name", "kb0", "tensor", "at"),
    [
        ("KQ", 1, "KQ", {"query": 2, "head": 3, "KV row": 64 + 9}),
        ("P", 3, "P", {"query": 2, "head": 3, "KV row": 3 * 64 + 9}),
        ("VKQ", 2, "VKQ", {"query": 2, "head": 3, "d": 9}),
        ("VKQ", 4, "VKQ", {"query": 2, "head": 3, "d": 9}),
    ],
)
def test_the_first_register_that_is_not_finite(tmp_path, name, kb0, tensor, at):
    def fault(of, step, values):
        if (of, step) == (name, kb0):
            values[5, 9] = np.nan
        return values

    # warp 0 of the 4 that share the 16 columns has KV rows 0 to 15 of each 64
    found = Followed(fault=fault).hunt(dst_of(bad=[(0, 2, 3, 1)]), tmp_path)
    assert (found.tensor, found.kb0, found.block) == (tensor, kb0, 0)
    assert found.at == {"sequence": 0} | at
    assert found.thread[1] == 0
    assert np.isnan(found.value)


def test_all_warps_that_share_the_column_and_all_pieces_are_followed(tmp_path):
    followed = Followed(blocks=blocks_of(0, 2, 5))
    found = followed.hunt(dst_of(bad=[(0, 2, 3, 1)]), tmp_path)
    assert followed.asked == [(block, warp, 2) for block in (0, 1) for warp in range(4)]
    # two blocks share the tile: the fixup kernel divides
    assert (found.tensor, found.place) == ("dst", "fattn-common.cuh:3")


def test_a_row_that_sees_nothing_is_divided_by_zero(tmp_path):
    text = SCENARIO.replace(
        "{kind: causal}", "{kind: sum, of: [{kind: causal}, {kind: masked_rows, every: 3, first: 1}]}"
    )
    case, inputs = small_case(text)
    found = Followed(case, inputs).hunt(dst_of(case, bad=[(0, 1, 2, slice(None))]), tmp_path)
    assert (found.tensor, found.place, found.block) == ("dst", "fattn-mma-f16.cuh:2", 0)
    assert "mask is -inf everywhere" in found.words


@pytest.mark.parametrize(
    ("data", "tensor", "why"),
    [
        ("V: {kind: uniform, scale: 1, mean: 60000}", "VKQ", "the accumulator is f16"),
        ("Q: {kind: uniform, scale: 1, mean: 70000}", "KQ", "more than f16 holds"),
    ],
)
def test_values_beyond_f16_are_reported(tmp_path, data, tensor, why):
    case, inputs = small_case(SCENARIO + f"data: {{{data}}}\n")
    found = Followed(case, inputs).hunt(dst_of(case, bad=[(0, 2, 3, 1)]), tmp_path)
    assert found.tensor == tensor
    assert why in found.words


def test_the_stages_of_a_warp_are_searched_in_order_for_its_row():
    """[column][lane][number]: column 1 has query 2, whose masked logit is not reported."""
    labels = {"query": np.array([1, 2])[:, None, None], "head": np.array([3, 3])[:, None, None]}
    labels |= {"lane": np.arange(4)[None, :, None]}
    values = np.zeros((2, 4, 1), np.float32)
    logits, weights, sums = values.copy(), values.copy(), values.copy()
    logits[:, 1], weights[0], sums[1, 2] = -np.inf, np.nan, np.inf
    pairs = (("KQ", logits), ("P", weights), ("KQ_sum", sums))
    stages = [Stage("kb0 4", name, found, values, np.zeros(1), labels, "here:1", kb0=4) for name, found in pairs]
    found = in_stages(stages, (0, 2, 3), 5, 1)
    assert (found.tensor, found.value, found.block, found.thread, found.kb0) == ("KQ_sum", np.inf, 5, (2, 1), 4)
    assert found.words == "KQ_sum of sequence 0, query 2, head 3 is inf, kb0 4: block 5, warp 1, lane 2, seen at here:1"
    assert in_stages(stages[:2], (0, 2, 3), 5, 1) is None
    assert in_stages(stages, (0, 1, 3), 5, 1).tensor == "P"


def test_a_kernel_that_ended_early_leaves_its_readings(tmp_path):
    class Ended(Followed):
        def read(self, block, warp, tiles):
            return {"readings": [], "stopped": ["signal", "SIGSEGV", "f"]}

    assert Ended().hunt(dst_of(bad=[(0, 2, 3, 1)]), tmp_path).tensor == "dst"


def test_columns_that_do_not_exist_are_not_judged(tmp_path):
    def fault(of, step, values):
        if of == "KQ":
            values[11, :] = np.nan
        return values

    blocks = tuple(replace(block, tiles=(*block.tiles[:1], replace(block.tiles[1], jt=1))) for block in blocks_of(0, 5))
    assert Followed(blocks=blocks, fault=fault).hunt(dst_of(bad=[(0, 9, 3, 1)]), tmp_path).tensor == "dst"
