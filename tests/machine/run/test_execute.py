"""Runners: their files, answers and endings, symbols of frames; the simulator's tables of special functions."""

import gzip
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFValueType

from fattn_probe.base.errors import BuildError, LostError
from fattn_probe.base.process import run
from fattn_probe.cases.op.gguf_file import TensorData, array, string, write_gguf
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.llama.build import RUNNER
from fattn_probe.llama.build.stamp import NATIVE
from fattn_probe.machine.run.capture import make_case_file
from fattn_probe.machine.run.frames import kernel_frames, named_by_source, parse_addr2line, short_frame, symbolise
from fattn_probe.machine.run.outcome import Failed, Finding, Lost, Missing, Ran, Unsupported
from fattn_probe.machine.run.runner import SIGPROF, Command, RunFiles, RunnerEndedError, forked_runner
from fattn_probe.machine.run.simulator import FRACTIONS, Simulation, ex2_bounds, pack_corrections
from tests.base.test_signals import marked, nothing_left
from tests.made import H200, executable

LAUNCH = '{"order":0,"kernel":"void f<2>(int)","grid":[1,1,1],"block":[32,1,1],"shared":0}'
ADDR2LINE = """0x0000000000001234: load_tile<64> at /src/fattn-mma-f16.cuh:240
 (inlined by) flash_attn_ext_f16 at /src/fattn-mma-f16.cuh:900
0x0000000000009999: ?? ??:0
0x0000000000001300: main at /src/main.cpp:3
"""


@pytest.fixture
def fake(tmp_path):
    """A runner made of a Python program."""
    start = f"#!{sys.executable}\nimport os, shutil, sys\n"
    return lambda body: executable(tmp_path / "fattn-runner", f"{start}{body}\n")


def write_result(path, status="ok", reason=""):
    fields = {f"fattn.run.{key}": string(value) for key, value in {"backend": "CPU", "device": "x"}.items()}
    fields |= {"fattn.run.digest": string("d"), "fattn.run.status": string(status), "fattn.run.reason": string(reason)}
    fields["fattn.run.seconds"] = array(GGUFValueType.FLOAT64, [0.5])
    dst = TensorData("f32", (64, 4, 7, 1), np.zeros(64 * 4 * 7 * 4, np.uint8))
    write_gguf(path, fields, {"dst": dst} if status == "ok" else {})


def test_a_run_that_ends_well(fake, tmp_path):
    write_result(tmp_path / "result.gguf")
    (tmp_path / "out.gguf.launches").write_text("stale\n")
    runner = fake(
        f"shutil.copy({str(tmp_path / 'result.gguf')!r}, sys.argv[2])\n"
        f"open(os.environ['FATTN_PROBE_LAUNCHES'], 'a').write({LAUNCH!r} + '\\n')\n"
        "print(os.environ['EXTRA'], *sys.argv[3:], file=sys.stderr)"
    )
    files = RunFiles(tmp_path / "c.gguf", tmp_path / "out.gguf")
    outcome = Command(runner, ["--backend", "CPU"], {"EXTRA": "hi"}).run(files)
    assert isinstance(outcome, Ran)
    assert outcome.result.dst.shape == (1, 7, 4, 64)
    assert [launch.spelling for launch in outcome.launches] == ["f<2>"]
    assert outcome.warnings == "hi --backend CPU\n"


def test_an_op_that_is_not_supported(fake, tmp_path):
    write_result(tmp_path / "result.gguf", "unsupported", "this ggml has no sinks")
    runner = fake(f"shutil.copy({str(tmp_path / 'result.gguf')!r}, sys.argv[2])")
    assert Command(runner).run(RunFiles(tmp_path / "c", tmp_path / "out")) == Unsupported("this ggml has no sinks")


def test_a_time_out_is_lost(fake, tmp_path):
    outcome = Command(fake("import time; time.sleep(60)"), timeout=0.3).run(RunFiles(tmp_path / "c", tmp_path / "out"))
    assert isinstance(outcome, Lost)
    assert "timed out after" in outcome.message


