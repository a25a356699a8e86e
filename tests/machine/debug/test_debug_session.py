import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext

import pytest

from fattn_probe.base.errors import BuildError, LostError, MachineError
from fattn_probe.machine.debug.procedure import OverMI
from fattn_probe.machine.debug.protocol import DebuggerError
from fattn_probe.machine.debug.session import DebugSession, require_debug_info
from tests.base.test_signals import marked, nothing_left


@pytest.fixture
def program(probe, tmp_path):
    """The program under a name of the test's own, to see whether it is still alive."""
    program = tmp_path / "probe"
    os.link(probe, program)
    return str(program)


def test_a_missing_debugger_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"gdb is not installed\. To install it: .*apt install gdb") as caught:
        DebugSession(["gdb"], tmp_path / "program").__enter__()
    assert caught.value.exit_code == 3  # as for any tool that is missing


def test_a_debugger_that_cannot_start_says_why(tmp_path):
    broken = ["sh", "-c", "echo 'gdb: error while loading shared libraries: libpython3.12.so'; exit 127"]
    with pytest.raises(LostError, match=r"(?s)sh ended during startup: exit status 127.*libpython3\.12\.so"):
        DebugSession(broken, tmp_path / "program").__enter__()


def test_a_silent_debugger_times_out(tmp_path):
    marker = str(tmp_path / "silent")
    start = time.monotonic()
    silent = ["sh", "-c", "trap '' INT; sleep 60 & wait; sleep 60", marker]
    with pytest.raises(LostError, match=r"startup timed out after 0\.2 s"):
        DebugSession(silent, tmp_path / "program", deadline=0.2, grace=0.5).__enter__()
    assert time.monotonic() - start < 20
    assert nothing_left(marker)


@pytest.mark.gdb
def test_a_file_that_is_not_a_program(gdb, tmp_path):
    (tmp_path / "program").write_text("no program")
    with pytest.raises(LostError, match=r"gdb cannot load .*program: .*not in executable format"):
        DebugSession(gdb, tmp_path / "program").__enter__()


@pytest.mark.gdb
def test_arguments_reach_the_program_as_they_are(gdb, probe):
    words = ["a b", "it's", '"q"', "$HOME", "*", ">x", "\\", "new\nline", "é", "`id`", ""]
    with DebugSession(gdb, probe, words) as session:
        assert OverMI(session).resume("run").reason == "exited"
        assert session.stdout == "".join(f"[{word}]" for word in words)
    assert session.stdout.startswith("[a b]")


