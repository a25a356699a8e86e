"""Each kind of fault in a kernel is found: with its kernel, line, block, thread and call stack."""

from typing import NamedTuple

import pytest

from fattn_probe.machine.run.outcome import Index
from fattn_probe.machine.run.simulator import Simulation
from tests.native.cuda_program import FLAVOURS, SANITIZED, place
from tests.native.sanitizer import SANITIZER

pytestmark = pytest.mark.build

FAULTY = ((1, 0, 0), (5, 1, 0))
# Lanes run from the last to the first, and the first one with a fault is reported.
FIRST_OF_WARP_0, FIRST_OF_WARP_1 = ((0, 0, 0), (0, 0, 0)), ((0, 0, 0), (0, 1, 0))
BOTH = FLAVOURS
CHECK = ("check",)


class Planted(NamedTuple):
    """A kernel of faults.cu: which flavours find it, with a buffer of how many ints, in which (block, thread)."""

    kernel: str
    kind: str
    flavours: tuple[str, ...]
    size: int
    where: tuple[Index, Index]

    def __str__(self):
        return f"{self.kernel}-{self.size}"


FAULTS = [
    Planted("read_past_the_end", "out-of-bounds", BOTH, 192, FAULTY),
    Planted("read_past_the_end", "out-of-bounds", CHECK, 191, FAULTY),
    Planted("write_past_the_end", "out-of-bounds", BOTH, 192, FAULTY),
    Planted("write_past_the_end", "out-of-bounds", CHECK, 190, FAULTY),
    Planted("write_before_the_start", "out-of-bounds", BOTH, 1024, FAULTY),
    Planted("write_before_the_start", "out-of-bounds", CHECK, 192, FAULTY),
    Planted("wide_read_past_the_end", "out-of-bounds", CHECK, 190, FAULTY),
    Planted("dynamic_shared_past_the_end", "out-of-bounds", BOTH, 192, FAULTY),
    Planted("static_shared_past_the_end", "out-of-bounds", CHECK, 192, FAULTY),
    Planted("misaligned_16", "misaligned", BOTH, 192, FAULTY),
    Planted("misaligned_8", "misaligned", CHECK, 192, FAULTY),
    Planted("misaligned_8_in_parts", "misaligned", CHECK, 192, FAULTY),
    Planted("misaligned_4", "misaligned", CHECK, 192, FAULTY),
    Planted("misaligned_copy", "misaligned", BOTH, 192, FAULTY),
    Planted("misaligned_matrix", "misaligned", BOTH, 192, FAULTY),
    Planted("use_after_free", "use-after-free", BOTH, 192, FAULTY),
    Planted("given_back_to_the_pool", "use-after-free", BOTH, 192, FAULTY),
    Planted("unwritten_since_the_pool_had_it", "uninitialized-global", CHECK, 192, FAULTY),
    Planted("past_what_the_pool_hands_out", "out-of-bounds", BOTH, 192, FAULTY),
    Planted("stack_overflow", "stack-overflow", BOTH, 192, FAULTY),
    Planted("traps", "trap", BOTH, 192, FAULTY),
    Planted("unknown_instruction", "unknown-instruction", BOTH, 192, FAULTY),
    Planted("barrier_not_reached", "barrier-divergence", BOTH, 192, ((1, 0, 0), (0, 0, 0))),
    Planted("barriers_at_two_places", "barrier-divergence", CHECK, 192, ((1, 0, 0), (0, 1, 0))),
    Planted("shuffle_from_a_missing_lane", "lanes-missing", BOTH, 192, ((0, 0, 0), (19, 0, 0))),
    Planted("sum_over_missing_lanes", "lanes-missing", BOTH, 192, ((0, 0, 0), (4, 0, 0))),
    Planted("product_overflows", "overflow", CHECK, 192, FAULTY),
    Planted("index_loses_bits", "overflow", CHECK, 192, FAULTY),
    Planted("uninitialized_global", "uninitialized-global", CHECK, 192, FAULTY),
    Planted("uninitialized_vector", "uninitialized-global", CHECK, 192, FAULTY),
    Planted("copy_of_unwritten", "uninitialized-global", CHECK, 192, FAULTY),
    Planted("two_blocks_write", "race", CHECK, 192, ((1, 0, 0), (0, 0, 0))),
    Planted("block_reads_after_a_write", "race", CHECK, 192, FAULTY),
    Planted("block_writes_after_a_read", "race", CHECK, 192, FAULTY),
    Planted("block_writes_what_both_read", "race", CHECK, 192, FAULTY),
    Planted("block_reads_an_atomic", "race", CHECK, 192, FAULTY),
    Planted("lane_missing", "lanes-missing", BOTH, 192, ((1, 0, 0), (4, 1, 0))),
    Planted("lanes_in_two_instructions", "lanes-missing", BOTH, 192, FIRST_OF_WARP_0),
    Planted("uninitialized", "uninitialized-shared", CHECK, 192, FAULTY),
    Planted("read_after_write", "race", CHECK, 192, FIRST_OF_WARP_1),
    Planted("write_after_read", "race", CHECK, 192, FIRST_OF_WARP_0),
    Planted("write_after_write", "race", CHECK, 192, ((0, 0, 0), (0, 1, 0))),
    Planted("lanes_not_in_step", "race", CHECK, 192, ((0, 0, 0), (0, 0, 0))),
    Planted("vector_race", "race", CHECK, 192, FIRST_OF_WARP_1),
    Planted("copy_not_waited_for", "race", CHECK, 192, FIRST_OF_WARP_0),
    Planted("matrix_race", "race", CHECK, 192, FIRST_OF_WARP_0),
    Planted("pair_race", "race", CHECK, 192, FIRST_OF_WARP_1),
    Planted("matrix_loaded_past_the_end", "out-of-bounds", BOTH, 192, FAULTY),
    Planted("product_of_unwritten", "uninitialized-shared", CHECK, 192, FAULTY),
]
RIGHT = [
    *("same_value_twice", "atomic_counter", "lanes_in_step", "waits_for_its_copy", "whole_block_returns"),
    *("blocks_write_the_same", "blocks_count", "blocks_write_neighbours", "last_block_adds", "lanes_there_are"),
    *("blocks_share_16_bytes", "handed_out_by_the_pool"),
]


