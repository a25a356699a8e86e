"""Worker processes, with a judge that depends only on a case's name."""

import os
import signal
import time
from pathlib import Path

import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.daily.regress.pool import Job, judged
from fattn_probe.daily.regress.records import Result
from fattn_probe.machine.run.session import RunOptions

OP = {"version": 1, "about": "x", "hsk": 64, "n_head": 2, "n_kv": 64}


def case(name, n_q=1):
    return resolve(Scenario.model_validate({**OP, "n_q": n_q}), name, "file")


def judge(session, case, target):
    """What a name says is done."""
    word, _, rest = case.name.partition(":")
    if word == "raise":
        raise RuntimeError(rest)
    if word == "die" or (word == "die-once" and not Path(rest).exists()):
        Path(rest or os.devnull).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "sleep":
        time.sleep(float(rest))
    return Result(case.name, case.digest, "pass", f"{target} {os.getpid()}")


@pytest.fixture
def job():
    return Job(judge, RunOptions(tree=None), {}, parse_target("sim:h200", load_devices()))


def test_every_case_has_its_result(job):
    cases = [case(f"c{number}") for number in range(40)]
    found = list(judged(job, cases, 3))
    assert sorted(result.name for result in found) == sorted(item.name for item in cases)
    assert {result.digest for result in found} == {cases[0].digest}
    assert len({result.reason for result in found}) <= 3
    assert found[0].reason.startswith("sim:h200 ")


def test_the_longest_case_is_first(job):
    found = list(judged(job, [case("a"), case("b", n_q=9), case("c", n_q=5)], 1))
    assert [result.name for result in found] == ["b", "c", "a"]


def test_a_case_that_raises_costs_itself(job):
    (lost, fine) = sorted(judged(job, [case("raise:it is odd"), case("x")], 1), key=lambda result: result.status)
    assert (lost.status, lost.reason, fine.status) == ("lost", "RuntimeError: it is odd", "pass")
    assert "Traceback" in lost.failure


def test_a_case_that_kills_its_workers_is_lost(job):
    found = {result.name: result for result in judged(job, [case("die:"), case("x"), case("y")], 1)}
    assert found["die:"].status == "lost"
    assert found["die:"].reason == "it ended 2 workers, the last one killed by SIGKILL"
    assert found["x"].status == found["y"].status == "pass"


def test_closing_kills_the_workers(job):
    start = time.monotonic()
    results = judged(job, [case("x", n_q=9), case("sleep:600"), case("sleep:601")], 2)
    assert next(results).name == "x"
    results.close()
    assert time.monotonic() - start < 60
