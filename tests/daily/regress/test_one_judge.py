"""`compare` and `regress` judge a case by one function: equal verdicts, words and metrics."""

import json
import os

import numpy as np
import pytest

from fattn_probe.cases.scenario import expand, load
from fattn_probe.daily.regress.results import result_of
from fattn_probe.verdict.judge.cases import judge_case
from fattn_probe.verdict.judge.checks import Checks
from tests.as_user import completed
from tests.made import H200, ROOT, SCENARIOS, shipped
from tests.verdict.made import Spoilt

pytestmark = [pytest.mark.build, pytest.mark.network]
CHEAP = ("gqa", "sinks", "decode", "known-faults/k-stride", "known-faults/masked-rows")


def probe(*words):
    done = completed(*words, "--json")
    assert done.returncode in (0, 5), done.stderr
    return json.loads(done.stdout)


def assert_equal_judgements(tmp_path, suite, scenarios, *words):
    compared = {row["case"]: row for row in probe("compare", *scenarios, "--on", "sim:h200")["rows"]}
    (run,) = probe("regress", suite, "--on", "sim:h200", "--history", tmp_path / "h.db", *words)["runs"]
    results = {result["name"]: result for result in run["results"]}
    assert results
    for name, result in results.items():
        row = compared[name]
        assert result["status"] == row["status"], name
        assert result["reason"] == row["reason"].partition("\n")[0], name
        assert (result["missing"] or None, result["output"]) == (row["missing"], row["output"]), name
        assert (result["sampled"], result["checks"]) == (row["sampled"], row["checks"]), name
        assert (result["finding"], result["launches"]) == (row["finding"], row["kernels"]), name
        assert result["metrics"].get("equal_bits") == (row["design"] or {}).get("equal_bits"), name
        for metric, value in (row["metrics"] or {}).items():
            if isinstance(value, float):  # up to the order of its sums
                assert result["metrics"][metric] == pytest.approx(value, rel=1e-9, abs=1e-300), (name, metric)
            elif metric not in ("worst", "first_bad"):
                assert result["metrics"][metric] == value, (name, metric)
    return results


def test_compare_and_regress_say_the_same(tmp_path):
    suite = tmp_path / "some.yaml"
    files = ", ".join(os.path.relpath(SCENARIOS / f"{name}.yaml", tmp_path) for name in CHEAP)
    suite.write_text(f"version: 1\nabout: cases that pass, fail and crash\nscenarios: [{files}]\n")
    results = assert_equal_judgements(tmp_path, suite, [SCENARIOS / f"{name}.yaml" for name in CHEAP])
    assert {result["status"] for result in results.values()} == {"pass", "fail"}
    finding = results["k-stride"]["finding"]
    assert (finding["kind"], finding["block"], finding["thread"]) == ("misaligned", [0, 0, 0], [16, 0, 0])
    assert finding["kernel"].startswith("flash_attn_ext_f16<128,128,16,1")
    assert (finding["file"], finding["line"] > 0) == ("ggml/src/ggml-cuda/common.cuh", True)


POOL = ROOT / "suites/pool"
ALL = [path for path in SCENARIOS.glob("*.yaml") if path.stem != "streamk-fractional"] + list(POOL.glob("*.yaml"))


@pytest.mark.night
def test_the_pool_by_compare_and_by_regress(tmp_path):
    suite, scenarios = tmp_path / "pool.yaml", ALL
    suite.write_text(f"version: 1\nabout: the pool\nscenarios: [{', '.join(map(str, scenarios))}]\n")
    names = [case.name for path in scenarios for case in expand(load(path))]
    assert sorted(assert_equal_judgements(tmp_path, suite, scenarios)) == sorted(names)


def last_scale_in_f16(dst):
    """The last factor of each row, 1 by its sum, is rounded to f16."""
    scale = np.random.default_rng(1).uniform(1e-3, 1e-2, (*dst.shape[:3], 1))
    dst *= scale.astype(np.float16) / scale


def other_last_bits(dst):
    """Most elements differ by the last bit of float32."""
    other = np.random.default_rng(1).random(dst.shape) < 0.72
    dst[other] = np.nextafter(dst[other], np.float32(9))


def test_a_last_scale_in_f16_fails_both(session):
    case = shipped("gqa")
    spoilt = Spoilt(session, last_scale_in_f16)
    assert result_of(session, case, H200).status == "pass"
    judgement, result = judge_case(spoilt, case, H200), result_of(spoilt, case, H200)
    assert (judgement.status, result.status) == ("fail", "fail")
    assert "differs from the rounding model" in judgement.reason
    assert result.reason == judgement.reason
    without = result_of(spoilt, case, H200, Checks(model="never"))
    assert without.status == "pass"
    assert "skipped" in without.missing


def test_a_small_share_of_the_models_bits_warns_without_a_history(session):
    case = shipped("gqa")
    assert result_of(session, case, H200).warning == ""
    other = Spoilt(session, other_last_bits)
    judgement, result = judge_case(other, case, H200), result_of(other, case, H200)
    assert (judgement.status, result.status) == ("pass", "pass")
    share = f"{100 * result.metrics['equal_bits']:.2g} % of the elements equal the rounding model in every bit"
    assert judgement.warning == result.warning == f"as designed, but {share}; usually all do"
    assert result_of(other, case, H200, Checks(model="never")).warning == ""


def test_other_roundings_fail_where_the_suite_asks_for_the_models(session):
    case = shipped("gqa")
    asked = Checks(roundings=True)
    assert result_of(session, case, H200, asked).status == "pass"
    result = result_of(Spoilt(session, other_last_bits), case, H200, asked)
    (check,) = result.checks
    assert (result.status, check.name, check.fails) == ("fail", "roundings", True)
    assert result.reason.count("of the elements equal the rounding model in every bit; usually all do") == 1
    assert result.warning == ""
    assert result_of(Spoilt(session, last_scale_in_f16), case, H200, asked).checks == (), (
        "an output that is wrong needs no check"
    )
    without = result_of(Spoilt(session, other_last_bits), case, H200, Checks(model="never", roundings=True))
    assert (without.status, without.checks[0].fails) == ("pass", False)


def test_the_checks_of_a_suite_are_made_and_kept(tmp_path):
    suite = tmp_path / "strict.yaml"
    file = os.path.relpath(SCENARIOS / "gqa.yaml", tmp_path)
    checks = "check: {model: never, sample: 20, repeat: 2, batch_invariance: true, order: 2}"
    suite.write_text(f"version: 1\nabout: all checks\nscenarios: [{file}]\n{checks}\n")
    (run,) = probe("regress", suite, "--on", "sim:h200", "--history", tmp_path / "h.db")["runs"]
    asked = {"model": "never", "sample": 20, "repeat": 2, "batch_invariance": 4, "roundings": False, "kernels": False}
    asked |= {"order": 2, "predictions": False}
    assert run["checks"] == asked
    (result,) = run["results"]
    assert [check["name"] for check in result["checks"]] == ["deterministic", "batch invariant", "order"]
    assert result["sampled"]["of"] == 98
    assert "--model always" in result["missing"]
