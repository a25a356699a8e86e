"""Allocations that repeat, and rows generated on access: the rule, their bytes, the mask rows that stand for others."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import Op, Root
from fattn_probe.cases.op.case_file import read_case
from fattn_probe.cases.op.op import TYPE_NAMES, block_size, is_quantized, type_size
from fattn_probe.cases.op.values import decode, encode, rounded, strided, view_values
from fattn_probe.cases.scenario import Scenario, draw, expand, inputs
from fattn_probe.cases.scenario import layout as rule
from fattn_probe.cases.scenario.inputs import GeneratedRows, make_inputs
from fattn_probe.cases.scenario.layout import PAGE, REPEATS_ABOVE, repeating
from fattn_probe.machine.run.capture import inputs_of, make_case_file
from tests import made

TYPES = ("f32", "f16", "q8_0", "q4_0", "iq4_nl")
LARGE = "version: 1\nabout: large\nhsk: 64\nn_head: 4\nn_head_kv: 2\nn_q: 300\nn_kv: 4096\nn_seq: 2\n"


def case_of(text=LARGE + "mask: {kind: causal}\n"):
    return made.case_of(text)


@pytest.fixture
def small(monkeypatch):
    """Allocations repeat from 64 KiB on."""
    monkeypatch.setattr(rule, "REPEATS_ABOVE", 1 << 16)
    monkeypatch.setattr(rule, "LEAST_PERIOD", 1 << 14)


@given(st.sampled_from(TYPES), st.integers(1, 40), st.integers(1, 2**31), st.integers(1, 128), st.integers(1, 64))
def test_a_period_is_whole_rows_and_pages_and_no_power_of_two_is_a_multiple(type_, blocks, rows, heads, sequences):
    plain = Root("K", type_, (32 * blocks, rows, heads, sequences))
    assume(plain.nbytes <= 2**40)
    root = repeating(plain)
    if root.period is None:
        assert root == plain
        assert root.nbytes <= REPEATS_ABOVE  # for rows of up to 5 KiB there always is a period
        return
    assert root.nbytes > REPEATS_ABOVE
    assert root.period % root.nb[1] == root.period % PAGE == 0
    assert root.stored.nbytes == root.period <= root.nbytes // 2
    elements = root.period // type_size(type_) * block_size(type_)
    assert all(2**bits % period for bits in range(8, 64) for period in (root.period, elements))
    assert root.nbytes // root.period <= 4096


def test_no_shipped_size_repeats_and_rows_whose_pages_repeat_too_late_are_stored():
    assert repeating(Root("K", "f16", (128, 4194304, 1, 1))).period is None
    assert repeating(Root("K", "f16", (128, 4194305, 1, 1))).period is not None
    assert repeating(Root("mask", "f16", (500001, 20000, 1, 1))).period is None


def test_bytes_repeat_and_do_not_depend_on_the_layout(small):
    case = case_of()
    roots, inputs = case.op.roots, make_inputs(case)
    assert {name: root.period is not None for name, root in roots.items()} == dict.fromkeys(
        ("Q", "K", "V", "mask"), True
    )
    for name, root in roots.items():
        assert inputs[name].size == root.nbytes
        np.testing.assert_array_equal(inputs[name], np.resize(inputs[name][: root.period], root.nbytes))
    values = inputs["K"].view(np.float16)
    assert len(np.unique(values)) > 1000
    assert -1 <= values.min() < -0.99
    assert 0.99 < values.max() <= 1
    moved = case_of(LARGE + "mask: {kind: causal}\nlayout: {K: {kind: view, permute: [0, 2, 1, 3]}}\n")
    np.testing.assert_array_equal(make_inputs(moved)["K"], inputs["K"])


def test_a_case_file_holds_one_period_and_gives_all_bytes(small, tmp_path):
    case = case_of()
    inputs, made = make_inputs(case), make_case_file(case, tmp_path / "case.gguf")
    assert (tmp_path / "case.gguf").stat().st_size < 200_000 < sum(root.nbytes for root in case.op.roots.values())
    read = read_case(made.file)
    assert read.op == case.op
    for name, memory in inputs.items():
        np.testing.assert_array_equal(made[name], memory)
        np.testing.assert_array_equal(read.inputs[name], memory)
    assert Op.from_json(case.op.to_json()) == case.op
    with inputs_of(case) as found:
        np.testing.assert_array_equal(found["V"], inputs["V"])


def test_each_mask_row_is_that_of_the_query_that_it_stands_for(small):
    case = case_of()
    view, halves = case.op.tensors["mask"], make_inputs(case)["mask"].view(np.float16)
    stored = strided(halves, view)
    for sequence in (0, 1):
        queries = np.arange(case.op.sizes.n_q)
        _, read = draw.mask_rows_read(case, np.full(len(queries), sequence), queries)
        np.testing.assert_array_equal(stored[sequence, 0], draw.some_rows(case.recipe.mask, case.mask_shape, 0, read))
        assert set(read) == set(draw.queries_read(case).tolist())
    assert draw.queries_read(case)[0] == 0
    assert len(set(np.isfinite(stored[0, 0]).sum(axis=1))) == len(draw.queries_read(case))


def test_a_mask_that_does_not_repeat_is_read_as_it_is():
    case = case_of()
    sequence, query = draw.mask_rows_read(case, np.array([0, 1]), np.array([3, 299]))
    assert (sequence.tolist(), query.tolist()) == ([0, 1], [3, 299])
    assert len(draw.queries_read(case)) == 300


def test_digests_change_only_where_bytes_repeat(monkeypatch):
    plain = case_of().digest
    monkeypatch.setattr(rule, "REPEATS_ABOVE", 1 << 16)
    monkeypatch.setattr(rule, "LEAST_PERIOD", 1 << 14)
    assert case_of().digest != plain
    monkeypatch.setattr(rule, "REPEATS_ABOVE", 1 << 40)
    assert case_of().digest == plain


@pytest.mark.parametrize("outside", ["nan", "zero"])
def test_memory_outside_a_view_cannot_be_marked_if_it_repeats(outside):
    huge = LARGE.replace("n_kv: 4096", "n_kv: 4194304")
    layout = f"layout: {{K: {{kind: view, pad: 8, outside: {outside}}}}}\n"
    with pytest.raises(InputError, match=rf"{outside}, but an allocation of 2.2 GiB repeats .* allowed: random"):
        case_of(huge + layout)
    assert case_of(LARGE + layout).op.roots["K"].period is None


OP = {"version": 1, "about": "x", "n_q": 2, "n_head": 3}
KINDS = ["uniform", "normal", "fa3_outliers", "extreme", {"kind": "constant", "value": 0.3}, {"kind": "large_logits"}]
LAYOUTS = [
    {"kind": "contiguous"},
    {"kind": "view", "permute": [0, 2, 1, 3], "rows": 20, "offset": 2, "pad": 32},
    {"kind": "view", "outside": "nan", "heads": 5},
]


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
    whole = draw.stream(seed, draw.STREAMS["K"]).random((run + 2, length), np.float32)
    window = draw.Window(seed, draw.STREAMS["K"], run, length, first)
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


@pytest.mark.parametrize("type_", ["f16", "bf16", "q5_0"])
@pytest.mark.parametrize("kind", ["normal", "fa3_outliers", "large_logits", "far_below_zero"])
def test_heads_drawn_in_pieces_and_drawn_again(kind, type_):
    op = OP | {"hsk": 32, "n_kv": 9, "n_head": 4, "type_K": type_, "data": {"Q": {"kind": kind}, "K": {"kind": kind}}}
    (case,) = expand(Scenario.model_validate(op))
    made, stored = GeneratedRows(case, "K", keep=1), view_values(case.op.tensors["K"], make_inputs(case))
    with mock.patch.object(inputs, "AT_ONCE", 64):
        for head in (3, 0, 1, 0):
            np.testing.assert_array_equal(made[0, head, slice(1, 8)], stored[0, head, 1:8])
