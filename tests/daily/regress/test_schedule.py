"""What is compiled and judged first, with stand-ins for compilers and judge; the workers are real processes."""

import os
import signal
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fattn_probe.base.errors import BuildError, MachineError
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.daily.regress import compilers as module
from fattn_probe.daily.regress.compilers import LAST, GrowingBuild, Lane, Likely, Rate
from fattn_probe.daily.regress.pool import Growth, Job, PoolWorker, judged
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.runner import Standing
from fattn_probe.daily.regress.schedule import CAUSES, Schedule
from fattn_probe.llama.build import RUNNER
from fattn_probe.llama.build.ninja import Progress
from fattn_probe.machine.run.session import RunOptions, Session
from tests.base.worker_functions import words
from tests.made import H200, target
from tests.stand_in import StandIn

OP = {"version": 1, "about": "x", "hsk": 64, "n_head": 2, "n_kv": 64}
V100 = target("sim:v100")
SECONDS = 60


def case(name, n_q=1):
    return resolve(Scenario.model_validate({**OP, "n_q": n_q}), name, "file")


def judge(session, case, target, cause="two heads are mixed up"):
    wrong = "wrong" in case.name
    return Result(case.name, case.digest, "fail" if wrong else "pass", diagnosis=cause if wrong else "")


def brief(session, case, target):
    return judge(session, case, target, "")


class Compilers:
    """Stand-ins: `kernels` by case, those that `break`, those that take until `finish` is set; `events` in order."""

    def __init__(self, kernels, guessed):
        self.kernels, self.guessed, self.cases = kernels, guessed, list[Case]()
        self.breaks, self.slow, self.there, self.objects = set(), set(), {}, None
        self.finish, self.events = threading.Event(), []

    def add_kernels(self, session, target, kernels, sources=(), jobs=None):
        jobs.begin()
        names = [kernel.name for kernel in kernels]
        self.events.append((str(target), *sources, *names))
        if self.slow & set(names):
            assert self.finish.wait(SECONDS)
        if broken := self.breaks & set(names):
            raise BuildError(f"building {broken.pop()} failed")
        there = self.there.setdefault(str(target), set())
        there.update(names)
        contents = SimpleNamespace(kernels=tuple(there), full=False)
        made = SimpleNamespace(manifest=SimpleNamespace(contents=contents), objects=self.objects, folder=None)
        session.builds[f"{target}/{RUNNER}"] = made

    def names(self, cases):
        return [SimpleNamespace(name=name) for case in cases for name in self.kernels[case.name]]

    def by_op(self):
        return {case.op.digest: self.kernels[case.name] for case in self.cases}


@pytest.fixture
def compilers(monkeypatch):
    made = Compilers({}, guessed=True)
    document = SimpleNamespace(read=lambda: made.by_op() if made.guessed else {})
    exact = SimpleNamespace(read=made.by_op)
    found: list = []
    monkeypatch.setattr(
        module, "KernelsByOp", SimpleNamespace(similar=lambda *_: document, of=lambda *_: exact if found else document)
    )

    def known(session, target, ops, names):
        found = {name for op in ops for name in names.get(op, ())}
        return [SimpleNamespace(name=name) for name in sorted(found)]

    monkeypatch.setattr(module, "kernels_of", known)
    monkeypatch.setattr(module, "compiled_names", lambda session, target, names: names)

    def required(session, cases, target):
        found.append(target)
        made.events.append((str(target), "dry runs"))
        return made.names(cases)

    monkeypatch.setattr(module, "required_kernels", required)
    monkeypatch.setattr(module, "launching_by_size", lambda *_: ("launches.cu",))
    monkeypatch.setattr(module, "missing_files", lambda *_: ())
    monkeypatch.setattr(module, "files_of_base", lambda *_: ("base.cu",))
    monkeypatch.setattr(module, "unpacked_tables", lambda: None)
    monkeypatch.setattr(module, "base_of", lambda options: None)
    monkeypatch.setattr(module, "default_jobs", lambda: 1)
    monkeypatch.setattr(module, "cores", lambda: 2)
    monkeypatch.setattr(Session, "request_for", lambda self, target: str(target))
    monkeypatch.setattr(
        Session,
        "add_kernels",
        lambda self, *words, **more: made.add_kernels(self, *words, **more),  # noqa: PLW0108 (a method of Session)
    )
    return made


def schedule(compilers, kernels, *, on=((H200, 9),), likely=None):
    """A schedule of the first cases of `kernels` on each target."""
    cases = compilers.cases = [case(name, number) for number, name in enumerate(kernels, 1)]
    compilers.kernels, options, alone = kernels, RunOptions(tree=StandIn()), RunOptions(tree=None)
    lanes = [
        Lane(str(target), Session(options), Job(judge, alone, {}, target, brief), cases[:number])
        for target, number in on
    ]
    return Schedule(lanes, 1, likely or Likely())


