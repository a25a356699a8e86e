"""AMD's matrix instructions: where their elements lie, and the bits of their results."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.llama.build.stamp import NATIVE
from tests.native.cuda_program import flags

pytestmark = pytest.mark.build

HERE = Path(__file__).parent
LAYOUTS = np.load(HERE / "data/amd_layouts.npz")  # as AMD's matrix instruction calculator says (data/record_amd.py)
RESULTS = np.load(HERE / "data/amd_results.npz")  # as MMA-Sim's models compute
INSTRUCTIONS = sorted({key.rsplit("/", 1)[0] for key in LAYOUTS})
MODELLED = sorted({key.rsplit("/", 1)[0] for key in RESULTS})
RDNA = ("gfx1100", "gfx1201")
SIGNED_BYTES = "v_wmma_i32_16x16x16_iu8/110"  # A and B are signed, and results do not saturate
BITS = {"i8": 8, "iu8": 8, "f16": 16, "bf16": 16, "f32": 32, "xf32": 32, "i32": 32}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("amd")
    made = flags("release").native("sim/amd/matrix_cores.cpp")
    sources = (HERE / "amd_matrix.cpp", NATIVE / "sim/amd/matrix_cores.cpp")
    for gfx in sorted({name.split("/")[0] for name in INSTRUCTIONS}):
        macros = (f"-DSIMT_GFX_NUMBER=0x{gfx[3:]}", f"-DSIMT_WARP={lanes(gfx)}")
        subprocess.run([*made, *macros, f"-I{NATIVE / 'sim'}", *sources, "-o", folder / gfx], check=True)
    return folder


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


def compute(programs, instruction, a, b, c, variant=None):
    """D of several A, B and C, all as bits of their elements [matrix][row][column]."""
    gfx, name = instruction.split("/", 1)
    _, of_sums = types(instruction)
    places = {matrix: LAYOUTS[f"{instruction}/{matrix}"] for matrix in "ABCD"}
    words = [registers(x, places[matrix], lanes(gfx)) for matrix, x in (("C", c), ("A", a), ("B", b))]
    done = subprocess.run(
        [programs / gfx, variant or name],
        input=np.concatenate(words, axis=1).tobytes(),
        capture_output=True,
        check=True,
    )
    out = np.frombuffer(done.stdout, np.uint32).reshape(words[0].shape)
    register, lane, first = np.moveaxis(places["D"][0], -1, 0).astype(np.uint32)
    return out[:, register, lane] >> first & np.uint32(2 ** BITS[of_sums] - 1)


def shapes(instruction):
    return [LAYOUTS[f"{instruction}/{matrix}"].shape[1:3] for matrix in "ABC"]


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_elements_lie_where_amd_says(programs, instruction):
    of_factors, of_sums = types(instruction)
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-9, 10, (3, *shape)) for shape in shapes(instruction))
    variant = SIGNED_BYTES if of_factors == "iu8" else None
    bits = (encode(a, of_factors), encode(b, of_factors), encode(c, of_sums))
    out = decode(compute(programs, instruction, *bits, variant=variant), of_sums)
    np.testing.assert_array_equal(out, a @ b + c)


@pytest.mark.parametrize("instruction", MODELLED)
def test_sums_on_cdna_have_the_bits_of_the_published_model(programs, instruction):
    a, b, c, d = (RESULTS[f"{instruction}/{name}"].astype(np.uint32) for name in "abcd")
    out = compute(programs, instruction, a, b, c)
    numbers = ~np.isnan(d.view(np.float32))
    assert 0.8 < numbers.mean() < 1
    np.testing.assert_array_equal(out[numbers], d[numbers])
    np.testing.assert_array_equal(np.isnan(out.view(np.float32)), ~numbers)


def spread(rng, shape, kind):
    values = np.ldexp(rng.normal(size=shape), rng.integers(-9, 5, shape))
    return decode(encode(values, kind) << (16 if kind == "bf16" else 0), kind)


@pytest.mark.parametrize("gfx", RDNA)
@pytest.mark.parametrize("name", ["v_wmma_f32_16x16x16_f16", "v_wmma_f32_16x16x16_bf16", "v_wmma_f16_16x16x16_f16"])
def test_sums_on_rdna_round_after_each_product_in_order(programs, gfx, name):
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
    np.testing.assert_array_equal(compute(programs, instruction, *bits), encode(expected, of_sums))


def test_the_other_half_of_a_register_stays_on_rdna3(programs):
    instruction = "gfx1100/v_wmma_f16_16x16x16_f16"
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, (4, 24, 32), np.uint32) & 0xBFFFBFFF  # no infinity, no NaN
    for name, kept in [(instruction, 0xFFFF0000), (f"{instruction}/high", 0x0000FFFF)]:
        command = [programs / "gfx1100", name.split("/", 1)[1]]
        done = subprocess.run(command, input=words.tobytes(), capture_output=True, check=True)
        out = np.frombuffer(done.stdout, np.uint32).reshape(4, 8, 32)
        np.testing.assert_array_equal(out & kept, words[:, :8] & kept)
        assert (out != words[:, :8]).mean() > 0.9


@pytest.mark.parametrize("gfx", RDNA)
@pytest.mark.parametrize("signs", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("clamp", [0, 1])
def test_bytes_are_signed_or_not_and_sums_wrap_or_saturate(programs, gfx, signs, clamp):
    instruction = f"{gfx}/v_wmma_i32_16x16x16_iu8"
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, (4, 16, 16)) + (0 if sign else 128) for sign in signs)
    c = rng.choice([0, 2**31 - 1000, -(2**31) + 1000], (4, 16, 16))
    variant = f"v_wmma_i32_16x16x16_iu8/{signs[0]}{signs[1]}{clamp}"
    out = decode(compute(programs, instruction, encode(a, "iu8"), encode(b, "iu8"), encode(c, "i32"), variant), "i32")
    exact = a @ b + c
    assert (abs(exact) > 2**31).any()
    np.testing.assert_array_equal(out, exact.clip(-(2**31), 2**31 - 1) if clamp else exact.astype(np.int32))