@pytest.mark.build
@pytest.mark.parametrize(
    ("word", "signal", "places"),
    [("0", "SIGSEGV", ["wounded at crash.cpp:4", "main at crash.cpp:9"]), ("1", "SIGABRT", ["main at crash.cpp:8"])],
)
def test_a_runner_killed_by_a_signal_says_where(tmp_path, word, signal, places):
    source, runner = Path(__file__).with_name("crash.cpp"), tmp_path / "runner"
    run(["g++", "-g1", "-I", NATIVE / "runner", "-o", runner, source, "-ldl"])
    outcome = Command(runner, [word]).run(RunFiles(tmp_path / "c", tmp_path / "out"))
    assert isinstance(outcome, Lost)
    assert outcome.message == f"the runner was killed by {signal}"
    assert [short_frame(frame).replace(f"{source.parent}/", "") for frame in outcome.stack] == places


def test_a_runner_that_is_not_there(tmp_path):
    with pytest.raises(BuildError):
        Command(tmp_path / "none").run(RunFiles(tmp_path / "c", tmp_path / "out"))


def test_frames_of_addr2line_and_those_without_a_module():
    assert parse_addr2line(["0x1234", "0x9999", "0x1300"], ADDR2LINE) == [
        ("0x1234", ("load_tile<64> at /src/fattn-mma-f16.cuh:240", "flash_attn_ext_f16 at /src/fattn-mma-f16.cuh:900")),
        ("0x1300", ("main at /src/main.cpp:3",)),
    ]
    assert symbolise(["/nowhere/lib.so+0x10", "0x1234"]) == ("/nowhere/lib.so+0x10", "0x1234")


def test_an_inlined_function_is_named_by_the_version_of_a_header_that_has_its_lines(tmp_path):
    """For debuggers, the version in launches/, behind a #line, has the first one's name."""
    (tmp_path / "launches").mkdir()
    helper, stripped = "int helper() {\n    return 1;\n}\n", "void scan();\nvoid combine() {\n}\n"
    (tmp_path / "common.cuh").write_text(helper + stripped)
    (tmp_path / "launches/common.cuh").write_text('#line 1 "x"\n\n\n\nvoid scan() {\n\n\n}\nvoid combine() {\n}\n')
    named = {2: "helper", 4: "scan", 6: "scan", 7: "scan", 8: "combine"}
    for line, function in named.items():
        assert named_by_source(f"outer at common.cuh:{line}", tmp_path) == f"{function} at common.cuh:{line}"


def test_a_fault_s_frames_begin_and_end_in_the_kernel():
    machinery = [
        "__memcpy_avx512_unaligned_erms at ./sysdeps/x86_64/multiarch/memmove-vec-unaligned-erms.S:350",
        "simt::report(x) at /b/native/sim/finding.cpp:70",
        "std::min at /usr/include/c++/12/algo.h:3",
        "/b/x+0x1",
    ]
    machinery.append("_cvtss_sh(float, int) at /usr/lib/gcc/x86_64-linux-gnu/12/include/f16cintrin.h:61")
    machinery.append("memcpy at /usr/include/x86_64-linux-gnu/bits/string_fortified.h:29")  # inlined, on Ubuntu
    kernel = ["load_tile at /b/mma.cuh:240", "std::apply at /usr/include/c++/12/tuple:1", "fattn at /b/fattn.cuh:9"]
    assert kernel_frames([*machinery, *kernel, "fiber_main at native/sim/worker.cpp:7"]) == tuple(kernel)
    assert kernel_frames(machinery) == tuple(machinery)


@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("addr2line")), reason="needs g++ and addr2line")
def test_a_fault_s_frames_name_function_and_line(fake, tmp_path):
    source = tmp_path / "lib.cpp"
    source.write_text('extern "C" int\nfaulty(int x) {\n    return x + 1;\n}\n')
    library = tmp_path / "lib.so"
    run(["g++", "-g", "-shared", "-fPIC", source, "-o", library])
    address = next(line.split()[0] for line in run(["nm", library]).stdout.splitlines() if line.endswith(" faulty"))
    finding = f'{{"kind":"race","message":"m","frames":["{library}+0x{int(address, 16):x}"]}}'
    runner = fake(f"print('fattn-probe: finding: ' + {finding!r}, file=sys.stderr); sys.exit(86)")
    outcome = Command(runner).run(RunFiles(tmp_path / "c", tmp_path / "out"))
    assert isinstance(outcome, Finding)
    assert outcome.frames == (f"faulty at {os.fspath(source)}:2",)
    assert (outcome.file, outcome.line) == (os.fspath(source), 2)


READY = "echo 'fattn-runner: ready'\n"


