"""Who is guilty, of judgements and tensors made up for it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.cases.scenario.schema import Tolerance
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
from fattn_probe.daily.triage.verdict import DEFAULT, AttentionOp, allowed, step_nmse, verdict_of
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis, Element
from fattn_probe.verdict.diagnose.faults import Said
from fattn_probe.verdict.diagnose.row import Cause
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.expected import Design
from fattn_probe.verdict.measure.metrics import Coordinate, measure
from fattn_probe.verdict.measure.verdict import Accuracy, Status, Verdict

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


def test_the_first_wrong_attention_op_with_its_place_and_cause():
    found = verdict_of([op(1, failed()), op(0, passed()), op(1, failed(), step=1)], nodes())
    guilty = found.guilty
    assert isinstance(guilty, AttentionWrong)
    assert (guilty.layer, guilty.step, guilty.head, guilty.tile, guilty.blocks) == (1, 0, 2, (0, 1, 0, 0), (7,))
    assert (guilty.cause, guilty.case) == ("the logits are not divided by the softcap", "layer-01-step-0000")
    assert guilty.reason == "not as designed: it differs"
    assert found.is_wrong and found.others == ()


def test_a_fault_that_ended_the_run_names_its_kernel():
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
    found = verdict_of(ops(), nodes(Qcur_1={"on": {H200: WRONG, OTHER: RIGHT}}))
    guilty = found.guilty
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
    judged = ops(*(failed() if layer in attention else passed() for layer in (0, 1)))
    found = verdict_of(judged, graph_)
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
