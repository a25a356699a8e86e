"""Faults behind switches: their numbers are checked, and only a build that asks for them has the switches."""

import pytest

pytestmark = pytest.mark.build


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
