"""Verdicts from a sample of rows."""

import numpy as np
import pytest

from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.verdict.measure.metrics import Coordinate
from fattn_probe.verdict.measure.sampled import judge_sample
from fattn_probe.verdict.measure.verdict import Status
from fattn_probe.verdict.truth.reference.adapter import reference_of
from fattn_probe.verdict.truth.reference.sampled import choose_rows, sample

OP = "version: 1\nabout: a test\nhsk: 32\nn_q: 200\nn_kv: 300\nn_head: 4\nn_head_kv: 2\nmask: {kind: causal}\n"
OP += "tolerance: {nmse: 1e-6}\n"


@pytest.fixture(scope="module")
def case():
    return expand(loads(OP, "sampled.yaml"))[0]


@pytest.fixture(scope="module")
def rows(case):
    return sample(case, choose_rows(case, random=2))


@pytest.fixture
def dst(case):
    return reference_of(case.op, make_inputs(case)).astype(np.float32)


def test_an_exact_output_passes_and_says_how_many_rows_were_sampled(case, rows, dst):
    verdict = judge_sample(case, dst, rows)
    assert verdict.status is Status.PASS
    assert f"sampled: {len(rows.rows)} of 800 rows" in verdict.reason


def test_a_sampled_row_that_is_wrong_has_its_own_coordinates(case, rows, dst):
    dst[0, 199, 3] *= np.float32(1.1)
    verdict = judge_sample(case, dst, rows)
    assert verdict.status is Status.FAIL
    assert "(0, 199, 3)" in verdict.reason
    assert (verdict.metrics.worst.query, verdict.metrics.worst.head) == (199, 3)
    assert f"sequence 0, query 199, head 3, d {verdict.metrics.worst.d}" in verdict.reason


def place(row):
    sequence, query, head = map(int, row)
    return Coordinate(sequence, query, head, 2)


def test_coordinates_in_a_reason_are_data_not_text(case, dst):
    """They were put into the text by replacing: here the place of the error was then replaced by that of the NaN."""
    rows = sample(case, choose_rows(case, random=20))
    number = len(rows.rows)
    worst = next(at for at in rows.rows if at[2] == 0 and at[1] < number and tuple(rows.rows[at[1]]) != tuple(at))
    first_bad = rows.rows[worst[1]]  # in the sample, its coordinates are the error's in the output
    dst[(*worst, 2)] = 9.0
    dst[(*first_bad, 2)] = np.nan
    verdict = judge_sample(case, dst, rows, tolerance=Tolerance(nmse=1e-6, max_abs=1e-3))
    assert verdict.metrics.worst == place(worst)
    assert verdict.metrics.first_bad == place(first_bad)
    assert f"first at {verdict.metrics.first_bad}" in verdict.reason
    assert f"at {verdict.metrics.worst}" in verdict.reason