def test_a_case_whose_kernel_is_there_fails_while_the_other_kernels_compile(compilers):
    compilers.slow = {"mma b"}
    made = schedule(compilers, {"fine": ("mma b",), "wrong": ("vec a",)}, likely=Likely(families=["vec"]))
    with closing(made.events()) as events:
        number, result = next(events)
        assert (number, result.name, result.status) == (0, "wrong", "fail")
        assert not compilers.finish.is_set()
        compilers.finish.set()
        assert [event.name for _, event in events] == ["fine"]
    assert compilers.events[0] == ("sim:h200", "vec a")


def test_the_cause_of_a_few_failures_of_a_kernel_family_is_found(compilers):
    names = [f"wrong {family} {number}" for number in range(5) for family in ("vec", "tile")]
    made = schedule(compilers, {name: (f"{name.split()[1]} a",) for name in names}, on=((H200, 10), (V100, 10)))
    compilers.finish.set()
    with closing(made.events()) as events:
        results = list(events)
    assert len(results) == 20 and all(result.status == "fail" for _, result in results)
    causes = Counter(result.name.split()[1] for _, result in results if result.diagnosis)
    assert causes == {"vec": CAUSES, "tile": CAUSES}
    assert sum(not result.diagnosis for _, result in results[:4]) == 0


def test_leaving_at_the_first_failure_ends_what_compiles(compilers):
    """A real build ends when it reports its progress; this stand-in reports none, and ends soon."""
    compilers.slow = {"mma b"}
    made = schedule(
        compilers, {"fine": ("mma b",), "also": ("tile c",), "wrong": ("vec a",)}, likely=Likely(families=["vec"])
    )
    with closing(made.events()) as events:
        assert next(events)[1].name == "wrong"
        threading.Timer(0.5, compilers.finish.set).start()
    assert ("sim:h200", "tile c") not in compilers.events, "nothing more is begun"


def test_without_a_guess_dry_runs_follow_the_host_code_and_then_the_most_used_kernels(compilers):
    compilers.guessed = False
    kernels = {"a": ("mma 1",), "b": ("vec 2",), "c": ("vec 2",), "d": ("tile 3", "vec 2")}
    assert sorted(event.name for _, event in schedule(compilers, kernels).events()) == ["a", "b", "c", "d"]
    assert compilers.events[:2] == [("sim:h200", "launches.cu"), ("sim:h200", "dry runs")]
    assert compilers.events[2][1] == "vec 2"


def test_the_build_that_makes_most_cases_ready_comes_first(compilers):
    made = schedule(compilers, {"a": ("mma 1",), "b": ("mma 1",)}, on=((V100, 1), (H200, 2)))
    assert len(list(made.events())) == 3
    assert compilers.events[0] == ("sim:h200", "mma 1")


def test_other_builds_are_prepared_while_the_first_one_compiles_and_compile_after_it(compilers, monkeypatch):
    add, seen = compilers.add_kernels, list[tuple[Any, str]]()

    def in_two_steps(session, target, *words, **more):
        seen.append((target, "prepared"))
        more["jobs"].begin()
        seen.append((target, "compiles"))
        if target is H200:
            while (V100, "prepared") not in seen:
                time.sleep(0.01)
            time.sleep(1)
            seen.append((H200, "nearly done"))
            session.progress(Progress(8, 9, "", 0.0))
        add(session, target, *words, **more)

    compilers.objects = "compiled"
    monkeypatch.setattr(compilers, "add_kernels", in_two_steps)
    monkeypatch.setattr(module, "default_jobs", lambda: 2)
    made = schedule(compilers, {"a": ("mma 1",), "b": ("mma 1",)}, on=((V100, 1), (H200, 2)))
    assert len(list(made.events())) == 3
    assert made.compilers.rate.seconds < 1, "waiting is no compiling"
    assert seen[0] == (H200, "prepared") and seen[3:] == [(H200, "nearly done"), (V100, "compiles")]


def test_no_case_waits_when_all_is_compiled(compilers, monkeypatch):
    """A build that lacks what a dry run named had kept a run waiting for ever: nothing was left to compile."""
    monkeypatch.setattr(compilers, "names", lambda cases: [SimpleNamespace(name="mma all")])
    found = [event.name for _, event in schedule(compilers, {"a": ("mma one",), "b": ("mma two",)}).events()]
    assert sorted(found) == ["a", "b"]


class Taken:
    """Verdicts of earlier runs of the cases `names`; stores what it is told to."""

    def __init__(self, *names):
        self.names, self.kept = names, list[str]()

    def taken(self, case, code, kernels):
        return Result(case.name, case.digest, "pass", reused=True) if case.name in self.names else None

    def keep(self, case, code, result):
        self.kept.append(result.name)


