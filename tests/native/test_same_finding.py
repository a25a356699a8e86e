"""The checker finds the same in every run, whatever the number of host threads: what one host thread finds."""

import pytest

from fattn_probe.machine.run.simulator import Simulation

pytestmark = pytest.mark.build

ONE, MANY = Simulation(threads=1), Simulation(threads=16)
FAULTS = {
    "reads_its_neighbour": "race",
    "reads_what_none_has_written": "uninitialized-global",
    "writes_one_place": "race",
    "writes_back_or_another_value": "race",
    "writes_what_all_have_read": "race",
    "has_several_faults": "race",
    "halves_of_another": "race",
    "reads_a_word": "race-between-kernels",
    "reads_the_count": "race-between-kernels",
}
RIGHT = ("last_block_reads", "fences_after_reading", "halves_of_words", "halves_in_place")


def said_in(program, kernel, simulation, runs):
    """What a kernel ends with in some runs: its code, what it prints, and its finding."""
    done = [program.run(kernel, simulation=simulation) for _ in range(runs)]
    return {(each.code, each.stdout, each.stderr) for each in done}


def same_as_one_thread(program, kernel, runs):
    (alone,) = said_in(program, kernel, ONE, 1)
    assert said_in(program, kernel, MANY, runs) == {alone}
    return alone


@pytest.mark.parametrize("kernel", FAULTS)
def test_sixteen_host_threads_find_what_one_finds(programs, kernel):
    program = programs["races", "check"]
    same_as_one_thread(program, kernel, 6)
    found = program.fault(kernel, simulation=MANY)
    assert found.kind == FAULTS[kernel], found.message
    assert found.line == program.line(kernel)


@pytest.mark.parametrize("kernel", RIGHT)
def test_sixteen_host_threads_find_nothing_where_one_does_not(programs, kernel):
    assert same_as_one_thread(programs["races", "check"], kernel, 6)[0] == 0


@pytest.mark.parametrize("seed", range(1, 5))
def test_they_find_the_same_in_each_schedule(programs, seed):
    program = programs["races", "check"]
    one, many = Simulation(threads=1, schedule=seed), Simulation(threads=16, schedule=seed)
    assert said_in(program, "has_several_faults", many, 4) == said_in(program, "has_several_faults", one, 1)


def test_the_writer_that_is_named_wrote_the_byte_of_all_the_last(programs):
    message = programs["races", "check"].fault("reads_a_word", simulation=MANY).message
    assert "byte 20 of allocation 0 is read" in message
    assert "its block (5,0,0), thread (0,0,0) writes it" in message
    message = programs["races", "check"].fault("reads_the_count", simulation=MANY).message
    assert "its block (47,0,0), thread (0,0,0) writes it" in message


@pytest.mark.night
@pytest.mark.parametrize("kernel", [*FAULTS, *RIGHT])
def test_it_is_the_same_in_50_runs_with_16_threads(programs, kernel):
    same_as_one_thread(programs["races", "check"], kernel, 50)
