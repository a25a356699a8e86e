"""AMD's matrix instructions: where their elements lie, and the bits of their results."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.native.cuda_program import Program, compile_programs

pytestmark = pytest.mark.build

HERE = Path(__file__).parent
LAYOUTS = np.load(HERE / "data/amd_layouts.npz")  # as AMD's matrix instruction calculator says (data/record_amd.py)
RESULTS = np.load(HERE / "data/amd_results.npz")  # as MMA-Sim's models compute
INSTRUCTIONS = sorted({key.rsplit("/", 1)[0] for key in LAYOUTS})
MODELLED = sorted({key.rsplit("/", 1)[0] for key in RESULTS})
RDNA = ("gfx1100", "gfx1201")
DEVICES = {"gfx908": "mi100", "gfx90a": "mi210", "gfx942": "mi300x", "gfx1100": "rx7900xtx", "gfx1201": "rx9070xt"}
BITS = {"i8": 8, "iu8": 8, "f16": 16, "bf16": 16, "f32": 32, "xf32": 32, "i32": 32}


def matrix_cores(gfx):
    """Executes instructions, without the simulator's threads: (instruction, words) -> words."""
    name = "amd_matrix.cpp"
    (path,) = compile_programs({name: (HERE / name).read_text()}, "release", gfx, ("sim/amd/matrix_cores.cpp",))

    def run(instruction, words):
        done = subprocess.run([path, instruction], input=words.tobytes(), capture_output=True, check=True)
        return np.frombuffer(done.stdout, np.uint32)

    return run


def kernels(gfx, flavour):
    """The same by kernels that call clang's built-in functions."""
    name = "amd_kernels.cu"
    text = (HERE / name).read_text()
    (path,) = compile_programs({name: text}, flavour, gfx)
    return lambda instruction, words: Program(path, text).output(instruction, stdin=words, device=DEVICES[gfx])


@pytest.fixture(scope="module")
def cores():
    return {gfx: matrix_cores(gfx) for gfx in DEVICES}


def lanes(gfx):
    return 64 if gfx.startswith("gfx9") else 32


def types(instruction):
    """Of the factors and of the sums: f16 and f32 for gfx942/v_mfma_f32_16x16x16_f16."""
    words = instruction.split("/")[1].split("_")
    return words[-1], words[2]