@pytest.mark.parametrize("guessed", [True, False])
def test_verdicts_of_earlier_runs_are_taken_over_once_dry_runs_confirm_the_kernels(compilers, monkeypatch, guessed):
    compilers.guessed = guessed
    made = schedule(compilers, {"a": ("mma 1",), "b": ("vec 2",), "c": ("mma 1",)})
    before = Taken("a", "b")
    made.lanes[0].__dict__["verdicts"] = before
    monkeypatch.setattr(module, "ExecutedCode", SimpleNamespace(of=lambda *words: len(compilers.events)))
    for build in made.compilers.builds:
        build.certain.clear()
    tell, told = made.compilers._tell, {}

    def telling(*found):
        told.update({one.name: ("sim:h200", "dry runs") in compilers.events for _, one in filter(None, found)})
        tell(*found)

    monkeypatch.setattr(made.compilers, "_tell", telling)
    events = [event for _, event in made.events()]
    assert {event.name: event.reused for event in events} == {"a": True, "b": True, "c": False}
    assert before.kept == ["c"]
    assert told == {"a": True, "b": True, "c": not guessed}, "`c` does not wait for the dry runs"


def test_a_kernel_that_does_not_compile_loses_its_cases_alone(compilers):
    compilers.breaks = {"vec 2"}
    kernels = {"a": ("mma 1",), "b": ("vec 2",), "c": ("vec 2", "mma 1"), "d": ("tile 3",)}
    found = {event.name: event for _, event in schedule(compilers, kernels).events()}
    assert {name: result.status for name, result in found.items()} == {
        "a": "pass",
        "b": "lost",
        "c": "lost",
        "d": "pass",
    }
    assert found["b"].reason == "building vec 2 failed"


def test_host_code_that_does_not_compile_loses_all(compilers, monkeypatch):
    def broken(self, target, kernels, **more):
        raise BuildError("building fattn.cu failed")

    monkeypatch.setattr(Session, "add_kernels", broken)
    found = [event for _, event in schedule(compilers, {"a": ("mma 1",), "b": ("vec 2",)}).events()]
    assert [(result.status, result.reason) for result in found] == [("lost", "building fattn.cu failed")] * 2


def test_an_error_of_the_machine_ends_the_run(compilers, monkeypatch):
    def full(self, target, kernels, **more):
        raise MachineError("no space left")

    monkeypatch.setattr(Session, "add_kernels", full)
    with pytest.raises(MachineError, match="no space left"):
        list(schedule(compilers, {"a": ("mma 1",)}).events())


def test_each_kernel_is_tried_with_its_smallest_case_then_the_longest_cases_follow(compilers):
    kernels = {name: ("vec 1",) for name in ("n1", "n2", "n3")} | {"n4": ("mma 2",), "n5": ("mma 2",)}
    made = schedule(compilers, kernels, likely=Likely(families=["mma"]))
    compilers.there["sim:h200"] = {"vec 1", "mma 2"}
    assert [event.name for _, event in made.events()] == ["n4", "n1", "n5", "n3", "n2"]


def test_a_long_case_is_judged_on_all_gpus_by_one_worker(compilers, monkeypatch):
    made, given = schedule(compilers, {"n1": ("vec 1",), "n2": ("vec 1",)}, on=((H200, 2), (V100, 2))), list[Any]()
    tasks = made._tasks

    def noted():
        for task in tasks():
            given.append(task)
            yield task

    monkeypatch.setattr(made, "_tasks", noted)
    found = sorted((number, event.name) for number, event in made.events())
    assert found == [(0, "n1"), (0, "n2"), (1, "n1"), (1, "n2")]
    (together,) = [task.keywords["tasks"] for task in given if task is not None and task.func is PoolWorker.each]
    assert [(one.keywords["number"], one.keywords["case"].name) for one in together] == [(0, "n2"), (1, "n2")]
    assert made.left == 0 and round(made.rate.number) == 4


def test_a_case_that_kills_workers_is_tried_on_each_gpu_alone(compilers):
    made = schedule(compilers, {"n1": ("vec 1",), "die": ("vec 1",)}, on=((H200, 2), (V100, 2)))
    made.lanes = [replace(lane, job=replace(lane.job, judge=dies_on_v100)) for lane in made.lanes]
    found = {(number, event.name): event.status for number, event in made.events()}
    assert found == {(0, "n1"): "pass", (1, "n1"): "pass", (0, "die"): "pass", (1, "die"): "lost"}


def dies_on_v100(session, case, target):
    if case.name == "die" and str(target) == str(V100):
        os.kill(os.getpid(), signal.SIGKILL)
    return Result(case.name, case.digest, "pass")


