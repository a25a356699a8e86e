"""AMD's matrix instructions: where their elements lie, and the bits of their results."""

import csv
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.native.cuda_program import Program, compile_programs, place

pytestmark = pytest.mark.build

HERE = Path(__file__).parent
LAYOUTS = np.load(HERE / "data/amd_layouts.npz")  # as AMD's matrix instruction calculator says (data/record_amd.py)
RESULTS = np.load(HERE / "data/amd_results.npz")  # as MMA-Sim's models compute
HARDWARE = list(csv.DictReader((HERE / "data/amd_hardware.csv").read_text().splitlines()))  # data/record_amd.py
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
    return Program(path, text)


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


def assert_right_of_small_integers(run, instruction):
    of_factors, of_sums = types(instruction)
    rng = np.random.default_rng(1)
    least = 0 if of_sums.startswith("f") else -9  # RDNA3's sums of different signs are not exact
    shapes = (LAYOUTS[f"{instruction}/{matrix}"].shape[1:3] for matrix in "ABC")
    a, b, c = (rng.integers(least, 10, (3, *shape)) for shape in shapes)
    bits = (encode(a, of_factors), encode(b, of_factors), encode(c, of_sums))
    out = decode(compute(run, instruction, *bits, variant="/110" if of_factors == "iu8" else ""), of_sums)
    np.testing.assert_array_equal(out, a @ b + c)


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_elements_lie_where_amd_says(cores, instruction):
    assert_right_of_small_integers(cores[instruction.split("/")[0]], instruction)


# Each compiles the simulator again.
@pytest.mark.parametrize(
    ("gfx", "flavour"),
    [
        ("gfx942", "release"),
        ("gfx1100", "check"),
        *(pytest.param(gfx, "release", marks=pytest.mark.night) for gfx in ("gfx908", "gfx90a", "gfx1201")),
    ],
)
def test_kernels_execute_them_by_clang_s_names(gfx, flavour):
    program = kernels(gfx, flavour)

    def run(instruction, words):
        return program.output(instruction, stdin=words, device=DEVICES[gfx])

    for instruction in INSTRUCTIONS:
        if instruction.startswith(f"{gfx}/"):
            assert_right_of_small_integers(run, instruction)
    if flavour == "check":
        found = program.fault("in_branches", stdin=bytes(4096), device=DEVICES[gfx])
        assert found.kind == "warp-divergence"
        assert {place(found.frames[1])[1], place(found.earlier[1])[1]} == {program.line("one"), program.line("other")}
        words = np.eye(24, 32, dtype=np.uint32)  # registers of C, A and B
        found = program.fault("v_wmma_f32_16x16x16_f16", stdin=words.tobytes(), device=DEVICES[gfx])
        assert (found.kind, found.thread) == ("lanes-differ", (16, 0, 0))


def test_functions_are_those_of_amd_s_library():
    program = kernels("gfx942", "release")

    def assert_near(name, x, exact, ulps):
        out = program.output(name, stdin=x, device=DEVICES["gfx942"], dtype=np.float32)
        expected = exact(x.astype(float)).astype(np.float32)
        assert (np.abs(out.astype(float) - exact(x.astype(float))) <= ulps * np.spacing(np.abs(expected))).all()

    x = np.linspace(-103, 88, 64 * 300, dtype=np.float32)
    assert_near("expf", x, np.exp, 1)
    assert_near("tanhf", np.concatenate([x, x / 100, x / 1e6]), np.tanh, 2)
    extremes = np.resize(np.array([0, -0.0, 88.8, np.inf, -np.inf, -1e30, np.nan], np.float32), 64)
    out = program.output("expf", stdin=extremes, device=DEVICES["gfx942"], dtype=np.float32)
    np.testing.assert_array_equal(out[:7], np.array([1, 1, np.inf, np.inf, 0, 0, np.nan], np.float32))


