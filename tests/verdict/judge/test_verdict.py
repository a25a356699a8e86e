"""Verdicts and their words on planted faults."""

import numpy as np
import pytest

from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.verdict.measure.metrics import POISON
from fattn_probe.verdict.measure.verdict import Status, judge, upstream_says
from fattn_probe.verdict.measure.wrong_rows import ranges

SHAPE = (2, 16, 4, 8)


def nmse(bound):
    return Tolerance(nmse=bound)


@pytest.fixture
def reference():
    return np.random.default_rng(0).standard_normal(SHAPE)


def test_the_tolerance_decides(reference):
    dst = (reference * 1.01).astype(np.float32)
    passed = judge(dst, reference, nmse(1.1e-4))
    assert passed.status is Status.PASS and "within the tolerance 1e-04" in passed.reason
    verdict = judge(dst, reference, nmse(0.9e-4))
    assert verdict.status is Status.FAIL
    assert "NMSE 1.00e-04 is above the tolerance 9e-05" in verdict.reason
    assert "all 128 rows are wrong" in verdict.reason


def test_a_fault_in_one_head_is_placed(reference):
    dst = reference.astype(np.float32)
    dst[1, 8:12, 3] = 0.0
    reason = judge(dst, reference, nmse(1e-6)).reason
    assert "wrong: 4 of 128 rows (sequence 1 of 2; queries 8..11 of 16; head 3 of 4)" in reason


def test_one_nan_fails_whatever_the_tolerance(reference):
    dst = reference.astype(np.float32)
    dst[0, 5, 2, 1] = np.nan
    verdict = judge(dst, reference, nmse(1.0), np.zeros(SHAPE[:3], bool))
    assert verdict.status is Status.FAIL and not verdict.only_masked_nan and "divides 0 by 0" not in verdict.reason
    assert "1 of 1024 elements NaN, first at sequence 0, query 5, head 2, d 1" in verdict.reason


def test_unwritten_and_infinite_elements_are_named(reference):
    dst = reference.astype(np.float32)
    dst[0, 0, 0, 0] = np.inf
    dst.view(np.uint32)[1, 15] = POISON
    assert "32 of 1024 elements never written, 1 of 1024 elements infinite" in judge(dst, reference, nmse(1.0)).reason


def test_without_an_exact_answer_nothing_can_be_judged(reference):
    dst = reference.astype(np.float32)
    reference[0, 0, 0, 0] = np.nan
    verdict = judge(dst, reference, nmse(1e-6))
    assert verdict.status is Status.UNJUDGED
    assert "not finite" in verdict.reason


def test_upstream_passes_two_outputs_of_zeros():
    assert upstream_says(np.zeros(SHAPE, np.float32), np.zeros(SHAPE)).passes


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([3], "3"),
        ([0, 1, 2, 7], "0..2, 7"),
        ([0, 2, 3, 4, 7], "0, 2..4, 7"),
        (range(0, 12, 2), "0, 2, 4, 6, 8, 10"),
        (range(0, 16, 2), "0, 2, 4, 6, 8, 10, ..."),
        ([], ""),
    ],
)
def test_ranges(indices, words):
    assert ranges(indices) == words
