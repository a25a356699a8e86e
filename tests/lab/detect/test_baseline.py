"""Runs without a mutant that are known: what is found again, and what is not."""

from dataclasses import replace

import pytest

from fattn_probe.lab.detect.baseline import KnownRuns
from fattn_probe.lab.detect.worker import Trial
from tests.lab.detect.test_mutate import baseline_runs


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
    again = KnownRuns.read(path)
    again.add_run("c", runs[1])
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
