"""The tensor cores' arithmetic with AVX-512 is the portable one's, in every bit."""

import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.native.cuda_program import compile_programs

pytestmark = pytest.mark.build

ARCHES = ("75", "80", "90")  # one for each rule: how many products are added at once, with how many extra bits
SOURCES = ("sim/tensor_core.cpp", "sim/tensor_core_avx512.cpp")
PROGRAM = Path(__file__).with_name("tensor_cores.cpp")
COUNT = 4000
LANES = 32
NO_AVX512 = 3


@pytest.fixture(scope="module", params=ARCHES)
def program(request):
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("AVX-512 is an instruction set of x86-64")
    (path,) = compile_programs({PROGRAM.name: PROGRAM.read_text()}, "release", request.param, SOURCES)
    return path


def halves(rng, count):
    """Random f16 bits: a third any finite number, a third near 1, the rest zeros, subnormals and powers of two."""
    kind = rng.integers(0, 6, count)
    anything = rng.integers(0, 2**16, count) & 0xFBFF  # no infinity, no NaN
    near_one = rng.normal(size=count).astype(np.float16).view(np.uint16)
    small = anything & 0x83FF
    power = anything & 0xFC00
    return np.choose(kind, [anything, anything, near_one, near_one, small, power]).astype(np.uint16)


def accumulators(rng, count, kind):
    """C: mostly of the products' size, and every exponent of f32 that leaves room for the sum."""
    if kind == "f16":
        return halves(rng, 4 * LANES * 2 * count).view(np.uint32)
    values = rng.normal(size=4 * LANES * count).astype(np.float32)
    exponents = rng.choice([0, 0, 0, -20, 20, -100, 100], len(values))
    values = np.ldexp(values, exponents) * rng.integers(0, 8, len(values)).clip(0, 1).astype(np.float32)
    return values.astype(np.float32).view(np.uint32)


def operands(kind, seed):
    rng = np.random.default_rng(seed)
    factors = halves(rng, 6 * LANES * 2 * COUNT).view(np.uint32).reshape(COUNT, -1)
    return np.concatenate([factors, accumulators(rng, COUNT, kind).reshape(COUNT, -1)], axis=1)


def both(program, kind, k, values):
    """The results of portable code and of AVX-512, [instruction][register][lane]."""
    done = subprocess.run([program, kind, str(k)], input=values.tobytes(), capture_output=True, check=False)
    if done.returncode == NO_AVX512:
        pytest.skip("this processor has no AVX-512 (F, BW, VL, DQ)")
    assert done.returncode == 0, done.stderr
    results = np.frombuffer(done.stdout, np.uint32).reshape(-1, 2, 4, LANES)
    return results[:, 0], results[:, 1]


@pytest.mark.parametrize("k", [8, 16])
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_random_instructions_have_the_same_bits(program, kind, k):
    portable, fast = both(program, kind, k, operands(kind, seed=k))
    assert len(np.unique(portable)) > COUNT
    np.testing.assert_array_equal(fast, portable)


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_infinities_and_nans_spread_as_in_portable_code(program, kind):
    values = operands(kind, seed=1)
    rng = np.random.default_rng(2)
    values[np.arange(COUNT), rng.integers(0, values.shape[1], COUNT)] = rng.choice(
        np.array([0x7C007C00, 0xFC00FC00, 0x7E007E00, 0x7F800000, 0xFF800000, 0x7FC00000], np.uint32), COUNT
    )
    portable, fast = both(program, kind, 16, values)
    np.testing.assert_array_equal(fast, portable)
