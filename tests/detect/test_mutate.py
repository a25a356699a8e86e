"""`fattn-probe mutate`, as a user runs it, and its results file."""

import json
from dataclasses import replace

import pytest

from fattn_probe.compare.judge.checks import Checks
from fattn_probe.detect.bench import Alone, Trial
from fattn_probe.detect.killing import Hunt
from fattn_probe.detect.mutants import Mutant
from fattn_probe.detect.mutate import Part, Plan, Verdict, append, read
from fattn_probe.device import load_devices, parse_target
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


def test_a_verdict_is_read_again_by_its_key(tmp_path):
    path = tmp_path / "results.jsonl"
    append(path, "key", KILLED)
    assert list(read(path, "key")) == [KILLED]
    assert list(read(path, "other")) == []


def test_a_smaller_sample_is_part_of_a_larger_one(tmp_path):
    mutants = [Mutant(number, "fattn-vec.cuh", number, "relation", "a", "b") for number in range(40)]
    some, more = (plan(tmp_path, sample=sample).chosen(mutants) for sample in (5, 20))
    assert some == more[:5]
    assert len(more) == 20


def alone(tmp_path, *seconds):
    (case,) = plan(tmp_path).parts[0].cases
    return [Alone(0, case, "", value, value, "", "", frozenset()) for value in seconds]


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
    second = json.loads(probe(*words, "--sample", "12", "--json").stdout)
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert (len(second["mutants"]), len(lines)) == (12, 12)  # the first eight were not tried again
