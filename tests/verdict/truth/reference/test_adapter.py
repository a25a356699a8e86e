"""A case of a scenario file to its exact answer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import Params
from fattn_probe.cases.op.case_file import read_case, write_case
from fattn_probe.cases.op.op import TYPE_NAMES
from fattn_probe.cases.op.values import encode, view_values
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.machine.run.capture import Capture, read_capture, write_capture
from fattn_probe.verdict.truth.reference.adapter import (
    check_output,
    fully_masked_of,
    reference_and_lse_of,
    reference_of,
    stored_rows,
)
from fattn_probe.verdict.truth.reference.attention import attention
from tests import made
from tests.made import CPU, captured


def case_of(text):
    case = made.case_of("version: 1\nabout: a test\nhsk: 64\nn_q: 3\nn_kv: 64\n" + text)
    return case, make_inputs(case)


def by_hand(case, inputs, mask=None, sinks=None):
    """The answer from the roots' bytes, for contiguous f32 and f16 tensors only."""
    sizes = case.op.sizes
    shapes = {"Q": (np.float32, sizes.n_head, sizes.n_q), "K": (np.float16, sizes.n_head_kv, sizes.n_kv)}
    shapes["V"] = shapes["K"]
    Q, K, V = (
        inputs[name].view(dtype).reshape(sizes.n_seq, heads, rows, -1) for name, (dtype, heads, rows) in shapes.items()
    )
    return attention(Q, K, V, mask, params=case.op.params, sinks=sinks)


def test_plain_case_has_the_shape_of_dst_and_the_values_of_the_bytes():
    case, inputs = case_of("hsv: 32\nn_head: 6\nn_head_kv: 2\nn_seq: 2\n")
    got = reference_of(case.op, inputs)
    assert got.shape == (2, 3, 6, 32)
    np.testing.assert_array_equal(got, by_hand(case, inputs))
    assert fully_masked_of(case.op, inputs) is None


def test_mask_sinks_and_every_parameter_as_stored_reach_the_answer():
    case, inputs = case_of(
        "n_head: 4\nsinks: true\nmax_bias: 8.0\nlogit_softcap: 10.0\nscale: 0.3\nmask: {kind: masked_rows, first: 1}\n"
    )
    mask = view_values(case.op.tensors["mask"], inputs)
    sinks = inputs["sinks"].view(np.float32)
    got = reference_of(case.op, inputs)
    np.testing.assert_array_equal(got, by_hand(case, inputs, mask, sinks))
    assert (got[:, 1] == 0.0).all()
    assert fully_masked_of(case.op, inputs)[0, :, 0].tolist() == [False, True, False]
    assert not np.allclose(got, by_hand(case, inputs, mask))
    case, inputs = case_of("n_head: 1\nlogit_softcap: 0.1\n")
    Q, K, V = (view_values(case.op.tensors[name], inputs) for name in "QKV")
    stored = attention(Q, K, V, params=Params(case.op.params.scale, 0.0, float(np.float32(0.1))))
    np.testing.assert_array_equal(reference_of(case.op, inputs), stored)
    assert (stored != attention(Q, K, V, params=Params(case.op.params.scale, 0.0, 0.1))).any()


LAYOUTS = [
    "",
    "layout: {K: {kind: view, permute: [0, 2, 1, 3], rows: 90, offset: 3, pad: 32}}\n",
    "layout: {K: {kind: view, outside: nan, heads: 3}, V: {kind: view_of_K, offset: 32}}\nhsv: 32\n",
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["contiguous", "cache", "V in K"])
@pytest.mark.parametrize("type_", TYPE_NAMES)
def test_rows_of_every_type_and_layout_are_those_of_the_view(type_, layout):
    case, inputs = case_of(f"n_head: 2\nn_seq: 2\ntype_K: {type_}\n{layout}")
    for name in "KV":
        rows, values = stored_rows(case.op.tensors[name], inputs), view_values(case.op.tensors[name], inputs)
        assert rows.shape == values.shape
        np.testing.assert_array_equal(rows[1, 1, slice(5, 50)], values[1, 1, 5:50])
    Q, K, V = (view_values(case.op.tensors[name], inputs) for name in "QKV")
    np.testing.assert_array_equal(
        reference_of(case.op, inputs), attention(Q, K, V, params=Params(case.op.params.scale))
    )


def test_log_sum_exp_is_returned_too():
    case, inputs = case_of("n_head: 2\nmask: {kind: masked_rows, first: 2}\n")
    out, lse = reference_and_lse_of(case.op, inputs)
    np.testing.assert_array_equal(out, reference_of(case.op, inputs))
    logits = case.op.params.scale * np.einsum(
        "hqd,hkd->qhk", *(view_values(case.op.tensors[name], inputs)[0] for name in "QK")
    )
    np.testing.assert_allclose(lse[0, :2], np.log(np.exp(logits).sum(axis=2))[:2], rtol=1e-13)
    assert np.isneginf(lse[0, 2]).all()


@pytest.mark.parametrize(
    ("name", "type_", "value", "number"),
    [
        *(("V", "f16", np.inf, 1), ("V", "bf16", np.nan, 1), ("V", "q4_1", np.inf, 32), ("V", "f32", -np.inf, 1)),
        *(("V", "iq4_nl", np.nan, 32), ("Q", "f32", np.nan, 1)),
    ],
)
def test_values_without_an_exact_answer_are_counted_in_every_type(name, type_, value, number):
    case, inputs = case_of(f"n_head: 1\ntype_K: {type_}\n")
    single = np.array([value], np.float32)
    bad = encode(single, type_) if type_ in ("f32", "bf16") else single.astype(np.float16).view(np.uint8)
    inputs[name][: bad.size] = bad
    with pytest.raises(InputError, match=f"case x: {name} holds {number} values that are NaN or infinite"):
        reference_of(case.op, inputs, "x")


