"""Rows generated on access equal those of make_inputs."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fattn_probe.cases.op.op import TYPE_NAMES, is_quantized
from fattn_probe.cases.op.values import decode, encode, rounded, view_values
from fattn_probe.cases.scenario import Scenario, expand, inputs
from fattn_probe.cases.scenario.draw import STREAMS, Window, blocks, some_rows, stream, visible
from fattn_probe.cases.scenario.inputs import GeneratedRows, make_inputs
from fattn_probe.cases.scenario.mask import Mask, MaskShape, sees_something

OP = {"version": 1, "about": "x", "n_q": 2, "n_head": 3}
KINDS = ["uniform", "normal", "fa3_outliers", "extreme", {"kind": "constant", "value": 0.3}, {"kind": "large_logits"}]
LAYOUTS = [
    {"kind": "contiguous"},
    {"kind": "view", "permute": [0, 2, 1, 3], "rows": 20, "offset": 2, "pad": 32},
    {"kind": "view", "outside": "nan", "heads": 5},
]

MASKS = [
    {"kind": "none"},
    *({"kind": kind, "past": past} for kind in ("causal", "alibi") for past in (None, 0, 7)),
    {"kind": "alibi", "causal": False},
    *({"kind": "sliding_window", "window": 5, "past": past} for past in (None, 0, 190)),
    {"kind": "sequences", "count": 3},
    {"kind": "sequences", "count": 2, "interleaved": True, "causal": False},
    {"kind": "blocks", "q": 5, "kv": 7},
    {"kind": "masked_tiles", "leading": 11, "trailing": 4},
    {"kind": "masked_tiles", "leading": 150, "trailing": 100},
    {"kind": "masked_rows", "every": 3, "first": 1},
    {"kind": "random"},
    {"kind": "sparse"},
]


@st.composite
def masks(draw):
    """A mask, or the sum of two."""
    some = draw(st.lists(st.sampled_from(MASKS), min_size=1, max_size=2))
    text = some[0] if len(some) == 1 or {"kind": "none"} in some else {"kind": "sum", "of": some}
    return TypeAdapter(Mask).validate_python(text)


@st.composite
def cases(draw):
    """A small case of any distribution, type and layout of K and V."""
    data = draw(st.sampled_from(KINDS))
    data = dict(data) if isinstance(data, dict) else {"kind": data}
    if draw(st.booleans()):
        data["seed"] = draw(st.integers(0, 5))
    type_ = draw(st.sampled_from(TYPE_NAMES))
    hsk = draw(st.integers(1, 3)) * 32 if is_quantized(type_) else draw(st.integers(1, 40))
    V_of_K = draw(st.booleans()) and not is_quantized(type_)
    V = {"kind": "view_of_K", "offset": draw(st.integers(0, hsk - 1))} if V_of_K else draw(st.sampled_from(LAYOUTS))
    data_V = data if data["kind"] != "large_logits" else {"kind": "normal"}
    op = OP | {
        "hsk": hsk,
        "n_kv": draw(st.integers(1, 17)),
        "n_seq": draw(st.integers(1, 2)),
        "type_K": type_,
        "seed": draw(st.integers(0, 9)),
        "layout": {"K": draw(st.sampled_from(LAYOUTS)), "V": V},
        "data": {"K": data} if V_of_K else {"K": data, "V": data_V},
    }
    if V_of_K:
        op["hsv"] = hsk - V["offset"]
    (case,) = expand(Scenario.model_validate(op))
    return case


@settings(max_examples=120)
@given(cases(), st.randoms(use_true_random=False), st.sampled_from([64, inputs.AT_ONCE]))
def test_any_rows_in_any_order_are_those_stored(case, random, at_once):
    with mock.patch.object(inputs, "AT_ONCE", at_once):
        compare_some(case, random)


def compare_some(case, random):
    inputs = make_inputs(case)
    for name in "KV":
        stored, made = view_values(case.op.tensors[name], inputs), GeneratedRows(case, name, keep=1)
        assert made.shape == stored.shape
        for _ in range(6):
            seq, head = random.randrange(case.op.sizes.n_seq), random.randrange(case.op.sizes.n_head_kv)
            first = random.randrange(case.op.sizes.n_kv)
            rows = slice(first, random.randint(first + 1, case.op.sizes.n_kv))
            np.testing.assert_array_equal(made[seq, head, rows], stored[seq, head, rows])


@settings(max_examples=60)
@given(st.integers(0, 2**63 - 1), st.integers(0, 3), st.integers(1, 50), st.data())
def test_a_window_is_the_stream_further_on(seed, run, length, data):
    first = data.draw(st.integers(0, length - 1))
    count = data.draw(st.integers(1, length - first))
    whole = stream(seed, STREAMS["K"]).random((run + 2, length), np.float32)
    window = Window(seed, STREAMS["K"], run, length, first)
    for expected in whole[run:, first : first + count]:
        np.testing.assert_array_equal(window.random((count,), np.float32), expected)


@settings(max_examples=200)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1), st.sampled_from(TYPE_NAMES))
def test_rounded_is_there_and_back(numbers, type_):
    values = np.zeros((2, -(-len(numbers) // 32) * 32), np.float32)
    values[0, : len(numbers)] = numbers if type_ in ("f16", "f32", "bf16") else np.round(np.tanh(numbers), 3)
    np.testing.assert_array_equal(rounded(values, type_).reshape(-1), decode(encode(values, type_), type_))


def test_every_f16_and_what_lies_between_two_rounds_as_numpy_does():
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (halves[:-1] + halves[1:]) / 2
    values = np.concatenate(
        [halves, middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(1e9))]
    )
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(rounded(-values, "f16"), (-values).astype(np.float16).astype(np.float32))


@settings(max_examples=150)
@given(masks(), st.integers(10, 200), st.integers(1, 150), st.integers(0, 3), st.data())
def test_some_rows_of_a_mask_and_what_they_see(mask, n_kv, n_q, seed, data):
    shape = MaskShape(n_kv, n_q, 2, seed, 9)
    whole = np.full((2, n_q, n_kv), np.nan)
    for sequence, first, rows in blocks(mask, shape):
        whole[sequence, first : first + len(rows)] = rows
    queries = np.array(data.draw(st.lists(st.integers(0, n_q - 1), min_size=1, max_size=5)))
    for sequence in range(2):
        np.testing.assert_array_equal(some_rows(mask, shape, sequence, queries), whole[sequence, queries])
    begin, stop = visible(mask, shape, queries)
    seen = np.isfinite(whole[:, queries])
    columns = np.arange(n_kv)
    assert not seen[:, (columns < begin[:, None]) | (columns >= stop[:, None])].any()
    if sees_something(mask):
        assert (seen.any(axis=2) == (begin < stop)).all()


@pytest.mark.parametrize("type_", ["f16", "bf16", "q5_0"])
@pytest.mark.parametrize("kind", ["normal", "fa3_outliers", "large_logits", "far_below_zero"])
def test_heads_drawn_in_pieces_and_drawn_again(kind, type_):
    op = OP | {"hsk": 32, "n_kv": 9, "n_head": 4, "type_K": type_, "data": {"Q": {"kind": kind}, "K": {"kind": kind}}}
    (case,) = expand(Scenario.model_validate(op))
    made, stored = GeneratedRows(case, "K", keep=1), view_values(case.op.tensors["K"], make_inputs(case))
    with mock.patch.object(inputs, "AT_ONCE", 64):
        for head in (3, 0, 1, 0):
            np.testing.assert_array_equal(made[0, head, slice(1, 8)], stored[0, head, 1:8])
