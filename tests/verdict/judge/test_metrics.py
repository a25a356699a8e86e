"""Metrics of planted errors whose values are known beforehand."""

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.verdict.measure.metrics import (
    POISON,
    Coordinate,
    deviation_from,
    f16_spacing,
    liken,
    measure,
    nmse,
    upstream_nmse,
)

SHAPE = (2, 3, 4, 5)


@pytest.fixture
def reference():
    return np.random.default_rng(0).standard_normal(SHAPE) + 2.0


def poison():
    assert POISON == 0x7FC0DEAD  # what runner/op.h fills dst with
    return np.array([POISON], np.uint32).view(np.float32)[0]


def test_f16_numbers_are_as_far_apart_as_numpy_says():
    values = np.array([0.0, 1e-9, 6e-5, 6.2e-5, 0.3, 1.0, 1.5, 2.0, 1000.0, 65504.0])
    finite = values.astype(np.float16)[:-1]  # beyond the largest there is no other number
    np.testing.assert_array_equal(f16_spacing(values)[:-1], np.spacing(finite).astype(float))
    assert f16_spacing(np.array([0.0, 1e6])).tolist() == [2.0**-24, 32.0]


def test_nan_infinite_and_unwritten_are_counted_apart_or_all_is_nan(reference):
    dst = reference.astype(np.float32)
    dst[0, 1, 0, 2] = np.nan
    dst[0, 1, 0, 3] = -np.inf
    dst[1, 0, 0, :2] = poison()
    found = measure(dst, reference)
    assert (found.nan, found.inf, found.unwritten) == (1, 1, 2)
    assert found.first_bad == Coordinate(0, 1, 0, 2)
    assert np.isnan(found.nmse)
    assert found.max_abs < 1e-6
    assert not found.all_finite
    found = measure(np.full(SHAPE, np.nan, np.float32), reference)
    assert (found.nan, found.worst) == (reference.size, None)
    errors = ("max_abs", "rmse", "mean_error", "bias", "max_rel", "f16_ulps", "mean_f16_ulps")
    assert np.isnan([getattr(found, name) for name in errors]).all()
    zeros = np.zeros(SHAPE)
    assert measure(zeros.astype(np.float32), zeros).nmse == 0.0
    assert measure(np.full(SHAPE, 1e-30, np.float32), zeros).nmse == np.inf
    assert measure(np.full(SHAPE, 1e30, np.float32), np.full(SHAPE, 1e-300)).max_rel == np.inf


def upstream_in_scalars(a, b):
    """`nmse()` of test-backend-ops.cpp, one float at a time."""
    squares, power = 0.0, 0.0
    for x, y in zip(a.ravel(), b.ravel(), strict=True):
        squares += float(np.float32(np.float32(x - y) * np.float32(x - y)))
        power += float(np.float32(x * x))
    return squares / power


def test_upstream_nmse_is_the_loop_of_its_source():
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(SHAPE).astype(np.float32) for _ in range(2))
    assert upstream_nmse(a, b) == pytest.approx(upstream_in_scalars(a, b), rel=1e-14)
    assert upstream_nmse(a, b) != pytest.approx(nmse(a, b.astype(np.float64)), rel=1e-3)
    assert np.isnan(upstream_nmse(0 * a, 0 * a))


def test_likeness_counts_bits_and_finds_the_largest_difference():
    a = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    b = a.copy()
    b[0, 0, 0, 0] = np.nextafter(a[0, 0, 0, 0], np.float32(9))
    b[1, 1, 2, 3] += 1
    like = liken(a, b)
    assert like.equal_bits == a.size - 2
    assert like.share == (a.size - 2) / a.size
    assert like.worst == Coordinate(1, 1, 2, 3)
    assert like.max_abs == pytest.approx(1.0, rel=1e-6)
    assert like.nmse == pytest.approx(1.0 / (a.astype(np.float64) ** 2).sum(), rel=1e-5)


def test_equal_nan_are_equal_one_sided_nan_is_the_worst_and_zeros_of_both_signs_differ_in_bits_only():
    a = np.ones(SHAPE, np.float32)
    a[0, 0, 0, 1] = np.nan
    assert liken(a, a).identical
    b = a.copy()
    b[0, 0, 0, 0] = 100.0
    b[1, 2, 3, 4] = np.nan
    assert liken(a, b).worst == Coordinate(1, 2, 3, 4)
    assert np.isnan(liken(a, b).nmse)
    like = liken(np.zeros(SHAPE, np.float32), -np.zeros(SHAPE, np.float32))
    assert (like.equal_bits, like.max_abs, like.worst) == (0, 0.0, None)
    assert not like.identical


