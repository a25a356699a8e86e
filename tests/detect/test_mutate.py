"""`fattn-probe mutate`, as a user runs it, and its results file."""

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

import pytest

from fattn_probe.compare.judge.checks import Checks
from fattn_probe.detect.baseline import Kept
from fattn_probe.detect.bench import Alone, Bench, Trial
from fattn_probe.detect.json_lines import pack
from fattn_probe.detect.killed_by import LOST, Ending
from fattn_probe.detect.killing import Hunt, workers
from fattn_probe.detect.kills import rows
from fattn_probe.detect.mutants import Mutant
from fattn_probe.detect.mutate import Laboratory
from fattn_probe.detect.verdicts import Part, Plan, Verdict, Verdicts
from fattn_probe.device import load_devices, parse_target
from fattn_probe.errors import InputError
from fattn_probe.regress.suite import cases_of, load_suite
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.source.patches import find
from tests.detect.test_coverage import suite
from tests.test_cli import probe

MUTANT = Mutant(7, "fattn-vec.cuh", 10, "relation", "a < b", "a <= b", "kernel")
KILLED = Verdict(MUTANT, "sim:h200", "verdict", "decode", "wrong", 2, 1.5)


def test_another_file_and_a_real_gpu_are_refused(tmp_path):
    done = probe("mutate", str(suite(tmp_path)), "--file", "fattn.cuh", code=2)
    assert "mutants are made in fattn-mma-f16.cuh" in done.stderr
    done = probe("mutate", str(suite(tmp_path)), "--on", "gpu", code=2)
    assert "only simulated GPUs (sim:ID) say what a case executes" in done.stderr


def plan(folder, **changes):
    file = suite(folder)
    entry = load_suite(file)
    target = parse_target("sim:h200", load_devices())
    return Plan((Part(entry, target, Checks(), tuple(cases_of(entry, folder))),), **changes)


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


def test_a_verdict_that_a_killed_run_cut_is_made_again(tmp_path):
    path = tmp_path / "results.jsonl"
    verdicts = Verdicts(path, "key", {})
    verdicts.append(KILLED)
    verdicts.append(KILLED)
    path.write_bytes(path.read_bytes()[:-30])
    assert list(verdicts) == [KILLED]
    verdicts.append(KILLED)
    assert list(verdicts) == [KILLED, KILLED]


def test_a_packed_file_can_be_packed_again_as_a_whole_and_a_broken_one_is_named(tmp_path):
    path = tmp_path / "results.jsonl.gz"
    verdicts = Verdicts(path, "key", {})
    for line in range(100):
        verdicts.append(replace(KILLED, mutant=replace(MUTANT, line=line)))
    found, before = list(verdicts), path.stat().st_size
    pack(path, "verdict")
    assert len(found) == 100
    assert list(verdicts) == found
    assert path.stat().st_size < before / 5
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"results.jsonl.gz: cannot read the verdicts"):
        list(verdicts)


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


def test_only_mutants_that_a_sample_may_have_are_compiled(tmp_path):
    mutants = [Mutant(number, "fattn-vec.cuh", number, "relation", "a", "b") for number in range(40)]
    made = plan(tmp_path, sample=5)
    assert len(made.likely(mutants)) == 10
    assert made.likely(mutants)[:5] == made.chosen(mutants)
    assert len(plan(tmp_path).likely(mutants)) == 40
    assert plan(tmp_path, files=("fattn.cu",)).likely(mutants) == []


def test_a_smaller_sample_is_part_of_a_larger_one(tmp_path):
    mutants = [Mutant(number, "fattn-vec.cuh", number, "relation", "a", "b") for number in range(40)]
    some, more = (plan(tmp_path, sample=sample).chosen(mutants) for sample in (5, 20))
    assert some == more[:5]
    assert len(more) == 20


def alone(tmp_path, *seconds):
    (case,) = plan(tmp_path).parts[0].cases
    return [Alone(0, case, "", value, value, "", "", frozenset(), frozenset()) for value in seconds]


