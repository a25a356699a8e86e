"""Who is guilty, of judgements and tensors made up for it; and the answer in words, in JSON and as a folder."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.base.console import PIPE_WIDTH
from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.cases.op.case_file import QuantBlocks
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.cli import app
from fattn_probe.daily.models.walk import Node, TensorDifference
from fattn_probe.daily.triage.guilty import (
    AsDesigned,
    AttentionOverflows,
    AttentionWrong,
    Innocent,
    NotFinite,
    OtherOpWrong,
    PartsWithout,
)
from fattn_probe.daily.triage.show import (
    REPORT,
    VERDICT,
    advice_of,
    check_folder,
    document_of,
    pasted,
    report,
    write_folder,
)
from fattn_probe.daily.triage.verdict import (
    DEFAULT,
    AttentionOp,
    TriageResult,
    allowed,
    raise_if_wrong,
    step_nmse,
    verdict_of,
)
from fattn_probe.daily.triage.words import layers_of, sentence
from fattn_probe.machine.run.capture import read_capture, write_capture
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis, Element
from fattn_probe.verdict.diagnose.faults import Said
from fattn_probe.verdict.diagnose.row import Cause
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.expected import Design
from fattn_probe.verdict.measure.metrics import Coordinate, measure
from fattn_probe.verdict.measure.verdict import Accuracy, Status, Verdict
from tests.machine.run.test_files import make_capture
from tests.made import shipped

H200, OTHER = "sim:h200", "sim:rtx4090"
EXACT = np.ones((1, 2, 3, 4))
GRAPH = (
    ("embd", "GET_ROWS", None, ()),
    ("Qcur-0", "ROPE", 0, ("embd",)),
    ("cache_v_l0", "SET_ROWS", 0, ("embd (view)",)),
    ("__fattn__-0", "FLASH_ATTN_EXT", 0, ("Qcur-0", "cache_v_l0")),
    ("ffn_out-0", "MUL_MAT", 0, ("__fattn__-0",)),
    ("Qcur-1", "ROPE", 1, ("ffn_out-0",)),
    ("__fattn__-1", "FLASH_ATTN_EXT", 1, ("Qcur-1",)),
    ("ffn_out-1", "MUL_MAT", 1, ("__fattn__-1",)),
    ("result", "MUL_MAT", None, ("ffn_out-1",)),
)
NAMES = [name for name, *_ in GRAPH]
RIGHT = TensorDifference(1e-9, 1e-5, (0, 0, 0, 0), 0, 0)
WRONG = TensorDifference(1.3, 2.0, (1, 0, 0, 0), 0, 0)


def graph(step=0, **changed):
    """The tensors of one evaluation; `changed` has the fields of some of them by name, with `_` for `-`."""
    for index, (name, op, layer, inputs) in enumerate(GRAPH):
        fields = changed.get(name.replace("-", "_"), {})
        node = Node(
            step, 0, index, name, op, layer, "f32", (4, 3, 1, 1), 0, 0, 1.0, inputs, 0, 0, {H200: RIGHT, OTHER: None}
        )
        yield replace(node, **fields)


def nodes(**changed):
    return [*graph(0, **changed), *graph(1)]


def without(**changed):
    """The tensors of a run without flash attention."""
    return [node for node in nodes(**changed) if node.op != "FLASH_ATTN_EXT"]


def passed(on=H200, warning=""):
    dst = EXACT.astype(np.float32)
    accuracy = Accuracy(not warning, warning or "NMSE 0")
    design = Design(True, "model", "as the model", equal_bits=1.0)
    verdict = Verdict(Status.PASS, "as designed", measure(dst, EXACT), design, accuracy)
    return Judgement("op", on, Tolerance(), verdict, dst=dst)


def failed(on=H200):
    worst = Element(Coordinate(0, 1, 2, 3), 5.0, 1.0, (0, 1, 0, 0), (7,), None)
    cause = Cause("softcap", "the logits are not divided by the softcap", "")
    diagnosis = Diagnosis(4, 24, (worst,), (), (Said(cause, 1, 1, 1.0),), 1)
    dst = EXACT.astype(np.float32)
    dst[0, 1, 2, 3] = 5
    design = Design(False, "model", "it differs")
    verdict = Verdict(Status.FAIL, "not as designed: it differs\n  stack", measure(dst, EXACT), design)
    return Judgement("op", on, Tolerance(), verdict, diagnosis=diagnosis, dst=dst)


def overflowing():
    dst = EXACT.astype(np.float32)
    dst[0, 0] = np.inf
    verdict = Verdict(Status.FAIL, "12 infinite", measure(dst, EXACT), Design(True, "model", "as the model"))
    return Judgement("op", H200, Tolerance(), verdict, dst=dst)


def op(layer, *found, step=0):
    name = f"layer-{layer:02}-step-{step:04}"
    return AttentionOp(layer, step, 0, "prompt", name, tuple(replace(one, case=name) for one in found))


def ops(first=None, second=None):
    return [op(0, first or passed()), op(1, second or passed())]


MASK = {"op": "CPY", "inf": 6, "inputs_inf": 6}
# As the two norms of a layer.
NORMS = {f"ffn_out_{n}": {"name": "norm-0", "op": "RMS_NORM", "largest": 4.0 * (n + 1)} for n in (0, 1)}
GROWING = {"ffn_out_0": {"largest": 1.01}, "ffn_out_1": {"largest": 1.1}, "result": {"largest": 1.6}}


@pytest.mark.parametrize(
    ("run", "other"),
    [
        pytest.param(nodes(), without(), id="nothing is wrong"),
        pytest.param(nodes(__fattn___0={"on": {H200: WRONG}}), [], id="attention itself is left to its judgement"),
        pytest.param(nodes(embd=MASK, __fattn___0={"inputs_inf": 6}), [], id="the infinities of a mask are meant"),
        pytest.param(nodes(), without(**GROWING), id="rounding grows from layer to layer"),
        pytest.param(nodes(**NORMS), without(**NORMS), id="tensors of one name are compared in their order"),
        # Another expert may be chosen, after a difference that is no more than a rounding.
        pytest.param(
            nodes(), without(Qcur_1={"largest": 2.0}, result={"largest": 2.0}), id="a jump not after attention"
        ),
        pytest.param(
            nodes(ffn_out_0={"name": "node_7"}),
            without(ffn_out_0={"name": "node_7", "largest": 9.0}),
            id="ggml numbered the tensor",
        ),
        pytest.param(nodes(), [*graph(0), *graph(1, embd={"largest": 7.0})], id="later steps may have other tokens"),
    ],
)
def test_nothing_is_wrong(run, other):
    assert verdict_of(ops(), run, other).guilty == Innocent()


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"embd": {"on": {H200: replace(RIGHT, nan=1)}}}, OtherOpWrong),
        ({"embd": {"on": {H200: replace(RIGHT, inf=1)}}}, OtherOpWrong),
        ({"embd": {"on": {H200: replace(RIGHT, nmse=float("nan"))}}}, OtherOpWrong),
        ({"__fattn___0": {"inputs_inf": 6, "inf": 1}}, NotFinite),  # although its mask has some
    ],
)
def test_what_is_no_number_is_wrong(changed, kind):
    assert isinstance(verdict_of(ops(), nodes(**changed)).guilty, kind)


def test_a_warning_is_as_designed():
    found = verdict_of([op(0, passed()), op(3, passed(warning="increments are lost"))], nodes())
    assert found.guilty == AsDesigned({3: ("step 0 on sim:h200: as designed, but increments are lost",)})
    assert not found.is_wrong


def test_the_first_wrong_attention_op_with_its_place_and_cause_or_its_fault():
    found = verdict_of([op(1, failed()), op(0, passed()), op(1, failed(), step=1)], nodes())
    guilty = found.guilty
    assert isinstance(guilty, AttentionWrong)
    assert (guilty.layer, guilty.step, guilty.head, guilty.tile, guilty.blocks) == (1, 0, 2, (0, 1, 0, 0), (7,))
    assert (guilty.cause, guilty.case) == ("the logits are not divided by the softcap", "layer-01-step-0000")
    assert guilty.reason == "not as designed: it differs"
    assert found.is_wrong and found.others == ()
    finding = Finding("misaligned", "a vector is misaligned", "flash_attn_ext_vec<64>", "fattn.cuh", 7)
    fault = Judgement("op", H200, Tolerance(), Verdict(Status.FAIL, "misaligned"), finding=finding)
    guilty = verdict_of([op(0, fault)], []).guilty
    assert isinstance(guilty, AttentionWrong)
    assert (guilty.kernel, guilty.finding, guilty.head) == ("flash_attn_ext_vec<64>", finding, None)


def test_an_overflow_that_the_kernels_arithmetic_makes_is_no_fault_of_the_kernel_but_what_nobody_wrote_is():
    guilty = verdict_of(ops(overflowing()), nodes()).guilty
    assert isinstance(guilty, AttentionOverflows)
    assert guilty.elements == 12
    dst = overflowing().dst.copy()
    dst.view(np.uint32)[0, 1] = 0x7FC0DEAD
    verdict = replace(overflowing().verdict, metrics=measure(dst, EXACT))
    assert isinstance(verdict_of(ops(replace(overflowing(), verdict=verdict)), []).guilty, AttentionWrong)


def test_another_op_is_wrong_on_a_device_or_ends_the_run():
    guilty = verdict_of(ops(), nodes(Qcur_1={"on": {H200: WRONG, OTHER: RIGHT}})).guilty
    assert isinstance(guilty, OtherOpWrong)
    assert (guilty.node.name, guilty.target, guilty.found, guilty.allowed) == ("Qcur-1", H200, WRONG, 1e-7)
    fault = Finding("out-of-bounds", "a write is outside of its allocation")
    guilty = verdict_of(ops(), nodes(cache_v_l0={"on": {H200: fault}})).guilty
    assert isinstance(guilty, OtherOpWrong) and guilty.found == fault


@pytest.mark.parametrize(("wrong", "kind"), [("Qcur_0", OtherOpWrong), ("Qcur_1", AttentionWrong)])
def test_the_earlier_of_two_is_guilty_and_the_other_is_named(wrong, kind):
    found = verdict_of(ops(failed()), nodes(**{wrong: {"on": {H200: WRONG}}}))
    assert type(found.guilty) is kind
    assert {type(found.guilty), *map(type, found.others)} == {OtherOpWrong, AttentionWrong}


def test_each_target_has_its_own_culprit():
    found = verdict_of([op(0, failed(), failed(OTHER)), op(1, failed(), failed(OTHER))], nodes())
    wrong = [one for one in (found.guilty, *found.others) if isinstance(one, AttentionWrong)]
    assert [(one.target, one.layer) for one in wrong] == [(H200, 0), (OTHER, 0)]


def test_the_first_infinity_is_where_the_inputs_are_finite():
    spoiled = {"nan": 3, "inputs_nan": 3}
    found = verdict_of(
        ops(),
        nodes(
            embd={"largest": 1e5},
            cache_v_l0={"inf": 4, "type": "f16"},
            __fattn___0={"inf": 4, "inputs_inf": 4},
            ffn_out_0=spoiled,
        ),
        without(embd={"largest": 1e5}, cache_v_l0={"inf": 4, "type": "f16"}),
    )
    guilty = found.guilty
    assert isinstance(guilty, NotFinite)
    assert (guilty.node.name, guilty.inputs_largest, guilty.finite_without) == ("cache_v_l0", 1e5, False)
    assert found.others == ()


def test_a_tensor_that_parts_without_flash_attention():
    other = without(ffn_out_0={"largest": 1.001}, ffn_out_1={"largest": 3.0}, result={"largest": 9.0})
    guilty = verdict_of(ops(), nodes(), other).guilty
    assert isinstance(guilty, PartsWithout)
    assert (guilty.node.name, guilty.other.largest) == ("ffn_out-1", 3.0)
    assert guilty.change == pytest.approx(2 / 3)


SUSPECTS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["device", "infinity"]), min_size=1)


@given(SUSPECTS, st.sets(st.sampled_from([0, 1])))
def test_the_guilty_is_the_earliest_of_all(wrong, attention):
    changes = {"device": {"on": {H200: WRONG}}, "infinity": {"inf": 1}}
    wrong = {name: kind for name, kind in wrong.items() if kind == "infinity" or "fattn" not in name}
    graph_ = nodes(**{name.replace("-", "_"): changes[kind] for name, kind in wrong.items()})
    found = verdict_of(ops(*(failed() if layer in attention else passed() for layer in (0, 1))), graph_)
    places = sorted([NAMES.index(name) for name in wrong] + [NAMES.index(f"__fattn__-{layer}") for layer in attention])
    if not places:
        assert found.guilty == Innocent()
        return
    guilty = found.guilty
    if isinstance(guilty, AttentionWrong):
        name = f"__fattn__-{guilty.layer}"
    else:
        assert isinstance(guilty, OtherOpWrong | NotFinite)
        name = guilty.node.name
    assert NAMES.index(name) == places[0]


@given(st.floats(0, 1), st.sampled_from(["f32", "f16", "bf16", "q8_0", "q4_0"]))
def test_an_op_is_wrong_from_its_limit_on(nmse, type_):
    (first, *_) = graph(embd={"type": type_, "on": {H200: replace(RIGHT, nmse=nmse)}})
    limit = allowed(first)
    assert isinstance(verdict_of([], [first]).guilty, OtherOpWrong) == (nmse > limit)
    assert limit >= DEFAULT


@pytest.mark.parametrize(("type_", "bits"), [("f16", np.float16), ("q8_0", None)])
def test_a_step_of_a_type_is_what_its_rounding_makes(type_, bits):
    """Two roundings of one value, up and down, are never further apart in the whole than the limit says."""
    values = np.random.default_rng(1).standard_normal(1 << 14).astype(np.float32)
    if bits:
        down = values.astype(bits)
        up = np.nextafter(down, bits(np.inf)).astype(np.float64)
        down = down.astype(np.float64)
    else:
        blocks = values.reshape(-1, 32)
        scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
        down, up = np.floor(blocks / scale) * scale, (np.floor(blocks / scale) + 1) * scale
    found = np.sum((up - down) ** 2) / np.sum(down**2)
    assert step_nmse(type_) / 10 < found < step_nmse(type_)


RUN = {"model": {"file": "m.gguf", "context": 64}, "source": "pypi:x", "build_number": "1"}


def result_of(judged, graph=(), other=()):
    return TriageResult(verdict_of(judged, graph, other), judged, graph, [H200], RUN)


FLAGS = Path("out"), ["--source", "git:master", "--devices", "gpus.yaml", "--patch", "fault-many"]
FAULT = Finding("out-of-bounds", "a write is outside of its allocation")
CACHE = {"type": "f16", "inf": 4}
SAID = {
    "innocent": (
        result_of(ops(), nodes()),
        "Nothing is wrong: 2 attention ops are correct on sim:h200, so are 18 other ops, and 18 tensors are finite.",
    ),
    "one other op": (
        result_of(ops(), nodes()[:1]),
        "Nothing is wrong: 2 attention ops are correct on sim:h200, so is 1 other op, and 1 tensor is finite.",
    ),
    "designed": (
        result_of(ops(passed(warning="increments are lost")), nodes()),
        "Nothing is wrong, but attention is inaccurate by design in layer 0.",
    ),
    "attention": (
        result_of(ops(failed()), nodes()),
        "Attention is wrong on sim:h200: layer 0, step 0, head 2, query 1, tile (0, 1, 0, 0), no attention kernel: "
        "the logits are not divided by the softcap.",
    ),
    "overflow": (
        result_of(ops(overflowing()), nodes()),
        "The model itself: attention in layer 0, step 0 exceeds the range of f16 on sim:h200, by the design of : "
        "12 values are not finite.",
    ),
    "op": (
        result_of(ops(), nodes(Qcur_1={"on": {H200: WRONG}})),
        "The first wrong tensor is Qcur-1 (ROPE, f32, layer 1, step 0), on sim:h200: NMSE 1.3 against the CPU on the "
        "same inputs, where a correct op has at most 1e-07; attention is correct in 2 of 2 judged ops.",
    ),
    "fault": (
        result_of(ops(passed(), failed()), nodes(Qcur_0={"on": {H200: FAULT}})),
        "The first wrong tensor is Qcur-0 (ROPE, f32, layer 0, step 0), on sim:h200: "
        "a write is outside of its allocation; attention is also wrong, but later.",
    ),
    "infinite": (
        result_of(ops(), nodes(embd={"largest": 1e5}, cache_v_l0=CACHE), without(cache_v_l0=CACHE)),
        "The model itself: cache_v_l0 (SET_ROWS, f16, layer 0, step 0) is the first tensor that is not finite, with "
        "4 infinities; its inputs reach 1e+05, and the largest f16 is 65504; attention is correct in 2 of 2 judged "
        "ops.",
    ),
    "cpu": (
        result_of(ops(), nodes(**{"__fattn___0": {"inf": 2, "inputs_inf": 9}}), without()),
        "The model itself: __fattn__-0 (FLASH_ATTN_EXT, f32, layer 0, step 0) is the first tensor that is not finite, "
        "with 2 infinities; the CPU sums V in f16; attention is correct in 2 of 2 judged ops.",
    ),
    "weights": (
        result_of([], nodes(ffn_out_0={"nan": 4, "inputs_nan": 1})),
        "The model itself: ffn_out-0 (MUL_MAT, f32, layer 0, step 0) is the first tensor that is not finite, with "
        "4 NaN; its inputs, which the graph does not compute, are not finite either.",
    ),
    "parts": (
        result_of(ops(), nodes(), without(ffn_out_0={"largest": 2.0})),
        "The first tensor that differs without flash attention is ffn_out-0 (MUL_MAT, f32, layer 0, step 0): its "
        "largest value is 1 with flash attention and 2 without; attention is correct in 2 of 2 judged ops.",
    ),
}


@pytest.mark.parametrize("kind", SAID)
def test_the_answer_is_one_sentence_the_json_says_the_same_and_the_advice_can_be_parsed(kind):
    result, said = SAID[kind]
    assert sentence(result) == said
    document = json.loads(json.dumps(document_of(result, advice_of(result, *FLAGS), {}), allow_nan=False))
    assert document["sentence"] == said
    assert document["verdict"] == document["guilty"]["kind"] == type(result.answer.guilty).__name__
    assert len(document["attention"]) == len(result.ops)
    result, _ = SAID[kind]
    for one in advice_of(result, *FLAGS):
        words = shlex.split(one.command)
        if words[:1] != ["fattn-probe"]:
            continue
        command = typer.main.get_group(app).commands[words[1]]
        found = getattr(command, "loaded", command).make_context(words[1], words[2:]).params
        assert (found["source"], found["patch"], found["devices"]) == ("git:master", ["fault-many"], Path("gpus.yaml"))
        assert found["on"] == H200


def test_the_case_file_of_the_guilty_op_and_the_evidence_by_layer():
    assert SAID["attention"][0].cases == ("layer-00-step-0000",)
    assert SAID["op"][0].cases == ("layer-01-step-0000",)
    assert SAID["innocent"][0].cases == ()
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
        (Status.LOST, LostError, "but 1 of 1 runs were lost, such as layer-00-step-0000 on sim:h200"),
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
    gqa = shipped("gqa")
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
    with pytest.raises(InputError, match=r"has files not from a triage, such as notes\.txt"):
        check_folder(out)
    assert {path.name for path in tmp_path.iterdir()} == {"ops", "out"}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"files": 3}'])
def test_a_folder_of_something_else_is_refused(tmp_path, text):
    (tmp_path / VERDICT).write_text(text)
    with pytest.raises(InputError, match="has files not from a triage, such as verdict"):
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
