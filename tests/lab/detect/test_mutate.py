"""`fattn-probe mutate`, as a user runs it, and its results file."""

import json
import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.base.workers import Died
from fattn_probe.daily.regress.suite import cases_of, load_suite
from fattn_probe.lab.detect import schedule
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.lab.detect.mutate import Baseline, MutantBuild, build_mutants, run_baseline, try_all
from fattn_probe.lab.detect.schedule import KnownRuns, Schedule, workers
from fattn_probe.lab.detect.schema import Schema
from fattn_probe.lab.detect.verdicts import LOST, Ending, MutantVerdict, MutationPlan, SuitePart, Verdicts
from fattn_probe.lab.detect.worker import BaselineRun, Trial, Worker
from fattn_probe.llama.source.patches import find
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.judge.checks import Checks
from tests.cli.test_cli import probe
from tests.lab.detect.test_gcov import suite
from tests.made import H200, target
from tests.stand_in import StandIn

MUTANT = Mutant(7, "fattn-vec.cuh", 10, "relation", "a < b", "a <= b", "kernel")
KILLED = MutantVerdict(MUTANT, "sim:h200", "verdict", "decode", "wrong", 2, 1.5)


def plan(folder, **changes):
    entry = load_suite(suite(folder))
    return MutationPlan((SuitePart(entry, H200, Checks(), tuple(cases_of(entry, folder))),), **changes)


def test_mutants_of_code_that_only_amd_gpus_run_need_such_a_gpu(tmp_path):
    made, lines = plan(tmp_path), []
    for on, amd in (("sim:h200", False), ("sim:mi50", False), ("sim:mi50", True)):
        parts = (replace(made.parts[0], target=target(on)),)
        found = replace(made, parts=parts, amd=amd).chosen([MUTANT, replace(MUTANT, line=11, amd=True)])
        lines.append(sorted(mutant.line for mutant in found))
    assert lines == [[10], [10, 11], [11]]


@pytest.mark.network
def test_a_key_is_that_of_the_release_its_patches_the_cases_and_their_judgement(tmp_path, tree):
    session, made = Session(RunOptions(tree)), plan(tmp_path)
    (part,) = made.parts
    others = [
        made.key(Session(RunOptions(replace(tree, digest="other")))),
        made.key(Session(RunOptions(tree, patches=(find("faults/7465-tail-writes", tree),)))),
        replace(made, parts=(replace(part, checks=Checks(repeat=2)),)).key(session),
        replace(made, parts=(replace(part, cases=()),)).key(session),
        replace(made, upstream=True).key(session),
    ]
    assert len({made.key(session), *others}) == 6
    assert replace(made, sample=3, files=("fattn.cu",)).key(session) == made.key(session)


@pytest.mark.parametrize("name", ["results.jsonl", "results.jsonl.gz"])
def test_a_kill_holds_where_the_case_is_and_a_survivor_where_all_cases_are(tmp_path, name):
    path, killers = tmp_path / name, {("sim:h200", "decode"): "one", ("sim:h200", "gqa"): "two"}
    verdicts = Verdicts(path, "key", {}, killers)
    survivor = replace(KILLED, mutant=replace(MUTANT, line=11), on="", by="", case="")
    verdicts.append(KILLED)
    verdicts.append(survivor)
    assert list(verdicts) == [KILLED, survivor]
    assert list(replace(verdicts, key="more cases")) == [KILLED]
    assert list(Verdicts(path, "other", {}, {("sim:h200", "decode"): "as others judge it"})) == []


def test_a_line_that_is_no_verdict_is_named(tmp_path):
    path = tmp_path / "results.jsonl"
    for wrong in ('{"key": "ke', "7", '{"key": 1}'):
        path.write_text(json.dumps({"key": "key", **KILLED.document()}) + f"\n{wrong}\n")
        with pytest.raises(InputError, match=r"results.jsonl:2: is not a verdict"):
            list(Verdicts(path, "key", {}))


def test_verdicts_of_a_version_that_knew_no_killers_hold_for_the_same_cases_only(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"key": "key", **KILLED.document()}) + "\n")
    assert list(Verdicts(path, "key", {})) == [KILLED]
    assert list(Verdicts(path, "other", {("sim:h200", "decode"): "one"})) == []


@pytest.mark.network
def test_a_kill_without_a_check_of_right_outputs_is_one_with_it(tmp_path, tree):
    session, path, plain = Session(RunOptions(tree)), tmp_path / "results.jsonl", plan(tmp_path)
    (part,) = plain.parts
    strict = replace(plain, parts=(replace(part, checks=Checks(roundings=True, kernels=True)),))
    by_verdict = replace(KILLED, case=part.cases[0].name)
    by_check = replace(by_verdict, by="check")
    for first, second, killed, holds in (
        (plain, strict, by_check, True),
        (strict, plain, by_check, False),
        (plain, strict, by_verdict, True),
        (strict, plain, by_verdict, True),
    ):
        path.unlink(missing_ok=True)
        Verdicts.of(path, first, session).append(killed)
        assert bool(list(Verdicts.of(path, second, session))) is holds


