"""Planted faults: which cases are tried, what counts as caught, and the page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.suite import Entry
from fattn_probe.lab.detect.verdicts import killed_by
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.llama.source import KernelCase
from fattn_probe.llama.source.faults import corpus
from fattn_probe.llama.source.patches import Patch
from fattn_probe.machine.run.orders import OrderDifference
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.judge.bitwise import Check
from fattn_probe.verdict.judge.checks import Checks
from maintain import faults
from maintain.corpus_page import page
from maintain.fault_cases import SHOWS, CaseBatch, PlannedPart, SuiteCases, batches_of, by_kernels
from maintain.faults import TRIED, Caught, Tried, killer_of, killers_of, of_its_vendors, text_of
from tests.made import H200, target

RESULT = Result("case", "digest", "pass")
FAULT = corpus()[0]
"""Any fault of the corpus."""


def patch(*files):
    text = "".join(f"--- a/ggml/src/ggml-cuda/{name}\n+++ b/ggml/src/ggml-cuda/{name}\n@@ -1 +1 @@\n" for name in files)
    return Patch("fault", Path("fault.patch"), "", (), text)


def kernel(words):
    family, *arguments = words.split()
    return KernelCase(family, tuple(arguments), "")


GTX1060 = target("sim:gtx1060")


def suite(before=(), flavours=("release", "check"), **families):
    """A suite of two entries, both with cases of these families; a larger n_kv for each next case."""
    cases = {
        name: (case_of(name, 64 * at), frozenset({kernel(words)}))
        for at, (name, words) in enumerate(families.items(), 1)
    }
    parts = [PlannedPart(Entry(flavour=one), on, cases) for one, on in zip(flavours, (H200, GTX1060), strict=True)]
    return SuiteCases("two", RunOptions(None), parts, dict(before))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["fattn-vec.cuh"], {"b"}),
        (["fattn-tile.cuh", "fattn-mma-f16.cuh"], {"a", "c"}),
        (["fattn-common.cuh"], {"a", "b", "c"}),
        (["fattn-vec.cuh", "fattn.cu"], {"a", "b", "c"}),
    ],
)
def test_cases_of_kernels_that_a_patch_cannot_change_are_left_out(files, expected):
    batches = batches_of(suite(a="mma", b="vec", c="tile"), replace(FAULT, patch=patch(*files)))
    assert {case.name for batch in batches for case in batch.cases} == expected


def test_batches_have_every_case_once_those_of_the_most_used_kernels_first_entry_by_entry():
    names = {f"n{at}-{copy}": f"vec {at}" for at in range(9) for copy in range(10 - at)}
    batches = list(batches_of(suite(**names, alone="mma 8"), replace(FAULT, patch=patch("fattn.cu"))))
    flavours = [(batch.entry.flavour, str(batch.target), len(batch.cases)) for batch in batches]
    release, check = ("release", "sim:h200"), ("check", "sim:gtx1060")
    first, second, last = 10 + 9 + 8 + 7 + 1, 6 + 5 + 4 + 3, 2
    assert flavours == [(*entry, size) for entry in (release, check) for size in (first, second, last)]
    assert sorted(case.name for batch in batches[:3] for case in batch.cases) == sorted([*names, "alone"])
    assert batches[0].cases == sorted(batches[0].cases, key=lambda case: case.op.sizes.flop)


def test_entries_and_cases_like_the_faults_own_and_the_one_that_caught_it_are_first():
    by_checker = replace(FAULT, patch=patch("fattn.cu"), catch="check", shows=())
    on_pascal = replace(by_checker, catch="verdict", shows=(replace(FAULT.shows[0], device="gtx1060"),))
    for fault, flavours in ((by_checker, ("release", "check")), (on_pascal, ("release", "release"))):
        batches = batches_of(suite(flavours=flavours, a="mma 1"), fault)
        assert [str(batch.target) for batch in batches] == ["sim:gtx1060", "sim:h200"]
    cases = [(case_of(f"n{at}"), [kernel(f"vec {at}")]) for at in range(3)]
    names = [[case.name for case in batch] for batch in by_kernels(cases, [kernel("vec 2"), kernel("mma 8")])]
    assert names == [["n2"], ["n0", "n1"]]
    assert [len(batch) for batch in by_kernels(cases)] == [3]
    made = suite({FAULT.patch.name: ("sim:gtx1060", "c")}, a="mma 1", b="vec 1", c="vec 2")
    fault = replace(FAULT, patch=replace(patch("fattn.cu"), name=FAULT.patch.name))
    first, second, *_ = batches_of(made, fault)
    assert (str(first.target), [case.name for case in first.cases]) == ("sim:gtx1060", ["c"])
    assert (str(second.target), len(second.cases)) == ("sim:h200", 3)


def case_of(name, n_kv=64):
    spec = {"version": 1, "about": "x", "hsk": 64, "n_head": 2, "n_q": 1, "n_kv": n_kv}
    return resolve(Scenario.model_validate(spec), name, "file")


@pytest.mark.parametrize(
    ("result", "by"),
    [
        (RESULT, ""),
        (replace(RESULT, status="fail"), "verdict"),
        (replace(RESULT, status="fail", known="k-stride"), ""),
        (replace(RESULT, status="unsupported"), "support"),
        (replace(RESULT, status="lost"), "stopped"),
        (replace(RESULT, status="fail", finding=Finding("race", "x")), "stopped"),
    ],
)
def test_what_kills_a_fault(result, by):
    assert killed_by(result) == by


def tried_batch(monkeypatch, result):
    """What `try_batch` says of a batch with one case that is judged so."""
    monkeypatch.setattr(faults, "prepare", lambda session, work: None)
    monkeypatch.setattr(faults, "judged", lambda *given: (one for one in [result]))
    session = Session(RunOptions(None))
    return faults.try_batch(CaseBatch(Entry(), H200, [case_of("case")]), session, session, None)


@pytest.mark.parametrize(
    ("result", "by"),
    [
        (replace(RESULT, status="fail", known="mask-scan"), "verdict"),
        (replace(RESULT, status="fail", known="k-stride", finding=Finding("out-of-bounds", "x")), "stopped"),
        (replace(RESULT, status="fail", known="q8-race", checks=(Check("roundings", False, True, "x"),)), "check"),
    ],
)
def test_what_looks_like_a_known_defect_is_caught_by_what_it_shows(monkeypatch, result, by):
    """The case passes without the fault, with the checks of its entry, so the defect is news."""
    monkeypatch.setattr(faults, "passes", lambda case, session, target, checks: checks == Entry().check.checks)
    (caught,), _ = tried_batch(monkeypatch, result)
    assert (caught.by, caught.cause) == (by, None)
    monkeypatch.setattr(faults, "passes", lambda case, session, target, checks: False)
    assert tried_batch(monkeypatch, result) == ([], 1)


def launches(grid):
    return (LaunchRecord(0, "flash_attn_tile", (("DKQ", "64"),), (grid, 1, 1), (32, 4, 1), 0),)


def launched(grid, **fields):
    return replace(
        RESULT, output="bits", launches="".join(json.dumps(one.document()) for one in launches(grid)), **fields
    )


@pytest.mark.parametrize(
    ("result", "by"),
    [
        (launched(8), []),
        (launched(9), ["launch"]),
        (launched(9, status="fail"), ["launch", "verdict"]),
        (launched(8, status="fail"), ["verdict"]),
        (replace(RESULT, status="lost"), ["stopped"]),
    ],
)
def test_launches_unlike_those_without_the_fault_are_a_catch_of_their_own_kind(monkeypatch, result, by):
    """`quick` reports them, and they counted as missed."""
    base = type("Plain", (), {"launches": lambda self, cases, *rest: {case.op.digest: launches(8) for case in cases}})
    monkeypatch.setattr(faults, "base_of", lambda options: base())
    caught, done = tried_batch(monkeypatch, result)
    assert ([one.by for one in caught], done) == (by, 1)
    assert all("grid 8x1x1 of 32x4x1, 0 B" in one.said for one in caught if one.by == "launch")


def test_a_failure_says_more_than_a_changed_launch(monkeypatch):
    batches = [CaseBatch(Entry(), H200, [case_of(name)]) for name in ("a", "b", "c")]
    catches = {
        "a": [Caught("sim:h200", "a", "launch", "x became y")],
        "b": [Caught("sim:h200", "b", "launch", "x became z")],
        "c": [Caught("sim:h200", "c", "verdict", "wrong")],
    }
    monkeypatch.setattr(faults, "batches_of", lambda suite, fault: batches)
    monkeypatch.setattr(faults, "try_batch", lambda batch, *rest: (catches[batch.cases[0].name], 1))
    found = faults.try_fault(FAULT, suite())
    assert (found.caught.case, found.caught.by, found.cases) == ("c", "verdict", 3)
    catches["c"] = []
    found = faults.try_fault(FAULT, suite())
    assert (found.caught.case, found.caught.by, found.cases) == ("a", "launch", 3)
    assert ", 1 of them only by changed launches. " in page([FAULT], [found], [found.suite])


def test_orders_of_an_entry_s_cases_are_tried_if_nothing_else_catches_a_fault(monkeypatch):
    """`check: {order: N}` of a suite was left out."""
    entry = Entry.model_validate({"check": {"order": 2}})
    batches = [CaseBatch(entry, H200, [case_of("a"), case_of("b")]), CaseBatch(entry, H200, [case_of("b", 128)])]
    asked = []

    def differences(session, cases, target, seed, expected):
        asked.append(([case.name for case in cases], str(target), seed))
        return [OrderDifference("b", ("a",), "other", shrunk=True)] * (seed == 2)

    monkeypatch.setattr(faults, "alone", lambda session, case, target: case.name)
    monkeypatch.setattr(faults, "batches_of", lambda suite, fault: batches)
    monkeypatch.setattr(faults, "try_batch", lambda batch, *rest: ([], len(batch.cases)))
    monkeypatch.setattr(faults, "differences", differences)
    caught = faults.try_fault(FAULT, suite()).caught
    assert asked == [(["a", "b"], "sim:h200", 1), (["a", "b"], "sim:h200", 2)]
    assert (caught.case, caught.by) == ("b", "check")
    assert caught.said == "not the same in every order: different bits or launches from a separate run, after [a]"


def page_of(corpus, results):
    return page(corpus, results, ["quick", "shows"])


def test_a_suite_has_the_faults_of_its_vendors_gpus():
    found = {suite: set(of_its_vendors(corpus(), suite)) for suite in ("quick", "nightly", "nightly-amd")}
    assert found["quick"] == found["nightly"] | found["nightly-amd"] == {fault.patch.name for fault in corpus()}
    assert not found["nightly"] & found["nightly-amd"]
    assert "12032-row-sums" in found["nightly-amd"] and "13415-v-tile" in found["nightly"]


def tried(caught):
    return Tried(FAULT.patch.name, FAULT.patch.changes, "quick", caught, 5, 12.3, text_of("quick"))


CAUGHT = Caught("sim:h200", "decode", "verdict", "wrong | rows", cause="kv-left-out")


def test_a_result_survives_its_line():
    for item in (tried(None), tried(CAUGHT)):
        assert TRIED.of(TRIED.plain(item)) == item


def test_the_page_counts_the_latest_result_of_each_fault_as_it_is_with_the_suite_as_it_is():
    text = page_of([FAULT], [tried(None), tried(CAUGHT)])
    assert "## quick" in text and "**1 of 1 caught (100 %)**." in text
    assert "wrong \\| rows" in text
    assert "**0 of 1 caught (0 %)**" in page_of([FAULT], [tried(CAUGHT), tried(None)])
    for older in ({"digest": "of another patch"}, {"text": "of another suite"}):
        assert "## quick" not in page_of([FAULT], [replace(tried(CAUGHT), **older)])


def test_a_catch_counts_for_each_suite_that_has_the_case_with_its_judgement():
    item = replace(tried(CAUGHT), suite="shows", text="", killer=sorted(killers_of("quick"))[0])
    text = page_of([FAULT], [item, tried(None)])
    assert [text.count(words) for words in ("## shows", "## quick", "**1 of 1 caught", "decode")] == [1, 1, 2, 1]
    text = page_of([FAULT], [replace(item, killer="of a case that quick has not"), tried(None)])
    assert ("**0 of 1 caught" in text, text.count("decode")) == (True, 1)
    item = replace(tried(CAUGHT), text="of an older suite", killer=sorted(killers_of("quick"))[0])
    assert "## quick" in page_of([FAULT], [item])
    assert "## quick" not in page_of([FAULT], [replace(item, killer="of a case that quick no longer has")])
    assert "## quick" not in page_of([FAULT], [replace(item, caught=None)])
    runs = [(Entry(), H200), (Entry(flavour="check"), H200), (Entry(), GTX1060)]
    assert len({killer_of(entry, target, case_of("a"), Checks()) for entry, target in runs}) == 3


def test_a_faults_own_case_is_judged_by_what_must_catch_it():
    how: dict[str, set[tuple[str, bool]]] = {}
    for fault in corpus():
        for batch in batches_of(SuiteCases(SHOWS, RunOptions(None)), fault):
            how.setdefault(fault.catch, set()).add((batch.entry.flavour, batch.entry.check.kernels))
    assert how == {
        "verdict": {("release", False)},
        "crash": {("release", False)},
        "support": {("release", False)},
        "check": {("check", False)},
        "kernel": {("release", True)},
    }
