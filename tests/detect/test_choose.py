"""Choosing cases from a matrix of what kills what."""

import json

import pytest

from fattn_probe.detect.bench import Alone
from fattn_probe.detect.choose import choose, entries, share, table, with_corpus
from fattn_probe.detect.killing import cheapest
from fattn_probe.detect.kills import Killers, Matrix
from tests.detect.test_mutate import plan

SECONDS = {"sim:h200: a": 10.0, "sim:h200: b": 1.0, "sim:t4: c": 2.0, "sim:t4: d": 1.0}
A, B, C, D = SECONDS


def matrix(*killers):
    """Faults with even digests, which are learned from, unless marked; each with its killers."""
    faults = [Killers(f"{2 * number + odd:x}", "", frozenset(cases), 4) for number, (odd, cases) in enumerate(killers)]
    return Matrix(dict(SECONDS), {item.digest: item for item in faults})


def test_the_case_with_most_kills_for_its_seconds_is_first_and_none_is_chosen_for_what_is_killed():
    made = matrix((0, {A, B}), (0, {A, B}), (0, {A, C}), (0, {A}), (0, {D, B}))
    assert choose(made, 100).cases == (B, C, A)  # not D, whose only fault B kills
    assert choose(made, 100).seconds == 13


def test_a_budget_leaves_out_what_does_not_fit():
    made = matrix((0, {A}), (0, {A}), (0, {C}))
    assert choose(made, 3.0).cases == (C,)
    assert choose(made, 0.5).cases == ()


def test_the_other_half_chooses_nothing_but_is_counted():
    made = matrix((0, {B}), (1, {B}), (1, {C}), (1, set()))
    choice = choose(made, 100)
    assert choice.cases == (B,)
    held_out = share([item for item in made.faults.values() if not item.learned], choice.cases)
    assert (held_out.of, held_out.pool, held_out.chosen) == (3, 2, 1)
    assert table(made, choice).rows == (
        ("chosen by", "1", "1", "1", "100.0 %"),
        ("held out", "3", "2", "1", "50.0 %"),
    )


def test_the_chosen_cases_by_target():
    assert entries(choose(matrix((0, {B}), (0, {D}), (0, {C})), 100)) == {"sim:h200": ["b"], "sim:t4": ["d", "c"]}


def test_a_fault_of_the_corpus_has_the_case_that_caught_it():
    lines = [
        {"fault": "x", "digest": "a0", "cases": 3, "caught": {"on": "sim:t4", "case": "d"}},
        {"fault": "y", "digest": "a2", "cases": 3, "caught": {"on": "sim:t4", "case": "gone"}},
        {"fault": "z", "digest": "a4", "cases": 3, "caught": None},
    ]
    made = with_corpus(matrix(), lines)
    assert {item.name: set(item.cases) for item in made.faults.values()} == {"x": {D}, "y": set(), "z": set()}
    assert choose(made, 100).cases == (D,)


def test_a_matrix_file_counts_the_last_line_of_a_fault(tmp_path):
    path = tmp_path / "kills.jsonl"
    lines = [
        {"seconds": {B: 1.0}},
        {"digest": "a0", "name": "x", "tried": 2, "kills": {}},
        {"seconds": {B: 1.5, C: 2.0}},
        {"digest": "a0", "name": "x", "tried": 3, "kills": {C: "verdict"}},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = Matrix.read(path)
    assert made.seconds == {B: 1.5, C: 2.0}
    assert made.faults == {"a0": Killers("a0", "x", frozenset({C}), 3)}


def test_a_matrix_file_of_a_killed_run_is_read(tmp_path):
    path = tmp_path / "kills.jsonl"
    path.write_text(json.dumps({"seconds": {B: 1.0}}) + '\n{"digest": "a0", "na')
    assert Matrix.read(path) == Matrix({B: 1.0})


@pytest.mark.parametrize(("most", "chosen"), [(1, [1, 3]), (2, [0, 1, 3]), (0, [0, 1, 2, 3])])
def test_of_cases_that_launch_alike_the_fastest_are_tried(tmp_path, most, chosen):
    (case,) = plan(tmp_path).parts[0].cases
    kinds = [(0, 0.2, "one grid"), (0, 0.1, "one grid"), (0, 0.3, "one grid"), (1, 0.9, "one grid")]
    baseline = [Alone(work, case, "", 0.1, judged, kind, "", frozenset(), frozenset()) for work, judged, kind in kinds]
    assert cheapest(range(4), baseline, most) == chosen
