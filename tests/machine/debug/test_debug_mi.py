import os
import sys
from itertools import chain
from pathlib import Path

import pytest

from fattn_probe.base.errors import LostError
from fattn_probe.machine.debug.channel import Reply, c_string, read_reply
from fattn_probe.machine.debug.procedure import OverMI
from fattn_probe.machine.debug.protocol import Debugger, DebuggerError, Frame, StopRecord, without_parameters
from fattn_probe.machine.debug.session import DebugSession
from tests.machine.debug.mi_steps import drive

HERE = Path(__file__).parent
TRANSCRIPTS = HERE.parents[1] / "transcripts"
BYTES = bytes(i * 7 & 255 for i in range(1 << 20))


def replay(name):
    return [sys.executable, str(HERE / "replay.py"), str(TRANSCRIPTS / name)]


def expected(python, source):
    main = Frame("main", source, 35)
    return [
        python,
        3,
        StopRecord("breakpoint", (1,), "work<8, 3>", source, 12),
        [Frame("work<8, 3>", source, 12), main],
        ["4", None, "32"],
        ["{x = 1, y = 1, z = 1}", "KIND_B"],
        {"n", "s", "t"},
        {"argc", "argv", "block", "chosen", "nowhere", "s", "what"},
        StopRecord("breakpoint", (2,), "work<8, 3>", source, 14),
        StopRecord("step", (), "main", source, 35),
        StopRecord("step", (), "main", source, 36),
        ["block = {x = 1, y = 1, z = 1}", "chosen = KIND_B"],
        StopRecord("step", (), "work<16, 3>", source, 12),
        StopRecord("exited", detail="17"),
    ]


def comparable(found):
    """Without the address of a program's argument, which differs between machines."""
    assert found[5].pop().endswith(' "exit"')
    locals_at = next(at for at, item in enumerate(found) if isinstance(item, str))
    return [*found[:locals_at], found[locals_at].splitlines()[:2], *found[locals_at + 1 :]]


@pytest.mark.parametrize(("name", "python"), [("gdb-13-mi.txt", True), ("gdb-13-minimal-mi.txt", False)])
def test_a_recorded_session(name, python):
    with DebugSession(replay(name), Path("/tmp/probe/probe"), ["exit"]) as session:
        assert comparable(drive(session)) == expected(python, "probe.cpp")


@pytest.mark.gdb
def test_the_same_session_with_this_machines_gdb(gdb, probe):
    with DebugSession(gdb, probe, ["exit"]) as session:
        assert comparable(drive(session)) == expected(session.has_python(), str(HERE / "probe.cpp"))


def test_a_session_that_differs_from_the_recording_is_noticed():
    with (
        pytest.raises(LostError, match="not in the transcript: -exec-run"),
        DebugSession(replay("gdb-13-mi.txt"), Path("/tmp/probe/probe"), ["exit"]) as session,
    ):
        OverMI(session).resume("run")


@pytest.fixture
def debugger(gdb, probe):
    with DebugSession(gdb, probe) as session:
        yield OverMI(session)


@pytest.mark.gdb
def test_breakpoints_at_one_place_are_all_named_and_an_impossible_condition_is_refused(debugger):
    with pytest.raises(DebuggerError, match='No symbol "nosuch" in current context'):
        debugger.insert("work", "nosuch == 1")
    first, never, second = debugger.insert("work"), debugger.insert("work", "n == 5"), debugger.insert("work")
    stop: StopRecord = debugger.resume("run")
    assert stop.breakpoints == (first, second)
    debugger.delete(first, never, second)
    debugger.delete()
    assert debugger.resume("continue") == StopRecord("exited", detail="0")


@pytest.mark.gdb
def test_near_every_address_has_its_number(debugger):
    debugger.delete(debugger.insert("main"))
    debugger.insert("main")
    debugger.resume("run")
    numbers = debugger.insert_near("probe.cpp:12", "n == 4")
    assert len(numbers) == 2
    hit = [debugger.resume("continue") for _ in numbers]
    assert [stop.function for stop in hit] == ["work<8, 3>", "work<16, 3>"]
    assert sorted(number for stop in hit for number in stop.breakpoints) == sorted(numbers)
    debugger.delete(*numbers)
    (single,) = debugger.insert_near("later.cpp:1")
    assert single > max(numbers)


@pytest.mark.gdb
def test_a_second_run_starts_anew(debugger):
    debugger.insert("work")
    assert debugger.resume("run").function == "work<8, 3>"
    assert debugger.resume("run").function == "work<8, 3>"
    assert debugger.resume("continue").function == "work<16, 3>"


@pytest.mark.gdb
def test_the_selected_frame_of_the_console_changes_no_value(debugger):
    debugger.insert("work")
    debugger.resume("run")
    debugger.execute("up")
    assert debugger.evaluate(["n"]) == ["4"]
    assert debugger.evaluate(["s", "chosen"], level=1)[1] == "KIND_B"
    assert debugger.execute("print n") == "$1 = 4\n"
    with pytest.raises(DebuggerError, match="No frame at level 9"):
        debugger.evaluate(["n"], level=9)


