"""Kinds of failures: two results of one kind probably have one cause."""

import pytest

from fattn_probe.daily.regress.records import Result
from fattn_probe.lab.fuzz.findings import OTHER_BITS, WRONG, FindingKind, kind_of
from fattn_probe.lab.fuzz.report import Tally, document, summary
from fattn_probe.verdict.judge.bitwise import Check
from fattn_probe.verdict.judge.finding import Finding
from tests.lab.fuzz.test_keep import GQA, MMA, judged

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
        (result("fail", "no elements NaN", metrics={"nan": 0, "inf": 0, "unwritten": 0}), WRONG),
        (result("fail", "not as designed: an error is 3x its bound"), WRONG),
        (result("fail", "as designed", checks=(Check("deterministic", False, True, "no"),)), OTHER_BITS),
        (result("fail", "as designed", checks=(PASSED, Check("roundings", False, True, "no"))), "fails roundings"),
        (result("fail", "as designed", checks=(PASSED, Check("kernels", False, True, "no"))), "fails kernels"),
        (result("lost", "timed out after 60 s in 17"), "timed out after N s in N"),
    ],
)
def test_the_kind_of_a_result(found, kind):
    assert kind_of(found) == (None if kind is None else FindingKind(found.status, "", "mma_f16", kind))


def test_a_known_defect_is_counted_apart_and_once():
    tally = Tally()
    for known in ("mask-scan", "mask-scan", ""):
        one = judged(len(known), GQA, "fail")
        object.__setattr__(one.result, "known", known)
        tally.add(one)
    tally.add(judged(5, GQA))
    assert (tally.cases, tally.number("known defect"), tally.number("finding"), tally.number("pass")) == (4, 2, 1, 1)
    lines = "\n".join(summary(tally))
    assert "2 fail by mask-scan, a known defect of llama.cpp" in lines
    assert f"finding: {WRONG} (mma_f16) on sim:h200, 1 case, such as fuzz-0-0" in lines
    (found,) = document(tally)["findings"]
    assert found["scenario"] == GQA
