"""`compare` and `regress` judge a case by one function: equal verdicts, words and metrics."""

import dataclasses
import json
import math
import os

import numpy as np
import pytest

from fattn_probe.cases.scenario import expand, load
from fattn_probe.daily.regress.results import result_of
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.judge.cases import judge_case
from fattn_probe.verdict.judge.checks import Checks
from tests.as_user import completed
from tests.made import H200, ROOT, SCENARIOS
from tests.stand_in import StandIn

pytestmark = [pytest.mark.build, pytest.mark.network]
CHEAP = ("gqa", "sinks", "decode", "known-faults/k-stride", "known-faults/masked-rows")


def probe(*words):
    done = completed(*words, "--json")
    assert done.returncode in (0, 5), done.stderr
    return json.loads(done.stdout)


def same(one, other):
    """Whether two values of JSON are equal, numbers up to the order of their sums."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-300)
    return one == other


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
        known = row["design"] or {}
        assert result["metrics"].get("equal_bits") == known.get("equal_bits"), name
        for metric, value in (row["metrics"] or {}).items():
            if metric not in ("worst", "first_bad"):
                assert same(result["metrics"][metric], value), (name, metric)
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


@dataclasses.dataclass
class LastScaleInF16(StandIn):
    """A session whose kernel rounds the last factor of each row, 1 by its sum, to f16."""

    session: Session

    @property
    def options(self):
        return self.session.options

    def build_for(self, target):
        return self.session.build_for(target)

    def reordered(self, number):
        return LastScaleInF16(self.session.reordered(number))

    def capture(self, case, inputs, target, part=None):
        found = self.session.capture(case, inputs, target)
        assert isinstance(found, Capture), found
        scale = np.random.default_rng(1).uniform(1e-3, 1e-2, (*found.dst.shape[:3], 1))
        factor = scale.astype(np.float16) / scale
        return dataclasses.replace(found, dst=(found.dst * factor).astype(np.float32))


def test_a_last_scale_in_f16_fails_both(session):
    (case,) = expand(load(SCENARIOS / "gqa.yaml"))
    spoilt = LastScaleInF16(session)
    assert result_of(session, case, H200).status == "pass"
    judgement, result = judge_case(spoilt, case, H200), result_of(spoilt, case, H200)
    assert (judgement.status, result.status) == ("fail", "fail")
    assert "differs from the rounding model" in judgement.reason
    assert result.reason == judgement.reason
    without = result_of(spoilt, case, H200, Checks(model="never"))
    assert without.status == "pass"
    assert "skipped" in without.missing


@dataclasses.dataclass
class OtherLastBits(LastScaleInF16):
    """A session whose kernel differs by the last bit of float32 in most elements."""

    def capture(self, case, inputs, target, part=None):
        found = self.session.capture(case, inputs, target)
        assert isinstance(found, Capture), found
        other = np.random.default_rng(1).random(found.dst.shape) < 0.72
        return dataclasses.replace(found, dst=np.where(other, np.nextafter(found.dst, np.float32(9)), found.dst))


def test_a_small_share_of_the_models_bits_warns_without_a_history(session):
    (case,) = expand(load(SCENARIOS / "gqa.yaml"))
    assert result_of(session, case, H200).warning == ""
    other = OtherLastBits(session)
    judgement, result = judge_case(other, case, H200), result_of(other, case, H200)
    assert (judgement.status, result.status) == ("pass", "pass")
    share = f"{100 * result.metrics['equal_bits']:.2g} % of the elements equal the rounding model in every bit"
    assert judgement.warning == result.warning == f"as designed, but {share}; usually all do"
    assert result_of(other, case, H200, Checks(model="never")).warning == ""


def test_other_roundings_fail_where_the_suite_asks_for_the_models(session):
    (case,) = expand(load(SCENARIOS / "gqa.yaml"))
    asked = Checks(roundings=True)
    assert result_of(session, case, H200, asked).status == "pass"
    result = result_of(OtherLastBits(session), case, H200, asked)
    (check,) = result.checks
    assert (result.status, check.name, check.fails) == ("fail", "roundings", True)
    assert "of the elements equal the rounding model in every bit; usually all do" in result.reason
    assert result_of(LastScaleInF16(session), case, H200, asked).checks == (), "an output that is wrong needs no check"
    without = result_of(OtherLastBits(session), case, H200, Checks(model="never", roundings=True))
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
