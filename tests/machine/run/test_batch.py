"""The batch runner, simulated by shell scripts: its answers and its endings."""

import os
import signal
import time
from pathlib import Path

import pytest

from fattn_probe.machine.run.outcome import Failed, Missing, Ran
from fattn_probe.machine.run.runner import Command, RunFiles, RunnerEndedError
from tests.machine.run.test_execute import write_result
from tests.made import executable

READY = "echo 'fattn-runner: ready'\n"


@pytest.fixture
def fake(tmp_path):
    """A runner made of a shell script; `$line` is the case."""

    def start(script, timeout=60.0):
        path = executable(tmp_path / "runner", f"#!/bin/sh\n{script}\n")
        return Command(path, ("--backend", "CPU"), {"WHO": "me"}, timeout).started()

    return start


def test_an_abort_is_said_and_not_what_gdb_prints(fake, tmp_path):
    """ggml starts gdb when it aborts, whose first line was taken for an answer."""
    abort = (
        """[ "$GGML_NO_BACKTRACE" ] || echo '[New LWP 7]'; echo 'a.cu:1: GGML_ASSERT(x) failed' >&2; kill -ABRT $$"""
    )
    with fake(READY + f"read line; {abort}") as runner, pytest.raises(RunnerEndedError) as ended:
        runner.run(RunFiles(tmp_path / "in", tmp_path / "out"))
    assert ended.value.ending == Failed("a.cu:1: GGML_ASSERT(x) failed", ())


def test_a_runner_that_does_not_get_ready(fake):
    with pytest.raises(RunnerEndedError, match="the runner ended"), fake("exit 1"):
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
def test_a_runner_that_is_silent_hangs_or_dies_gives_no_verdict_and_is_gone(fake, tmp_path, answer, timeout, said):
    with fake(READY + f"read line; {answer}", timeout) as runner:
        start = time.monotonic()
        with pytest.raises(RunnerEndedError, match=said):
            runner.run(RunFiles(tmp_path / "case", tmp_path / "out"))
        assert time.monotonic() - start < 30
        assert not runner.running.alive


def test_two_answers_at_once_are_two_answers(fake):
    with fake(READY + "read line; printf 'one\\ntwo\\n'; sleep 600") as runner:
        assert [runner.ask("case", 60), runner.ask("", 60)] == ["one", "two"]


def test_a_runner_that_was_killed_between_cases(fake, tmp_path):
    with fake(READY + "exec sleep 60") as runner:
        os.kill(runner.running.process.pid, signal.SIGKILL)
        runner.running.process.wait()
        with pytest.raises(RunnerEndedError):
            runner.run(RunFiles(tmp_path / "case", tmp_path / "out"))


def test_a_function_that_the_build_left_out_is_named(fake, tmp_path):
    with fake(READY + "read line; echo 'fattn-probe: missing symbol: _Z3foov' >&2; exit 87") as runner:
        assert runner.run(RunFiles(tmp_path / "case", tmp_path / "out")) == Missing("_Z3foov")


def test_the_runner_and_what_it_started_end_with_the_block(fake, tmp_path):
    with fake(f"{READY}sleep 600 & echo $! > {tmp_path}/child; wait") as runner:
        while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
            time.sleep(0.01)
    assert not runner.running.alive
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not is_running(child):
            return
        time.sleep(0.05)
    raise AssertionError("its child goes on")


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_launches_are_numbered_from_the_case(fake, tmp_path):
    """As in a process of its own."""
    write_result(tmp_path / "result.gguf")
    line = '{"order":%d,"kernel":"f<1>","grid":[8,1,1],"block":[32,4,1],"shared":0}'
    records = " ".join(f"'{line % order}'" for order in (17, 18))
    script = f"read line; cp {tmp_path}/result.gguf {tmp_path}/out; printf '%s\\n' {records} > $FATTN_PROBE_LAUNCHES"
    with fake(READY + script + "; echo 'fattn-runner: done'; sleep 60") as runner:
        found = runner.run(RunFiles(tmp_path / "case", tmp_path / "out"))
    assert isinstance(found, Ran)
    assert [launch.order for launch in found.launches] == [0, 1]
