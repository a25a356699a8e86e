"""Verdicts and their words on planted faults: what is at a limit, and what is beyond it; warnings, upstream's rules."""

from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.verdict.measure import verdict as limits
from fattn_probe.verdict.measure.expected import Design
from fattn_probe.verdict.measure.metrics import POISON, deviation_from, measure
from fattn_probe.verdict.measure.verdict import Status, accuracy, few_bits, judge, upstream_says
from fattn_probe.verdict.measure.wrong_rows import ranges

SHAPE = (1, 64, 1, 16)
SIGN = np.where(np.arange(16) % 2, 1.0, -1.0)
ONES = np.ones(SHAPE)
REFERENCE = ONES * SIGN


def output(error=0.0, where=...):
    dst = REFERENCE.astype(np.float32)
    dst[where] += np.float32(error)
    return dst


def status(dst, **tolerance):
    return judge(dst, REFERENCE, Tolerance(**tolerance)).status


def test_an_nmse_or_an_error_at_the_tolerance_passes():
    dst = output(2.0**-5)  # of answers of size 1: NMSE 2^-10
    assert status(dst, nmse=2.0**-10) is Status.PASS
    reason = judge(dst, REFERENCE, Tolerance(nmse=2.0**-10)).reason
    assert reason == "NMSE 9.77e-04 is within the tolerance 1e-03"
    assert status(dst, nmse=0.999 * 2.0**-10) is Status.FAIL
    assert status(dst, nmse=1.0, max_abs=2.0**-5) is Status.PASS
    assert status(dst, nmse=1.0, max_abs=0.999 * 2.0**-5) is Status.FAIL
    assert status(-dst, nmse=5.0, max_abs=2.1) is Status.PASS
    assert status(-dst, nmse=5.0, max_abs=1.9) is Status.FAIL


def test_the_words_of_a_tolerance_that_is_exceeded():
    reason = judge(output(2.0**-5, (0, 3, 0, 2)), REFERENCE, Tolerance(nmse=1e-9, max_abs=1e-3)).reason
    assert reason.startswith("NMSE 9.54e-07 is above the tolerance 1e-09 and an error is above the tolerance 0.001, ")
    assert "largest error 0.0312 at sequence 0, query 3, head 0, d 2; wrong: 1 of 64 rows" in reason
    assert "mean error" not in reason
    biased = np.ones(SHAPE, np.float32) * np.float32(1 + 2.0**-9)
    assert "mean error +0.2 %" in judge(biased, ONES, Tolerance(nmse=1e-9)).reason
    assert "mean error -0.2 %" in judge(2 - biased, ONES, Tolerance(nmse=1e-9)).reason
    at = judge((1000 * ONES + 1).astype(np.float32), 1000 * ONES, Tolerance(nmse=1e-9))
    assert "mean error +0.1 %" in at.reason


def said(dst, reference=ONES, design=None):
    return accuracy(dst, reference, measure(dst, reference), design, bit_exact=False)


def test_a_bias_counts_from_a_thousandth_of_the_answer_on():
    big = 1000.0 * ONES
    at, below = (big + 1).astype(np.float32), (big + 0.99).astype(np.float32)
    assert said(at, big).reason == "mean error +0.1 %: the kernel's known arithmetic does not explain it"
    assert said(below, big).passes and limits.BIASED == 1e-3
    assert not said((big - 1).astype(np.float32), big).passes


def rows_of_two(*shape):
    """Errors of 2 and -2 by row, or by element of a single one: their mean is 0, their deviation 2."""
    return np.where(np.arange(max(shape)) % 2, 2.0, -2.0).reshape(shape) * np.ones((1, shape[1], 1, max(16, shape[3])))


@pytest.mark.parametrize(
    ("noise", "most"),
    [
        pytest.param(rows_of_two(1, 64, 1, 1), 1.25, id="64 rows, whose mean varies by a quarter"),
        pytest.param(rows_of_two(1, 2, 1, 1), 7.071, id="two rows"),
        pytest.param(rows_of_two(1, 1, 1, 64), 1.25, id="the elements of a single row"),
    ],
)
def test_a_bias_counts_beyond_five_standard_deviations_of_chance(noise, most):
    answer = np.full(noise.shape, 1000.0)
    for mean, counts in ((most, False), (1.01 * most, True), (-most, False), (-1.01 * most, True)):
        assert ("mean error" in said((answer + noise + mean).astype(np.float32), answer).reason) == counts, mean
    assert limits.CHANCE == 5


def foretold(mean, passes=True, by="prediction"):
    return Design(passes, by, "", predicted_mean_error=mean, lost="increments are lost")