@pytest.fixture
def batch(tmp_path):
    """A runner made of a shell script; `$line` is the case."""

    def start(script, timeout=60.0):
        path = executable(tmp_path / "runner", f"#!/bin/sh\n{script}\n")
        return Command(path, ("--backend", "CPU"), {"WHO": "me"}, timeout).started()

    return start


def test_an_abort_is_said_and_not_what_gdb_prints(batch, tmp_path):
    """ggml starts gdb when it aborts, whose first line was taken for an answer."""
    abort = (
        """[ "$GGML_NO_BACKTRACE" ] || echo '[New LWP 7]'; echo 'a.cu:1: GGML_ASSERT(x) failed' >&2; kill -ABRT $$"""
    )
    with batch(READY + f"read line; {abort}") as runner, pytest.raises(RunnerEndedError) as ended:
        runner.run(RunFiles(tmp_path / "in", tmp_path / "out"))
    assert ended.value.ending == Failed("a.cu:1: GGML_ASSERT(x) failed", ())


def test_a_runner_that_does_not_get_ready(batch):
    with pytest.raises(RunnerEndedError, match="the runner ended"), batch("exit 1"):
        pass


@pytest.mark.parametrize(
    ("answer", "timeout", "said"),
    [
        ("sleep 600", 0.3, "no answer after 0 s"),
        ("printf 'fattn-runner: do'; sleep 600", 1.0, "only 'fattn-runner: do' after 1 s"),
        ("while printf .; do sleep 0.1; done", 1.0, r"only '\.+' after 1 s"),
        ("printf 'fattn-runner: do'; exit 3", 60.0, "said 'fattn-runner: do'"),
        ("kill -9 $$", 60.0, "."),
        ("kill -SEGV $$", 60.0, "."),
        ("exit 1", 60.0, "."),
        ("echo something else; sleep 60", 60.0, "."),
    ],
)
def test_a_runner_that_is_silent_hangs_or_dies_gives_no_verdict_and_is_gone(batch, tmp_path, answer, timeout, said):
    with batch(READY + f"read line; {answer}", timeout) as runner:
        start = time.monotonic()
        with pytest.raises(RunnerEndedError, match=said):
            runner.run(RunFiles(tmp_path / "case", tmp_path / "out"))
        assert time.monotonic() - start < 30
        assert not runner.running.alive


def test_two_answers_at_once_are_two_answers(batch):
    with batch(READY + "read line; printf 'one\\ntwo\\n'; sleep 600") as runner:
        assert [runner.ask("case", 60), runner.ask("", 60)] == ["one", "two"]


def test_a_runner_that_was_killed_between_cases(batch, tmp_path):
    with batch(READY + "exec sleep 60") as runner:
        os.kill(runner.running.process.pid, signal.SIGKILL)
        runner.running.process.wait()
        with pytest.raises(RunnerEndedError):
            runner.run(RunFiles(tmp_path / "case", tmp_path / "out"))


def test_a_function_that_the_build_left_out_is_named(batch, tmp_path):
    with batch(READY + "read line; echo 'fattn-probe: missing symbol: _Z3foov' >&2; exit 87") as runner:
        assert runner.run(RunFiles(tmp_path / "case", tmp_path / "out")) == Missing("_Z3foov")


def test_the_runner_and_what_it_started_end_with_the_block(batch, tmp_path):
    mark = f"MARK={tmp_path}"
    with batch(f"{READY}{mark} sleep 600 & wait") as runner:
        while not list(marked(mark)):
            time.sleep(0.01)
    assert not runner.running.alive
    assert nothing_left(mark)


def test_launches_are_numbered_from_the_case(batch, tmp_path):
    """As in a process of its own."""
    write_result(tmp_path / "result.gguf")
    line = '{"order":%d,"kernel":"f<1>","grid":[8,1,1],"block":[32,4,1],"shared":0}'
    records = " ".join(f"'{line % order}'" for order in (17, 18))
    script = f"read line; cp {tmp_path}/result.gguf {tmp_path}/out; printf '%s\\n' {records} > $FATTN_PROBE_LAUNCHES"
    with batch(READY + script + "; echo 'fattn-runner: done'; sleep 60") as runner:
        found = runner.run(RunFiles(tmp_path / "case", tmp_path / "out"))
    assert isinstance(found, Ran)
    assert [launch.order for launch in found.launches] == [0, 1]


