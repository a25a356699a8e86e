"""What is printed after a program's own output."""

from pathlib import Path

import pytest

from fattn_probe.lab.program import execute
from fattn_probe.lab.program.build import Executable
from fattn_probe.lab.program.execute import ProgramRun, launches_of
from fattn_probe.machine.run.outcome import Finding
from tests import made
from tests.made import H200

RECORDS = (
    '{"order":0,"kernel":"void sum(const float*, float*)","grid":[4,1,1],"block":[256,1,1],"shared":0,"regs":32,'
    '"static_shared":0,"max_blocks_per_sm":8}\n'
    '{"order":0,"kernel":"void sum(const float*, float*)","grid":[4,1,1],"block":[256,1,1],"shared":0,"regs":32,'
    '"static_shared":65536,"max_blocks_per_sm":3}\n'
    '{"note":"host time"}\n'
    '{"order":1,"kernel":"void sum(const float*, float*)","grid":[4,1,1],"block":[256,1,1],"shared":0,"regs":32,'
    '"static_shared":65536,"max_blocks_per_sm":3}\n'
    '{"order":2,"kernel":"void scale(T*) [with T = float; int N = 4]","grid":[1,1,1],"block":[32,1,1],"shared":64,'
    '"regs":32,"static_shared":0,"max_blocks_per_sm":32}\n'
)


def shown(run, target=H200, *, checked=False):
    return made.shown(execute.render(run, target, checked=checked), width=100)


def test_the_later_record_of_a_launch_counts():
    launches = launches_of(RECORDS)
    assert [launch.order for launch in launches] == [0, 1, 2]
    assert launches[0].static_shared == 65536


def test_equal_launches_share_a_row():
    text = shown(ProgramRun("sim:h200", 0, 0.1, launches_of(RECORDS)))
    assert "sim:h200: 3 launches" in text
    (row,) = [line for line in text.splitlines() if line.startswith("sum")]
    assert row.split() == ["sum", "2", "4x1x1", "256x1x1", "65536", "B", "3", "(38", "%)"]
    assert "scale<4>" in text or "scale<float,4>" in text
    assert "exit status 0 after 0.1 s" in text


@pytest.mark.parametrize("host_time", [False, True])
def test_measured_time_is_said_to_be_the_hosts(host_time):
    text = shown(ProgramRun("sim:h200", 0, 0.1, launches_of(RECORDS), host_time=host_time))
    assert (execute.HOST_TIME[:40] in text) == host_time


def test_grids_of_one_kernel_share_a_row():
    sizes = ("[1,1,1]", "[20,1,1]", "[3,2,1]")
    lines = [
        RECORDS.splitlines()[0].replace("[4,1,1]", size).replace(":0,", f":{n},", 1) for n, size in enumerate(sizes)
    ]
    text = shown(ProgramRun("sim:h200", 0, 0.1, launches_of("\n".join(lines))))
    assert "1x1x1 to 20x1x1" in text


def test_the_frames_of_the_launch_are_left_out_with_or_without_a_kernel():
    fault = Finding("host-memory", "an argument", frames=("main at /a/b.cu:3", "start at libc.c:1"))
    assert execute.within_kernel(fault).frames == ("main at /a/b.cu:3",)
    frames = (
        "load<4>(float*) at /a/b.cu:3",
        "void sum<4>(float*) at /a/b.cu:7",
        "main::{lambda(auto)#1} at /a/b.cu:20",
    )
    fault = Finding("race", "", "void sum(float*) [with int N = 4]", frames=frames)
    assert execute.within_kernel(fault).frames == frames[:2]


def test_a_finding_ends_the_report():
    frames = ("sum(float*) at /a/b.cu:7",)
    fault = Finding("race", "byte 4 is written", "void sum(float*)", block=(1, 0, 0), thread=(5, 0, 0), frames=frames)
    text = shown(ProgramRun("sim:h200", 86, 0.1, (), fault), checked=True)
    assert "race: byte 4 is written" in text
    assert "sum at /a/b.cu:7" in text
    assert "stopped by the simulator after" in text
    assert "found nothing" not in text


def test_the_checker_says_that_it_found_nothing():
    assert "the checker found nothing" in shown(ProgramRun("sim:h200", 0, 0.1, ()), checked=True)


def test_static_memory_that_is_not_known_is_not_shown_as_none():
    text = shown(
        ProgramRun("sim:h200", 86, 0.1, launches_of(RECORDS.splitlines()[0].replace('"static_shared":0,', "")))
    )
    (row,) = [line for line in text.splitlines() if line.startswith("sum")]
    assert row.split()[4] == "-"


REFUSED = (
    '{"refused":{"kind":"launch-refused","message":"a block of 2048 threads","kernel":"void sum(float*)",'
    '"frames":["main at /a/b.cu:3","start at libc.c:1"]}}\n'
)


def test_refused_launches_are_shown_once_for_each_place():
    (refused,) = execute.refusals_of(RECORDS + 2 * REFUSED)
    assert (refused.frames, refused.line) == (("main at /a/b.cu:3",), 3)
    text = shown(ProgramRun("sim:h200", 0, 0.1, (), refused=(refused,)), checked=True)
    assert "sim:h200: 0 launches, launches refused at 1 place" in text
    assert "launch-refused: a block of 2048 threads\n  in sum\n  main at /a/b.cu:3\n" in text
    assert "found nothing" not in text
    some = ProgramRun("sim:h200", 0, 0.1, launches_of(RECORDS), refused=(refused,))
    assert "the checker found nothing in the launches that ran" in shown(some, checked=True)


def test_a_program_that_timed_out_is_named_with_its_last_launch():
    made, settings = Executable(Path("/cache/bin/a-123"), Path("a.cu")), execute.ProgramSettings(timeout=3.0)
    error = execute.timed_out(made, settings, RECORDS, "one\ntwo\n")
    assert str(error).splitlines() == [
        "a.cu timed out after 3 s; its last launch was number 3, scale<float,4>, grid 1x1x1 of 32x1x1, 64 B",
        "one",
        "two",
    ]
    assert str(execute.timed_out(made, settings, "", "")) == "a.cu timed out after 3 s; before its first launch"


def test_a_crash_of_the_host_is_named():
    assert "killed by SIGSEGV after" in shown(ProgramRun("sim:h200", -11, 0.1, ()))


def test_json_has_the_finding_and_the_static_memory():
    fault = Finding("race", "byte 4 is written", file="/a/b.cu", line=7)
    made = execute.document(ProgramRun("sim:h200", 86, 0.1, launches_of(RECORDS), fault))
    assert made["finding"]["line"] == 7
    assert made["launches"][0]["static_shared"] == 65536
