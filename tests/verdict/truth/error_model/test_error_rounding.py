"""The errors of one rounding and of sums of them, and that of tanh.approx, from its results measured on Hopper."""

import json
from importlib.resources import files
from math import erf, exp, pi, sqrt

import numpy as np
import pytest

from fattn_probe.verdict.truth.error_model.rounding import HALF, NARROW, SINGLE, added_error, own_error, tanh_error


def test_one_rounding_has_the_mean_square_of_a_binade_and_ulp_is_the_distance_of_neighbours():
    values = 2 ** np.random.default_rng(0).uniform(0, 1, 200_000)
    for number, rounded in ((HALF, values.astype(np.float16)), (SINGLE, values.astype(np.float32))):
        assert number.relative == pytest.approx(np.mean((rounded / values - 1) ** 2), rel=0.01)
    values = np.array([1.0, 1.999, 2.0, -0.125, 65504.0, 6.2e-5, 6.0e-5, 1e-7, 0.0], np.float32)
    assert HALF.ulp(values).tolist() == [2**-10, 2**-10, 2**-9, 2**-13, 2**5, 2**-24, 2**-24, 2**-24, 2**-24]
    assert SINGLE.ulp(np.array([1.0, 2.0**-126, 2.0**-130], np.float32)).tolist() == [2.0**-23, 2.0**-149, 2.0**-149]


def rounded(mean, deviation):
    """Mean and mean square of the error of rounding a normal number to a whole one: the sum over the whole ones."""
    first = second = 0.0
    for whole in range(round(mean) - 9, round(mean) + 10):
        low, high = ((whole + half - mean) / deviation for half in (-0.5, 0.5))
        density_low, density_high = (exp(-x * x / 2) / sqrt(2 * pi) for x in (low, high))
        chance, slope, off = (erf(high / sqrt(2)) - erf(low / sqrt(2))) / 2, density_low - density_high, whole - mean
        square = chance + low * density_low - high * density_high
        first += off * chance - deviation * slope
        second += off**2 * chance - 2 * off * deviation * slope + deviation**2 * square
    return first, second


@pytest.mark.parametrize("deviation", [1e-6, 0.05, 0.2, 0.2499, 0.25, 0.26, 0.4, 0.6, 0.699, 1.0])
@pytest.mark.parametrize("mean", [0.0, 0.1, 0.3, 0.49, -0.3, 1.2, 7.45])
def test_added_error_is_that_of_rounding_a_normal_number(mean, deviation):
    found = added_error(np.array([mean]), np.array([deviation]))
    assert np.ravel(found) == pytest.approx(rounded(mean, deviation), abs=3e-5 if deviation < NARROW else 5e-7)


@pytest.mark.parametrize(("mean", "bias"), [(62.5, -0.5), (63.5, 0.5), (-62.5, 0.5), (62.4, -0.4), (62.6, 0.4)])
def test_equal_increments_in_the_middle_of_two_numbers_are_all_rounded_the_same_way(mean, bias):
    held, errors = np.float16(3072), []
    for _ in range(8):
        before, held = held, np.float16(float(held) + 2 * mean)  # between 2048 and 4096, numbers are 2 apart
        errors.append((float(held) - float(before)) / 2 - mean)
    assert errors == pytest.approx([bias] * 8)
    assert np.ravel(added_error(np.array([mean]), np.zeros(1))) == pytest.approx([bias, bias**2])


def test_few_values_are_rounded_with_an_error_of_their_own():
    found = own_error(np.array([[0.3, -0.5], [0.5, -0.5]]), np.array([0.4, -0.5]))(np.array([1, 2, 1], np.float32))
    assert found[:, 1:].ravel() == pytest.approx([0.4 / 4, -0.3 / 4, 1 / 12, (0.09 + 3 / 4) / 4], abs=1e-4)
    many, one = np.tile([[0.3], [0.0]], (70_000, 1)), np.ones(1, np.float32)
    assert own_error(many, np.ones(1))(one)[0] == pytest.approx(-0.15, rel=0.01)
    assert own_error(1e9 * many, np.ones(1))(2.0**-16 * one)[0] == pytest.approx(
        (1 - HALF.largest / 2**16) / 2, rel=0.01
    )


TABLE = json.loads((files("fattn_probe.verdict.truth.error_model") / "tanh.json").read_text())
"""In units of 1e-10; the first row is of x from 2^-8 on, each of 64 parts of a binade."""


@pytest.mark.parametrize("binade", [0, 1, 4, len(TABLE) - 1])
@pytest.mark.parametrize("part", [0, 1, 31, 63])
def test_each_part_of_a_binade_has_its_mean_error(binade, part):
    x = np.float32(2.0 ** (binade - 8) * (1 + (part + 0.5) / 64))
    expected = TABLE[binade][part] * 1e-10
    assert tanh_error(np.array([x, -x])) == pytest.approx([expected, -expected])


def test_ends_of_a_binade_belong_to_the_one_that_begins_there_a_small_argument_is_the_result_a_large_one_has_no_error():
    at, below = np.float32(2.0**-7), np.nextafter(np.float32(2.0**-7), np.float32(0))
    assert tanh_error(np.array([at, below])) == pytest.approx([TABLE[1][0] * 1e-10, TABLE[0][63] * 1e-10])
    assert tanh_error(np.array([np.float32(2.0**-8)])) == pytest.approx([TABLE[0][0] * 1e-10])
    assert tanh_error(np.array([2.0 ** (len(TABLE) - 8), 1e6, -1e6], np.float32)).tolist() == [0, 0, 0]
    x = np.array([2.0**-9, -(2.0**-9), np.nextafter(np.float32(2.0**-8), np.float32(0)), 0.0], np.float32)
    assert tanh_error(x) == pytest.approx(x - np.tanh(x.astype(np.float64)), rel=1e-4)