@pytest.mark.parametrize("instruction", MODELLED)
def test_sums_on_cdna_have_the_bits_of_the_published_model(cores, instruction):
    a, b, c, d = (RESULTS[f"{instruction}/{name}"].astype(np.uint32) for name in "abcd")
    out = compute(cores[instruction.split("/")[0]], instruction, a, b, c)
    numbers = ~np.isnan(d.view(np.float32))
    assert 0.8 < numbers.mean() < 1
    np.testing.assert_array_equal(out[numbers], d[numbers])
    np.testing.assert_array_equal(np.isnan(out.view(np.float32)), ~numbers)


def words(text):
    return np.array([int(word, 16) for word in text.split()], np.uint32)


@pytest.mark.parametrize("gfx", RDNA)
def test_dot_products_on_rdna_have_the_bits_of_the_hardware(cores, gfx):
    rows = [row for row in HARDWARE if (row["instruction"], row["gfx"]) == ("v_dot2_f32_f16", gfx)]
    a, b, c, d = (words(" ".join(row[name] for row in rows)) for name in "abcd")
    operands = np.stack([np.resize(operand, (2, 32)) for operand in (c, a, b)], axis=1)
    out = cores[gfx]("v_dot2_f32_f16", operands)[: len(rows)]
    is_number = ~np.isnan(d.view(np.float32))
    np.testing.assert_array_equal(out[is_number], d[is_number])
    assert np.isnan(out[~is_number].view(np.float32)).all()


def measured_products(gfx):
    """WMMA of a GPU: (instruction, bits of A, B, C and D), of all rows of A or of the first."""
    i, j = np.mgrid[:16, :16]
    integers = ((16 * i + j) * 7 % 17 - 8, (16 * i + j) * 11 % 17 - 8, (16 * i + j) * 13 % 129 - 64)
    # The registers of a lane of a gfx1201 have k 0 to 3 and 8 to 11, or the others; the file has them lane by lane.
    k = np.arange(16) if gfx == "gfx1100" else np.array([0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15])
    for row in HARDWARE:
        if row["gfx"] != gfx or "wmma" not in row["instruction"]:
            continue
        instruction, d = f"{gfx}/{row['instruction']}", words(row["d"])
        of_factors, of_sums = types(instruction)
        if row["a"] == "integers":
            a, b, c = (encode(x, kind) for x, kind in zip(integers, (of_factors, of_factors, of_sums), strict=True))
        else:
            a, b, c = (words(row[name]) for name in "abc")
            if d.size == 1:  # each row and each column are the same
                a, b = np.tile(a, (16, 1)), np.tile(b[:, None], (1, 16))
            a, b = a.reshape(-1, 16), b.reshape(16, 16)
            a, b = a[:, np.argsort(k)], b[np.argsort(k)]
            c = np.resize(c, (len(a), 16))
        yield instruction, a, b, c, np.resize(d, c.shape)


@pytest.mark.parametrize("gfx", RDNA)
def test_sums_on_rdna_have_the_bits_of_the_hardware(cores, gfx):
    for instruction, a, b, c, d in measured_products(gfx):
        operands = [np.zeros((1, 16, 16), np.uint32) for _ in "abc"]
        for operand, values in zip(operands, (a, b, c), strict=True):
            operand[0, : len(values)] = values
        np.testing.assert_array_equal(compute(cores[gfx], instruction, *operands)[0, : len(a)], d)


@pytest.mark.parametrize("gfx", ["gfx90a", "gfx1100", "gfx1201"])
def test_dot_products_of_f16_are_near_the_exact_ones(cores, gfx):
    rng = np.random.default_rng(1)
    factors = rng.normal(size=(50, 2, 2, lanes(gfx))).astype(np.float16)
    c = rng.normal(size=(50, 1, lanes(gfx))).astype(np.float32)
    pairs = np.ascontiguousarray(np.moveaxis(factors, 2, 3)).view(np.uint32)[..., 0]
    operands = np.concatenate([c.view(np.uint32), pairs], axis=1)
    out = cores[gfx]("v_dot2_f32_f16", operands).view(np.float32).reshape(50, -1)
    exact = c[:, 0] + factors.astype(float).prod(1).sum(1)
    size = np.abs(c[:, 0]) + np.abs(factors.astype(float).prod(1)).sum(1)
    assert (np.abs(out - exact) <= 2**-23 * size).all()