@pytest.mark.network
def test_a_killer_is_a_case_with_its_gpu_and_its_judgement(tmp_path, tree):
    session, made = Session(RunOptions(tree)), plan(tmp_path)
    (part,) = made.parts
    (case,) = part.cases
    (killer,) = made.killers(session).values()
    device = replace(part.target.device, multiProcessorCount=5)
    others = [
        replace(part, checks=Checks(roundings=True)),
        replace(part, target=replace(part.target, device=device)),
        replace(part, entry=part.entry.model_copy(update={"flavour": "check"})),
    ]
    found = {tuple(replace(made, parts=(other,)).killers(session).values()) for other in others}
    assert len({(killer,), *found}) == 4
    renamed = replace(part, entry=part.entry.model_copy(update={"name": "other"}))
    more = replace(made, parts=(renamed, part)).killers(session)
    assert more == {("other on sim:h200", case.name): killer, ("sim:h200", case.name): killer}


def test_a_smaller_sample_is_part_of_a_larger_one_and_of_what_is_compiled_for_it(tmp_path):
    mutants = [Mutant(number, "fattn-vec.cuh", number, "relation", "a", "b") for number in range(40)]
    some, more = (plan(tmp_path, sample=sample) for sample in (5, 20))
    assert some.chosen(mutants) == more.chosen(mutants)[:5] == some.likely(mutants)[:5]
    assert [len(found) for found in (some.likely(mutants), more.chosen(mutants), more.likely(mutants))] == [10, 20, 40]
    assert len(plan(tmp_path).likely(mutants)) == 40
    assert plan(tmp_path, files=("fattn.cu",)).likely(mutants) == []


def baseline_runs(tmp_path, *seconds):
    (case,) = plan(tmp_path).parts[0].cases
    return [BaselineRun(0, case, "", value, value, "", "", frozenset(), frozenset()) for value in seconds]


def test_a_schedule_begins_with_the_fastest_case_and_goes_on_with_what_kills(tmp_path):
    schedule = Schedule(baseline_runs(tmp_path, 1.0, 0.1, 0.3))
    for mutant in (1, 2, 3):
        schedule.add(mutant, range(3))
    assert schedule.turn(1) == (1, [1, 2, 3])
    assert not schedule.tell(1, Trial(1, "", "", 0.1))
    assert schedule.turn(1) == (2, [1])
    assert schedule.tell(2, Trial(1, "verdict", "wrong", 0.3))
    assert schedule.tell(1, Trial(2, "stopped", "a trap", 0.1))
    assert not schedule.tell(1, Trial(3, "", "", 0.1))
    assert schedule.turn(1) == (2, [3])
    assert not schedule.tell(2, Trial(3, "", "", 0.3))
    assert schedule.turn(1) == (0, [3])
    assert schedule.tell(0, Trial(3, "", "", 1.0))  # no case is left: a survivor
    assert not schedule.waiting


def test_a_schedule_to_the_end_tries_every_case(tmp_path):
    schedule = Schedule(baseline_runs(tmp_path, 1.0, 0.1), to_end=True)
    schedule.add(1, range(2))
    schedule.turn(1)
    assert not schedule.tell(1, Trial(1, "verdict", "wrong", 0.1))
    assert schedule.turn(1) == (0, [1])
    assert schedule.tell(0, Trial(1, "verdict", "wrong", 1.0))


def test_a_lost_trial_is_no_kill_and_the_next_case_tries(tmp_path):
    schedule = Schedule(baseline_runs(tmp_path, 0.1, 1.0))
    schedule.add(1, range(2))
    schedule.turn(1)
    assert not schedule.tell(0, Trial(1, LOST, "LostError: the runner did not start", 0.0))
    assert schedule.kills == [0, 0]
    assert schedule.turn(1) == (1, [1])