@pytest.fixture
def forking(tmp_path):
    def start(script):
        path = executable(tmp_path / "runner", f"#!/bin/sh\necho 'fattn-runner: ready'\n{script}\n")
        return forked_runner(path, (), env={}, folder=tmp_path, timeout=60)

    return start


def test_a_child_has_the_case_the_mutant_its_limit_and_no_search_for_leaks(forking, tmp_path):
    script = f"read -r line; echo \"$line\" > {tmp_path}/said; echo 'fattn-runner: ended -11 0.25'"
    with forking(script) as runner:
        child = runner.run(tmp_path / "case", mutant=7, limit=1.5)
    assert (child.code, child.seconds, child.output) == (-11, 0.25, (b"", ""))
    assert (tmp_path / "said").read_text() == f"{tmp_path}/case\t{tmp_path}/out.gguf\t\t7\t1.500\n"
    script = f"read -r line; echo $LSAN_OPTIONS > {tmp_path}/said; echo 'fattn-runner: ended 0 0.25'"
    with forking(script) as runner:
        runner.run(tmp_path / "case")
    assert (tmp_path / "said").read_text() == "detect_leaks=0\n"


@pytest.mark.parametrize("ending", ["exit 1", "echo 'fattn-runner: done'; sleep 60"])
def test_a_runner_that_ends_or_says_something_else_is_lost(forking, tmp_path, ending):
    with forking(f"read -r line; {ending}") as runner, pytest.raises(LostError):
        runner.run(tmp_path / "case")


@pytest.mark.build
@pytest.mark.network
def test_children_end_and_the_runner_goes_on(tmp_path, session):
    scenario = "version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_kv: 256\nn_q: 8\nmatrix: {n_kv: [256, 65536]}\n"
    for name, case in zip(("case", "long"), expand(loads(scenario)), strict=True):
        session.run(case, make_case_file(case, tmp_path / f"{name}.gguf"), H200)  # compiles what it needs
    reached = replace(session, options=replace(session.options, simulation=Simulation(threads=1)))
    build, env = session.build_for(H200), reached.env(H200)
    (tmp_path / "bad").write_text("no case")
    with forked_runner(build.program(RUNNER), (), env=env, folder=tmp_path, timeout=60) as runner:
        first = runner.run(tmp_path / "case.gguf").output
        assert len(first[0]) == 4 * 2 * 8 * 64
        assert "flash_attn" in first[1]
        bad = runner.run(tmp_path / "bad")
        assert (bad.code, bad.output) == (1, (b"", ""))
        assert isinstance(bad.outcome(None, None), Failed | Lost)
        slow = runner.run(tmp_path / "long.gguf", limit=0.001)  # ends late: a timer notices after 4 to 10 ms
        assert slow.code == SIGPROF
        hung = slow.outcome(None, None)
        assert isinstance(hung, Lost)
        assert "CPU time" in hung.message
        again = runner.run(tmp_path / "case.gguf")
        assert again.output == first
        assert isinstance(again.outcome(None, None), Ran)


def test_corrections_can_be_read_back_and_outside_of_the_margins_the_bounds_give_ex2():
    corrections = np.array([-1, 0, 1, 0, 1, 1, -1, 0], np.int8)
    assert pack_corrections(corrections) == bytes([0b01_10_01_00, 0b01_00_10_10])
    corrections = np.random.default_rng(1).integers(-1, 2, 4096).astype(np.int8)
    fields = np.frombuffer(pack_corrections(corrections), np.uint8)[:, None] >> np.arange(0, 8, 2) & 3
    np.testing.assert_array_equal(fields.ravel().astype(np.int8) - 1, corrections)
    data = (files("fattn_probe") / "native/sim/data/ex2.gz").read_bytes()
    corrections = np.frombuffer(gzip.decompress(data), np.int8)
    power = np.exp2(np.arange(FRACTIONS) / FRACTIONS) * FRACTIONS
    ranges = (np.arange(FRACTIONS) + 4096) // 8192
    middle, margin = ex2_bounds(corrections).T.astype(np.float64)
    total = power + middle[ranges]
    certain = np.abs(total - np.rint(total)) > margin[ranges]
    assert 0.8 < certain.mean() < 1
    np.testing.assert_array_equal(np.floor(total[certain]), np.rint(power[certain]) + corrections[certain])