@pytest.mark.gdb
def test_values_before_the_program_runs(debugger):
    assert debugger.evaluate(["sizeof(dim3)", "nosuch", "(kind)1", '"\\"é\\n"']) == ["12", None, "KIND_B", '"\\"é\\n"']
    assert debugger.evaluate([]) == []
    for asked in (lambda: debugger.frames(3), debugger.local_names, lambda: debugger.memory(16, 4)):
        with pytest.raises(DebuggerError):
            asked()


@pytest.mark.gdb
def test_a_reference_is_what_it_refers_to(gdb, values_program):
    with DebugSession(gdb, values_program) as session:
        debugger = OverMI(session)
        debugger.insert("values.cpp:48")
        debugger.resume("run")
        assert debugger.evaluate(["reference", "block_reference"]) == ["-12", "{x = 1, y = 1, z = 1}"]


@pytest.mark.gdb
def test_memory_of_any_size_that_is_not_there_or_ends_early(debugger):
    debugger.insert("work")
    debugger.resume("run")
    address = int(debugger.evaluate(["(long)&bytes"])[0])
    for count in (1, 8192, 8193, 1 << 20):
        assert debugger.memory(address, count) == BYTES[:count]
    for count in (4, 40000):
        with pytest.raises(DebuggerError, match="memory"):
            debugger.memory(16, count)
    maps = debugger.execute("info proc mappings").splitlines()
    end = next(int(line.split()[1], 16) for line in maps if "[stack]" in line)
    with pytest.raises(DebuggerError, match=r"only 1[67] of 32 bytes at 0x[0-9a-f]+ can be read"):
        debugger.memory(end - 16, 32)


@pytest.mark.gdb
def test_a_program_that_cannot_be_started(gdb, probe, tmp_path):
    program = tmp_path / "gone"
    os.link(probe, program)
    with DebugSession(gdb, program) as session:
        program.unlink()
        with pytest.raises(DebuggerError, match=r"During startup program exited|No such file"):
            OverMI(session).resume("run")


@pytest.mark.gdb
def test_a_refused_command_is_an_error_in_gdbs_words(debugger):
    for command in ("foo", "print nosuch", "list nosuch.c:1"):
        with pytest.raises(DebuggerError) as caught:
            debugger.execute(command)
        assert str(caught.value).splitlines() == [str(caught.value)]
        assert str(caught.value).endswith((".", '"'))


def test_the_protocol_is_kept():
    wanted = {name for name in vars(Debugger) if not name.startswith("_")}
    assert wanted <= {*vars(OverMI), "walk", "sweep"}  # these two follow from the others


def built(token, *lines):
    left = chain(lines, map(pytest.fail, ["the reply is not whole"]))
    reply = read_reply(token, left)
    with pytest.raises(pytest.fail.Exception):
        next(left)  # no line was left over
    return reply


def test_a_reply_is_whole_at_the_prompt_after_its_result():
    reply = built(
        24,
        '*running,thread-id="all"',
        "(gdb) ",
        "noise of the program",
        '~"Breakpoint 1, \\"x\\"\\n"',
        '&"a warning\\n"',
        '=breakpoint-modified,bkpt={number="1",times="2"}',
        '=library-loaded,id="x"',
        '*stopped,reason="exited",exit-code="03"',
        "(gdb) ",
        '24^done,value="\\"\\303\\251\\\\000\\""',
        "(gdb)",
    )
    assert reply == Reply(
        "done",
        {"value": '"é\\000"'},
        'Breakpoint 1, "x"\n',
        "a warning\n",
        {"reason": "exited", "exit-code": "03"},
        ('=breakpoint-modified,bkpt={number="1",times="2"}',),
    )


def test_other_replies_and_an_argument_of_mi():
    assert built(None, '=thread-group-added,id="i1"', "(gdb) ").kind == "done"
    assert built(3, "3^exit").kind == "exit"
    assert built(3, "3^running", '*running,thread-id="all"', "(gdb) ").kind == "running"
    refused = built(3, '&"Traceback\\n"', '3^error,msg="it failed"', "(gdb) ")
    assert (refused.kind, refused.error) == ("error", "it failed\nTraceback")
    with pytest.raises(DebuggerError, match="it failed"):
        refused.checked()
    assert built(3, '&"it failed\\n"', '3^error,msg="it failed"', "(gdb) ").error == "it failed"
    assert c_string('print "a\\n"\n\t') == '"print \\"a\\\\n\\"\\n\\t"'


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("main", "main"),
        ("main(int, char**)", "main"),
        ("launch_fattn<64, 8, 8>(ggml_backend_cuda_context&, ggml_tensor*)", "launch_fattn<64, 8, 8>"),
        ("f<(ggml_type)1, 2>(char const*) const", "f<(ggml_type)1, 2>"),
        ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
        ("std::function<void (int)>::operator()(int) const", "std::function<void (int)>::operator()"),
        ("ns::operator< <int>(A<1> const&)", "ns::operator< <int>"),
        ("operator<<(std::ostream&, int)", "operator<<"),
        ("A::operator bool() const", "A::operator bool"),
        ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda(int)#1}::operator()"),
        ("my_operator(int)", "my_operator"),
        ("vectorAdd(const float * @generic, int)<<<(196,1,1),(256,1,1)>>>", "vectorAdd"),
        ("", ""),
    ],
)
def test_a_functions_name_without_parameters(name, short):
    assert without_parameters(name) == short
