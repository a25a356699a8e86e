"""Cases to keep, shrinking on predicates that stand for a kernel's fault, and `fattn-probe fuzz` as a user runs it."""

import json
from dataclasses import replace

import pytest

from fattn_probe.cases.scenario import expand, load
from fattn_probe.daily.regress.pool import Job
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.results import result_of
from fattn_probe.lab.fuzz import smallest
from fattn_probe.lab.fuzz.report import FuzzRun, document, features, rough, summary, write_cases
from fattn_probe.lab.fuzz.run import Drawn, Judged
from fattn_probe.lab.fuzz.scenarios import FLOATS, case_of, checked, draw
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.machine.run.session import RunOptions
from fattn_probe.verdict.judge.bitwise import Check
from tests.cli.test_cli import probe
from tests.made import H200, target

GQA = {
    "hsk": 64, "n_head": 14, "n_head_kv": 2, "n_q": 7, "n_kv": 256, "mask": {"kind": "causal"}, "type_K": "q8_0",
    "layout": {"K": {"kind": "view", "offset": 3}},
}  # fmt: skip


def launch(kernel, grid, block):
    return json.dumps({"order": 0, "kernel": kernel, "grid": grid, "block": block, "shared": 0})


MMA = launch("flash_attn_ext_f16<64,64,8,8,false,false,false>", [8, 1, 1], [32, 4, 1])
FIXUP = launch("flash_attn_stream_k_fixup_uniform<64,8,8>", [2, 8, 8], [64, 1, 1])


def judged(number, settings, status="pass", launches=f"{MMA}\n{FIXUP}"):
    case = case_of(settings, f"fuzz-0-{number}")
    return Judged(Drawn(number, settings, case, H200, ()), Result(case.name, case.digest, status, launches=launches))


def test_the_features_of_a_divided_launch_and_of_many_parallel_blocks():
    found = features(judged(1, GQA), None)
    assert "kernel flash_attn_ext_f16<64,64,8,8,false,false,false>" in found
    assert {"1 KV steps in a block", "3-4 parts in a tile", "1 tiles in a block", "equal parts"} <= set(found)
    assert {"with flash_attn_stream_k_fixup_uniform", "partial query tile", "partial group of heads"} <= set(found)
    assert {"K q8_0", "K view", "V contiguous", "mask causal"} <= set(found)
    assert not {"partial KV tile", "sinks"} & set(found)
    settings = {"hsk": 64, "n_head": 1, "n_q": 1, "n_kv": 8192}
    vec = "flash_attn_ext_vec<64,1,GGML_TYPE_F16,GGML_TYPE_F16,false>"
    many, few = (launch(vec, [1, blocks, 1], [128, 1, 1]) for blocks in (33, 32))
    said = "more parallel blocks than half the head size"
    assert said in features(judged(1, settings, launches=many), None)
    assert said not in features(judged(1, settings, launches=few), None)


def test_a_case_is_kept_if_it_passes_and_shows_a_new_pair():
    run = FuzzRun(None)
    other = GQA | {"sinks": True}
    for one in (judged(1, GQA), judged(2, GQA | {"seed": 5}), judged(3, other, "fail"), judged(4, other)):
        run.add(one)
    assert [one.drawn.number for one in run.kept] == [1, 4]


def test_kept_cases_are_written_as_compare_takes_them(tmp_path):
    cases = [judged(number, draw(1, number)) for number in range(20)]
    smaller = replace(cases[3].drawn, target=target("sim:t4"))
    paths = list(write_cases([*cases, replace(cases[3], drawn=smaller)], tmp_path / "kept"))
    assert [path.name for path in paths] == ["fuzz-h200.yaml", "fuzz-t4.yaml"]
    found = expand(load(paths[0]))
    assert [case.name for case in found] == [f"fuzz-h200-0-{number}" for number in range(20)]
    assert [case.digest for case in found] == [one.result.digest for one in cases]
    assert {case.device for case in found} == {"sim:h200"}


def test_numbers_are_rough():
    assert [rough(number) for number in (0, 1, 2, 3, 8, 16, 17)] == [
        "1", "1", "2", "3-4", "5-8", "9-16", "more than 16",
    ]  # fmt: skip


FRAMES = ("flash_attn_ext_f16_load_tile<64, 4> at ggml/src/ggml-cuda/common.cuh:822", "flash_attn_ext_f16<64> at b:1")
MISALIGNED = Finding("misaligned", "misaligned: at 8", "flash_attn_ext_f16<64,64,8,8>", frames=FRAMES)

PASSED = Check("deterministic", True, False, "yes")