def encode(values, kind):
    """The bits of elements, as unsigned integers."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    if kind in ("bf16", "f32", "xf32"):
        return values.astype(np.float32).view(np.uint32) >> (32 - BITS[kind])
    return values.astype(np.int64).astype(np.uint32) & (2 ** BITS[kind] - 1)


def decode(bits, kind):
    if kind == "f16":
        return bits.astype(np.uint16).view(np.float16)
    return bits.view(np.int32) if kind == "i32" else bits.view(np.float32)


def registers(bits, places, count):
    """The words of `count` lanes that hold matrices of elements, [matrix][register][lane]."""
    words = np.zeros((len(bits), places[..., 0].max() + 1, count), np.uint32)
    for register, lane, first in np.moveaxis(places, -1, 1).astype(np.uint32):
        np.bitwise_or.at(words, (np.arange(len(bits))[:, None, None], register, lane), bits << first)
    return words


def compute(run, instruction, a, b, c, variant=""):
    """D of several A, B and C, all as bits of their elements [matrix][row][column]."""
    gfx, name = instruction.split("/", 1)
    _, of_sums = types(instruction)
    places = {matrix: LAYOUTS[f"{instruction}/{matrix}"] for matrix in "ABCD"}
    words = [registers(x, places[matrix], lanes(gfx)) for matrix, x in (("C", c), ("A", a), ("B", b))]
    out = run(name + variant, np.concatenate(words, axis=1)).reshape(words[0].shape)
    register, lane, first = np.moveaxis(places["D"][0], -1, 0).astype(np.uint32)
    return out[:, register, lane] >> first & np.uint32(2 ** BITS[of_sums] - 1)


def shapes(instruction):
    return [LAYOUTS[f"{instruction}/{matrix}"].shape[1:3] for matrix in "ABC"]


def assert_right_of_small_integers(run, instruction):
    of_factors, of_sums = types(instruction)
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-9, 10, (3, *shape)) for shape in shapes(instruction))
    bits = (encode(a, of_factors), encode(b, of_factors), encode(c, of_sums))
    out = decode(compute(run, instruction, *bits, variant="/110" if of_factors == "iu8" else ""), of_sums)
    np.testing.assert_array_equal(out, a @ b + c)


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_elements_lie_where_amd_says(cores, instruction):
    assert_right_of_small_integers(cores[instruction.split("/")[0]], instruction)


# A third of the architectures and one of them checked: each compiles the simulator again.
@pytest.mark.parametrize(
    ("gfx", "flavour"),
    [
        ("gfx942", "release"),
        ("gfx1100", "check"),
        *(pytest.param(gfx, "release", marks=pytest.mark.slow) for gfx in ("gfx908", "gfx90a", "gfx1201")),
    ],
)
def test_kernels_execute_them_by_clang_s_names(gfx, flavour):
    run = kernels(gfx, flavour)
    for instruction in INSTRUCTIONS:
        if instruction.startswith(f"{gfx}/"):
            assert_right_of_small_integers(run, instruction)


@pytest.mark.parametrize("instruction", MODELLED)
def test_sums_on_cdna_have_the_bits_of_the_published_model(cores, instruction):
    a, b, c, d = (RESULTS[f"{instruction}/{name}"].astype(np.uint32) for name in "abcd")
    out = compute(cores[instruction.split("/")[0]], instruction, a, b, c)
    numbers = ~np.isnan(d.view(np.float32))
    assert 0.8 < numbers.mean() < 1
    np.testing.assert_array_equal(out[numbers], d[numbers])
    np.testing.assert_array_equal(np.isnan(out.view(np.float32)), ~numbers)


def spread(rng, shape, kind):
    values = np.ldexp(rng.normal(size=shape), rng.integers(-9, 5, shape))
    return decode(encode(values, kind) << (16 if kind == "bf16" else 0), kind)


@pytest.mark.parametrize("gfx", RDNA)
@pytest.mark.parametrize("name", ["v_wmma_f32_16x16x16_f16", "v_wmma_f32_16x16x16_bf16", "v_wmma_f16_16x16x16_f16"])
def test_sums_on_rdna_round_after_each_product_in_order(cores, gfx, name):
    instruction = f"{gfx}/{name}"
    of_factors, of_sums = types(instruction)
    rng = np.random.default_rng(1)
    a, b = (spread(rng, (20, 16, 16), of_factors) for _ in "ab")
    c = spread(rng, (20, 16, 16), of_sums)
    expected = c
    for k in range(16):
        exact = expected.astype(np.longdouble) + a[:, :, k, None].astype(np.longdouble) * b[:, None, k, :]
        expected = exact.astype(np.float64).astype(c.dtype)  # NumPy rounds to f16 by way of f32 else
    bits = (encode(a, of_factors), encode(b, of_factors), encode(c, of_sums))
    np.testing.assert_array_equal(compute(cores[gfx], instruction, *bits), encode(expected, of_sums))


def test_the_other_half_of_a_register_stays_on_rdna3(cores):
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, (4, 24, 32), np.uint32) & 0xBFFFBFFF  # no infinity, no NaN
    for high, kept in [("", 0xFFFF0000), ("/high", 0x0000FFFF)]:
        out = cores["gfx1100"]("v_wmma_f16_16x16x16_f16" + high, words).reshape(4, 8, 32)
        np.testing.assert_array_equal(out & kept, words[:, :8] & kept)
        assert (out != words[:, :8]).mean() > 0.9


@pytest.mark.parametrize("gfx", RDNA)
@pytest.mark.parametrize("signs", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("clamp", [0, 1])
def test_bytes_are_signed_or_not_and_sums_wrap_or_saturate(cores, gfx, signs, clamp):
    instruction = f"{gfx}/v_wmma_i32_16x16x16_iu8"
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, (4, 16, 16)) + (0 if sign else 128) for sign in signs)
    c = rng.choice([0, 2**31 - 1000, -(2**31) + 1000], (4, 16, 16))
    bits = (encode(a, "iu8"), encode(b, "iu8"), encode(c, "i32"))
    out = decode(compute(cores[gfx], instruction, *bits, variant=f"/{signs[0]}{signs[1]}{clamp}"), "i32")
    exact = a @ b + c
    assert (abs(exact) > 2**31).any()
    np.testing.assert_array_equal(out, exact.clip(-(2**31), 2**31 - 1) if clamp else exact.astype(np.int32))
