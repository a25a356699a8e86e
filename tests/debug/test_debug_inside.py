"""What runs in gdb's own Python: backtraces, and why an expression has no value."""

from pathlib import Path

import pytest

from fattn_probe.debug.mi import OverMI
from fattn_probe.debug.procedure import run_procedure
from fattn_probe.debug.protocol import DebuggerError
from fattn_probe.debug.session import Session

pytestmark = pytest.mark.gdb


def inside(session, location, commands=(), refused=()):
    session.python(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})")
    plan = {"location": location, "commands": list(commands), "refused": list(refused)}
    return run_procedure(session, "ask:ask", plan, 60.0, inside=True)


def test_a_backtrace_omits_the_frames_between_a_launch_and_its_kernel(gdb, launch):
    with Session(gdb, launch) as session:
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
    with Session(without_calls, probe) as session:
        unknown, known, call = inside(session, "work", refused=expressions)
    assert 'No symbol "nosuch" in current context' in unknown
    assert known == ""
    assert "Cannot call functions in the program: may-call-functions is off." in call
    with Session(without_calls, probe) as session:
        debugger = OverMI(session)
        debugger.insert("work")
        debugger.resume("run")
        assert [debugger.refusal(expression) for expression in expressions] == [unknown, known, call]


def test_a_command_that_gdb_refuses_is_no_traceback(gdb, probe):
    with Session(gdb, probe) as session, pytest.raises(DebuggerError, match=r'Undefined command: "nosuchcommand"'):
        inside(session, "work", ["nosuchcommand"])
