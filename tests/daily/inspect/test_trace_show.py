import io
import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
from rich.console import Console

from fattn_probe.daily.inspect.pages import trace_picture, trace_section
from fattn_probe.daily.inspect.trace.checks import TracedOperands, warp_inputs
from fattn_probe.daily.inspect.trace.fragments import block_arrays, write_arrays
from fattn_probe.daily.inspect.trace.show import render_trace, trace_json
from fattn_probe.daily.inspect.trace.stages import Stage
from tests.daily.inspect.traced import (
    CASE,
    INPUTS,
    NARROW,
    SCENARIO,
    WIDE,
    Warp,
    fragments_of,
    judge,
    small_case,
    whole,
)

SVG = "{http://www.w3.org/2000/svg}"


def traced(kind=WIDE, ncols1=8, *, fault=None, case=CASE, inputs=INPUTS, **more):
    document = Warp(case, inputs, fragments_of(kind, ncols1, 2), work := whole(**more), fault=fault).document()
    return judge(document, work, case=case, inputs=inputs)


def shown(trace, **how):
    console = Console(file=(out := io.StringIO()), width=100)
    console.print(render_trace(trace, **how))
    return out.getvalue()


def dropped_key(name, kb0, values):
    if (name, kb0) == ("P", 1):
        values[2, 3] = 0.0
    return values


def test_a_line_a_step():
    text = shown(traced())
    lines = text.splitlines()
    assert lines[0] == "warp 0 of block 2, one of 4 that share their columns"
    assert lines[1] == "sequence 0, query 0 to 7, head 2 to 3, kb0 0 to 4"
    assert [line.split()[0] for line in lines[4:9]] == ["0", "1", "2", "3", "4"]
    assert [line.split()[1] for line in lines[4:6]] == ["0-15", "64-79"]
    assert shown(traced(NARROW, 8)).splitlines()[4].split()[1] == "0-47*"
    assert "first deviation: none" in text
    assert max(len(line) for line in lines) <= 100


def test_the_first_deviation_in_a_sentence_and_in_json():
    text = " ".join(shown(traced(fault=dropped_key)).split())
    # column 2 of ncols2 = 2: query 1, the first head of K/V head 1
    assert "kb0 1: P of query 1, head 2, KV row 67 (lane 9, number 1) is 0, not 0.0" in text
    assert "read at fattn-mma-f16.cuh:701" in text
    deviation = trace_json(traced(fault=dropped_key))["first_deviation"]
    assert (deviation["quantity"], deviation["kb0"], deviation["kv_row"], deviation["d"]) == ("P", 1, 67, None)
    assert deviation["words"].startswith("kb0 1: P of query 1")


def test_the_registers_of_a_lane():
    trace = traced(NARROW, 4)
    text = shown(trace, lane=5)
    step = trace.tiles[0].steps[0]
    first = next(line.split() for line in text.splitlines() if line.split()[:1] == ["0"] and len(line.split()) == 7)
    # lane 5 of an m16n8 accumulator: row 5 / 4 = 1, column 5 % 4 * 2 = 2, which is query 1 of the first head
    assert first[:4] == ["0", "1", "2", "1"]
    assert float(first[4]) == float(f"{step.KQ[2, 1]:.6g}")
    assert "kb0 0, lane 5: VKQ_C" in text


def test_all_numbers_fit_a_terminal():
    text = shown(traced(kb0_stop=1), verbose=True)
    assert "KQ before the mask" in text
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_a_program_that_ended_early_is_reported():
    document = Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), work := whole(kb0_stop=1)).document()
    document["stopped"] = ["signal", "SIGSEGV", "mma"]
    trace = judge(document, work)
    assert "ended before everything was read: signal SIGSEGV mma" in shown(trace)


def test_json_has_no_nan_or_infinity():
    case, inputs = small_case(SCENARIO.replace("{kind: causal}", "{kind: masked_tiles, leading: 256}"))
    trace = traced(case=case, inputs=inputs)
    document = trace_json(trace, verbose=True)
    text = json.dumps(document, allow_nan=False)
    assert '"-inf"' in text
    assert document["first_deviation"] is None
    assert len(document["tiles"][0]["steps"]) == 5
    assert len(json.dumps(trace_json(trace))) < len(text) / 5


def test_an_assumption_of_the_model_is_named_below_the_stages():
    trace = replace(traced(), stages=(stage("dst", "output", 0.0),), assumed="each sum rounds")
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
    return replace(traced(), stages=stages, row=(0, 1, 2), **more)


def test_stages_follow_the_steps():
    text = " ".join(shown(followed(0.5)).split())
    assert "output row sequence 0, query 1, head 2" in text
    assert "first deviation: dst: output of d 2 is 3.5, not 3, read at fattn-common.cuh:9" in text
    assert "1 of 1 stored quantities are within their bounds." in text
    assert "dst output 4 inf 0.5 1" in text  # not the largest finite one
    assert "stored by block 4 " not in text
    assert "stored by block 4 " in " ".join(shown(followed(0.5), verbose=True).split())
    assert "first deviation: none" in shown(followed(1e-4))  # within the bound
    assert "not followed to the end: no model" in shown(replace(traced(), missing="no model"))


def test_a_deviation_of_a_step_is_first_and_a_number_that_is_not_finite_is_one():
    trace = replace(followed(0.5), tiles=traced(fault=dropped_key).tiles)
    assert trace.deviation.quantity == "P"
    assert followed(np.nan).deviation.quantity == "output"
    nothing = replace(stage("dst", "output", 0), bound=np.array([np.nan]))
    assert nothing.deviation is None
    assert replace(nothing, found=nothing.found + 1).deviation.count == 3


def test_stages_in_json_and_on_the_page():
    document = trace_json(followed(0.5), verbose=True)
    json.dumps(document, allow_nan=False)
    assert document["first_deviation"]["words"] == "dst: output of d 2 is 3.5, not 3"
    assert document["first_deviation"]["place"] == "fattn-common.cuh:9"
    assert document["row"] == {"sequence": 0, "query": 1, "head": 2}
    assert [(each["where"], each["differing"]) for each in document["stages"]] == [("stored by block 4", 0), ("dst", 1)]
    assert document["stages"][1]["found"] == [1.0, 2.0, 3.5, "inf"]
    html = trace_section(followed(0.5))
    assert html.count("<tr>") == 3
    assert "<table" not in trace_section(traced())


def test_the_picture_is_complete_in_itself():
    html = trace_picture(traced(fault=dropped_key))
    body = ElementTree.fromstring(f"<div>{html}</div>")
    assert html.count("<svg") == 2 * 2  # labels and picture
    images = [element for element in body.iter(f"{SVG}image")]
    assert len(images) == 2
    assert all(image.get("href").startswith("data:image/png;base64,") for image in images)
    assert [element for element in body.iter(f"{SVG}path") if element.get("class") == "bad"]
    assert "http" not in html.replace("http://www.w3.org", "")
    assert 'class="bad"' not in trace_picture(traced())


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
