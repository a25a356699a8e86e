"""What the simulator computes: warp instructions, tensor cores, special functions, copies, atomics, schedules."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.machine.run.simulator import Simulation
from tests.native.sanitizer import SANITIZER

pytestmark = pytest.mark.build

MEASURED = np.load(Path(__file__).parent / "data/h200.npz")  # instructions and functions on an H200
LANES = np.arange(32)


@pytest.fixture
def semantics(programs, flavour):
    return programs["semantics", flavour]


def seeded(seed):
    return Simulation(threads=1, schedule=seed)


def numbers(count, seed=1):
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)


def sources(kind, width, amount):
    """The lane that each lane's value comes from."""
    start = LANES & ~(width - 1)
    if kind == "index":
        return start + (amount & (width - 1))
    source = {"up": LANES - amount, "down": LANES + amount, "xor": LANES ^ amount}[kind]
    return np.where((source >= start if kind == "up" else source < start + width), source, LANES)


def test_shuffles_of_every_kind_width_amount_and_value_and_loops_of_them(semantics):
    values = numbers(32)
    out = semantics.output("shuffles", 1, 32, 6 * 4 * 1024, stdin=values).reshape(6, 4, 32, 32)
    for width in range(6):
        for kind, name in enumerate(["up", "down", "xor", "index"]):
            for amount in range(32):
                np.testing.assert_array_equal(out[width, kind, amount], values[sources(name, 2**width, amount)])
    values = numbers(128)
    out = semantics.output("wide_shuffles", 1, 32, 192, stdin=values)
    np.testing.assert_array_equal(out[:64].reshape(32, 2), values[:64].reshape(32, 2)[LANES ^ 5])
    np.testing.assert_array_equal(out[64:].reshape(32, 4), values.reshape(32, 4)[::-1])
    values = np.random.default_rng(1).normal(size=32).astype(np.float32)
    out = semantics.output("butterflies", 1, 32, 4 * 128, stdin=values).reshape(4, 2, 2, 32)
    np.testing.assert_array_equal(out[:, 0], out[:, 1])
    largest = values.reshape(-1, 8).max(1).repeat(8).view(np.uint32)
    np.testing.assert_array_equal(out[2, 0, 1], largest)  # in groups of eight lanes


