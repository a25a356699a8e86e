"""A case of a scenario file to its exact answer."""

import numpy as np
import pytest

from fattn_probe.errors import InputError
from fattn_probe.reference.adapter import fully_masked_of, reference_of
from fattn_probe.reference.attention import OpParams, attention
from fattn_probe.scenario import expand, loads, make_inputs, view_values

OP = "version: 1\nabout: a test\nhsk: 64\nn_q: 3\nn_kv: 64\n"


def case_of(text):
    (case,) = expand(loads(OP + text))
    return case, make_inputs(case)


def by_hand(case, inputs, mask=None, sinks=None):
    """The answer from the roots' bytes, for contiguous f32 and f16 tensors only."""
    shapes = {"Q": (np.float32, case.n_head, case.n_q), "K": (np.float16, case.n_head_kv, case.n_kv),
              "V": (np.float16, case.n_head_kv, case.n_kv)}  # fmt: skip
    Q, K, V = (
        inputs[name].view(dtype).reshape(case.n_seq, heads, rows, -1) for name, (dtype, heads, rows) in shapes.items()
    )
    return attention(Q, K, V, mask, params=OpParams(case.scale, case.max_bias, case.logit_softcap), sinks=sinks)


def test_plain_case_has_the_shape_of_dst_and_the_values_of_the_bytes():
    case, inputs = case_of("hsv: 32\nn_head: 6\nn_head_kv: 2\nn_seq: 2\n")
    got = reference_of(case, inputs)
    assert got.shape == (2, 3, 6, 32)
    np.testing.assert_array_equal(got, by_hand(case, inputs))
    assert fully_masked_of(case, inputs) is None


def test_mask_with_padding_sinks_and_every_parameter_reach_the_answer():
    case, inputs = case_of(
        "n_head: 4\nsinks: true\nmax_bias: 8.0\nlogit_softcap: 10.0\nscale: 0.3\nmask: {kind: masked_rows, first: 1}\n"
    )
    mask = view_values(case, inputs, "mask")
    sinks = inputs["sinks"].view(np.float32)
    got = reference_of(case, inputs)
    np.testing.assert_array_equal(got, by_hand(case, inputs, mask, sinks))
    assert (got[:, 1] == 0.0).all()
    assert fully_masked_of(case, inputs)[0, :, 0].tolist() == [False, True, False]
    assert not np.allclose(got, by_hand(case, inputs, mask))


def test_parameters_are_rounded_as_the_op_stores_them():
    case, inputs = case_of("n_head: 1\nlogit_softcap: 0.1\n")
    Q, K, V = (view_values(case, inputs, name) for name in "QKV")
    stored = attention(Q, K, V, params=OpParams(case.scale, 0.0, float(np.float32(0.1))))
    np.testing.assert_array_equal(reference_of(case, inputs), stored)
    assert (stored != attention(Q, K, V, params=OpParams(case.scale, 0.0, 0.1))).any()


def test_quantised_cache_is_taken_as_its_blocks_say():
    case, inputs = case_of("n_head: 2\ntype_K: q8_0\n")
    Q, K, V = (view_values(case, inputs, name) for name in "QKV")
    np.testing.assert_array_equal(reference_of(case, inputs), attention(Q, K, V, params=OpParams(case.scale)))


@pytest.mark.parametrize("name", ["Q", "V"])
def test_inputs_without_an_exact_answer_are_named(name):
    case, inputs = case_of("n_head: 2\n")
    inputs[name][:4] = 0xFF
    with pytest.raises(InputError, match=f"case {case.name}: {name} holds [12] values that are NaN or infinite"):
        reference_of(case, inputs)