@pytest.mark.parametrize(("factor", "explained"), [(0.5, False), (0.51, True), (1.99, True), (2.0, False), (-1, False)])
def test_a_mean_error_is_foretold_within_a_factor_of_two(factor, explained):
    dst = (0.75 * ONES).astype(np.float32)
    words = "increments are lost" if explained else "the kernel's known arithmetic does not explain it"
    assert words in said(dst, design=foretold(-0.25 * factor)).reason
    noisy = (ONES + 2.0**-6 + 0.5 * np.where(np.arange(64) % 2, 1.0, -1.0)[None, :, None, None]).astype(np.float32)
    quiet = said(noisy, design=foretold(2.0**-6 * factor))
    assert ("mean error" in quiet.reason) == explained  # chance may explain it, but it was foretold


def test_a_model_explains_a_mean_error_if_the_output_is_its_and_one_that_is_not_finite_is_not_accurate():
    dst = (0.75 * ONES).astype(np.float32)
    assert "follows from the kernel's own arithmetic" in said(dst, design=Design(True, "model", "")).reason
    for design in (Design(False, "model", ""), Design(True, "prediction", ""), None):
        assert "does not explain it" in said(dst, design=design).reason
    found = judge(output(np.nan, (0, 3)), REFERENCE, Tolerance()).accuracy
    assert not found.passes and found.reason == "the output contains NaN or infinity"


def test_upstreams_bound_is_on_the_nmse(monkeypatch):
    assert limits.UPSTREAM_TOLERANCE == 5e-4
    for nmse, passes in ((4.99e-4, True), (5.01e-4, False)):
        dst = output(0.0)
        dst[:, ::2] += np.float32(np.sqrt(nmse))
        dst[:, 1::2] -= np.float32(np.sqrt(nmse))
        assert said(dst, REFERENCE).passes == passes
        assert upstream_says((1 / (1 - np.sqrt(nmse)) * REFERENCE).astype(np.float32), REFERENCE).passes == passes
    dst = output(2.0**-5)
    monkeypatch.setattr(limits, "UPSTREAM_TOLERANCE", 2.0**-10)
    assert said((REFERENCE * (1 + 2.0**-5)).astype(np.float32), REFERENCE).passes  # at it
    exactly = upstream_says(dst, REFERENCE).nmse
    assert upstream_says(dst, REFERENCE, exactly).passes
    worse = upstream_says(dst, REFERENCE, 0.999 * exactly)
    assert not worse.passes and worse.reason == f"ERR = {exactly:.9f} > {0.999 * exactly:.9f}"


def test_upstream_looks_for_one_nan_and_one_infinity():
    for value, said in ((np.nan, "NaN"), *((odd, "infinite") for odd in (np.inf, -np.inf, -np.finfo(np.float32).max))):
        dst = output()
        dst[0, 0, 0, 0] = value
        found = upstream_says(dst, REFERENCE, 1e9)
        assert not found.passes and said in found.reason
    near = output()
    near[0, 0, 0, 0] = np.nextafter(np.finfo(np.float32).max, np.float32(0))
    assert upstream_says(near, REFERENCE, np.inf).reason == "OK"
    assert upstream_says(0 * output(), 0 * REFERENCE).passes


@pytest.mark.parametrize(("bits", "few"), [(0.9, False), (0.899, True), (0.0, True), (None, False)])
def test_nine_of_ten_bits_are_enough(bits, few):
    design = Design(True, "model", "", equal_bits=bits)
    assert bool(few_bits(design, bit_exact=True)) == few
    assert few_bits(design, bit_exact=False) == "" == few_bits(None, bit_exact=True)


def masked(*queries):
    found = np.zeros(SHAPE[:3], bool)
    found[0, list(queries)] = True
    return found


def test_only_nan_only_in_fully_masked_rows_is_zero_by_zero():
    dst = output(np.nan, (0, 3))
    found = judge(dst, REFERENCE, Tolerance(nmse=1e-6), masked(3, 4))
    assert found.only_masked_nan and "divides 0 by 0" in found.reason
    for rows in (None, masked(), masked(4)):
        other = judge(dst, REFERENCE, Tolerance(nmse=1e-6), rows)
        assert not other.only_masked_nan and "divides" not in other.reason
    for value in (np.inf, np.uint32(POISON).view(np.float32)):
        mixed = dst.copy()
        mixed[0, 4, 0, 0] = value
        assert "divides" not in judge(mixed, REFERENCE, Tolerance(nmse=1e-6), masked(3, 4)).reason
    elsewhere = dst.copy()
    elsewhere[0, 5, 0, 0] = 9.0  # NaN hides it from the NMSE, but not from the deviation
    found = judge(elsewhere, REFERENCE, Tolerance(nmse=1e-6), masked(3, 4))
    assert "divides" in found.reason and not found.only_masked_nan
    assert np.argwhere(found.deviation.wrong.any(axis=3))[:, 1].tolist() == [3, 5]
    right = judge(output(), REFERENCE, Tolerance(nmse=1e-6), masked(3))
    assert right.status is Status.PASS and not right.only_masked_nan