@pytest.mark.gdb
def test_the_environment_reaches_the_program_and_not_the_debuggers_python(gdb, probe, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    monkeypatch.setenv("SHELL", "/bin/false")
    with DebugSession(gdb, probe, env={"FATTN_TEST": "x y"}, cwd=tmp_path) as session:
        assert session.has_python()
        assert "FATTN_TEST=x y\n" in session.execute("show environment")
        assert str(tmp_path) in session.execute("pwd")
        assert OverMI(session).resume("run").detail == "0"


@pytest.mark.gdb
def test_the_users_gdbinit_does_not_interfere(gdb, probe, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gdbinit").write_text("echo from the user\\n\nset width 20\nset pagination on\n")
    with DebugSession(gdb, probe, cwd=tmp_path) as session:
        assert "unlimited" in session.execute("show width")


@pytest.mark.gdb
def test_python_inside(gdb, probe):
    with DebugSession(gdb, probe) as session:
        assert session.python("x = 1\nfor i in range(2):\n    print('é', i + x)") == "é 1\né 2\n"
        assert session.python(f"print(len({'y' * 20000!r}))") == "20000\n"
        with pytest.raises(DebuggerError, match=r"(?s)Error while executing Python code.*ZeroDivisionError"):
            session.python("1 / 0")
        assert session.python("print(x)") == "1\n"


@pytest.mark.gdb
def test_a_command_that_resumes_the_program_returns_at_its_next_stop(gdb, probe):
    with DebugSession(gdb, probe) as session:
        session.execute("break work")
        assert "Breakpoint 1.1, work<8, 3> (n=4)" in session.execute("run")
        said = session.python(
            "gdb.execute('next', to_string=True)\nprint(gdb.newest_frame().name())\n"
            "gdb.execute('continue', to_string=True)\nprint(gdb.newest_frame().name())"
        )
        assert [line for line in said.splitlines() if line.startswith("work")][:2] == ["work<8, 3>", "work<16, 3>"]
        assert session.execute("print 6 * 7") == "$1 = 42\n"


@pytest.mark.gdb
def test_a_hung_program_is_lost_and_says_where_it_was(gdb, program):
    start = time.monotonic()
    with pytest.raises(LostError) as caught, DebugSession(gdb, program, ["hang"]) as session:
        OverMI(session, patience=0.5).resume("run")
    assert time.monotonic() - start < 60
    assert caught.value.exit_code == 4
    message = str(caught.value)
    assert message.startswith("`run` timed out after 0.5 s; the program was in main at ")
    assert "the program's last output:\n[hang]\n" in message
    assert "SIGINT" not in message
    assert nothing_left(program)
    with pytest.raises(LostError, match="`run` timed out"):
        session.execute("print 1")


@pytest.mark.gdb
@pytest.mark.parametrize("during", ["run", "command"])
def test_a_killed_debugger_is_lost_and_takes_the_program_with_it(gdb, program, during):
    with pytest.raises(LostError) as caught, DebugSession(gdb, program, ["hang"]) as session:
        pid = int(session.python("import os; print(os.getpid())"))
        if during == "run":
            threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
            OverMI(session).resume("run")
        session.execute("break work")
        session.execute("run")
        os.kill(pid, signal.SIGKILL)
        session.execute("print 1")
    assert re.match(r"gdb ended during `(run|print 1)`: killed by SIGKILL", str(caught.value))
    assert nothing_left(program)


@pytest.mark.gdb
def test_a_debugger_that_ignores_interrupts_is_killed(gdb, program):
    stubborn = "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: pass"
    lost = pytest.raises(LostError, match=r"a procedure in the debugger's Python timed out after 0\.3 s\n")
    with lost, DebugSession(gdb, program, grace=0.5) as session:
        session.execute("break work")
        session.execute("run")
        session.python(stubborn, deadline=0.3)
    assert nothing_left(program)


FORBIDDING = '#include <cerrno>\nextern "C" long ptrace(int, ...) { errno = EPERM; return -1; }\n'


@pytest.mark.gdb
@pytest.mark.parametrize("inside", [False, True])
def test_a_machine_that_forbids_to_trace_says_what_would_permit_it(gdb, probe, tmp_path, inside):
    (tmp_path / "forbid.cpp").write_text(FORBIDDING)
    library = tmp_path / "forbid.so"
    subprocess.run(["g++", "-shared", "-fPIC", tmp_path / "forbid.cpp", "-o", library], check=True)
    with (
        pytest.raises(LostError, match=r"cannot trace a program here: .*SYS_PTRACE"),
        DebugSession(["env", f"LD_PRELOAD={library}", *gdb], probe) as session,
    ):
        if inside:
            session.python("try:\n    gdb.execute('run')\nexcept gdb.error:\n    pass")
        OverMI(session).resume("run")


@pytest.mark.gdb
def test_an_error_of_the_caller_ends_the_program_too(gdb, program):
    with pytest.raises(KeyError), DebugSession(gdb, program) as session:
        session.execute("break work")
        session.execute("run")
        assert len(list(marked(program))) == 1
        raise KeyError
    assert nothing_left(program)
    with pytest.raises(LostError, match="the session with gdb has ended"):
        session.execute("print 1")


@pytest.mark.gdb
def test_a_program_that_aborts_is_no_lost_debugger(gdb, probe):
    with DebugSession(gdb, probe, ["abort"]) as session:
        debugger = OverMI(session)
        stop = debugger.resume("run")
        assert (stop.reason, stop.detail) == ("signal", "SIGABRT")
        assert "main" in [frame.function for frame in debugger.frames(20)]
        assert session.stderr == "GGML_ASSERT(s == 12) failed\n"
        stop = debugger.resume("continue")
        assert (stop.reason, stop.detail) == ("exited", "SIGABRT")
    assert session.stderr == "GGML_ASSERT(s == 12) failed\n"


@pytest.mark.gdb
def test_a_debugger_without_python_is_driven_over_mi(gdb, probe, tmp_path):
    (tmp_path / "no-python.gdb").write_text("set confirm off\ndefine python\nthis-gdb-has-no-python\nend\n")
    with DebugSession([*gdb, "-ix", str(tmp_path / "no-python.gdb")], probe) as session:
        assert not session.has_python()
        debugger = OverMI(session)
        debugger.insert("work")
        assert debugger.resume("run").function == "work<8, 3>"
        assert debugger.evaluate(["n"]) == ["4"]


@pytest.mark.gdb
def test_the_transcript_has_both_directions(gdb, probe, tmp_path):
    transcript = tmp_path / "dialogue"
    with DebugSession(gdb, probe, transcript=transcript) as session:
        session.execute("print 6 * 7")
        assert '< ~"$1 = 42\\n"' in transcript.read_text().splitlines()
    lines = transcript.read_text().splitlines()
    asked = next(at for at, line in enumerate(lines) if 'console "print 6 * 7"' in line)
    assert lines[asked].startswith("> ")
    assert lines[asked + 1] == '< ~"$1 = 42\\n"'
    assert all(line[:2] in ("> ", "< ") for line in lines)


def test_a_transcript_that_cannot_be_written(tmp_path):
    with pytest.raises(MachineError, match=r"nowhere/dialogue: cannot be written: No such file"):
        DebugSession(["gdb"], tmp_path / "program", transcript=tmp_path / "nowhere" / "dialogue").__enter__()


@pytest.mark.gdb
def test_a_temporary_folder_with_a_space(gdb, probe, monkeypatch, tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with DebugSession(gdb, probe, ["x"]) as session:
        debugger = OverMI(session)
        debugger.insert("work")
        debugger.resume("run")
        assert session.stdout == "[x]"
        assert len(debugger.memory(int(debugger.evaluate(["(long)&bytes"])[0]), 100000)) == 100000
    (root,) = folder.iterdir()  # the user's root of scratch folders stays
    assert list(root.iterdir()) == []


@pytest.mark.gdb
def test_a_debugger_with_a_fault_of_its_own_is_lost(gdb, probe, tmp_path):
    lost = pytest.raises(LostError, match="gdb ended during `maintenance internal-error oh no`")
    with lost, DebugSession(gdb, probe, cwd=tmp_path) as session:
        session.execute("maintenance internal-error oh no", deadline=5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gdb
def test_a_user_who_gives_up_leaves_no_program_running(gdb, program):
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), DebugSession(gdb, program, ["hang"]) as session:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        OverMI(session).resume("run")
    assert time.monotonic() - start < 60
    assert nothing_left(program)


@pytest.mark.gdb
@pytest.mark.night  # beside other work a second buys less
def test_thousands_of_commands_a_second(gdb, probe, record_property):
    with DebugSession(gdb, probe) as session:
        count = 5000
        start = time.perf_counter()
        replies = session.commands(["-gdb-show confirm"] * count)
        rate = count / (time.perf_counter() - start)
    assert {reply.results["value"] for reply in replies} == {"off"}
    record_property("commands_per_second", round(rate))
    print(f"{rate:,.0f} commands a second")
    assert rate > 1000


def test_a_reply_that_never_ends_in_a_prompt(tmp_path):
    half = tmp_path / "half.py"
    half.write_text(
        "import sys\nprint('(gdb) ', flush=True)\n"
        "for line in sys.stdin:\n    print(line.split('-')[0] + '^done', flush=True)\n"
    )
    with pytest.raises(LostError, match=r"`set confirm off` timed out after 0\.3 s"):
        DebugSession([sys.executable, str(half)], tmp_path / "x", deadline=0.3, grace=0.5).__enter__()


def test_a_program_with_debug_information(probe):
    require_debug_info(probe)


@pytest.mark.parametrize("options", [[], ["-g"]])
def test_a_stripped_program_is_recognised(probe, tmp_path, options):
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", *options, "-o", stripped, probe], check=True)
    with pytest.raises(BuildError, match=r"stripped has no debug information.*fattn-probe build --debug") as caught:
        require_debug_info(stripped)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("flags", "found"), [(["-g0"], False), (["-g"], True), (["-g", "-gz"], True)])
def test_a_library(probe, tmp_path, flags, found):
    library = tmp_path / "liblast.so"
    (tmp_path / "last.cpp").write_text("int last() { return 1; }\n")
    subprocess.run(["g++", *flags, "-shared", "-fPIC", tmp_path / "last.cpp", "-o", library], check=True)
    with nullcontext() if found else pytest.raises(BuildError, match=r"liblast\.so has no debug information"):
        require_debug_info(library)


@pytest.mark.parametrize(
    "text", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + 60 * b"\0", b"\x7fELF\x02\x01" + 60 * b"\0"]
)
def test_files_that_are_not_programs(tmp_path, text):
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(BuildError, match="file has no debug information"):
        require_debug_info(tmp_path / "file")
