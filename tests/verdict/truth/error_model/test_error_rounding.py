import numpy as np
import pytest

from fattn_probe.verdict.truth.error_model.rounding import HALF, SINGLE, added_error


def test_one_rounding_has_the_mean_square_of_numbers_spread_over_a_binade():
    values = 2 ** np.random.default_rng(0).uniform(0, 1, 200_000)
    for number, rounded in ((HALF, values.astype(np.float16)), (SINGLE, values.astype(np.float32))):
        measured = np.mean((rounded / values - 1) ** 2)
        assert number.relative == pytest.approx(measured, rel=0.01)


def test_ulp_is_the_distance_of_neighbours_and_that_of_subnormals_below_the_least_normal():
    values = np.array([1.0, 1.999, 2.0, -0.125, 65504.0, 6.2e-5, 6.0e-5, 1e-7, 0.0], np.float32)
    spacing = [2**-10, 2**-10, 2**-9, 2**-13, 2**5, 2**-24, 2**-24, 2**-24, 2**-24]
    assert HALF.ulp(values).tolist() == spacing


@pytest.mark.parametrize("deviation", [0.001, 0.05, 0.2, 0.24, 0.26, 0.4, 0.6])
@pytest.mark.parametrize("mean", [0.0, 0.1, 0.3, 0.49, -0.3, 1.2, 7.45])
def test_added_error_is_that_of_rounding_a_normal_number(mean, deviation):
    drawn = mean + deviation * np.random.default_rng(0).standard_normal(400_000)
    error = np.rint(drawn) - drawn
    first, second = added_error(np.array([mean]), np.array([deviation]))
    assert first[0] == pytest.approx(error.mean(), abs=3e-3)
    assert second[0] == pytest.approx(np.mean(error**2), abs=3e-3)


def test_increments_below_half_an_ulp_are_lost():
    first, second = added_error(np.array([0.4]), np.array([1e-6]))
    assert first[0] == pytest.approx(-0.4, abs=1e-5)
    assert second[0] == pytest.approx(0.16, abs=1e-5)


def test_an_increment_that_spreads_over_ulps_is_rounded_without_bias():
    first, second = added_error(np.array([0.4]), np.array([3.0]))
    assert (first[0], second[0]) == (0.0, pytest.approx(1 / 12))
