"""Shrinking, on predicates that stand for a kernel's fault."""

import pytest

from fattn_probe.daily.regress.pool import Job
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.results import result_of
from fattn_probe.lab.fuzz.scenarios import FLOATS, checked, draw
from fattn_probe.lab.fuzz.smallest import FindingKind, FuzzFailure, shrink, shrunk
from fattn_probe.machine.run.session import RunOptions
from tests.made import H200

LARGE = {
    "hsk": 128, "n_head": 24, "n_head_kv": 3, "n_q": 33, "n_kv": 1280, "n_seq": 2, "type_K": "q8_0", "seed": 77,
    "sinks": True, "scale": 0.1234, "mask": {"kind": "sum", "of": [{"kind": "causal"}, {"kind": "random"}]},
    "layout": {"K": {"kind": "view", "offset": 100, "outside": "nan"}, "mask": {"pad": 64}},
    "data": {"Q": {"kind": "normal", "scale": 1.37}, "V": {"kind": "extreme"}},
}  # fmt: skip


def view_of_K(settings):
    return settings.get("layout", {}).get("K", {})


@pytest.mark.parametrize(
    ("fails", "smallest"),
    [
        (lambda s: True, {"hsk": 128, "n_head": 1, "n_q": 1, "n_kv": 1}),
        (lambda s: s["n_kv"] > 700, {"hsk": 128, "n_head": 1, "n_q": 1, "n_kv": 701}),
        (
            lambda s: view_of_K(s).get("offset", 0) >= 5,
            {"hsk": 128, "n_head": 1, "n_q": 1, "n_kv": 1, "layout": {"K": {"kind": "view", "offset": 5}}},
        ),
        (
            lambda s: s.get("type_K", "f16") not in FLOATS and s["n_head"] > s.get("n_head_kv", s["n_head"]),
            {"hsk": 128, "n_head": 2, "n_head_kv": 1, "n_q": 1, "n_kv": 1, "type_K": "q8_0"},
        ),
        (
            lambda s: s.get("mask", {}).get("kind") not in (None, "none", "causal"),
            {"hsk": 128, "n_head": 1, "n_q": 1, "n_kv": 1, "mask": {"kind": "random"}},
        ),
        (
            lambda s: s.get("data", {}).get("V", {}).get("kind") == "extreme",
            {"hsk": 128, "n_head": 1, "n_q": 1, "n_kv": 1, "data": {"V": {"kind": "extreme"}}},
        ),
    ],
    ids=["anything", "many KV rows", "an offset of K", "quantised, several heads", "a mask", "extreme V"],
)
def test_only_what_the_fault_needs_is_left(fails, smallest):
    assert fails(LARGE)
    assert shrink(LARGE, fails) == smallest


def test_every_candidate_is_legal_and_the_result_fails():
    tried = []

    def fails(settings):
        tried.append(settings)
        return settings["n_q"] > 2 and settings["n_kv"] > 10

    for number in range(30):
        settings = draw(3, number)
        if settings["n_q"] > 2 and settings["n_kv"] > 10:
            assert fails(shrink(settings, fails))
    assert tried
    assert all(checked(settings) is not None for settings in tried)


def test_it_stops_after_some_tries():
    tried = []

    def fails(settings):
        tried.append(settings)
        return False

    assert shrink(LARGE, fails, tries=5) == LARGE
    assert len(tried) == 5


SETTINGS = {"hsk": 64, "n_head": 2, "n_kv": 64, "n_q": 3}


def test_without_time_each_failure_is_its_own_smallest():
    job = Job(result_of, RunOptions(None), {}, H200)
    kind = FindingKind("fail", "", "mma", "wrong")
    failures = [FuzzFailure(kind, SETTINGS, Result(f"fuzz-1-{at}", "d", "fail", "wrong"), job) for at in range(3)]
    found = list(shrunk(failures, 2, 0))
    assert sorted(found, key=lambda one: one.result.name) == failures
