"""Allocations that repeat: the rule, their bytes, and the mask rows that stand for others."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import Op, Root
from fattn_probe.cases.op.case_file import read_case
from fattn_probe.cases.op.op import block_size, type_size
from fattn_probe.cases.op.values import strided
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario import layout as rule
from fattn_probe.cases.scenario.draw import mask_rows_read, queries_read, some_rows
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.layout import PAGE, REPEATS_ABOVE, repeating
from fattn_probe.machine.run.capture import inputs_of, make_case_file

TYPES = ("f32", "f16", "q8_0", "q4_0", "iq4_nl")
LARGE = "version: 1\nabout: large\nhsk: 64\nn_head: 4\nn_head_kv: 2\nn_q: 300\nn_kv: 4096\nn_seq: 2\n"


def case_of(text=LARGE + "mask: {kind: causal}\n"):
    (case,) = expand(loads(text, "large.yaml"))
    return case


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
    mask = Root("mask", "f16", (500001, 20000, 1, 1))  # 1,000,002 bytes: the first whole number of pages has 2 GB
    assert repeating(mask).period is None


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
        _, read = mask_rows_read(case, np.full(len(queries), sequence), queries)
        np.testing.assert_array_equal(stored[sequence, 0], some_rows(case.recipe.mask, case.mask_shape, 0, read))
        assert set(read) == set(queries_read(case).tolist())
    assert queries_read(case)[0] == 0
    assert len(set(np.isfinite(stored[0, 0]).sum(axis=1))) == len(queries_read(case))


def test_a_mask_that_does_not_repeat_is_read_as_it_is():
    case = case_of()
    sequence, query = mask_rows_read(case, np.array([0, 1]), np.array([3, 299]))
    assert (sequence.tolist(), query.tolist()) == ([0, 1], [3, 299])
    assert len(queries_read(case)) == 300


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
