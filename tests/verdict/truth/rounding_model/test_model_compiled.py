"""The compiled sums of the rounding model give the bits of its NumPy code, which stands in where nothing compiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.base.errors import BuildError
from fattn_probe.llama.launch.architecture import generation_of
from fattn_probe.verdict.truth.rounding_model import compiled
from fattn_probe.verdict.truth.rounding_model.functions import ex2, fma, fused_sum, half_of
from fattn_probe.verdict.truth.rounding_model.tensor_core import E4M3_LEAST, HOPPER_FP8, Factors, matrix_sum
from tests.verdict.truth.rounding_model.test_model_hardware import fused, with_numpy

TINY = 2.0**-149
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, TINY, -TINY, 2.0**-126, 65504, 65520, 3.4e38], np.float32)
SHAPES = [
    ((3, 5), (3, 5), (5,)),
    ((2, 4, 1), (2, 70), (4, 70)),
    ((7, 1, 2, 3, 1), (7, 4, 1, 1, 130), (4, 2, 3, 130)),
    ((4, 6, 1), (4, 1, 1), (9,)),
    ((5,), (5,), ()),
    ((1, 3, 0), (1, 1), (3, 0)),
    ((0, 3), (0, 3), (3,)),
]
RULES = [*((generation_of(arch), -14) for arch in (70, 75, 86, 90, 120)), (HOPPER_FP8, E4M3_LEAST)]


@pytest.fixture(scope="module", autouse=True)
def library():
    assert compiled.library() is not None, "the tests need g++"


def same_bits(function):
    found, expected = function(), with_numpy(function)
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape
    found, expected = (np.where(np.isnan(each), np.float32(np.nan), each).view(np.uint32) for each in (found, expected))
    np.testing.assert_array_equal(found, expected)


def any_floats(rng, shape, spread):
    """Numbers with exponents within `spread` of 1, of which many give ties, and a few special ones."""
    exponent = rng.integers(-spread, min(spread, 126), shape, endpoint=True)
    fraction = rng.choice([1, 1.5, 1 + 2.0**-11, 1 + 2.0**-23, 2 - 2.0**-23, *rng.uniform(1, 2, 4)], shape)
    values = np.ldexp(fraction, exponent)
    values = (rng.choice([-1, 1], shape) * values).astype(np.float32)
    return np.where(rng.random(shape) < 0.05, rng.choice(SPECIAL, shape), values).astype(np.float32)


SEEDS = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@given(SEEDS, st.sampled_from(SHAPES), st.sampled_from([0, 2, 20, 75, 126]), st.booleans())
def test_fused_sums(rng, shapes, spread, half):
    a, b, c = (any_floats(rng, shape, spread) for shape in shapes)
    if half:
        a, b, c = map(half_of, (a, b, c))
    same_bits(lambda: fused_sum(a, b, c, half=half))


@given(SEEDS)
def test_fused_sums_of_views_and_scalars(rng):
    a, b = any_floats(rng, (6, 5, 4), 3), any_floats(rng, (4, 8), 3)
    same_bits(lambda: fused_sum(np.moveaxis(a, 2, 0)[:, ::2, ::-1, None], b[:, None, ::2], b[1, ::2]))
    same_bits(lambda: fused_sum(b.T[:, None], np.broadcast_to(b.T[:, :1], (8, 4)), b[:, 0]))
    same_bits(lambda: fma(np.float32(1.7), a, b[:, 3]))


@given(SEEDS, st.sampled_from([2, 20, 126, 148]))
def test_the_numpy_code_rounds_a_multiply_add_once(rng, spread):
    """Near 2^-126 too: a float64 halfway between two subnormal numbers may be inexact."""
    a, b, c = (any_floats(rng, 64, spread if i else 1) for i in range(3))
    a, b, c = (np.where(np.isfinite(each) & (np.abs(each) < 2**60), each, 1).astype(np.float32) for each in (a, b, c))
    expected = [fused(*each) for each in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(with_numpy(lambda: fma(a, b, c)), np.array(expected, np.float32))


@given(SEEDS, st.sampled_from([1, 12, 30, 126]))
def test_rounding_to_f16(rng, spread):
    same_bits(lambda: half_of(any_floats(np.random.default_rng(1), (3, 50), spread)[:, ::2]))
    x = any_floats(rng, 200, spread)
    same_bits(lambda: half_of(x))


def test_ex2_of_every_fraction_and_beyond():
    x = np.arange(2**23, dtype=np.float32) / np.float32(2**23)
    same_bits(lambda: ex2(x))
    same_bits(lambda: ex2(-x[::7]))
    rng = np.random.default_rng(1)
    near = np.array([126, 127, 128, 2**31], np.float32) + np.array([[-1], [0], [1]], np.float32) * np.float32(2.0**-17)
    wide = any_floats(rng, 5000, 126)
    for values in (SPECIAL, near, -near, wide, rng.uniform(-130, 130, 5000).astype(np.float32), np.float32(0.3)):
        same_bits(lambda values=values: ex2(np.asarray(values)))


def factors(rng, shape, least, spread):
    """f16 or e4m3 numbers, with zeros and subnormal ones."""
    fraction, most = (10, 15) if least == -14 else (3, 8)
    exponent = rng.integers(max(least - fraction, -spread), min(most, spread), shape, endpoint=True)
    unit = np.maximum(exponent, least) - fraction
    values = np.ldexp(np.trunc(np.ldexp(rng.uniform(1, 2, shape), exponent - unit)), unit)
    return np.where(rng.random(shape) < 0.1, 0, rng.choice([-1, 1], shape) * values).astype(np.float32)


BATCHES = [((), (), ()), ((2,), (1,), (2,)), ((2, 1), (2, 3), (2, 3)), ((0,), (0,), (0,))]


@given(SEEDS, st.sampled_from(RULES), st.sampled_from(BATCHES), st.integers(1, 70), st.sampled_from([2, 9, 30]))
def test_sums_of_a_tensor_core(rng, how, batches, columns, spread):
    (rule, least), (of_a, of_b, of_c) = how, batches
    rows, number = rng.integers(1, 4), rng.integers(0, 70)
    a = Factors(factors(rng, (*of_a, rows, number), least, spread), least)
    b = Factors(factors(rng, (*of_b, number, columns), least, spread), least)
    c = any_floats(rng, (*of_c, rows, columns), rng.choice([0, 20, 120]))
    same_bits(lambda: matrix_sum(a, b, c, rule))
    if least == -14:
        same_bits(lambda: matrix_sum(a, b, half_of(c), rule, rule.k_half))


def test_factors_that_are_not_finite():
    a, b = Factors(np.array([[1, np.inf]], np.float32)), Factors(np.array([[1, 2, np.nan], [0, -1, 1]], np.float32))
    found = matrix_sum(a, b, np.zeros((1, 3), np.float32), generation_of(90))
    np.testing.assert_array_equal(found, np.array([[np.nan, -np.inf, np.nan]], np.float32))


def unable(monkeypatch, folder):
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(folder))
    compiled.library.cache_clear()
    try:
        return compiled.library(), half_of(np.array([1 + 2.0**-12, 70000], np.float32))
    finally:
        compiled.library.cache_clear()


def test_numpy_stands_in_without_a_compiler_or_a_cache(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for path, folder in (("/nowhere", tmp_path), (None, tmp_path / "file")):
        if path is not None:
            monkeypatch.setenv("PATH", path)
        found, numbers = unable(monkeypatch, folder)
        assert found is None
        assert numbers.tolist() == [1, np.inf]


def test_a_failed_compile_is_no_error_of_the_user(monkeypatch, tmp_path, capfd):
    def fail(argv):
        raise BuildError("internal compiler error")

    monkeypatch.setattr(compiled, "run", fail)
    found, _ = unable(monkeypatch, tmp_path)
    assert found is None
    assert capfd.readouterr() == ("", "")
