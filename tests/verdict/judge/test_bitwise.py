"""Bitwise checks: runs beside each other, queries alone beside the batch."""

import numpy as np
import pytest

from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.verdict.judge.bitwise import Alone, batch_invariance, beside, chosen_queries, repeated, slice_of
from fattn_probe.verdict.truth.reference.adapter import reference_of

OUTPUT = np.random.default_rng(0).standard_normal((1, 4, 2, 8)).astype(np.float32)


def test_equal_runs_are_deterministic():
    check = repeated(OUTPUT, [OUTPUT.copy(), OUTPUT.copy()], "")
    assert (check.passes, check.fails) == (True, False)
    assert check.reason == "the same bits in 3 runs"


def test_one_other_bit_is_not():
    other = OUTPUT.copy()
    other[0, 2, 1, 3] = np.nextafter(other[0, 2, 1, 3], np.float32(9))
    check = repeated(OUTPUT, [OUTPUT, other], " with different orders of warps")
    assert check.fails
    assert "1 of 3 runs with different orders of warps gave different bits" in check.reason
    assert "run 3 in 1 elements of 1 rows" in check.reason


def test_nan_of_the_same_bits_is_the_same():
    output = OUTPUT.copy()
    output[0, 0] = np.nan
    assert repeated(output, [output.copy()], "").passes


def test_batch_invariance_names_the_kernels():
    same = Alone(0, "vec", True, 0.0)
    assert batch_invariance([same], "mma").passes
    check = batch_invariance([same, Alone(3, "vec", False, 1e-7)], "mma")
    assert not check.passes
    assert not check.fails
    assert (
        check.reason
        == "1 of 2 queries have other bits alone (3), NMSE up to 1.0e-07: alone by vec, in the batch by mma"
    )


@pytest.mark.parametrize(("value", "nmse"), [(0.0, 0.0), (-0.0, 0.0), (1.0, np.inf)])
def test_a_query_whose_rows_are_all_zero(value, nmse):
    """A sink far above the logits, or a mask that hides all, gives rows of zeros: the NMSE of these divided by 0."""
    batch = OUTPUT.copy()
    batch[:, 2] = 0.0
    found = beside(2, np.full((1, 1, 2, 8), value, np.float32), batch, "vec")
    assert (found.nmse, found.equal) == (nmse, value == 0.0 and not np.signbit(value))


def test_queries_are_from_all_over_the_batch():
    assert chosen_queries(100, 4) == [0, 33, 66, 99]
    assert chosen_queries(2, 4) == [0, 1]
    assert chosen_queries(1, 4) == [0]


SCENARIO = """
version: 1
about: rows of a batch
hsk: 64
n_head: 4
n_head_kv: 2
n_q: 9
n_kv: 96
n_seq: 2
sinks: true
max_bias: 8.0
mask: {kind: causal}
"""


@pytest.mark.parametrize(
    "layout", ["", "layout: {mask: {pad: 32, offset: 1}, Q: {kind: view, permute: [0, 2, 1, 3]}}\n"]
)
def test_a_query_alone_has_the_same_exact_answer(layout):
    (case,) = expand(loads(SCENARIO + layout, "rows.yaml"))
    inputs = make_inputs(case)
    whole = reference_of(case.op, inputs)
    for query in (0, 5, 8):
        single, its = slice_of(case, inputs, query)
        assert (single.op.sizes.n_q, single.op.tensors["Q"].ne[1]) == (1, 1)
        np.testing.assert_allclose(reference_of(single.op, its)[:, 0], whole[:, query], atol=1e-14)
        assert {name: len(data) for name, data in its.items()} == {
            name: root.nbytes for name, root in single.op.roots.items()
        }


def test_a_row_beside_its_batch():
    alone = OUTPUT[:, 2:3].copy()
    assert beside(2, alone, OUTPUT, "k") == Alone(2, "k", True, 0.0)
    alone[0, 0, 0, 0] += 1
    found = beside(2, alone, OUTPUT, "k")
    assert not found.equal
    assert found.nmse == pytest.approx(1 / float((OUTPUT[:, 2] ** 2).sum()), rel=1e-5)


def test_a_row_of_zeros_beside_its_batch():
    """As a kernel writes it for a query that the mask hides from all keys."""
    batch = OUTPUT.copy()
    batch[:, 2] = 0.0
    assert beside(2, batch[:, 2:3].copy(), batch, "k") == Alone(2, "k", True, 0.0)
    assert beside(2, batch[:, 1:2].copy(), batch, "k").nmse == np.inf
    large = np.full_like(batch, 1e30)  # its square is no float32
    assert beside(2, large[:, 2:3].copy(), large, "k").nmse == 0.0