def stand_in(tmp_path, monkeypatch, ends):
    """A build and the baseline of two cases, whose trials end as `ends` says by mutant and case."""
    infected, said = frozenset({1, 2, 3}), list[str]()
    runs = [replace(run, infected=infected, reached=infected) for run in baseline_runs(tmp_path, 0.1, 1.0)]
    runs[1] = replace(runs[1], launches="another grid")
    made = plan(tmp_path)
    built = MutantBuild(made, cast(Any, None), said.append, Schema((), ()), [], [], math.inf)
    monkeypatch.setattr(MutantBuild, "parts", made.parts)
    baseline = Baseline(runs, ["a", "b"], KnownRuns(tmp_path / "runs.jsonl"))
    monkeypatch.setattr("fattn_probe.lab.detect.mutate.workers", nullcontext)
    monkeypatch.setattr("fattn_probe.lab.detect.mutate.run_baseline", lambda built, pool: baseline)

    def trials(schedule, pool, mutants, until):
        for mutant, cases in mutants:
            schedule.add(mutant, cases)
        while schedule.waiting:
            case, (mutant, *_) = schedule.turn(99)
            by, reason = ends.get((mutant, case), ("", ""))
            trial = Trial(mutant, by, reason, 0.1)
            yield case, trial, schedule.tell(case, trial)

    monkeypatch.setattr(Schedule, "trials", trials)
    return built, baseline


DIED: tuple[Ending, str] = (LOST, "LostError: the runner did not start")


def test_a_mutant_that_a_lost_case_might_have_killed_has_no_verdict_and_it_is_said_once(tmp_path, monkeypatch):
    ends = {(1, 0): DIED, (2, 0): DIED, (2, 1): ("verdict", "wrong"), (3, 0): DIED, (3, 1): DIED}
    built, _ = stand_in(tmp_path, monkeypatch, ends)
    verdicts: list[MutantVerdict] = []
    said: list[str] = []
    mutants = [replace(MUTANT, id=number) for number in (1, 2, 3)]
    try_all(replace(built, say=said.append), mutants, verdicts.append)
    assert [(item.mutant.id, item.by, item.on, item.case) for item in verdicts] == [(2, "verdict", "sim:h200", "case")]
    assert said == [f"2 mutants have no verdict; the next command will try them again: {DIED[1]}"]
    ends.clear()
    try_all(built, mutants[:1], verdicts.append)
    assert (verdicts[-1].mutant.id, verdicts[-1].fate, verdicts[-1].cases) == (1, "survived", 2)


@pytest.mark.parametrize(("most", "chosen"), [(1, [1, 3]), (2, [0, 1, 3]), (0, [0, 1, 2, 3])])
def test_of_cases_that_launch_alike_the_fastest_are_tried(tmp_path, most, chosen):
    kinds = [(0, 0.2), (0, 0.1), (0, 0.3), (1, 0.9)]
    runs = [
        replace(run, part=part, judged=judged, reached=frozenset({7, 8}), infected=frozenset({7}))
        for run, (part, judged) in zip(baseline_runs(tmp_path, *[0.1] * 4), kinds, strict=True)
    ]
    failing = replace(runs[0], failure="verdict: wrong", reached=frozenset({9}))
    found = Baseline([*runs, failing], [], KnownRuns(tmp_path / "runs.jsonl"))
    assert found.cases_by_mutant(most) == {7: chosen, 8: []}


def test_a_turn_is_short_and_fair(tmp_path):
    schedule = Schedule(baseline_runs(tmp_path, 0.95))
    for mutant in range(40):
        schedule.add(mutant, [0])
    assert len(schedule.turn(2)[1]) == 3  # seconds
    schedule = Schedule(baseline_runs(tmp_path, 0.01))
    for mutant in range(40):
        schedule.add(mutant, [0])
    assert len(schedule.turn(16)[1]) == 3  # for 16 workers