def test_the_cases_that_are_likely_to_tell_come_first_with_their_kernels(compilers):
    likely = Likely({("sim:h200", "late"): 0, ("sim:h200", "also"): 1, ("sim:v100", "early"): 0})
    kernels = {"early": ("vec 1",), "also": ("mma 2",), "late": ("tile 3",), "other": ("tile 3",)}
    made = schedule(compilers, kernels, likely=likely)
    assert [event.name for _, event in made.events()][:2] == ["late", "also"]
    assert [names for _, *names in compilers.events if names != ["dry runs"]] == [["tile 3"], ["mma 2", "vec 1"]]


def test_the_first_wave_has_the_launching_files_of_the_base(compilers):
    made = schedule(compilers, {"a": ("mma 1",), "b": ("vec 2",), "c": ("vec 3",)}, likely=Likely(base=StandIn()))
    list(made.events())
    (first, *others) = [names for _, *names in compilers.events if names != ["dry runs"]]
    assert "base.cu" in first and others and not any("base.cu" in names for names in others)


@pytest.mark.parametrize(("place", "expected"), [(0, [2, 4, 8, 16, 32, 32]), (LAST - 1, [2, 32, 32, 34, 0, 0])])
def test_waves_grow_while_a_change_is_likely_to_show_and_are_large_otherwise(monkeypatch, place, expected):
    monkeypatch.setattr(GrowingBuild, "needs", lambda self, number, case: (case,))
    names = [str(number) for number in range(100)]
    waiting: list[Any] = [(0, name) for name in names]
    build = GrowingBuild([0], dict.fromkeys(names), waiting=waiting)
    sizes = []
    for times in range(6):
        build.growth = Growth(times)
        _, wave = build.wave(lambda *_: place, 2)
        sizes.append(len(wave))
        build.has.update(wave)
    assert sizes == expected


def test_the_bar_says_what_is_compiled_judged_and_left(compilers):
    made = schedule(compilers, {"a": ("mma 1",), "b": ("vec 2",)})
    standing = Standing(cases=2, schedule=made)
    assert str(standing) == "compiled 0 of 2 or more kernels, judged 0 of 2 cases, 0:00"
    (build,) = made.compilers.builds
    build.exact, build.has, build.growth = True, {"mma 1"}, Growth(1)
    made.left, standing.judged, standing.last = 1, 1, "b"
    standing.statuses.update(["fail"])
    made.rate.add(30.0)
    assert str(standing) == "compiled 1 of 2 kernels, judged 1 of 2 cases, 1 fail, 0:00: b", (
        "no time without experience"
    )
    made.compilers.rate.add(90.0)
    assert str(standing) == "compiled 1 of 2 kernels, judged 1 of 2 cases, 1 fail, 0:00, about 1:00 left: b"
    build.has = {"mma 1", "vec 2"}
    assert str(standing) == "judged 1 of 2 cases, 1 fail, 0:00, about 0:15 left: b"


def by_name(session, case, target):
    """What a name says is done."""
    if case.name.startswith("raise:"):
        raise RuntimeError(case.name.removeprefix("raise:"))
    with words(None) as answer:
        answer(case.name)
    return Result(case.name, case.digest, "pass", f"{target} {os.getpid()}")


@pytest.fixture
def job():
    return Job(by_name, RunOptions(tree=None), {}, H200)


def test_the_time_left_follows_the_last_cases_since_long_ones_come_first():
    rate = Rate()
    assert (rate.of(0), rate.of(5)) == (0.0, None)
    rate.add(3.0)
    rate.add(12.0, 4)
    assert rate.of(10) == pytest.approx(30, rel=0.01)
    for _ in range(2500):
        rate.add(0.1)
    assert rate.of(1000) == pytest.approx(100, rel=0.1)


def test_every_case_has_its_result_the_longest_first(job):
    cases = [case(f"c{number}") for number in range(40)]
    found = list(judged(job, cases, 3))
    assert sorted(result.name for result in found) == sorted(item.name for item in cases)
    assert {result.digest for result in found} == {cases[0].digest}
    assert len({result.reason for result in found}) <= 3
    assert found[0].reason.startswith("sim:h200 ")
    found = list(judged(job, [case("a"), case("b", n_q=9), case("c", n_q=5)], 1))
    assert [result.name for result in found] == ["b", "c", "a"]


def test_a_case_that_raises_or_kills_its_workers_costs_itself(job):
    (lost, fine) = sorted(judged(job, [case("raise:it is odd"), case("x")], 1), key=lambda result: result.status)
    assert (lost.status, lost.reason, fine.status) == ("lost", "RuntimeError: it is odd", "pass")
    assert "Traceback" in lost.failure
    found = {result.name: result for result in judged(job, [case("die:"), case("x"), case("y")], 1)}
    assert found["die:"].status == "lost"
    assert found["die:"].reason == "it crashed 2 workers, the last one killed by SIGKILL"
    assert found["x"].status == found["y"].status == "pass"
