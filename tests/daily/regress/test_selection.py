"""The shipped suites, and the selection of a suite's cases."""

from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.base.regex import compiled
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.selection import CaseSelection
from fattn_probe.daily.regress.suite import Suite, cases_of, load_suite

SUITES = Path(__file__).parents[3] / "suites"
MOST_FLOP = 1e9
"""Of a case of the quick suite: 2 seconds of one core on the simulator."""


def test_the_quick_suite_is_quick_and_has_every_shipped_scenario():
    suite = load_suite(SUITES / "quick.yaml")
    chosen = CaseSelection(tuple(cases_of(suite, SUITES))).some(suite.only).cases
    assert len(chosen) >= 300
    assert max(case.op.sizes.flop for case in chosen) < MOST_FLOP
    left_out = {case.scenario for case in cases_of(suite, SUITES)} - {case.scenario for case in chosen}
    assert left_out == {"streamk-fractional", "long-context", "several-tiles"}  # the last is in an entry of its own
    assert {case.op.sizes.hsk for case in chosen} >= {40, 64, 72, 80, 96, 128, 192, 256, 512, 576}
    assert {case.op.type_K for case in chosen} == {
        "f16",
        "f32",
        "bf16",
        "q4_0",
        "q4_1",
        "q5_0",
        "q5_1",
        "q8_0",
        "iq4_nl",
    }


def test_the_upstream_suite_is_of_the_gpu_of_this_machine():
    suite = load_suite(SUITES / "upstream.yaml")
    assert (suite.upstream, suite.scenarios, suite.on) == (True, [], ["gpu"])
    assert (suite.check.model, load_suite(SUITES / "quick.yaml").check.model) == ("never", "auto")


def test_the_schema_of_suites_has_every_check():
    check = Suite.model_json_schema()["$defs"]["CheckSpec"]["properties"]
    assert set(check) == {"model", "sample", "repeat", "batch_invariance", "roundings", "kernels", "order"}


def test_a_filter_is_over_results_too():
    suite = load_suite(SUITES / "quick.yaml")
    settled = (Result("gqa-old", "", "unsupported"), Result("other", "", "unsupported"))
    chosen = CaseSelection(tuple(cases_of(suite, SUITES)), settled).some("^gqa")
    assert chosen.names == ["gqa", "gqa-old"]


def test_a_filter_that_is_no_expression():
    with pytest.raises(InputError, match=r"--filter '\[': unterminated character set"):
        compiled("[", "--filter")


def test_a_suite_without_cases(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("version: 1\nabout: x\n")
    with pytest.raises(InputError, match="a suite needs scenarios, or upstream: true"):
        load_suite(path)
