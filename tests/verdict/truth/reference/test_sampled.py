"""The sampled mode compared with the full reference, and on outputs with wrong unsampled rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.values import view_values
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.verdict.truth.reference.adapter import fully_masked_of, reference_and_lse_of
from fattn_probe.verdict.truth.reference.sampled import choose_rows, fully_masked, sample
from tests import made

OP = "version: 1\nabout: a test\nhsk: 32\nhsv: 16\nn_q: 70\nn_kv: 1500\nn_head: 4\nn_head_kv: 2\n"


def case_of(text):
    return made.case_of(OP + text)


FEATURES = [
    "",
    "n_seq: 2\nmask: {kind: causal}\nsinks: true\n",
    "mask: {kind: alibi}\nmax_bias: 8.0\nlogit_softcap: 20.0\ndata: {V: {kind: normal, mean: 1}, K: {kind: normal}}\n",
    "n_seq: 2\nmask: {kind: random}\nlayout: {mask: {per_sequence: false, pad: 64}}\ntype_K: bf16\n",
    "n_seq: 2\nmask: {kind: sequences, count: 3}\ndata: {K: {kind: extreme, magnitude: 50}}\n",
    "mask: {kind: sliding_window, window: 100}\nlayout: {V: {kind: view_of_K, offset: 16}}\n",
    "mask: {kind: sparse, finite: 40}\nn_kv_max: 40\ndata: {Q: {kind: large_logits, logit: 500}}\n",
    "mask: {kind: sum, of: [{kind: masked_rows, every: 3}, {kind: blocks}]}\ntype_K: f32\n",
]


@pytest.mark.parametrize("text", FEATURES)
def test_sampled_rows_are_those_of_the_whole_and_all_of_it_is_in_the_hull(text):
    case = case_of(text)
    inputs = make_inputs(case)
    reference, lse = reference_and_lse_of(case.op, inputs)
    found = sample(case, choose_rows(case, seams=[16, 32], rows=[(case.op.sizes.n_seq - 1, 33, 2)]))
    np.testing.assert_allclose(found.reference, found.of(reference), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.lse, found.of(lse), rtol=1e-12)
    bad = found.implausible(reference.astype(np.float32), 1e-6)
    whole = fully_masked_of(case.op, inputs)
    assert bad.size == 0 or whole[tuple(bad.T)].all()
    everywhere = np.argwhere(np.ones(reference.shape[:3], bool))
    masked = np.zeros(reference.shape[:3], bool) if whole is None else whole
    np.testing.assert_array_equal(fully_masked(case, everywhere), masked.ravel())


@pytest.mark.parametrize(
    ("mask", "rows", "seen"),
    [
        ("{kind: masked_tiles, leading: 600, trailing: 100}", None, slice(600, 1400)),
        ("{kind: sliding_window, window: 10}", np.array([[0, 0, 0]]), slice(1500 - 70 - 9, None)),
    ],
    ids=["all rows of the sample", "a sample that sees little of it"],
)
def test_the_hull_is_of_the_rows_that_some_query_sees(mask, rows, seen):
    case = case_of(f"mask: {mask}\n")
    found = sample(case, choose_rows(case) if rows is None else rows)
    V = view_values(case.op.tensors["V"], make_inputs(case))[0, :, seen].repeat(2, axis=0)
    np.testing.assert_array_equal(found.low[0], V.min(axis=1))
    np.testing.assert_array_equal(found.high[0], V.max(axis=1))


def test_a_sink_draws_towards_zero_and_fully_masked_everywhere_is_an_answer_of_zeros():
    case = case_of("sinks: true\ndata: {V: {kind: uniform, mean: 1, scale: 0.1}}\n")
    found = sample(case, choose_rows(case))
    assert (found.low == 0).all()
    assert (found.high > 1).all()
    case = case_of("mask: {kind: masked_rows, every: 1}\n")
    found = sample(case, choose_rows(case))
    assert (found.reference == 0).all()
    assert np.isneginf(found.lse).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.2, 0.8])
def test_implausible_unsampled_rows_are_found(value):
    case = case_of("data: {V: {kind: uniform, mean: 1, scale: 0.1}}\n")
    found = sample(case, choose_rows(case, random=1))
    dst = np.ones((1, 70, 4, 16), np.float32)
    assert found.implausible(dst).size == 0
    dst[0, 37, 2, 11] = value
    assert found.implausible(dst).tolist() == [[0, 37, 2]]
    assert found.implausible(dst, 0.2).size == (0 if np.isfinite(value) else 3)


def test_the_sample_has_what_it_must():
    case = case_of("n_seq: 2\nmask: {kind: causal}\n")
    rows = choose_rows(case, seams=[16, 70], rows=[(1, 44, 3)], random=2, tile=64)
    for seq, head in np.ndindex(2, 4):
        mine = set(rows[(rows[:, 0] == seq) & (rows[:, 2] == head)][:, 1].tolist())
        ends = {1500 - 70 + query + 1: query for query in range(70)}
        assert {0, 69, 15, 16} <= mine
        assert {ends[1472], ends[1473]} <= mine
    assert (rows == (1, 44, 3)).all(axis=1).any()
    assert rows.tolist() == sorted(rows.tolist())
    assert {34, 35} <= set(choose_rows(case_of("mask: {kind: sequences, count: 2}\n"), random=0)[:, 1].tolist())


def test_heads_have_random_rows_of_their_own_and_rows_that_are_not_there_or_without_an_answer_are_refused():
    rows = choose_rows(case_of(""), random=3)
    assert len(set([tuple(rows[rows[:, 2] == head][:, 1]) for head in range(4)])) > 1
    np.testing.assert_array_equal(rows, choose_rows(case_of(""), random=3))
    with pytest.raises(InputError, match=r"of \(1, 70, 4\) \(sequences, queries, heads\) has no row \(0, 70, 0\)"):
        choose_rows(case_of(""), rows=[(0, 70, 0)])
    case = case_of("data: {K: {kind: normal, scale: 1.0e+6}}\n")
    with pytest.raises(InputError, match="its data hold values that are NaN or infinite"):
        sample(case, choose_rows(case))


@settings(max_examples=25)
@given(
    st.integers(1, 5), st.integers(1, 1100), st.integers(0, 9), st.sampled_from(["causal", "none", "random", "alibi"])
)
def test_any_small_case(n_q, n_kv, seed, mask):
    case = made.case_of(made.shape(8, 2, 2, n_q, n_kv, f"seed: {seed}\nmask: {{kind: {mask}}}"))
    reference = reference_and_lse_of(case.op, make_inputs(case))[0]
    found = sample(case, choose_rows(case))
    np.testing.assert_allclose(found.reference, found.of(reference), rtol=1e-12, atol=1e-14)
