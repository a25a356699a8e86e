"""The batch runner, simulated by shell scripts: its answers and its endings."""

import os
import signal
import time
from pathlib import Path

import pytest

from fattn_probe.launch.record import parse_launches
from fattn_probe.run.batch import RunnerEndedError, batch_runner, in_order
from fattn_probe.run.outcome import Missing

READY = "echo 'fattn-runner: ready'\n"


@pytest.fixture
def fake(tmp_path):
    """A runner made of a shell script; `$line` is the case."""

    def start(script, timeout=10.0):
        path = tmp_path / "runner"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return batch_runner(path, ("--backend", "CPU"), env={"WHO": "me"}, timeout=timeout)

    return start


def test_a_runner_that_does_not_get_ready(fake):
    with pytest.raises(RunnerEndedError, match="the runner ended"), fake("exit 1"):
        pass


def test_a_runner_that_is_silent_is_killed(fake, tmp_path):
    with fake(READY + "read line; sleep 600") as runner:
        start = time.monotonic()
        with pytest.raises(RunnerEndedError, match="no answer after 0 s"):
            runner.run(tmp_path / "case", tmp_path / "out", timeout=0.3)
        assert time.monotonic() - start < 5
        assert not runner.alive


@pytest.mark.parametrize("death", ["kill -9 $$", "kill -SEGV $$", "exit 1", "echo something else; sleep 60"])
def test_a_case_that_ends_the_runner_gets_no_verdict(fake, tmp_path, death):
    with fake(READY + f"read line; {death}") as runner:
        with pytest.raises(RunnerEndedError):
            runner.run(tmp_path / "case", tmp_path / "out", timeout=10)
        assert not runner.alive


def test_a_runner_that_was_killed_between_cases(fake, tmp_path):
    with fake(READY + "exec sleep 60") as runner:
        os.kill(runner.process.pid, signal.SIGKILL)
        runner.process.wait()
        with pytest.raises(RunnerEndedError):
            runner.run(tmp_path / "case", tmp_path / "out", timeout=10)


def test_a_function_that_the_build_left_out_is_named(fake, tmp_path):
    with fake(READY + "read line; echo 'fattn-probe: missing symbol: _Z3foov' >&2; exit 87") as runner:
        assert runner.run(tmp_path / "case", tmp_path / "out", timeout=10) == Missing("_Z3foov")


def test_the_runner_and_what_it_started_end_with_the_block(fake, tmp_path):
    with fake(f"{READY}sleep 600 & echo $! > {tmp_path}/child; wait") as runner:
        while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
            time.sleep(0.01)
    assert not runner.alive
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


def test_launches_are_numbered_from_the_case():
    line = '{"order":%d,"kernel":"f<1>","grid":[8,1,1],"block":[32,4,1],"shared":0}'
    found = in_order(parse_launches("\n".join(line % order for order in (17, 18))))
    assert [launch.order for launch in found] == [0, 1]