def test_instructions_on_bytes(cores):
    rng = np.random.default_rng(1)
    operands = rng.integers(0, 2**32, (50, 3, 64), np.uint32)
    operands[:, 0] = rng.choice(np.array([0, 0x7FFFFF00, 0x800000F0], np.uint32), (50, 64))
    c, a, b = operands.transpose(1, 0, 2)
    signed_a, signed_b = (np.ascontiguousarray(x).view(np.int8).reshape(50, 64, 4).astype(int) for x in (a, b))
    for name, factors in (("v_dot4_i32_i8", signed_b), ("v_dot4_i32_iu8", signed_b & 255)):
        exact = (signed_a * factors).sum(2) + c.view(np.int32)
        assert (abs(exact) > 2**31).any()
        out = cores["gfx942"](name, operands).view(np.int32).reshape(50, 64)
        np.testing.assert_array_equal(out, exact.astype(np.int32))
        out = cores["gfx942"](f"{name}/clamp", operands).view(np.int32).reshape(50, 64)
        np.testing.assert_array_equal(out, exact.clip(-(2**31), 2**31 - 1))


def test_bytes_are_permuted(cores):
    operands = np.zeros((1, 3, 64), np.uint32)
    operands[0, 1], operands[0, 2] = 0x80_11_92_13, 0x04_95_06_17  # bytes 4 to 7, and 0 to 3
    operands[0, 0, :5] = 0x03020100, 0x07060504, 0x0B0A0908, 0x0CFF0D0C, 0x00040703
    out = cores["gfx942"]("v_perm_b32", operands[:, [0, 1, 2]])[:5]
    np.testing.assert_array_equal(out, words("04950617 80119213 ffff0000 00ffff00 17138004"))


def test_the_other_half_of_a_register_stays_on_rdna3(cores):
    words = np.random.default_rng(1).integers(0, 2**32, (4, 24, 32), np.uint32) & 0xBFFFBFFF  # no infinity, no NaN
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


def test_instructions_that_move_values_between_lanes():
    program, rng = kernels("gfx942", "release"), np.random.default_rng(1)
    value, address = rng.integers(0, 2**32, (2, 64), dtype=np.uint32)
    chosen = (np.arange(64) % 3 == 1).astype(np.uint32)
    source = address // 4 % 64  # the instruction ignores the other bits
    out = program.output("lanes", stdin=np.stack([value, address, chosen]), device="mi300x").reshape(5, 64)
    np.testing.assert_array_equal(out[0], value[0])
    np.testing.assert_array_equal(out[1], value[source])
    np.testing.assert_array_equal(out[2], value[::-1])
    np.testing.assert_array_equal(out[3], np.where(chosen, value[1], 0))
    np.testing.assert_array_equal(out[4], np.where(chosen & chosen[source], value[source], 0))


def test_the_median_is_the_least_number_beside_a_nan():
    program = kernels("gfx942", "release")
    values = np.array([[3, 1, 2], [1, 1, 5], [-0.5, np.inf, 7], [np.nan, 4, 2], [4, np.nan, 2], [4, 2, np.nan]])
    rows = np.resize(values.astype(np.float32), (64, 3))
    out = program.output("medians", stdin=rows.T, device="mi300x", dtype=np.float32)
    np.testing.assert_array_equal(out[:6], np.array([2, 1, 7, 2, 2, 2], np.float32))


def test_an_unknown_instruction_is_named_as_one_of_amd():
    found = kernels("gfx942", "release").fault("unknown", stdin=bytes(256), device="mi300x")
    assert found.is_lost
    assert "the simulator lacks the AMD instruction v_frobnicate_b32 in " in found.message