@pytest.mark.parametrize(
    ("changes", "fate"),
    [
        ({}, "killed"),
        ({"by": ""}, "survived"),
        ({"by": "", "cases": 0}, "not reached"),
        ({"by": "", "changed": True}, "another kernel"),  # correct outputs by other kernels
    ],
)
def test_fates(changes, fate):
    assert replace(KILLED, **changes).fate == fate


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
def test_a_small_suite_kills_some_mutants_and_goes_on_where_it_was(tmp_path):
    words = ["mutate", str(suite(tmp_path)), "--file", "fattn-vec.cuh", "--results", str(tmp_path / "results.jsonl")]
    first = json.loads(probe(*words, "--sample", "8", "--json").stdout)
    fates = [item["fate"] for item in first["mutants"]]
    assert len(fates) == 8
    assert "killed" in fates
    (case,) = plan(tmp_path).parts[0].cases
    for item in first["mutants"]:
        assert item["ran"] == ([f"{case.name} on sim:h200"] if item["cases"] else [])
    second = json.loads(probe(*words, "--sample", "12", "--json").stdout)
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert (len(second["mutants"]), len(lines)) == (12, 12)  # the first eight were not tried again


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
def test_a_mutant_that_does_not_infect_a_case_changes_no_bit_of_it(tmp_path, tree):
    made = plan(tmp_path, files=("fattn-vec.cuh", "fattn-common.cuh", "fattn.cu"), sample=400)
    built = build_mutants(made, Session(RunOptions(tree)), print)
    with workers(built.parts) as pool:
        (run,) = run_baseline(built, pool).runs
    sample = {mutant.id for mutant in made.chosen(built.schema.mutants)}
    worker = Worker(built.parts, tmp_path)
    with worker.stack:
        case = worker.prepared(0, run.case)
        changed = {number for number in sample & run.reached if case.child(number).output != case.output}
    assert not changed - run.infected
    assert min(len(changed), len(sample & run.reached - run.infected), len(sample - run.reached)) > 20


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
def test_trials_go_on_where_they_were(tmp_path, tree, monkeypatch):
    made, asked = plan(tmp_path, files=("fattn-vec.cuh",), sample=40), list[set[int]]()
    trials = Schedule.trials

    def watched(schedule, pool, mutants, until):
        fresh = list(mutants)
        asked.append({mutant for mutant, _ in fresh})
        yield from trials(schedule, pool, fresh, until)

    monkeypatch.setattr(Schedule, "trials", watched)
    monkeypatch.setattr("fattn_probe.lab.detect.mutate.cache_dir", lambda: tmp_path)
    calls: list[list[MutantVerdict]] = [[], []]
    for verdicts in calls:
        built = build_mutants(made, Session(RunOptions(tree)), print)
        try_all(built, made.chosen(built.schema.mutants), verdicts.append)
    first, second = ({verdict.mutant.id: verdict.fate for verdict in verdicts} for verdicts in calls)
    assert first == second
    assert {"killed", "survived", "another kernel"} <= set(first.values())
    assert asked[-1] == {mutant for mutant, fate in first.items() if fate == "killed"}
    assert asked[0] > asked[-1]


@dataclass
class Dying(StandIn):
    """Workers that die with every task."""

    def answers(self, tasks):
        yield from ((task, Died("it crashed 2 workers, the last one was killed by SIGKILL")) for task in tasks)


def test_what_ends_its_workers_is_lost(tmp_path):
    runs = baseline_runs(tmp_path, 0.1)
    (lost,) = schedule.baseline_runs(Dying(), [(0, runs[0].case)])
    assert lost.failure == "lost: it crashed 2 workers, the last one was killed by SIGKILL"
    trials = Schedule(runs).trials(Dying(), [(1, [0]), (2, [0])])
    assert [(case, trial.mutant, trial.by, over) for case, trial, over in trials] == [
        (0, 1, LOST, True),
        (0, 2, LOST, True),
    ]


@pytest.fixture
def runs(tmp_path):
    first, second = baseline_runs(tmp_path, 0.25, 0.5)
    return replace(first, reached=frozenset({1, 2}), infected=frozenset({2})), replace(second, failure="verdict: wrong")


def test_runs_are_found_by_their_keys(tmp_path, runs):
    path, case = tmp_path / "known" / "runs.jsonl", runs[0].case
    known = KnownRuns.read(path)
    for key, run in zip("ab", runs, strict=True):
        known.add_run(key, run)
    again = KnownRuns.read(path)
    assert [again.run(key, 0, case) for key in "bca"] == [runs[1], None, runs[0]]
    assert path.read_text().count('"set"') == 3  # {1, 2}, {2} and {}


@pytest.mark.parametrize("lost", [1, 20, 200])
def test_a_file_that_was_cut_keeps_what_is_whole(tmp_path, runs, lost):
    path, case = tmp_path / "runs.jsonl", runs[0].case
    known = KnownRuns.read(path)
    known.add_run("a", runs[0])
    whole = path.stat().st_size
    known.add_run("b", runs[1])
    path.write_bytes(path.read_bytes()[:-lost] if lost < 200 else path.read_bytes()[: whole - 9])
    KnownRuns.read(path).add_run("c", runs[1])
    found = [KnownRuns.read(path).run(key, 0, case) for key in "abc"]
    assert found == {1: [*runs, runs[1]], 20: [runs[0], None, runs[1]], 200: [None, None, runs[1]]}[lost]


def test_a_damaged_file_is_begun_anew(tmp_path, runs):
    path, case = tmp_path / "runs.jsonl", runs[0].case
    path.write_text('{"key": "a\n{}\n')
    KnownRuns.read(path).add_run("b", runs[1])
    assert [KnownRuns.read(path).run(key, 0, case) for key in "ab"] == [None, runs[1]]


def test_survived_trials_are_found_by_the_key_of_their_case(tmp_path):
    known = KnownRuns.read(tmp_path / "runs.jsonl")
    trials = Trial(7, "", "", 0.25), Trial(8, "", "", 0.5, changed=True)
    for trial in trials:
        known.add_survived("a", trial)
    again = KnownRuns.read(known.path)
    assert again.trials == known.trials == {"a": {7: trials[0], 8: trials[1]}}
    assert again.trials["b"] == {}
