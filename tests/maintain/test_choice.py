"""Choosing cases from a matrix of what kills what."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from maintain import choice
from maintain.choice import Killers, Kills, choose, entries, killers, table, with_corpus
from tests.lab.detect.test_mutate import DIED, MUTANT, stand_in
from tests.made import H200

SECONDS = {"sim:h200: a": 10.0, "sim:h200: b": 1.0, "sim:t4: c": 2.0, "sim:t4: d": 1.0}
A, B, C, D = SECONDS


def kills_of(*found):
    """Faults with even digests, which are learned from, unless marked; each with its killers."""
    faults = [Killers(f"{2 * number + odd:x}", "", frozenset(cases), 4) for number, (odd, cases) in enumerate(found)]
    return Kills(dict(SECONDS), {item.digest: item for item in faults})


def test_the_case_with_most_kills_for_its_seconds_is_first_and_a_budget_leaves_out_what_does_not_fit():
    made = kills_of((0, {A, B}), (0, {A, B}), (0, {A, C}), (0, {A}), (0, {D, B}))
    assert choose(made, 100) == [B, C, A]  # not D, whose only fault B kills
    made = kills_of((0, {A}), (0, {A}), (0, {C}))
    assert choose(made, 3.0) == [C]
    assert choose(made, 0.5) == []
    assert entries(choose(kills_of((0, {B}), (0, {D}), (0, {C})), 100)) == {"sim:h200": ["b"], "sim:t4": ["d", "c"]}


def test_a_case_costs_the_compile_time_of_the_kernels_that_no_chosen_case_has():
    made = kills_of((0, {A, B}), (0, {B}), (0, {C}), (0, {D}))
    made.kernels, made.compiling = {B: ["x"], C: ["x"], D: ["y", "z"]}, {"x": 2.0, "y": 4.0, "z": 4.0}
    assert [made.cost(case) for case in SECONDS] == [10, 3, 4, 9]
    assert choose(made, 100) == [B, C, D]  # not D before C, which has B's kernel
    assert choose(made, 13) == [B, C]
    assert choose(made, 14) == [B, C, D]


def test_the_other_half_chooses_nothing_but_is_counted():
    made = kills_of((0, {B}), (1, {B}), (1, {C}), (1, set()))
    assert choose(made, 100) == [B]
    assert table(made, [B]).rows == (("chosen by", "1", "1", "1", "100.0 %"), ("held out", "3", "2", "1", "50.0 %"))


def test_a_fault_of_the_corpus_has_the_case_that_caught_it():
    lines = [
        {"fault": "x", "digest": "a0", "cases": 3, "caught": {"on": "sim:t4", "case": "d"}},
        {"fault": "y", "digest": "a2", "cases": 3, "caught": {"on": "sim:t4", "case": "gone"}},
        {"fault": "z", "digest": "a4", "cases": 3, "caught": None},
    ]
    made = with_corpus(kills_of(), lines)
    assert {item.name: set(item.cases) for item in made.faults.values()} == {"x": {D}, "y": set(), "z": set()}
    assert choose(made, 100) == [D]


def test_a_matrix_file_counts_the_last_line_of_a_fault(tmp_path):
    path = tmp_path / "kills.jsonl"
    lines = [
        {"seconds": {B: 1.0}},
        {"digest": "a0", "name": "x", "tried": 2, "kills": {}},
        {"seconds": {B: 1.5, C: 2.0}, "kernels": {C: ["x"]}, "compiling": {"x": 3.0}},
        {"digest": "a0", "name": "x", "tried": 3, "kills": {C: "verdict"}},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = Kills.read(path)
    assert made.seconds == {B: 1.5, C: 2.0}
    assert made.cost(C) == 5.0
    assert made.faults == {"a0": Killers("a0", "x", frozenset({C}), 3)}


def test_the_kernels_of_a_run_have_the_compile_times_of_its_build(monkeypatch):
    kernel, other = "mma 64,64,8,8,false,false,false", "tile 72,72,8,1,false"
    times = {"fattn-probe-mma-64-64-8-8-false-false-false.cu": 3.0, "ggml-cuda.cu": 50.0}
    known = {"one": (kernel,), "two": (kernel, other)}
    monkeypatch.setattr(choice, "KernelsByOp", SimpleNamespace(of=lambda *_: SimpleNamespace(read=lambda: known)))
    monkeypatch.setattr(choice, "session_for", lambda entry, session: session)
    monkeypatch.setattr(choice, "step_seconds", lambda folders: times)
    session = SimpleNamespace(options=None, build_for=lambda target: SimpleNamespace(folder=None))
    part = SimpleNamespace(entry=SimpleNamespace(flavour="check"), target=H200)
    built = SimpleNamespace(plan=SimpleNamespace(parts=[part]), sessions=[session], session=session)
    runs = [
        SimpleNamespace(part=0, case=SimpleNamespace(op=SimpleNamespace(digest=op))) for op in ("one", "two", "none")
    ]
    kernels, compiling = choice.kernels_of(cast(Any, built), cast(Any, SimpleNamespace(runs=runs)), [A, B, C])
    keys = f"90 check {kernel}", f"90 check {other}"
    assert kernels == {A: [keys[0]], B: list(keys)}
    assert compiling == {keys[0]: 3.0, keys[1]: 3.0}  # the average of kernels, for one that ccache had


def test_what_kills_a_mutant_with_a_lost_trial_is_not_known(tmp_path, monkeypatch):
    ends = {(1, 0): DIED, (1, 1): ("verdict", "wrong"), (2, 1): ("verdict", "wrong")}
    built, baseline = stand_in(tmp_path, monkeypatch, ends)
    found = list(killers(built, baseline, [replace(MUTANT, id=number) for number in (1, 2)], cast(Any, None)))
    assert [(mutant.id, kills) for mutant, _, kills in found] == [(2, {1: "verdict"})]