@pytest.mark.parametrize(
    ("flavour", "fault"), [(flavour, fault) for fault in FAULTS for flavour in fault.flavours], ids=str
)
def test_a_fault_is_found_where_it_is(programs, flavour, fault):
    program = programs["faults", flavour]
    found = program.fault(fault.kernel, fault.size)
    function, line = place(found.frames[0])
    assert found.kind == fault.kind, found.message
    assert f" {fault.kernel}(" in found.kernel
    assert line == program.line(f"fault: {fault.kernel}")
    assert (found.block, found.thread) == fault.where
    assert fault.kernel in " ".join(found.frames)
    assert "simt::" not in function


@pytest.mark.parametrize("kernel", RIGHT)
def test_harmless_accesses_are_not_reported(programs, flavour, kernel):
    done = programs["faults", flavour].run(kernel, 192)
    assert done.code == 0, done.stderr


@pytest.mark.parametrize("kernel", ["shuffle_from_a_missing_lane", "sum_over_missing_lanes"])
def test_a_scout_is_the_only_lane_of_its_block(programs, kernel):
    """It reads undefined values from the others, which is no fault: only its place is read, by `inspect`."""
    done = programs["faults", "release"].run(kernel, 192, SCOUT="1")
    assert done.code == 0, done.stderr


@pytest.mark.parametrize(
    ("flavour", "kernel", "size", "said"),
    [
        ("release", "read_past_the_end", 192, "at byte 768 of K (allocation 0), which has 768 bytes"),
        ("check", "wide_read_past_the_end", 190, "at byte 760 of K (allocation 0), which has 760 bytes"),
        ("check", "write_before_the_start", 192, "at byte -4 of K (allocation 0), which has 768 bytes"),
        ("release", "use_after_free", 192, "of K (allocation 0), which was freed"),
        ("release", "given_back_to_the_pool", 192, "of K (allocation 0), which was given back to the memory pool"),
        ("release", "past_what_the_pool_hands_out", 192, "at byte 512 of K (allocation 0), which has 384 bytes"),
        ("release", "dynamic_shared_past_the_end", 192, "byte 512 of the dynamic shared memory"),
        ("check", "dynamic_shared_past_the_end", 192, "4 bytes are written at byte 512 of the dynamic shared memory"),
        ("check", "static_shared_past_the_end", 192, "at byte 256 of the static shared memory, which has 256 bytes"),
        ("release", "lane_missing", 192, "shfl.sync.bfly reads lane 5, which has returned"),
        ("release", "barrier_not_reached", 192, "63 of 64 threads wait at the barrier"),
        ("release", "unknown_instruction", 192, "frobnicate.sync.b32"),
        ("check", "barriers_at_two_places", 192, "while other threads wait at the one in faults.cu:"),
        ("release", "shuffle_from_a_missing_lane", 192, "shfl.sync.down reads lane 20 of a warp that has 20 lanes"),
        ("check", "product_overflows", 192, "192 * 20000000 does not fit into 'int'"),
        ("check", "index_loses_bits", 192, "3840000000 is stored in 32 bits"),
        ("check", "argument_loses_bits", 192, "10000000192 is stored in 32 bits"),
        ("check", "uninitialized_global", 192, "byte 400 of allocation 1 is read, but was never written"),
        ("check", "uninitialized_vector", 192, "byte 252 of allocation 1 is read"),
        (
            "check",
            "block_writes_what_both_read",
            192,
            "byte 24 of K (allocation 0) is written, and other blocks read it",
        ),
        (
            "check",
            "two_blocks_write",
            192,
            "is written, and block (0,0,0) writes another value to it in the same launch",
        ),
        (
            "check",
            "block_writes_after_a_read",
            192,
            "byte 9 of K (allocation 0) is written, and block (0,0,0) reads it",
        ),
        ("check", "read_after_write", 192, "after a write by thread (0,0,0) of warp 0"),
    ],
)
def test_the_message_says_what_and_by_how_much(programs, flavour, kernel, size, said):
    assert said in programs["faults", flavour].fault(kernel, size, "K").message


