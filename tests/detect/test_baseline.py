"""Runs without a mutant that are kept: what is found again, and what is not."""

from dataclasses import replace

import pytest

from fattn_probe.detect.baseline import Kept
from fattn_probe.detect.bench import Trial, noted_in
from tests.detect.test_mutate import alone


@pytest.fixture
def runs(tmp_path):
    first, second = alone(tmp_path, 0.25, 0.5)
    return replace(first, reached=frozenset({1, 2}), felt=frozenset({2})), replace(second, failure="verdict: wrong")


def test_runs_are_found_by_their_keys(tmp_path, runs):
    path, case = tmp_path / "kept" / "runs.jsonl", runs[0].case
    kept = Kept.read(path)
    for key, run in zip("ab", runs, strict=True):
        kept.add(key, run)
    items = [(0, case)] * 3
    assert list(Kept.read(path).find(items, ["b", "c", "a"])) == [runs[1], runs[0]]
    assert path.read_text().count('"set"') == 3  # {1, 2}, {2} and {}


@pytest.mark.parametrize("lost", [1, 20, 200])
def test_a_file_that_was_cut_keeps_what_is_whole(tmp_path, runs, lost):
    path, case = tmp_path / "runs.jsonl", runs[0].case
    kept = Kept.read(path)
    kept.add("a", runs[0])
    whole = path.stat().st_size
    kept.add("b", runs[1])
    path.write_bytes(path.read_bytes()[:-lost] if lost < 200 else path.read_bytes()[: whole - 9])
    again = Kept.read(path)
    again.add("c", runs[1])
    found = list(Kept.read(path).find([(0, case)] * 3, ["a", "b", "c"]))
    assert found == {1: [*runs, runs[1]], 20: [*runs], 200: [runs[1]]}[lost]


def test_a_damaged_file_is_begun_anew(tmp_path, runs):
    path, case = tmp_path / "runs.jsonl", runs[0].case
    path.write_text('{"key": "a\n{}\n')
    Kept.read(path).add("b", runs[1])
    assert list(Kept.read(path).find([(0, case)] * 2, ["a", "b"])) == [runs[1]]


def test_survived_trials_are_found_by_the_key_of_their_case(tmp_path):
    kept = Kept.read(tmp_path / "runs.jsonl")
    trials = Trial(7, "", "", 0.25), Trial(8, "", "", 0.5, changed=True)
    for trial in trials:
        kept.add_survived("a", trial)
    again = Kept.read(kept.path)
    assert again.trials == kept.trials == {"a": {7: trials[0], 8: trials[1]}}
    assert again.trials["b"] == {}


def test_a_run_notes_what_it_reaches_and_what_it_feels(tmp_path):
    (tmp_path / "reached").write_text("3 1\n7 0\n")
    assert noted_in(tmp_path / "reached") == (frozenset({3, 7}), frozenset({3}))
    assert noted_in(tmp_path / "none") == (frozenset(), frozenset())