@pytest.mark.parametrize(("value", "fine"), [(-np.inf, True), (np.inf, False), (np.nan, False)])
def test_a_mask_may_be_all_minus_infinity(value, fine):
    case, inputs = case_of("n_head: 1\nmask: {kind: causal}\n")
    inputs["mask"].view(np.float16)[3] = value
    if fine:
        assert np.isfinite(reference_of(case.op, inputs)).all()
        return
    with pytest.raises(InputError, match="mask holds 1 values that are NaN or infinite"):
        reference_of(case.op, inputs)


def with_tensors(case, tensors):
    return replace(case, op=replace(case.op, tensors=tensors))


def changed(case, name, **values):
    """The case with another view of a tensor."""
    return with_tensors(case, {**case.op.tensors, name: replace(case.op.tensors[name], **values)})


SPOILT = {
    "K has 8190 bytes, but K .* ends at 8192": lambda case, inputs: (case, inputs | {"K": inputs["K"][:-2]}),
    "the bytes of K are missing; the inputs are Q; .*V are": lambda case, inputs: (case, {"Q": inputs["Q"]}),
    "V is float16 .*it must be its raw": lambda case, inputs: (case, inputs | {"V": inputs["V"].view(np.float16)}),
    "Q is f16, but the op takes f32": lambda case, inputs: (changed(case, "Q", type="f16"), inputs),
    "K has 8192 bytes.*at 8320": lambda case, inputs: (changed(case, "K", ne=(64, 65, 1, 1)), inputs),
    r"a-case: K is \(1, 1, 63\), .* \(1, 1, 64\)": lambda case, inputs: (changed(case, "K", ne=(64, 63, 1, 1)), inputs),
    "a-case: .* size is 32 in K but 64 in Q": lambda case, inputs: (changed(case, "K", ne=(32, 64, 1, 1)), inputs),
    r"V has nb\[0\] = 4": lambda case, inputs: (changed(case, "V", nb=(4, 128, 8192, 8192)), inputs),
    "V has 8192 bytes, but V .* ends at 8320": lambda case, inputs: (changed(case, "V", offset=128), inputs),
    "no tensor Q; there is no tensor K": lambda case, inputs: (with_tensors(case, {}), inputs),
}


@pytest.mark.parametrize("said", SPOILT)
def test_inputs_at_odds_with_the_case_are_one_clear_error(said):
    case, inputs = case_of("n_head: 1\n")
    spoilt, inputs = SPOILT[said](replace(case, name="a-case"), inputs)
    with pytest.raises(InputError, match=said) as caught:
        reference_of(spoilt.op, inputs, spoilt.name)
    assert "case a-case: " in str(caught.value)


@pytest.fixture
def capture():
    case, inputs = case_of("n_head: 2\nmask: {kind: causal}\n")
    dst = reference_of(case.op, inputs).astype(np.float32)
    return Capture(case.name, case.digest, case.op, inputs, dst, (), "wall", (0.1,), "CPU", "cpu", {})


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True))
def test_a_capture_cut_anywhere_is_one_clear_error(capture, tmp_path, share):
    path = tmp_path / "a.gguf"
    write_capture(capture, path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=r"a\.gguf: "):
        read_capture(path)


def test_a_capture_or_a_case_read_from_a_file_has_the_answer_of_its_case(capture, tmp_path):
    write_capture(capture, tmp_path / "a.gguf")
    read = read_capture(tmp_path / "a.gguf")
    check_output(read.op, read.dst)
    np.testing.assert_array_equal(reference_of(read.op, read.inputs).astype(np.float32), read.dst)
    case, inputs = case_of("n_head: 4\nn_head_kv: 2\nsinks: true\nmask: {kind: causal}\ntype_V: q5_1\n")
    write_case(case, inputs, tmp_path / "case.gguf")
    again = read_case(tmp_path / "case.gguf")
    np.testing.assert_array_equal(reference_of(again.op, again.inputs), reference_of(case.op, inputs))


def test_an_output_of_another_op_is_named(capture):
    other, _ = case_of("n_head: 2\nhsv: 32\n")
    with pytest.raises(InputError, match=r"^case x: dst is \(1, 3, 2, 64\), but the op writes \(1, 3, 2, 32\)$"):
        check_output(other.op, capture.dst, "x")
    with pytest.raises(InputError, match=r"^dst is float64, but the op writes float32$"):
        check_output(capture.op, capture.dst.astype(np.float64))


ONE_ROW = "version: 1\nabout: x\nhsk: 64\nn_q: 1\nn_kv: 1\nn_head: 64\nn_seq: 8\ntype_K: f16\n"


@pytest.mark.build
@pytest.mark.slow  # ggml's CPU backend is compiled
@pytest.mark.network
@pytest.mark.parametrize("type_", TYPE_NAMES)
@pytest.mark.parametrize("data", ["{kind: normal, scale: 3}", "{kind: fa3_outliers}", "{kind: uniform, scale: 1.0e-6}"])
def test_attention_over_one_kv_row_gives_back_that_row_of_v_to_the_last_bit(session, type_, data):
    """So the values of every type are ggml's own."""
    (case,) = expand(loads(f"{ONE_ROW}type_V: {type_}\ndata: {{V: {data}}}\n"))
    inputs = make_inputs(case)
    capture = captured(session, case, CPU, inputs)
    np.testing.assert_array_equal(capture.dst, reference_of(case.op, inputs).astype(np.float32))
