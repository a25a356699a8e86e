"""Arithmetic of tensor cores (AVX-512 or not), 8-bit formats against CUDA's own header, the rules of counts."""

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.llama.build.stamp import NATIVE
from tests.native.cuda_program import compile_programs, flags

pytestmark = pytest.mark.build

ARCHES = ("75", "80", "90")  # one for each rule: how many products are added at once, with how many extra bits
SOURCES = ("sim/tensor_core.cpp", "sim/tensor_core_avx512.cpp")
PROGRAM = Path(__file__).with_name("tensor_cores.cpp")
CODES = PROGRAM.with_name("fp8_codes.cpp")
"""Prints a digest of all conversions to and from FP8."""
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


def digest(folder, name, *include):
    built = flags("release").toolchain
    command = [built.cxx, "-std=gnu++17", "-O1", "-w", "-mf16c", "-mfma", *include, "-isystem", built.cuda_include]
    subprocess.run([*command, CODES, "-o", folder / name], check=True)
    return subprocess.run([folder / name], check=True, capture_output=True, text=True).stdout


def test_every_code_is_that_of_cudas_header(tmp_path):
    assert digest(tmp_path, "ours", "-I", NATIVE / "sim", "-I", NATIVE / "sim/include") == digest(tmp_path, "cudas")


OFF = -1


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "rules"
    sources = [Path(__file__).with_name("count_rules.cpp"), NATIVE / "sim/count_rules.cpp"]
    command = [shutil.which("g++"), "-std=gnu++17", "-O1", "-DSIMT_COUNT", f"-I{NATIVE / 'sim'}", *sources, "-o", path]
    subprocess.run(command, check=True)
    return path


def found(rules, kind, size, addresses, *words):
    """(sectors, wavefronts, conflicts); with the word `copy`, before them the number of instructions."""
    line = f"{kind} {size} {' '.join(map(str, addresses))}\n"
    done = subprocess.run([rules, *words], input=line, capture_output=True, text=True, check=True)
    return tuple(map(int, done.stdout.split()))


def strided(step):
    return [lane * step for lane in range(32)]


CASES = {
    "words side by side": ("load", 4, strided(4), (4, 1, 0)),
    "one word": ("load", 4, strided(0), (1, 1, 0)),
    "two words of a bank": ("load", 4, [128 * (lane % 2) for lane in range(32)], (2, 2, 1)),
    "a column of 32 words": ("load", 4, strided(128), (32, 32, 31)),
    "a padded column": ("load", 4, strided(132), (32, 1, 0)),
    "every second word": ("store", 4, strided(8), (8, 2, 1)),
    "half words side by side": ("store", 2, strided(2), (2, 1, 0)),
    "8 bytes side by side": ("load", 8, strided(8), (8, 2, 0)),
    "8 bytes with gaps": ("load", 8, strided(16), (16, 4, 2)),
    "16 bytes side by side": ("store", 16, strided(16), (16, 4, 0)),
    "16 bytes with gaps": ("store", 16, strided(32), (32, 8, 4)),
    "8 bytes, the same for neighbours": ("load", 8, [lane // 2 * 8 for lane in range(32)], (4, 1, 0)),
    "8 bytes, the same 2 lanes apart": ("load", 8, [(lane // 4 * 2 + lane % 2) * 8 for lane in range(32)], (4, 1, 0)),
    "a store is not packed": ("store", 8, [lane // 2 * 8 for lane in range(32)], (4, 2, 0)),
    "16 bytes, the same for all": ("load", 16, strided(0), (1, 2, 0)),
    "one lane": ("load", 16, [64] + [OFF] * 31, (1, 1, 0)),
    "eight lanes of 16 bytes": ("store", 16, [lane * 16 for lane in range(8)] + [OFF] * 24, (4, 1, 0)),
    "across a sector's end": ("load", 4, [30] + [OFF] * 31, (2, 1, 0)),
    "atomics on one word take turns": ("atomic", 4, strided(0), (1, 32, 31)),
    "atomics side by side": ("atomic", 4, strided(4), (4, 1, 0)),
}


@pytest.mark.parametrize(("kind", "size", "addresses", "expected"), CASES.values(), ids=CASES)
def test_an_instruction(rules, kind, size, addresses, expected):
    assert found(rules, kind, size, addresses) == expected


# (instructions, sectors, wavefronts, conflicts)
COPIES = {
    "16 bytes": ("load", 16, strided(16), (1, 16, 4, 0)),
    "3 floats": ("load", 12, strided(12), (3, 3 * 12, 3, 0)),
    "5 ints": ("store", 20, strided(20), (5, 5 * 20, 5, 0)),
    "3 doubles": ("load", 24, strided(24), (3, 3 * 24, 3 * 2, 0)),
    "3 float4": ("store", 48, strided(48), (3, 3 * 32, 3 * 4, 0)),
    # Of eight lanes that are served at once, four start in different banks: 40 words from lane to lane.
    "10 float4": ("store", 160, strided(160), (10, 10 * 32, 10 * 8, 10 * 4)),
    "2 floats, every second pair aligned to 8 bytes": ("load", 8, strided(12), (2, 2 * 12, 2, 0)),
    "3 halves of one lane": ("load", 6, [64] + [OFF] * 31, (3, 3, 3, 0)),
    "3 bytes of one lane": ("load", 3, [64] + [OFF] * 31, (3, 3, 3, 0)),
}


@pytest.mark.parametrize(("kind", "size", "addresses", "expected"), COPIES.values(), ids=COPIES)
def test_a_copy_of_a_structure_is_several_instructions(rules, kind, size, addresses, expected):
    assert found(rules, kind, size, addresses, "copy") == expected