def test_a_row_is_wrong_beyond_the_tolerance_of_its_own_answer():
    for nmse, wrong in ((2.0**-10, 0), (0.99 * 2.0**-10, 64)):
        found = deviation_from(output(2.0**-5), REFERENCE, Tolerance(nmse=nmse))
        assert found.wrong.any(axis=3).sum() == wrong
        assert found.unit.ravel() == pytest.approx(np.full(64, np.sqrt(nmse)))
    one = deviation_from(output(0.5, (0, 3, 0, 2)), REFERENCE, Tolerance(nmse=1e-3))
    assert np.argwhere(one.wrong).tolist() == [[0, 3, 0, 2]]
    both = output(0.5, (0, 3, 0, 2))
    both[0, 3, 0, 5] += np.float32(0.01)  # below what an element of the row may have
    assert np.argwhere(deviation_from(both, REFERENCE, Tolerance(nmse=1e-3)).wrong).tolist() == [[0, 3, 0, 2]]
    assert not deviation_from(output(0.5, (0, 3, 0, 2)), REFERENCE, Tolerance(nmse=1.0, max_abs=0.5)).wrong.any()
    low = deviation_from(output(-0.5, (0, 3, 0, 2)), REFERENCE, Tolerance(nmse=1.0, max_abs=0.49))
    assert np.argwhere(low.wrong).tolist() == [[0, 3, 0, 2]]
    nan = deviation_from(output(np.nan, (0, 3, 0, 2)), REFERENCE, Tolerance(nmse=1.0))
    assert np.argwhere(nan.wrong).tolist() == [[0, 3, 0, 2]]


def test_an_error_is_given_in_units_of_its_row():
    found = deviation_from(output(), REFERENCE, Tolerance(nmse=1.0))
    found = replace(found, unit=np.where(np.arange(64) == 3, 0.0, 0.25)[None, :, None])
    dst = output(-0.5, (0, 2, 0, 1))
    dst[0, 3, 0, 1], dst[0, 4, 0, 1], dst[0, 5, 0, 1] = 9.0, np.nan, -np.inf
    off = found.of(dst)
    assert off[0, 2, 0, 1] == 2.0
    assert np.isinf(off[0, [3, 4, 5], 0, 1]).all()
    assert off.size - np.count_nonzero(off) == off.size - 4


PLACES = (2, 16, 4, 8)


@pytest.fixture
def reference():
    return np.random.default_rng(0).standard_normal(PLACES)


ODD = [((0, 0, 0, 0), np.inf), ((1, 15), np.uint32(POISON).view(np.float32))]


@pytest.mark.parametrize(
    ("nmse", "faults", "words"),
    [
        (1e-6, [(np.s_[1, 8:12, 3], 0.0)], "4 of 128 rows (sequence 1 of 2; queries 8..11 of 16; head 3 of 4)"),
        (1.0, [((0, 5, 2, 1), np.nan)], "1 of 1024 elements NaN, first at sequence 0, query 5, head 2, d 1"),
        (1.0, ODD, "32 of 1024 elements never written, 1 of 1024 elements infinite"),
    ],
    ids=["one head", "one NaN, whatever the tolerance", "unwritten and infinite elements"],
)
def test_a_fault_is_named_with_its_place(reference, nmse, faults, words):
    dst = reference.astype(np.float32)
    for where, value in faults:
        dst[where] = value
    verdict = judge(dst, reference, Tolerance(nmse=nmse), np.zeros(PLACES[:3], bool))
    assert verdict.status is Status.FAIL and not verdict.only_masked_nan and "divides 0 by 0" not in verdict.reason
    assert words in verdict.reason


def test_without_an_exact_answer_nothing_can_be_judged(reference):
    dst = reference.astype(np.float32)
    reference[0, 0, 0, 0] = np.nan
    verdict = judge(dst, reference, Tolerance(nmse=1e-6))
    assert verdict.status is Status.UNJUDGED
    assert "NaN or infinity" in verdict.reason


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