def test_a_wrong_row_shows_whatever_the_size_of_the_others(reference):
    reference[0] *= 1e6
    dst = reference.astype(np.float32)
    dst[1, 2, 1] *= 1.1
    assert nmse(dst, reference) < 1e-12
    wrong = deviation_from(dst, reference, Tolerance(nmse=1e-6)).wrong
    assert np.argwhere(wrong.any(axis=3)).tolist() == [[1, 2, 1]]
    assert wrong.sum() >= 1


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 3, 4), (0, 3, 4, 5)])
def test_outputs_of_different_shapes_or_without_an_element_or_an_axis_are_refused(reference, shape):
    dst = np.zeros(shape, np.float32)
    with pytest.raises(InputError, match="different shapes"):
        liken(np.zeros(SHAPE, np.float32), dst)
    for answer in (reference, *[np.zeros(shape)] * (shape != (2, 3, 5, 4))):
        with pytest.raises(InputError, match="different shapes"):
            measure(dst, answer)


def test_an_error_below_the_answer_counts_as_one_above_it():
    exact = np.full(SHAPE, -3.0)
    dst = exact.astype(np.float32)
    dst[0, 1, 0, 0] -= np.float32(1 / 64)
    dst[1, 2, 3, 4] += np.float32(1 / 128)
    found = measure(dst, exact)
    assert (found.max_abs, found.worst, found.first_bad) == (1 / 64, Coordinate(0, 1, 0, 0), None)
    assert found.all_finite and found.nmse == pytest.approx(((1 / 64) ** 2 + (1 / 128) ** 2) / 9 / exact.size)
    assert found.max_rel == pytest.approx(1 / 64 / 3)
    assert (found.f16_ulps, found.mean_f16_ulps) == (8.0, (8 + 4) / exact.size)
    assert found.mean_error == pytest.approx(-1 / 128 / exact.size)
    assert found.bias == pytest.approx(-1 / 128 / exact.size / 3)
    assert found.rmse == pytest.approx(np.sqrt((1 / 64) ** 2 + (1 / 128) ** 2) / np.sqrt(exact.size))
    assert (found.elements, found.nan, found.inf, found.unwritten) == (exact.size, 0, 0, 0)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_the_errors_of_an_output_are_those_of_its_finite_elements(odd):
    exact = np.full(SHAPE, 2.0)
    dst = np.full(SHAPE, odd, np.float32)
    dst[0, 0, 0, 1] = 2.5
    found = measure(dst, exact)
    assert (found.max_abs, found.rmse, found.mean_error, found.bias, found.max_rel) == (0.5, 0.5, 0.5, 0.25, 0.25)
    assert (found.f16_ulps, found.mean_f16_ulps) == (256, 256)
    assert (found.nan, found.inf) == ((119, 0) if np.isnan(odd) else (0, 119))
    assert np.isnan(found.nmse)
    dst[:] = 2.0
    dst[0, 0, 0, 1] = odd
    assert np.isnan(measure(dst, exact).nmse)
    assert measure(dst, exact).max_abs == 0.0 and measure(dst, exact).worst is None


def test_an_answer_of_zero_has_no_relative_error():
    exact = np.full(SHAPE, 2.0)
    exact[0, 0, 0, 0] = 0.0
    dst = exact.astype(np.float32)
    dst[0, 0, 0, 0], dst[0, 0, 0, 1] = 1.0, 2.5
    assert measure(dst, exact).max_rel == 0.25


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_outputs_that_are_finite_in_one_of_two_have_no_nmse(odd):
    a = np.ones(SHAPE, np.float32)
    b = a.copy()
    b[0, 0, 0, 0] = odd
    assert np.isnan(liken(a, b).nmse) and np.isnan(liken(b, a).nmse)
    assert liken(a, b).max_abs == np.inf == liken(b, a).max_abs
    assert liken(2 * a, a).nmse == 0.25 and liken(2 * a, a).max_abs == 1.0
    assert liken(a, -a).max_abs == 2.0 and liken(a, -a).worst == Coordinate(0, 0, 0, 0)


def test_the_wrong_elements_of_a_row_are_those_with_more_than_an_even_share():
    exact = np.zeros(SHAPE)
    dst = exact.astype(np.float32)
    dst[0, 1, 2, 3] = 1.0
    zeros = deviation_from(dst, exact, Tolerance(nmse=1e-6)).wrong
    assert np.argwhere(zeros).tolist() == [[0, 1, 2, 3]]  # not the elements of that row that are right
    exact[:], dst[:] = 1.0, 1.0
    dst[0, 1, 2] = [1.0, 1.3, 2.0, 1.2, 1.0]  # a row may have 5 * 0.05, an element of it 0.05
    assert np.argwhere(deviation_from(dst, exact, Tolerance(nmse=0.05)).wrong)[:, 3].tolist() == [1, 2]
