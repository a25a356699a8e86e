"""Lanes that pass a loop of matrix instructions alone compute what lanes in step compute."""

import numpy as np
import pytest

from tests.native.cuda_program import FLAVOURS, flags, place

pytestmark = pytest.mark.build

WORDS_IN, WORDS_OUT = 4 * 2 * 6 * 32, 128 * 6
KERNELS = ["products", "products_and_last", "products_by_hand", "long_products"]


@pytest.fixture
def program(programs):
    return programs["ahead", "release"]


@pytest.fixture
def matrices():
    halves = np.random.default_rng(1).normal(size=2 * WORDS_IN).astype(np.float16)
    return halves.view(np.uint32)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_bits_are_those_of_lanes_in_step(program, matrices, kernel):
    ahead, in_step = (program.output(kernel, stdin=matrices, in_step=in_step) for in_step in (False, True))
    assert len(np.unique(ahead)) > 100
    np.testing.assert_array_equal(ahead, in_step)


def test_the_program_does_run_ahead(program):
    for kernel in KERNELS:
        lines = program.rewritten[program.rewritten.index(f"void {kernel}(") :]
        assert "simt::begin_ahead" in lines[: lines.index("\n}\n")]
    assert "-DSIMT_AHEAD" in flags("release").sim()


@pytest.mark.parametrize("flavour", sorted({*FLAVOURS, "sanitized"} - {"release"}))
def test_the_checker_and_the_sanitizers_keep_lanes_in_step(flavour):
    assert "-DSIMT_AHEAD" not in (*flags(flavour).sim(), *flags(flavour).sim_native("sim/units/sim_kernels.cpp"))


@pytest.mark.parametrize("in_step", [False, True])
def test_a_bad_address_is_found_in_its_lane_and_line(program, in_step):
    found = program.fault("misaligned", in_step=in_step)
    assert (found.kind, found.thread, found.block) == ("misaligned", (5, 0, 0), (0, 0, 0))
    assert place(found.frames[0])[1] == program.line("fault: misaligned")


@pytest.mark.parametrize("in_step", [False, True])
def test_lanes_that_pass_a_loop_differently_are_found(program, in_step):
    assert program.fault("divergent", in_step=in_step).kind == "lanes-missing"
