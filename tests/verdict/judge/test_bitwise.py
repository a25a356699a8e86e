"""Bitwise checks: runs beside each other, queries alone beside the batch."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.verdict.judge.bitwise import (
    Alone,
    batch_invariance,
    beside,
    mask_pad,
    repeated,
    slice_of,
)
from fattn_probe.verdict.truth.reference.adapter import reference_of
from fattn_probe.verdict.truth.reference.sampled import spaced
from tests.made import CAUSAL, case_of, shape

OUTPUT = np.random.default_rng(0).standard_normal((1, 4, 2, 8)).astype(np.float32)


def said(check):
    return check.passes, check.fails, check.made, check.reason


def test_runs_have_the_same_bits_and_batch_invariance_names_the_worst_of_the_queries():
    one, two, nan = OUTPUT.copy(), OUTPUT.copy(), OUTPUT.copy()
    one[0, 1, 0, 1] = np.nextafter(one[0, 1, 0, 1], np.float32(9))
    two[0, :2, 1], nan[0, 0] = 1, np.nan
    assert said(repeated(OUTPUT, [OUTPUT.copy()] * 2, "")) == (True, False, True, "the same bits in 3 runs")
    assert repeated(nan, [nan.copy()], "").passes
    found = said(repeated(OUTPUT, [OUTPUT, one], " with different orders of warps"))
    words = "1 of 3 runs with different orders of warps differ from the first"
    assert found == (False, True, True, f"not deterministic: {words}: run 3 differs in 1 elements, in 1 rows")
    words = "2 of 5 runs differ from the first: run 3 differs in 16 elements, in 2 rows"
    assert words in repeated(OUTPUT, [OUTPUT, two, one, OUTPUT], "").reason
    rows = [Alone(query, "vec", query == 0, query * 1e-7) for query in range(8)]
    by = "alone with vec, in the batch with mma"
    same = f"1 queries have the same bits alone as in the batch, {by}"
    assert said(batch_invariance(rows[:1], "mma")) == (True, False, True, same)
    words = f"7 of 8 queries have different bits alone (1, 2, 3, 4, 5, 6), NMSE up to 7.0e-07: {by}"
    assert said(batch_invariance(rows, "mma")) == (False, False, True, words)
    assert said(batch_invariance([], "mma"))[:3] == (False, False, False)


@pytest.mark.parametrize(
    ("n_q", "number", "queries"),
    [(100, 4, [0, 33, 66, 99]), (2, 4, [0, 1]), (1, 4, [0]), (10, 1, [0]), (1000, 3, [0, 500, 999])],
)
def test_queries_are_from_all_over_the_batch(n_q, number, queries):
    assert spaced(np.arange(n_q), number).tolist() == queries


@pytest.mark.parametrize(
    ("n_q", "rows", "pad"), [(5, 5, 1), (5, 6, 1), (5, 64, 64), (5, 128, 64), (5, 65, 1), (64, 64, 1)]
)
def test_a_recorded_mask_is_padded_if_it_looks_like_it(n_q, rows, pad):
    mask, sizes = SimpleNamespace(ne=(64, rows, 1, 1)), SimpleNamespace(n_q=n_q)
    case: Any = SimpleNamespace(recorded=True, op=SimpleNamespace(sizes=sizes, tensors={"mask": mask}))
    assert mask_pad(case) == pad


def test_a_query_beside_its_batch():
    """A sink far above the logits, or a mask that hides all, gives rows of zeros: the NMSE of these divided by 0."""
    alone, zeros = OUTPUT[:, 2:3].copy(), OUTPUT.copy()
    zeros[:, 2] = 0.0
    assert beside(2, alone, OUTPUT, "k") == Alone(2, "k", True, 0.0)
    alone[0, 0, 0, 0] += 1
    found = beside(2, alone, OUTPUT, "k")
    assert not found.equal
    assert found.nmse == pytest.approx(1 / float((OUTPUT[:, 2] ** 2).sum()), rel=1e-5)
    for value, equal, nmse in ((0.0, True, 0.0), (-0.0, False, 0.0), (1.0, False, np.inf)):
        assert beside(2, np.full((1, 1, 2, 8), value, np.float32), zeros, "k") == Alone(2, "k", equal, nmse)
    large = np.full_like(zeros, 1e30)  # its square is no float32
    assert beside(2, large[:, 2:3].copy(), large, "k").nmse == 0.0


@pytest.mark.parametrize(
    "layout", ["", "layout: {mask: {pad: 32, offset: 1}, Q: {kind: view, permute: [0, 2, 1, 3]}}\n"]
)
def test_a_query_alone_has_the_same_exact_answer(layout):
    case = case_of(shape(64, 4, 2, 9, 96, "n_seq: 2\nsinks: true\nmax_bias: 8.0", CAUSAL) + layout)
    inputs = make_inputs(case)
    whole = reference_of(case.op, inputs)
    for query in (0, 5, 8):
        single, its = slice_of(case, inputs, query)
        assert (single.op.sizes.n_q, single.op.tensors["Q"].ne[1]) == (1, 1)
        np.testing.assert_allclose(reference_of(single.op, its)[:, 0], whole[:, query], atol=1e-14)
        assert {name: len(data) for name, data in its.items()} == {
            name: root.nbytes for name, root in single.op.roots.items()
        }
