"""`fattn-probe mutate`, as a user runs it, and its results file."""

import json
from dataclasses import replace

import pytest

from fattn_probe.detect.killing import Verdict
from fattn_probe.detect.mutants import Mutant
from fattn_probe.detect.mutate import Plan, append, read
from fattn_probe.device import load_devices, parse_target
from fattn_probe.regress.suite import load_suite
from tests.detect.test_coverage import suite
from tests.test_cli import probe

MUTANT = Mutant(7, "fattn-vec.cuh", 10, "relation", "a < b", "a <= b")
KILLED = Verdict(MUTANT, "sim:h200", "verdict", "decode", "wrong", 2, 1.5)


def test_another_file_and_a_real_gpu_are_refused(tmp_path):
    done = probe("mutate", str(suite(tmp_path)), "--file", "fattn.cuh", code=2)
    assert "mutants are made in fattn-mma-f16.cuh" in done.stderr
    done = probe("mutate", str(suite(tmp_path)), "--on", "gpu", code=2)
    assert "only simulated GPUs (sim:ID) say what a case executes" in done.stderr


def plan(folder):
    file = suite(folder)
    return Plan(load_suite(file), folder, parse_target("sim:h200", load_devices()))


@pytest.mark.network
def test_a_verdict_is_read_again_for_the_same_release_target_and_suite(tmp_path, tree):
    other, path = replace(tree, digest="other"), tmp_path / "results.jsonl"
    append(path, tree, plan(tmp_path), KILLED)
    assert list(read(path, tree, plan(tmp_path))) == [KILLED]
    assert list(read(path, other, plan(tmp_path))) == []


def test_a_smaller_sample_is_part_of_a_larger_one(tmp_path):
    mutants = [Mutant(number, "fattn-vec.cuh", number, "relation", "a", "b") for number in range(40)]
    some, more = (Plan(**vars(plan(tmp_path)) | {"sample": sample}).chosen(mutants) for sample in (5, 20))
    assert some == more[:5]
    assert len(more) == 20


@pytest.mark.parametrize(("by", "cases", "fate"), [("check", 3, "killed"), ("", 3, "survived"), ("", 0, "not reached")])
def test_fates(by, cases, fate):
    assert Verdict(MUTANT, "sim:h200", by, "", "", cases, 0.0).fate == fate


@pytest.mark.build
@pytest.mark.network
@pytest.mark.slow
def test_a_small_suite_kills_some_mutants_and_goes_on_where_it_was(tmp_path):
    words = ["mutate", str(suite(tmp_path)), "--file", "fattn-vec.cuh", "--results", str(tmp_path / "results.jsonl")]
    (first,) = json.loads(probe(*words, "--sample", "8", "--json").stdout)["runs"]
    fates = [item["fate"] for item in first["mutants"]]
    assert len(fates) == 8
    assert "killed" in fates
    (second,) = json.loads(probe(*words, "--sample", "12", "--json").stdout)["runs"]
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert (len(second["mutants"]), len(lines)) == (12, 12)  # the first eight were not tried again