def test_arithmetic_on_pairs_rounds_as_on_single_halves(semantics):
    count = 1 << 15
    values = numbers(3 * count)
    values[2 * count :: 2] &= 0x83FF83FF  # subnormal
    values[: count // 4] = 0x1400  # 2^-10 and zero: sums halfway between two halves
    out = semantics.output("pairs", count // 32, 32, 10 * count, stdin=values).view(np.uint16).reshape(2, 5, -1)
    pair, single = out
    a_number = ~np.isnan(pair.view(np.float16))
    assert a_number.mean() > 0.8
    np.testing.assert_array_equal(pair[a_number], single[a_number])
    np.testing.assert_array_equal(np.isnan(single.view(np.float16)), ~a_number)


def test_votes(semantics):
    values = np.zeros((8, 32), np.uint32)
    values[1:7] = numbers(6 * 32).reshape(6, 32) & 4
    values[7] = 1
    out = semantics.output("votes", 1, 32, 6 * 256, stdin=values).reshape(6, 8, 32)
    ballots = ((values != 0) * (np.uint64(1) << LANES.astype(np.uint64))).sum(1)
    expected = [ballots, ballots != 0, ballots == 2**32 - 1, ballots != 0, ballots == 2**32 - 1, (values != 0).sum(1)]
    for name, row in zip(out, expected, strict=True):
        np.testing.assert_array_equal(name, np.broadcast_to(np.asarray(row, np.uint32)[:, None], (8, 32)))


def test_loads_and_transposes_of_matrices(semantics):
    tiles = numbers(128).view(np.uint16).reshape(4, 8, 8)
    out = semantics.output("matrices", 1, 32, 13 * 32, stdin=tiles).view(np.uint16).reshape(13, 8, 8)
    turned = tiles.transpose(0, 2, 1)
    np.testing.assert_array_equal(out, np.concatenate([tiles, turned, tiles[:2], turned[:2], turned[:1]]))


@pytest.mark.parametrize("portable", [True, False], ids=["portable", "as the processor can"])
@pytest.mark.parametrize("instruction", ["mma_f32_k16", "mma_f32_k8", "mma_bf16_k16", "mma_f16_k16"])
def test_tensor_cores_compute_as_an_h200_in_every_bit(semantics, instruction, portable):
    a, b, c, d = (MEASURED[f"{instruction}_{name}"] for name in "abcd")
    count = len(a)
    operands = np.concatenate([x.reshape(count, -1).view(np.uint32) for x in (a, b, c)], axis=1)
    out = semantics.output(instruction, count, 32, d.nbytes // 4, stdin=operands, portable=portable)
    np.testing.assert_array_equal(out.view(d.dtype).reshape(d.shape), d)


def test_volta_s_matrix_instruction(semantics):
    a, b = np.random.default_rng(1).integers(-8, 8, (2, 4, 8, 4)).astype(np.float16)
    operands = np.stack([a, b], axis=1)
    out = semantics.output("mma_m8n8k4", 1, 32, 256, stdin=operands, dtype=np.float32).reshape(4, 8, 8)
    np.testing.assert_array_equal(out, a.astype(float) @ b.astype(float).transpose(0, 2, 1))


@pytest.mark.parametrize(
    ("kernel", "function"), [("power", "pow"), ("division", "div"), ("tangent", "tanh"), ("logarithm", "lg2")]
)
def test_special_functions_compute_as_an_h200_in_every_bit(semantics, kernel, function):
    x, result = MEASURED[f"{function}_x"], MEASURED[f"{function}_r"]
    y = MEASURED[f"{function}_y"] if f"{function}_y" in MEASURED else np.zeros_like(x)
    out = semantics.output(kernel, len(x) // 24, 24, len(x), stdin=np.concatenate([x, y]))
    same = (out == result) | (np.isnan(out.view(np.float32)) & np.isnan(result.view(np.float32)))
    assert same.all(), [(hex(x[i]), hex(y[i]), hex(out[i]), hex(result[i])) for i in np.flatnonzero(~same)[:5]]


def test_atomics_of_blocks_on_several_host_threads(semantics):
    values = numbers(64 * 96)
    out = semantics.output("atomics", 64, 96, 3, stdin=values, simulation=Simulation(threads=2))
    assert out[:1].view(np.float32)[0] == 64 * 96
    assert out[1] == values.sum(dtype=np.uint32)
    assert out[2] == values.max()


# 48 rows of 256 words: copies, static and dynamic shared memory, barriers, shuffles and atomics
ROWS = (48, 256, 48 * 256)


def row_sums(rows):
    sums = (rows.reshape(48, 256) * np.arange(256, 0, -1, dtype=np.uint32)).sum(1, dtype=np.uint32)
    return (sums[:, None] + np.arange(256, dtype=np.uint32)).ravel()


@pytest.mark.parametrize(
    "simulation", [Simulation(threads=t, schedule=s) for t in (1, 2) for s in (0, 1, 2, 3)], ids=str
)
def test_a_kernel_without_races_computes_the_same_in_any_order(semantics, simulation):
    rows = numbers(ROWS[2])
    out = semantics.output("row_sums", *ROWS, stdin=rows, simulation=simulation)
    np.testing.assert_array_equal(out, row_sums(rows))


def test_the_schedule_changes_the_order_and_repeats_it(programs):
    def order(seed):
        return programs["semantics", "release"].output("arrivals", 2, 128, 256, simulation=seeded(seed)).tolist()

    simulated = {seed: order(seed) for seed in (0, 1, 2, 3)}
    assert len(set(map(tuple, simulated.values()))) == 4
    assert all(order(seed) == simulated[seed] for seed in simulated)
    assert sorted(simulated[1][:128]) == list(range(128))


def test_schedules_differ_in_kind(programs):
    def turns(seed):
        """The turn of each lane of each of 4 warps."""
        order = programs["semantics", "release"].output("arrivals", 1, 128, 128, simulation=seeded(seed))
        return order.reshape(4, 32)

    def sequence(seed):
        """The warps in the order of their lanes' turns."""
        return np.argsort(turns(seed).reshape(-1)) // 32

    assert (np.diff(turns(0).astype(int), axis=1) == -1).all()  # warp by warp, from lane 31 to 0
    assert np.count_nonzero(np.diff(sequence(1))) > 8  # lanes of different warps take turns
    assert (turns(3) == np.arange(4)[::-1, None] * 32 + np.arange(32)).all()  # the last warp first, from lane 0 to 31
    assert len({int(sequence(seed)[0]) for seed in range(2, 40, 4)}) > 1  # whichever is ahead, its lanes come first
    assert all((sequence(seed)[:32] == sequence(seed)[0]).all() for seed in range(2, 40, 4))


def test_blocks_run_backwards(programs):
    def blocks(seed):
        return programs["semantics", "release"].output("block_turns", 4, 32, 5, simulation=seeded(seed))[1:].tolist()

    assert [blocks(seed) for seed in (0, 1, 4)] == [[0, 1, 2, 3], [0, 1, 2, 3], [3, 2, 1, 0]]


@pytest.mark.parametrize("kernel", ["row_sums_without_wait", "row_sums_without_barrier"])
def test_an_adversarial_schedule_shows_what_the_fixed_one_hides(programs, kernel):
    rows = numbers(ROWS[2])
    for seed in (1, 2, 3):
        out = programs["semantics", "release"].output(kernel, *ROWS, stdin=rows, simulation=seeded(seed))
        assert (out != row_sums(rows)).any()


@pytest.mark.parametrize("kernel", ["row_sums_without_wait", "row_sums_without_barrier"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_checker_sees_it_in_any_schedule(programs, kernel, seed):
    done = programs["semantics", "check"].run(kernel, *ROWS, stdin=numbers(ROWS[2]).tobytes(), simulation=seeded(seed))
    assert done.code == 86
    assert '"kind":"race"' in done.stderr or '"kind":"uninitialized-shared"' in done.stderr


@pytest.mark.parametrize("use", ["switch_on", "unknown", "mutant"])
@pytest.mark.parametrize("number", [-1, 16384, 20000])
def test_a_number_without_room_ends_the_run(programs, use, number):
    done = programs["mutants", "release"].run(use, number)
    assert done.code == 1
    assert done.stderr == f"fattn-probe: simulator: mutant {number} has no room: there may be 16383\n"


@pytest.mark.parametrize(("number", "on"), [(0, 0), (1, 1), (2, 0), (16383, 2)])
def test_one_mutant_is_switched_on(programs, number, on):
    assert programs["mutants", "release"].run("switch_on", number).stdout == b"%d\n" % on


def test_a_run_without_one_notes_what_it_reached(programs, tmp_path):
    reached = tmp_path / "reached"
    programs["mutants", "release"].run("mutant", 16383, FATTN_PROBE_REACHED=str(reached))
    assert reached.read_text() == "16383 1\n"


def test_other_builds_have_no_switch(programs, flavour):
    assert b"fattn_probe_switch_on" in programs["mutants", "release"].path.read_bytes()
    assert b"fattn_probe_switch_on" not in programs["faults", flavour].path.read_bytes()


CALLS = {"thread": "__tsan_init", "address": "__asan_init", "undefined": "__ubsan_handle_type_mismatch_v1_abort"}
"""What the code that g++ compiles for each calls, and the simulator's own checker does not define."""


def test_the_simulator_is_compiled_for_the_sanitizer(programs):
    program = programs["semantics", "release"].path
    said = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1].partition("@")[0] for line in said.splitlines()}
    assert {name for name, call in CALLS.items() if call in names} == ({SANITIZER} if SANITIZER else set())