def test_a_hunt_begins_with_the_fastest_case_and_goes_on_with_what_kills(tmp_path):
    hunt = Hunt(alone(tmp_path, 1.0, 0.1, 0.3))
    for mutant in (1, 2, 3):
        hunt.add(mutant, range(3))
    assert hunt.turn(1) == (1, [1, 2, 3])
    assert not hunt.tell(1, Trial(1, "", "", 0.1))
    assert hunt.turn(1) == (2, [1])
    assert hunt.tell(2, Trial(1, "verdict", "wrong", 0.3))
    assert hunt.tell(1, Trial(2, "stopped", "a trap", 0.1))
    assert not hunt.tell(1, Trial(3, "", "", 0.1))
    assert hunt.turn(1) == (2, [3])
    assert not hunt.tell(2, Trial(3, "", "", 0.3))
    assert hunt.turn(1) == (0, [3])
    assert hunt.tell(0, Trial(3, "", "", 1.0))  # no case is left: a survivor
    assert not hunt.waiting


def test_a_hunt_to_the_end_tries_every_case(tmp_path):
    hunt = Hunt(alone(tmp_path, 1.0, 0.1), to_end=True)
    hunt.add(1, range(2))
    hunt.turn(1)
    assert not hunt.tell(1, Trial(1, "verdict", "wrong", 0.1))
    assert hunt.turn(1) == (0, [1])
    assert hunt.tell(0, Trial(1, "verdict", "wrong", 1.0))


def test_a_lost_trial_is_no_kill_and_the_hunt_goes_on(tmp_path):
    hunt = Hunt(alone(tmp_path, 0.1, 1.0))
    hunt.add(1, range(2))
    hunt.turn(1)
    assert not hunt.tell(0, Trial(1, LOST, "LostError: the runner did not start", 0.0))
    assert hunt.kills == [0, 0]
    assert hunt.turn(1) == (1, [1])


@pytest.fixture
def laboratory(tmp_path, monkeypatch):
    """A laboratory with two cases, whose trials end as its `ends` say by mutant and case."""
    made: Any = object.__new__(Laboratory)
    made.plan, made.session, made.sessions, made.known = plan(tmp_path), cast(Any, None), [], ()
    felt = frozenset({1, 2, 3})
    made.baseline = [replace(item, felt=felt, reached=felt) for item in alone(tmp_path, 0.1, 1.0)]
    made.baseline[1] = replace(made.baseline[1], launches="another grid")
    made.kept, made.until = Kept(tmp_path / "runs.jsonl"), math.inf
    ends: dict[tuple[int, int], tuple[Ending, str]] = {}
    made.said = []
    made.say, made.ends = made.said.append, ends
    monkeypatch.setattr(Laboratory, "works", [])
    monkeypatch.setattr(Laboratory, "key", lambda self, run: run.launches)
    monkeypatch.setattr("fattn_probe.detect.mutate.workers", nullcontext)

    def trials(hunt, pool, mutants, until):
        for mutant, cases in mutants:
            hunt.add(mutant, cases)
        while hunt.waiting:
            case, (mutant, *_) = hunt.turn(99)
            by, said = ends.get((mutant, case), ("", ""))
            trial = Trial(mutant, by, said, 0.1)
            yield case, trial, hunt.tell(case, trial)

    monkeypatch.setattr(Hunt, "trials", trials)
    return made


DIED = (LOST, "LostError: the runner did not start")


def test_a_mutant_that_a_lost_case_might_have_killed_has_no_verdict_and_it_is_said_once(laboratory):
    laboratory.ends |= {(1, 0): DIED, (2, 0): DIED, (2, 1): ("verdict", "wrong"), (3, 0): DIED, (3, 1): DIED}
    verdicts: list[Verdict] = []
    mutants = [replace(MUTANT, id=number) for number in (1, 2, 3)]
    laboratory.try_all(mutants, verdicts.append)
    assert [(item.mutant.id, item.by) for item in verdicts] == [(2, "verdict")]
    assert laboratory.said == [f"2 mutants have no verdict, run it again to try them: {DIED[1]}"]
    laboratory.ends.clear()
    laboratory.try_all(mutants[:1], verdicts.append)
    assert (verdicts[-1].mutant.id, verdicts[-1].fate, verdicts[-1].cases) == (1, "survived", 2)