MANY = [
    ("many_reads_past_the_end", "out-of-bounds", BOTH, (5, 0, 0)),
    ("faults_of_many_kinds", "out-of-bounds", BOTH, (5, 0, 0)),
    ("many_races", "race", CHECK, (0, 0, 0)),
]


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize(("flavour", "fault"), [(flavour, fault) for fault in MANY for flavour in fault[2]])
def test_of_many_faults_the_first_in_block_and_thread_is_reported(programs, flavour, fault, threads):
    kernel, kind, _, thread = fault
    program, simulation = programs["faults", flavour], Simulation(threads=threads)
    runs = 20 if flavour == "release" else 5
    (said,) = {program.run(kernel, 192, simulation=simulation).stderr for _ in range(runs)}
    found = program.fault(kernel, 192, simulation=simulation)
    assert (found.kind, found.block, found.thread) == (kind, (3, 0, 0), thread), said
    assert (found.line, found.message in said) == (program.line(f"fault: {kernel}"), True)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_order_of_the_schedule_does_not_decide_which_fault_is_reported(programs, flavour):
    program = programs["faults", flavour]
    for seed in range(10):
        found = program.fault("many_reads_past_the_end", 192, simulation=Simulation(threads=2, schedule=seed))
        assert (found.block, found.thread) == ((3, 0, 0), (5, 0, 0))


@pytest.mark.skipif(SANITIZER == "thread", reason="ThreadSanitizer's handler of signals is not entered twice")
@pytest.mark.parametrize("seed", [0, 4])  # block 1 is the last or the first
@pytest.mark.parametrize(
    ("kernel", "kind"), [("smashed_stack", "barrier-divergence"), ("crash_on_a_smashed_stack", "out-of-bounds")]
)
def test_a_crash_of_the_report_does_not_hide_the_finding(programs, flavour, kernel, kind, seed):
    found = programs["faults", flavour].fault(kernel, 192, simulation=Simulation(threads=1, schedule=seed))
    assert (found.kind, found.block) == (kind, (1, 0, 0)), found.message


ROOM = range(120 << 10, 129 << 10, 256)
"""Bytes of local variables that leave little of the thread's stack, or nothing."""


@pytest.mark.parametrize(("kernel", "kind"), [("full_stack", "barrier-divergence"), ("race_on_a_full_stack", "race")])
def test_a_thread_with_a_full_stack_has_a_finding(programs, kernel, kind):
    found = [programs["faults", "check"].fault(kernel, size) for size in ROOM]
    assert {fault.kind for fault in found} == {kind, "stack-overflow"}
    assert {fault.block for fault in found} == {(1, 0, 0)}


@pytest.mark.night  # the simulator is compiled with the sanitizers
@pytest.mark.parametrize(
    ("kernel", "kind"), [("local_array", "address"), ("overflow", "undefined"), ("past_the_end", "out-of-bounds")]
)
def test_a_sanitizer_s_finding_names_the_thread_too(programs, kernel, kind):
    program = programs[SANITIZED, SANITIZED]
    found = program.fault(kernel)
    assert found.kind == kind, found.message
    assert (found.block, found.thread) == ((0, 0, 0), (5, 1, 0))
    assert place(found.frames[0])[1] == program.line(f"fault: {kernel}")
    assert f" {kernel}(" in found.kernel


@pytest.mark.night
def test_fibers_run_under_sanitizers_and_host_code_is_unaffected(programs):
    # g++ 13's default, forced on older ones
    done = programs[SANITIZED, SANITIZED].run("right", ASAN_OPTIONS="detect_stack_use_after_return=1")
    assert done.code == 0, done.stderr
    assert "signed integer overflow" in done.stderr
