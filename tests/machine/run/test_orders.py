"""Many cases in one process: each gives what it gives alone; one that ends it, and passes alone, is a finding."""

import re
import shlex
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.base.errors import LostError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.cases.scenario.cases import resolve as resolved
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.cases.shipped import find
from fattn_probe.daily.regress.results import result_of
from fattn_probe.llama.build import CPU_RUNNER
from fattn_probe.llama.build.key import Build
from fattn_probe.llama.source.patches import find as find_patch
from fattn_probe.machine.run.orders import ENDED, Line, OrderDifference, alone, differences, ended, fewest
from fattn_probe.machine.run.outcome import Failed, Finding, Lost, Missing, Unsupported
from fattn_probe.machine.run.runner import Command, RunnerEndedError, SharedRunner, beside_others
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.judge.checks import Checks
from tests.made import H200, executable

PATCHES = Path(__file__).parents[2] / "data/classes"
LETTERS = "abcdefghij"
LARGE = "masked-tiles-n_q=2-mask=blocks"
"""Its kernel needs more shared memory than 48 KiB."""


@given(st.sets(st.sampled_from(LETTERS), max_size=4))
def test_the_fewest_ops_that_show_a_difference_are_those_that_make_it(needed):
    assert list(fewest(LETTERS, lambda some: needed <= set(some))) == sorted(needed)


def test_the_fewest_ops_keep_their_order():
    assert list(fewest("dcba", lambda some: "ca" in "".join(some).replace("b", ""))) == ["c", "a"]


@dataclass(frozen=True)
class Stateful(Line):
    """A line whose cases write their output from what ran before: `state` has the rule."""

    rule: Callable[[str, list[str]], str] = lambda name, before: name
    started: list = field(default_factory=list)

    def outputs(self, names):
        self.started.append(tuple(names))
        before: list = []
        for name in names:
            said = self.rule(name, before)
            yield said
            if said == ENDED:
                return
            before.append(name)


def line(rule):
    return Stateful(None, None, {}, None, rule=rule)


def test_an_order_names_each_case_that_differs_or_ends_with_the_ops_before_it():
    after_b = line(lambda name, before: "other" if name == "d" and "b" in before else name)
    (found,) = after_b.differences("abcde", {name: name for name in LETTERS})
    assert (found.case, found.after, found.output) == ("d", ("a", "b", "c"), "other")
    assert after_b.shrunk(found, "d") == OrderDifference("d", ("b",), "other", shrunk=True)
    assert str(after_b.shrunk(found, "d")) == "different bits or launches from a separate run, after [b]"
    ends = line(lambda name, before: ENDED if name == "c" and "a" in before else name)
    (found,) = ends.differences("abcde", {name: name for name in LETTERS})
    assert (found.case, found.after, found.output) == ("c", ("a", "b"), ENDED)
    assert ends.started == [("a", "b", "c", "d", "e"), ("d", "e")]
    assert str(ends.shrunk(found, "c")) == "the process ended after [a]"
    once = OrderDifference("d", ("a", "b"), "other")
    assert line(lambda name, before: name).shrunk(once, "d") == once
    assert str(once) == "different bits or launches from a separate run, after 2 other ops"


def test_an_end_and_the_number_of_orders_in_words():
    assert ended(Failed("killed by SIGSEGV", ())) == "the process ended (killed by SIGSEGV)"
    missing = Missing("_ZN9simt_body18flash_attn_ext_f16ILi64ELi64ELb0EEEvPKc")
    assert ended(missing) == "the process ended (another kernel is launched: flash_attn_ext_f16<64,64,false>)"
    assert ended(Unsupported("no kernel")) == "the process ended (no kernel)"
    assert str(Checks(order=3)).endswith(", 3 orders of all cases in one process")
    assert "order" not in str(Checks())


def test_even_seeds_put_similar_ops_next_to_each_other(monkeypatch):
    """A kernel choice kept by Q's shape, and a mask scan kept by the mask's address, passed `quick` in random order."""
    started: list = []

    def keep(line, order, expected):
        started.append((line.reuse, order))
        return ()

    monkeypatch.setattr(Line, "differences", keep)
    cases = shipped("gqa", "decode", "sinks", "masked-tiles")
    for seed in (1, 2, 4):
        assert differences(Session(RunOptions(None)), cases, H200, seed, {case.name: "" for case in cases}) == []
    (first, scattered), (second, sorted_), (_, other) = started
    assert (first, second) == (False, True) and scattered != sorted_ != other and sorted(sorted_) == sorted(other)
    ops = {case.name: case.op for case in cases}
    shapes = [astuple(replace(ops[name].sizes, n_kv=0)) for name in sorted_]
    assert shapes == sorted(shapes) and len(set(shapes)) < len(shapes)


@pytest.mark.parametrize("ending", [None, Lost("killed by SIGKILL")])
def test_a_process_that_another_one_killed_is_no_difference(monkeypatch, tmp_path, ending):
    """It said "the process ended", once, on a machine without memory to spare."""

    def run(runner, files):
        raise RunnerEndedError("the runner ended", ending)

    monkeypatch.setattr(SharedRunner, "runner", lambda shared, command: type("Batch", (), {"run": run})())
    files: Any = {"a": type("Files", (), {"file": tmp_path / "a.gguf"})}
    session: Any = type("Session", (), {"command": lambda *words: Command(tmp_path / "runner")})()
    with pytest.raises(LostError, match="the runner ended"):
        list(Line(session, H200, files, tmp_path).outputs(["a"]))


def shipped(*names):
    return [case for name in names for case in cases_of([find("scenario", name)])]


def in_orders(session, cases, orders):
    """The first difference of each case, all of which have an output alone."""
    expected = {case.name: alone(session, case, H200) for case in cases}
    assert not any(output.startswith(ENDED) for output in expected.values())
    found: dict = {}
    for seed in range(1, orders + 1):
        for difference in differences(session, cases, H200, seed, expected):
            found.setdefault(difference.case, difference)
    return found


@pytest.mark.build
@pytest.mark.network
def test_no_order_of_the_release_makes_a_difference(session):
    assert in_orders(session, shipped("gqa", "sinks", "decode"), 3) == {}


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
def test_one_flag_for_several_kernels_is_found_and_shrunk(tree):
    patch = find_patch(str(PATCHES / "one-flag-for-all-kernels.patch"), tree)
    cases = [*shipped("gqa", "decode", "sinks"), *(case for case in shipped("masked-tiles") if case.name == LARGE)]
    found = in_orders(Session(RunOptions(tree, patches=(patch,))), cases, 3)
    said = r"\(.*fattn-common.cuh:\d+: GGML_ASSERT\(max_blocks_per_sm > 0\) failed\)"
    assert re.fullmatch(rf"the process ended {said} after \[(gqa|sinks)\]", str(found[LARGE]))


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
@pytest.mark.parametrize("kept", ["kept-mask-scan", "scan-by-address"])
def test_a_buffer_that_outlives_its_op_is_found_and_shrunk(tree, kept):
    patch = find_patch(str(PATCHES / f"{kept}.patch"), tree)
    scans = [case for case in cases_of([Path("suites/pool/scan.yaml").absolute()]) if "n_q=16-mask=" in case.name]
    found = in_orders(Session(RunOptions(tree, patches=(patch,))), [*shipped("gqa"), *scans], 2)
    shrunk = [difference for difference in found.values() if difference.shrunk]
    assert shrunk
    for difference in shrunk:
        (before,) = difference.after
        assert before.startswith("scan-n_q=16-mask=")


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
