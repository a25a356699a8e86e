"""A case that ends the runner which cases share, and passes alone, is a finding."""

import shlex

import pytest

from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario.cases import resolve as resolved
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.daily.regress.results import result_of
from fattn_probe.llama.build import CPU_RUNNER
from fattn_probe.llama.build.key import Build
from fattn_probe.machine.run.outcome import Failed, Finding, Lost, Missing, Unsupported
from fattn_probe.machine.run.runner import RunnerEndedError, beside_others
from fattn_probe.machine.run.session import RunOptions, Session
from tests.made import executable

CPU = Target("cpu")
OP = {"version": 1, "about": "x", "hsk": 64, "n_head": 1, "n_q": 1, "n_kv": 64}
CASES = [resolved(Scenario.model_validate(OP | {"seed": seed}), f"case-{seed}", "f") for seed in (1, 2, 3)]
SCRIPT = """#!/bin/sh
[ "$1" = --batch ] || exec {real} "$@"
shift
number=0
echo 'fattn-runner: ready'
while IFS="$(printf '\\t')" read -r case out; do
  number=$((number + 1))
  [ $number != {dies} ] || {death}
  {real} "$case" "$out" "$@" > /dev/null
  echo 'fattn-runner: done'
done
"""


@pytest.fixture(scope="module")
def build(session):
    return session.build_for(CPU)


@pytest.fixture
def results(build, tmp_path):
    """The results of three cases on a runner that dies in the `dies`-th case of each process that cases share."""

    def run(death, dies=2, timeout=600.0):
        real = shlex.quote(str(build.program(CPU_RUNNER)))
        executable(tmp_path / "bin" / CPU_RUNNER, SCRIPT.format(real=real, dies=dies, death=death))
        session = Session(RunOptions(None, build=Build(tmp_path, build.manifest), timeout=timeout))
        with session.persistent_runner():
            return [result_of(session, case, CPU) for case in CASES]

    return run


@pytest.mark.parametrize(
    ("death", "status", "said"),
    [
        ("kill -SEGV $$", "fail", "the runner was killed by SIGSEGV"),
        ("sleep 600", "fail", "no answer after 5 s"),
        (
            "{ echo 'fattn.cu:7: GGML_ASSERT(false) failed' >&2; kill -ABRT $$; }",
            "fail",
            "fattn.cu:7: GGML_ASSERT(false) failed",
        ),
        # the system kills processes for want of memory, which is no fault of a kernel
        ("kill -KILL $$", "lost", "the runner was killed by SIGKILL"),
    ],
)
def test_an_end_that_does_not_show_alone_is_a_failure_and_names_the_case_before(results, death, status, said):
    found = results(death, timeout=5.0 if death.startswith("sleep") else 600.0)
    assert [result.status for result in found] == ["pass", status, "pass"]
    assert found[1].reason == f"passes alone, fails after case-1: {said}"


def test_a_case_that_fails_in_the_first_of_two_runs_has_no_case_before_it(results):
    found = results("kill -SEGV $$", dies=1)
    assert {result.status for result in found} == {"fail"}
    assert found[0].reason.startswith("fails in one run, passes in the next: the runner was killed by SIGSEGV")


@pytest.mark.parametrize("alone", [Finding("race", "here"), Failed("there", ()), Lost("x"), Missing("f")])
def test_a_case_that_fails_alone_is_what_it_is_alone(alone):
    assert beside_others(alone, RunnerEndedError("it ended", Failed("x", ())), "gqa") is alone


def test_a_fault_keeps_its_place_and_a_runner_that_did_not_start_says_nothing():
    fault = Finding("race", "two writes", file="fattn.cu", line=7)
    found = beside_others(Unsupported("no"), RunnerEndedError("it ended", fault), "gqa")
    assert isinstance(found, Finding)
    assert (found.message, found.line) == ("passes alone, fails after gqa: two writes", 7)
    assert beside_others(Unsupported("no"), RunnerEndedError("it ended"), "") == Unsupported("no")
