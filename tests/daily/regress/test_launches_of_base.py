"""`compare` and `regress` name the launches that differ from those of the base."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.daily.regress.changes import ChangeKind, base_changes
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import Result
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.verdict import Status, Verdict
from fattn_probe.verdict.present.base import BesideBase, beside_base
from tests.cli.test_cli import answer
from tests.made import H200, ROOT, case_of

PATCH = "fault-one-block"
BASE = "pypi:xllamacpp==2026.10.11549 without its patches"
SUITE = "version: 1\nabout: two\nscenarios: [{root}/scenarios/gqa.yaml, {root}/scenarios/decode.yaml]\n"
VEC = LaunchRecord(0, "flash_attn_ext_vec", (("D", "128"),), (1, 12, 32), (32, 4, 1), 0)


def test_a_difference_is_a_change_and_no_regression():
    results = {"a": Result("a", "d", "pass", unlike_base="base: x became y"), "b": Result("b", "d", "pass")}
    (change,) = base_changes(results)
    assert (change.case, change.kind, change.alarm) == ("a", ChangeKind.UNLIKE_BASE, False)
    assert change.words == "base: x became y"


def test_what_is_said_of_a_base():
    fewer = LaunchRecord(0, "flash_attn_ext_vec", (("D", "128"),), (1, 1, 32), (32, 4, 1), 0)
    row = Judgement("decode", "sim:h200", Tolerance(), Verdict(Status.PASS, ""), (fewer,))
    first, second = BesideBase("BASE", 2, ((row, (VEC,)),)).lines()
    assert str(first) == "1 of 2 cases: launches differ from those of BASE (dry runs)"
    assert str(second).startswith("  decode on sim:h200: flash_attn_ext_vec<128>: grid 1x12x32 of 32x4x1, 0 B became ")
    (same,) = BesideBase("BASE", 2, ()).lines()
    assert str(same) == "2 cases: kernels, grids, blocks and shared memory equal those of BASE (dry runs)"
    (missing,) = BesideBase("BASE", 0, (), "no network").lines()
    assert str(missing) == "launches not compared with those of BASE: no network"
    assert BesideBase("BASE", 0, (), "no network").document()["missing"] == "no network"


def test_a_case_that_ended_early_is_not_compared_and_counted():
    case = case_of("version: 1\nabout: x\nhsk: 64\nn_head: 1\nn_q: 1\nn_kv: 64\n")
    base: Any = SimpleNamespace(words="BASE", launches=lambda *_: {case.op.digest: (VEC,)})
    ran = Judgement(case.name, str(H200), Tolerance(), Verdict(Status.PASS, ""), (VEC,))
    found = beside_base(base, [(case, [H200])], [ran, replace(ran, launches=())], lambda progress: None)
    assert (found.compared, found.differ, found.missing) == (1, (), "1 case ended early")


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
def test_compare_names_the_launches_that_a_patch_changes():
    found = answer("compare", "gqa", "decode", "--on", "sim:h200", "--patch", PATCH)["launches"]
    assert (found["base"], found["compared"], found["missing"]) == (BASE, 2, None)
    (other,) = found["differ"]
    assert (other["case"], other["on"]) == ("decode", "sim:h200")
    grids = [[launch["grid"] for launch in other[side]] for side in ("before", "after")]
    assert grids == [[[1, 12, 32], [1, 32, 1]], [[1, 1, 32]]]


@pytest.mark.build
@pytest.mark.network
def test_compare_of_a_release_has_no_base():
    assert answer("compare", "gqa", "--on", "sim:h200")["launches"] is None


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
def test_regress_stores_the_launches_that_a_patch_changes(tmp_path):
    suite, history = tmp_path / "two.yaml", tmp_path / "h.db"
    suite.write_text(SUITE.format(root=ROOT))
    (run,) = answer("regress", suite, "--on", "sim:h200", "--patch", PATCH, "--history", history)["runs"]
    (change,) = run["changes"]
    assert (change["case"], change["kind"], change["alarm"]) == ("decode", "launches unlike its base", False)
    assert change["words"].startswith(f"{BASE}: flash_attn_ext_vec<128,")
    with open_history(history, reading=True) as opened:
        (kept,) = opened.last_runs()
        assert [name for name, result in opened.results(kept).items() if result.unlike_base] == ["decode"]
