"""Lanes that pass a loop of matrix instructions alone compute what lanes in step compute."""

import numpy as np
import pytest

from tests.native.cuda_program import SANITIZED, flags, place

pytestmark = pytest.mark.build

WORDS_IN, WORDS_OUT = 4 * 2 * 6 * 32, 128 * 6
KERNELS = ["products", "products_and_last", "products_by_hand", "long_products"]


@pytest.fixture
def program(programs, flavour):
    return programs["ahead", flavour]


@pytest.fixture
def matrices():
    return np.random.default_rng(1).normal(size=2 * WORDS_IN).astype(np.float16).view(np.uint32)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_bits_are_those_of_lanes_in_step(program, matrices, kernel):
    ahead, in_step = (program.output(kernel, stdin=matrices, in_step=in_step) for in_step in (False, True))
    assert len(np.unique(ahead)) > 100
    np.testing.assert_array_equal(ahead, in_step)


def test_the_program_does_run_ahead(program, flavour):
    for kernel in KERNELS:
        lines = program.rewritten[program.rewritten.index(f"void {kernel}(") :]
        assert "simt::begin_ahead" in lines[: lines.index("\n}\n")]
    assert "-DSIMT_AHEAD" in flags(flavour).device()


def test_the_sanitizers_keep_lanes_in_step():
    made = flags(SANITIZED)
    assert "-DSIMT_AHEAD" not in (*made.device(), *made.native("sim/units/sim_kernels.cpp"))


@pytest.mark.parametrize("in_step", [False, True])
def test_a_bad_address_and_lanes_that_pass_a_loop_differently_are_found(program, matrices, in_step, flavour):
    found = program.fault("misaligned", stdin=matrices.tobytes(), in_step=in_step)
    assert (found.kind, found.thread, found.block) == ("misaligned", (5, 0, 0), (0, 0, 0))
    assert place(found.frames[0])[1] == program.line("fault: misaligned")
    kind = program.fault("divergent", stdin=matrices.tobytes(), in_step=in_step).kind
    assert kind == ("warp-divergence" if flavour == "check" and not in_step else "lanes-missing")


@pytest.mark.parametrize(
    ("kernel", "in_step", "kind", "thread", "line"),
    [
        ("unwritten", True, "uninitialized-shared", 5, "fault: misaligned"),
        ("unwritten", False, "uninitialized-shared", 5, "fault: misaligned"),
        ("load_after_write", True, "race", 4, "fault: misaligned"),
        ("load_after_write", False, "race", 3, "fault: load_after_write"),  # lane 4 has passed its load before
    ],
)
def test_the_checker_sees_each_access_in_its_lane_and_line(programs, matrices, kernel, in_step, kind, thread, line):
    program = programs["ahead", "check"]
    found = program.fault(kernel, stdin=matrices.tobytes(), in_step=in_step)
    assert (found.kind, found.thread) == (kind, (thread, 0, 0)), found.message
    assert place(found.frames[0])[1] == program.line(line)
    assert kernel in " ".join(found.frames)


@pytest.mark.parametrize("in_step", [False, True])
def test_an_instruction_passed_orders_what_lanes_do_before_and_after_it(programs, matrices, in_step):
    done = programs["ahead", "check"].run("second_load_after_write", stdin=matrices.tobytes(), in_step=in_step)
    assert done.code == 0, done.stderr