def result(status, reason="", **rest):
    return Result("a", "d", status, reason, launches=MMA, **rest)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (result("pass"), None),
        (result("unsupported"), None),
        (result("fail", "misaligned", finding=MISALIGNED), "misaligned in flash_attn_ext_f16_load_tile"),
        (result("fail", "in any words", metrics={"nan": 3, "inf": 0, "unwritten": 0}), "NaN"),
        (result("fail", "in any words", metrics={"nan": 0, "inf": 1, "unwritten": 0}), "infinities"),
        (result("fail", "in any words", metrics={"nan": 3, "inf": 1, "unwritten": 2}), "elements are never written"),
        (result("fail", "no elements NaN", metrics={"nan": 0, "inf": 0, "unwritten": 0}), smallest.WRONG),
        (result("fail", "not as designed: an error is 3x its bound"), smallest.WRONG),
        (result("fail", "as designed", checks=(Check("deterministic", False, True, "no"),)), smallest.OTHER_BITS),
        (result("fail", "as designed", checks=(PASSED, Check("roundings", False, True, "no"))), "fails roundings"),
        (result("fail", "as designed", checks=(PASSED, Check("kernels", False, True, "no"))), "fails kernels"),
        (result("lost", "timed out after 60 s in 17"), "timed out after N s in N"),
    ],
)
def test_the_kind_of_a_result(found, kind):
    assert smallest.kind_of(found) == (
        None if kind is None else smallest.FindingKind(found.status, "", "mma_f16", kind)
    )


def test_a_known_defect_is_counted_apart_and_once():
    tally = FuzzRun(None)
    for known in ("mask-scan", "mask-scan", ""):
        one = judged(len(known), GQA, "fail")
        object.__setattr__(one.result, "known", known)
        tally.add(one)
    tally.add(judged(5, GQA))
    assert (tally.cases, tally.number("known defect"), tally.number("finding"), tally.number("pass")) == (4, 2, 1, 1)
    lines = "\n".join(summary(tally))
    assert "2 fail because of mask-scan, a known defect of llama.cpp" in lines
    assert f"finding: {smallest.WRONG} (mma_f16) on sim:h200, 1 case, such as fuzz-0-0" in lines
    (found,) = document(tally)["findings"]
    assert found["scenario"] == GQA


LARGE = {
    "hsk": 128, "n_head": 24, "n_head_kv": 3, "n_q": 33, "n_kv": 1280, "n_seq": 2, "type_K": "q8_0", "seed": 77,
    "sinks": True, "scale": 0.1234, "mask": {"kind": "sum", "of": [{"kind": "causal"}, {"kind": "random"}]},
    "layout": {"K": {"kind": "view", "offset": 100, "outside": "nan"}, "mask": {"pad": 64}},
    "data": {"Q": {"kind": "normal", "scale": 1.37}, "V": {"kind": "extreme"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("fails", "left"),
    [
        (lambda s: True, {"hsk": 128, "n_head": 1, "n_q": 1, "n_kv": 1}),
        (lambda s: s["n_kv"] > 700, {"hsk": 128, "n_head": 1, "n_q": 1, "n_kv": 701}),
        (
            lambda s: s.get("layout", {}).get("K", {}).get("offset", 0) >= 5,
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
def test_only_what_the_fault_needs_is_left(fails, left):
    assert fails(LARGE)
    assert smallest.shrink(LARGE, fails) == left


def test_every_candidate_is_legal_and_the_result_fails():
    tried = []

    def fails(settings):
        tried.append(settings)
        return settings["n_q"] > 2 and settings["n_kv"] > 10

    for number in range(30):
        settings = draw(3, number)
        if settings["n_q"] > 2 and settings["n_kv"] > 10:
            assert fails(smallest.shrink(settings, fails))
    assert tried
    assert all(checked(settings) is not None for settings in tried)


def test_it_stops_after_some_tries():
    tried = []

    def fails(settings):
        tried.append(settings)
        return False

    assert smallest.shrink(LARGE, fails, tries=5) == LARGE
    assert len(tried) == 5


SETTINGS = {"hsk": 64, "n_head": 2, "n_kv": 64, "n_q": 3}


def test_without_time_each_failure_is_its_own_smallest():
    job = Job(result_of, RunOptions(None), {}, H200)
    kind = smallest.FindingKind("fail", "", "mma", "wrong")
    results = [Result(f"fuzz-1-{number}", "d", "fail", "wrong") for number in range(3)]
    failures = [smallest.FuzzFailure(kind, SETTINGS, result, job) for result in results]
    assert sorted(list(smallest.shrunk(failures, 2, 0)), key=lambda one: one.result.name) == failures


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.network
def test_a_planted_fault_is_found_shrunk_and_shown_by_its_scenario(tmp_path):
    patch = ("--patch", "fault-tail-queries")
    folder = tmp_path / "findings"
    words = ("fuzz", "--cases", "2", "--seed", "41", "--new-kernels", "0", *patch, "--findings", str(folder), "--json")
    found = json.loads(probe(*words, code=5).stdout)
    assert found["cases"] == 2
    (file, *_) = sorted(folder.glob("*.yaml"))
    assert any(item["family"] == "mma_f16" and "out-of-bounds" in item["what"] for item in found["findings"])
    for item in found["findings"]:
        if item["family"] == "mma_f16" and "out-of-bounds" in item["what"]:
            assert item["scenario"].keys() <= {"hsk", "hsv", "n_head", "n_head_kv", "n_q", "n_kv", "mask", "layout"}
    assert load(file).device == "sim:h200"
    probe("compare", str(file), *patch, code=5)
