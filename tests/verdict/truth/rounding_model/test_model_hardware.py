"""The rules of tensor cores and special functions compared with an H200's results."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.llama.launch.architecture import generation_of
from fattn_probe.verdict.truth.rounding_model import compiled
from fattn_probe.verdict.truth.rounding_model.functions import LOG2_E, ex2, exp, fma, half_of, lg2, power, rcp, tanh
from fattn_probe.verdict.truth.rounding_model.tensor_core import Factors, matrix_sum, matrix_sum_half

MEASURED = np.load(Path(__file__).parents[3] / "native/data/h200.npz")
HOPPER = generation_of(90)


def with_numpy(function):
    """The result of a function without the compiled sums."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(compiled, "library", lambda: None)
        return function()


def halves(name):
    return MEASURED[name].view(np.float16).astype(np.float32)


def same_bits(found, expected):
    nan = np.isnan(found) & np.isnan(expected)
    np.testing.assert_array_equal(np.where(nan, 0, found), np.where(nan, 0, expected))


@pytest.mark.parametrize("instruction", ["mma_f32_k16", "mma_f32_k8"])
def test_f32_accumulators_of_an_h200_in_every_bit(instruction):
    a, b = (Factors(halves(f"{instruction}_{name}")) for name in "ab")
    c, d = (MEASURED[f"{instruction}_{name}"].view(np.float32) for name in "cd")
    same_bits(matrix_sum(a, b, c, HOPPER), d)


def test_f16_accumulators_of_an_h200_in_every_bit():
    a, b, c, d = (halves(f"mma_f16_k16_{name}") for name in "abcd")
    same_bits(matrix_sum_half(Factors(a), Factors(b), c, HOPPER), d)


@pytest.mark.parametrize(("name", "function"), [("lg2", lg2), ("tanh", tanh)])
def test_functions_of_one_number(name, function):
    x, result = (MEASURED[f"{name}_{part}"].view(np.float32) for part in "xr")
    usual = x >= 2.0**-126 if name == "lg2" else np.full(x.shape, True)
    same_bits(function(x[usual & (x < np.inf)]), result[usual & (x < np.inf)])


def test_division_and_power():
    x, y, result = (MEASURED[f"div_{part}"].view(np.float32) for part in "xyr")
    with np.errstate(all="ignore"):
        quotient = x * rcp(y)
    same_bits(np.where(np.abs(quotient) < 2.0**-126, 0, quotient), result)  # device code flushes subnormal numbers
    x, y, result = (MEASURED[f"pow_{part}"].view(np.float32) for part in "xyr")
    same_bits(power(x, y), result)


def test_exponential_truncates_its_argument_and_ends_where_the_hardware_does():
    x = np.array([0, -1, 1, -126, -126.5, 128, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(ex2(x), np.array([1, 0.5, 2, 2.0**-126, 0, np.inf, 0, np.nan], np.float32))
    x = np.linspace(-20, 0, 4001, dtype=np.float32)
    correctly_rounded = np.exp2((x * LOG2_E).astype(np.float64)).astype(np.float32)
    assert 0 < np.max(np.abs(exp(x) / correctly_rounded - 1)) < 3e-7


def test_fused_product_rounds_once():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 4096)).astype(np.float32)
    c = (-a * b + np.float32(2.0**-30) * rng.standard_normal(4096)).astype(np.float32)
    exact = [fused(*each) for each in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(fma(a, b, c), np.array(exact, np.float32))


@pytest.mark.parametrize(
    ("a", "b", "c", "result"),
    [
        (2.0**-12, 2.0**-12, 1 + 2.0**-23, 1 + 2.0**-22),  # halfway: to the even one
        # 2^-70 below, which float64 cannot hold
        (2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23), 1 + 2.0**-23, 1 + 2.0**-23),
        # 2^-70 above 1 + 2^-24
        (2.0**-12 * (1 + 2.0**-23), -(2.0**-12) * (1 - 2.0**-23), 1 + 2.0**-23, 1 + 2.0**-23),
        # 2^-196 below, between subnormal numbers
        (2.0**-75 * (1 + 2.0**-23), 2.0**-75 * (1 - 2.0**-23), 2.0**-127 + 2.0**-149, 2.0**-127 + 2.0**-149),
    ],
)
def test_a_sum_halfway_in_float64(a, b, c, result):
    a, b, c = (np.full((3, 1), value, np.float32) for value in (a, b, c))
    np.testing.assert_array_equal(fma(a, b, c), np.full((3, 1), result, np.float32))
    np.testing.assert_array_equal(with_numpy(lambda: fma(a, b, c)), np.full((3, 1), result, np.float32))


def fused(a, b, c):
    """a*b + c as the nearest float32, ties to even."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    near = np.float32(exact)
    around = (np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf)))
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


def test_rounding_to_f16_is_to_nearest_even_and_overflows():
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.standard_normal(4096) * 2.0 ** rng.integers(-30, 17, 4096), [65519.9, 65520, 1 + 2.0**-11]])
    with np.errstate(over="ignore"):
        for numbers in (x, x.astype(np.float32), x[:99], np.append(x, np.nan), np.array([], np.float32)):
            np.testing.assert_array_equal(half_of(numbers), numbers.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(("arch", "lost"), [(70, 2.0**-24), (86, 2.0**-25), (90, 2.0**-26), (120, 2.0**-26)])
def test_each_generation_keeps_its_extra_bits(arch, lost):
    """1 + the smallest power of two that survives the alignment, twice it, and -1."""
    rule = generation_of(arch)
    for small, kept in ((lost, 0.0), (2 * lost, 2 * lost)):
        a = Factors(np.array([[1, -1, small / 2.0**-14, 0]], np.float32))
        b = Factors(np.array([[1], [1], [2.0**-14], [0]], np.float32))
        assert matrix_sum(a, b, np.zeros((1, 1), np.float32), rule)[0, 0] == kept
