"""The answer in words, in JSON and as a folder."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer

from fattn_probe.base.console import PIPE_WIDTH
from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.cases.op.case_file import QuantBlocks
from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.cli import app
from fattn_probe.daily.triage.show import (
    REPORT,
    VERDICT,
    advice_of,
    check_folder,
    document_of,
    flags_of,
    pasted,
    report,
    write_folder,
)
from fattn_probe.daily.triage.verdict import AttentionOp, TriageResult, raise_if_wrong, verdict_of
from fattn_probe.daily.triage.words import layers_of, sentence
from fattn_probe.machine.run.capture import read_capture, write_capture
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.verdict import Status, Verdict
from tests.daily.triage.test_verdict import H200, WRONG, failed, nodes, op, ops, overflowing, passed, without
from tests.machine.run.test_files import make_capture

RUN = {"model": {"file": "m.gguf", "context": 64}, "source": "pypi:x", "build_number": "1"}


def result_of(judged, graph=(), other=()):
    return TriageResult(verdict_of(judged, graph, other), judged, graph, [H200], RUN)


FLAGS = Path("out"), flags_of("git:master", ["fault-many"], Path("gpus.yaml"))
FAULT = Finding("out-of-bounds", "a write is outside of its allocation")
CACHE = {"type": "f16", "inf": 4}
SAID = {
    "innocent": (
        result_of(ops(), nodes()),
        "Nothing is wrong: 2 attention ops are right on sim:h200, so are 18 other ops, and 18 tensors are finite.",
    ),
    "designed": (
        result_of(ops(passed(warning="increments are lost")), nodes()),
        "The model itself: nothing is wrong, but attention is inaccurate by design in layers 0.",
    ),
    "attention": (
        result_of(ops(failed()), nodes()),
        "Attention is wrong on sim:h200: layer 0, step 0, head 2, query 1, tile (0, 1, 0, 0), no attention kernel: "
        "the logits are not divided by the softcap.",
    ),
    "overflow": (
        result_of(ops(overflowing()), nodes()),
        "The model itself: attention of layer 0, step 0 exceeds the range of f16 on sim:h200, as  is designed: "
        "12 values are not finite.",
    ),
    "op": (
        result_of(ops(), nodes(Qcur_1={"on": {H200: WRONG}})),
        "The first wrong tensor is Qcur-1 (ROPE, f32, layer 1, step 0), on sim:h200: NMSE 1.3 against the CPU on the "
        "same inputs, where a correct op has at most 1e-07; attention is correct, in 2 of 2 judged ops.",
    ),
    "fault": (
        result_of(ops(passed(), failed()), nodes(Qcur_0={"on": {H200: FAULT}})),
        "The first wrong tensor is Qcur-0 (ROPE, f32, layer 0, step 0), on sim:h200: "
        "a write is outside of its allocation; attention is wrong too, later.",
    ),
    "infinite": (
        result_of(ops(), nodes(embd={"largest": 1e5}, cache_v_l0=CACHE), without(cache_v_l0=CACHE)),
        "The model itself: cache_v_l0 (SET_ROWS, f16, layer 0, step 0) is the first tensor that is not finite, with "
        "4 infinities; its inputs reach 1e+05, and the largest f16 is 65504; attention is correct, in 2 of 2 judged "
        "ops.",
    ),
    "cpu": (
        result_of(ops(), nodes(**{"__fattn___0": {"inf": 2, "inputs_inf": 9}}), without()),
        "The model itself: __fattn__-0 (FLASH_ATTN_EXT, f32, layer 0, step 0) is the first tensor that is not finite, "
        "with 2 infinities; the CPU sums V in f16; attention is correct, in 2 of 2 judged ops.",
    ),
    "weights": (
        result_of([], nodes(ffn_out_0={"nan": 4, "inputs_nan": 1})),
        "The model itself: ffn_out-0 (MUL_MAT, f32, layer 0, step 0) is the first tensor that is not finite, with "
        "4 NaN, and so are its inputs, which the graph does not compute.",
    ),
    "parts": (
        result_of(ops(), nodes(), without(ffn_out_0={"largest": 2.0})),
        "The first tensor that differs without flash attention is ffn_out-0 (MUL_MAT, f32, layer 0, step 0): its "
        "largest value is 1, and 2 without; attention is correct, in 2 of 2 judged ops.",
    ),
}


@pytest.mark.parametrize("kind", SAID)
def test_the_answer_is_one_sentence_and_the_document_is_json_and_says_the_same(kind):
    result, said = SAID[kind]
    assert sentence(result) == said
    advice = advice_of(result, *FLAGS)
    document = json.loads(json.dumps(document_of(result, advice, {}), allow_nan=False))
    assert document["sentence"] == said
    assert document["verdict"] == document["guilty"]["kind"] == type(result.answer.guilty).__name__
    assert len(document["attention"]) == len(result.ops)


@pytest.mark.parametrize("kind", SAID)
def test_the_advice_is_of_commands_that_can_be_parsed(kind):
    result, _ = SAID[kind]
    for one in advice_of(result, *FLAGS):
        words = shlex.split(one.command)
        if words[:1] != ["fattn-probe"]:
            continue
        command = typer.main.get_group(app).commands[words[1]]
        found = getattr(command, "loaded", command).make_context(words[1], words[2:]).params
        assert (found["source"], found["patch"], found["devices"]) == ("git:master", ["fault-many"], Path("gpus.yaml"))
        assert found["on"] == H200


def test_the_case_file_is_that_of_the_guilty_op_or_of_the_attention_in_its_layer():
    assert SAID["attention"][0].cases == ("layer-00-step-0000",)
    assert SAID["op"][0].cases == ("layer-01-step-0000",)
    assert SAID["innocent"][0].cases == ()


def test_the_evidence_by_layer():
    found = list(layers_of(result_of(ops(failed()), nodes(Qcur_0={"on": {H200: WRONG}}))))
    keys = ("layer", "attention", "ran", "wrong", "tensors")
    assert [tuple(one[key] for key in keys) for one in found] == [
        (0, {"fail": 1}, 6, 1, 8),
        (1, {"pass": 1}, 4, 0, 6),
        (None, {}, 4, 0, 4),
    ]
    assert found[0]["worst"] == "ROPE Qcur-0" and found[0]["share"] == pytest.approx(1.3e7)


def test_an_op_whose_inputs_are_not_finite_is_not_judged():
    judged = [AttentionOp(0, 0, 0, "prompt", "layer-00-step-0000", (), "V holds 4 infinities"), op(1, passed())]
    result = result_of(judged, nodes(cache_v_l0=CACHE))
    assert next(layers_of(result))["attention"] == {"unjudged": 1}
    assert "not judged: V holds 4 infinities" in report(result, [], {})


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (Status.LOST, LostError, "but 1 of 1 runs were lost, first layer-00-step-0000 on sim:h200"),
        (Status.UNSUPPORTED, ComparisonError, r"but no attention op was judged \(sim:h200: no kernel\)"),
        (Status.FAIL, ComparisonError, "Attention is wrong"),
    ],
)
def test_how_the_command_ends(status, error, said):
    found = result_of([op(0, Judgement("op", H200, Tolerance(), Verdict(status, "no kernel")))])
    with pytest.raises(error, match=said):
        raise_if_wrong(found.answer, sentence(found))
    raise_if_wrong(result_of(ops()).answer, "")


def test_the_report_has_the_judgement_of_a_guilty_op():
    text = report(SAID["attention"][0], [], {"command": "fattn-probe triage"})
    assert text.startswith("# Attention is wrong on sim:h200")
    assert "what:  the logits are not divided by the softcap" in text
    assert "| command | fattn-probe triage |" in text
    assert "The judgement of" not in report(SAID["op"][0], [], {})


def test_a_command_is_pasted_as_it_is():
    command = shlex.join(["fattn-probe", "compare", "a folder/" + "x" * 90, "--on", "sim:h200", "--patch", "it's"])
    lines = pasted(command).splitlines()
    assert len(lines) > 1 and all(line.endswith(" \\") for line in lines[:-1])
    assert shlex.split(pasted(command).replace("\\\n", "")) == shlex.split(command)
    assert max(map(len, lines[1:])) < PIPE_WIDTH


def test_a_folder_is_replaced_by_the_next_triage_only(tmp_path):
    ops, out = tmp_path / "ops", tmp_path / "out"
    ops.mkdir()
    case = ops / "layer-00.gguf"
    (gqa,) = expand(load(Path(__file__).parents[3] / "scenarios/gqa.yaml"))
    recorded = make_capture(gqa, make_inputs(gqa))
    write_capture(recorded, case, QuantBlocks(ops))
    write_folder(out, {"verdict": "Innocent"}, "# first", [case])
    assert {path.name for path in out.iterdir()} == {VERDICT, REPORT, case.name}
    copied = read_capture(out / case.name)  # without the blocks of its folder
    assert copied.digest == recorded.digest
    assert all(np.array_equal(copied.inputs[name], data) for name, data in recorded.inputs.items())
    write_folder(out, {"verdict": "Innocent"}, "# second", [])
    assert (out / REPORT).read_text() == "# second"
    assert {path.name for path in out.iterdir()} == {VERDICT, REPORT}
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"has other files, such as notes\.txt"):
        check_folder(out)
    assert {path.name for path in tmp_path.iterdir()} == {"ops", "out"}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"files": 3}'])
def test_a_folder_of_something_else_is_refused(tmp_path, text):
    (tmp_path / VERDICT).write_text(text)
    with pytest.raises(InputError, match="has other files, such as verdict"):
        check_folder(tmp_path)


def test_an_empty_folder_and_none_will_do(tmp_path):
    check_folder(tmp_path)
    check_folder(tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        check_folder(tmp_path / "file")


def test_a_file_that_is_missing_leaves_no_half_of_a_folder(tmp_path):
    with pytest.raises(InputError, match=r"gone\.gguf: cannot read"):
        write_folder(tmp_path / "out", {}, "", [tmp_path / "gone.gguf"])
    assert list(tmp_path.iterdir()) == []
