"""What runs in gdb's own Python: backtraces, and why an expression has no value."""

import subprocess
from pathlib import Path

import pytest

from fattn_probe.machine.debug.procedure import OverMI, run_procedure
from fattn_probe.machine.debug.protocol import DebuggerError
from fattn_probe.machine.debug.session import DebugSession
from tests.machine.debug import ask

pytestmark = pytest.mark.gdb


def call(session, procedure, **plan):
    session.python(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})")
    return run_procedure(session, procedure, plan, 60.0, inside=True)


def inside(session, location, commands=(), refused=()):
    return call(session, "ask:ask", location=location, commands=list(commands), refused=list(refused))


def test_a_backtrace_omits_the_frames_between_a_launch_and_its_kernel(gdb, launch):
    with DebugSession(gdb, launch) as session:
        shown, everything = inside(session, "puts", ["bt", "bt -no-filters"])
    assert "std::apply" in everything
    _, kernel, call, main = shown.strip().splitlines()  # the first one is the C library's puts
    assert " in kernel<64, 8> (...) at " in kernel
    assert " in operator() (...) at " in call
    assert " in main () at " in main
    assert [line.rpartition(":")[2] for line in (kernel, call, main)] == ["7", "12", "13"]


def test_a_refusal_is_in_gdbs_words_inside_and_over_mi(gdb, probe):
    expressions = ["nosuch", "n", "work<8, 3>(2)"]
    without_calls = [*gdb, "-iex", "set may-call-functions off"]
    with DebugSession(without_calls, probe) as session:
        unknown, known, call = inside(session, "work", refused=expressions)
    assert 'No symbol "nosuch" in current context' in unknown
    assert known == ""
    assert "Cannot call functions in the program: may-call-functions is off." in call
    with DebugSession(without_calls, probe) as session:
        debugger = OverMI(session)
        debugger.insert("work")
        debugger.resume("run")
        assert [debugger.refusal(expression) for expression in expressions] == [unknown, known, call]


def test_a_command_that_gdb_refuses_is_no_traceback(gdb, probe):
    with DebugSession(gdb, probe) as session, pytest.raises(DebuggerError, match=r'Undefined command: "nosuchcommand"'):
        inside(session, "work", ["nosuchcommand"])


@pytest.mark.parametrize("over_mi", [False, True], ids=["inside", "over MI"])
def test_a_sweep_reads_every_hit_and_stops_elsewhere(gdb, probe, over_mi):
    plan = {"swept": "probe.cpp:16", "location": "probe.cpp:18", "expressions": ["i", "s", "nosuch"]}
    with DebugSession(gdb, probe) as session:
        found = ask.sweep(OverMI(session), plan) if over_mi else call(session, "ask:sweep", **plan)
    hits, at_the_other, line, then = found
    assert hits == [[True, [str(i), str(s), None]] for i, s in enumerate((0, 0, 1, 3))]
    assert (at_the_other, line, then) == (True, 18, "breakpoint")


def test_the_selected_frame_changes_no_value_inside(gdb, probe):
    with DebugSession(gdb, probe) as session:
        assert call(session, "ask:selected", location="work", expression="n") == ["4"]


@pytest.mark.parametrize("most", [10, 1000], ids=["10 lines", "to the end"])
def test_next_by_breakpoints_stops_where_gdbs_own_does(gdb, programs, most):
    walked = programs / "walked"
    source = Path(__file__).with_name("probe.cpp").read_text().replace("1 << 20", "2")
    (programs / "walked.cpp").write_text(source)
    subprocess.run(["g++", "-O0", "-g", "-w", programs / "walked.cpp", "-o", walked], check=True)
    plan = {"most": most, "end": source[: source.index("return !strcmp")].count("\n") + 1}
    with DebugSession(gdb, walked, ["x", "y"]) as session:
        by_steps = ask.walked(OverMI(session), plan)
    with DebugSession(gdb, walked, ["x", "y"]) as session:
        by_lines = call(session, "ask:walked", **plan)
    assert most == 10 or ["work<16, 3>", 16, "3"] in by_lines[0]
    assert list(by_steps) == by_lines