def test_what_kills_a_mutant_with_a_lost_trial_is_not_known(laboratory):
    laboratory.ends |= {(1, 0): DIED, (1, 1): ("verdict", "wrong"), (2, 1): ("verdict", "wrong")}
    found = list(rows(laboratory, [replace(MUTANT, id=number) for number in (1, 2)], cast(Any, None)))
    assert [(mutant.id, kills) for mutant, _, kills in found] == [(2, {1: "verdict"})]


def test_a_turn_is_short_and_fair(tmp_path):
    hunt = Hunt(alone(tmp_path, 0.95))
    for mutant in range(40):
        hunt.add(mutant, [0])
    assert len(hunt.turn(2)[1]) == 3  # seconds
    hunt = Hunt(alone(tmp_path, 0.01))
    for mutant in range(40):
        hunt.add(mutant, [0])
    assert len(hunt.turn(16)[1]) == 3  # for 16 workers


@pytest.mark.parametrize(("by", "cases", "fate"), [("check", 3, "killed"), ("", 3, "survived"), ("", 0, "not reached")])
def test_fates(by, cases, fate):
    assert Verdict(MUTANT, "sim:h200", by, "", "", cases, 0.0).fate == fate


def test_right_outputs_by_other_kernels_are_a_fate_of_their_own():
    assert Verdict(MUTANT, "", "", "", "", 3, 0.0, changed=True).fate == "another kernel"


@pytest.mark.build
@pytest.mark.network
@pytest.mark.slow
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
@pytest.mark.slow
def test_a_mutant_that_a_case_does_not_feel_changes_no_bit_of_it(tmp_path, tree):
    made = plan(tmp_path, files=("fattn-vec.cuh", "fattn-common.cuh", "fattn.cu"), sample=400)
    laboratory = Laboratory(made, Session(RunOptions(tree)), print)
    with workers(laboratory.works) as pool:
        laboratory.run_baseline(pool)
    (run,) = laboratory.baseline
    sample = {mutant.id for mutant in made.chosen(laboratory.schemata.mutants)}
    with Bench(laboratory.works, tmp_path) as bench:
        place = bench.place(0, run.case)
        changed = {number for number in sample & run.reached if place.child(number).output != place.alone}
    assert not changed - run.felt
    assert min(len(changed), len(sample & run.reached - run.felt), len(sample - run.reached)) > 20


@pytest.mark.build
@pytest.mark.network
@pytest.mark.slow
def test_a_hunt_goes_on_where_it_was(tmp_path, tree, monkeypatch):
    made, asked = plan(tmp_path, files=("fattn-vec.cuh",), sample=40), list[set[int]]()
    trials = Hunt.trials

    def watched(hunt, pool, mutants, until):
        fresh = list(mutants)
        asked.append({mutant for mutant, _ in fresh})
        yield from trials(hunt, pool, fresh, until)

    monkeypatch.setattr(Hunt, "trials", watched)
    monkeypatch.setattr("fattn_probe.detect.mutate.cache_dir", lambda: tmp_path)
    calls: list[list[Verdict]] = [[], []]
    for verdicts in calls:
        laboratory = Laboratory(made, Session(RunOptions(tree)), print)
        laboratory.try_all(made.chosen(laboratory.schemata.mutants), verdicts.append)
    first, second = ({verdict.mutant.id: verdict.fate for verdict in verdicts} for verdicts in calls)
    assert first == second
    assert {"killed", "survived", "another kernel"} <= set(first.values())
    assert asked[-1] == {mutant for mutant, fate in first.items() if fate == "killed"}
    assert asked[0] > asked[-1]
