"""Which way is taken: the first that shows the failure, and why not a shorter one."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target, load_devices, parse_target
from fattn_probe.cases.scenario.cases import op_of, resolve
from fattn_probe.cases.scenario.files import one_case
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.cli import flags
from fattn_probe.daily.ops.parse import OpResult
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import Identity, Result, StoredCase
from fattn_probe.daily.reproduce import ways
from fattn_probe.daily.reproduce.found import is_uid, past_result
from fattn_probe.daily.reproduce.ways import Chooser, ShownWay, words_of
from fattn_probe.machine.run.session import RunOptions, Session

from .test_upstream_case import CASES, FORMS, NEW

H200 = parse_target("sim:h200", load_devices())
OP = op_of(from_ops(CASES["new"][0]))


@pytest.fixture
def choose(tmp_path, monkeypatch):
    """The way for OP, with what upstream's list has and which of its runs fail: by the list as it is, and patched."""
    types, rest = FORMS["new"]
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test-backend-ops.cpp").write_text(NEW.replace("TYPES", types).replace("REST", rest))

    def make(wanted, *, listed=(), line=(), patch=(), target=H200, fails=True, op=OP):
        outcomes = {"line": list(line), "patch": list(patch)}

        def run(session, target, mode, **_rest):
            status = outcomes["patch" if session.options.patches else "line"].pop(0)
            return SimpleNamespace(results=(OpResult(CASES["new"][0], status, "NaN" if status == "fail" else ""),))

        monkeypatch.setattr(ways, "run_ops_on", run)
        monkeypatch.setattr(ways, "upstream_list", lambda *_: [SimpleNamespace(case=case) for case in listed])
        tree: Any = SimpleNamespace(root=tmp_path)
        return Chooser(Session(RunOptions(None)), tree, op, target, H200).choose(wanted, fails=fails)

    return make


IN_LIST = CASES["new"]
OTHERS = CASES["new"][1:]


def test_a_line_comes_first(choose):
    found = choose("auto", listed=IN_LIST, line=["fail"] * 3)
    assert (found.way, found.case, found.patch, found.reasons) == ("line", IN_LIST[0], "", ())
    assert str(found.shown) == "upstream's test failed in 3 of 3 runs, the last time with: NaN"


def test_a_failure_must_show_every_time(choose):
    found = choose("auto", listed=IN_LIST, line=["fail", "ok", "fail"])
    assert found.way == "file"
    assert found.reasons == (
        "line: upstream's test failed in 2 of 3 runs, the last time with: NaN",
        "patch: test-backend-ops has this op in its list already (--as line)",
    )


def test_then_a_patch(choose):
    found = choose("auto", listed=OTHERS, patch=["fail"] * 3)
    assert (found.way, found.case) == ("patch", IN_LIST[0])
    assert "+    test_cases.emplace_back(new test_flash_attn_ext(128, 128, 4, {12, 1}, 512, 1, " in found.patch
    assert found.reasons == ("line: none of the cases of this source's test-backend-ops is this op",)


def test_then_a_file(choose):
    found = choose("auto", listed=OTHERS, patch=["ok"] * 3)
    assert found.way == "file"
    assert found.reasons[1] == "patch: upstream's test failed in 0 of 3 runs"


@pytest.mark.parametrize("how", [{"fails": False}, {"target": None}, {"target": Target("cpu")}])
def test_what_cannot_fail_in_upstreams_test_is_a_file(choose, how):
    assert choose("auto", listed=IN_LIST, **how) == ways.Chosen("file")


def test_the_wanted_way_is_taken_whether_it_fails_or_not(choose):
    assert choose("line", listed=IN_LIST, line=["ok"] * 3).shown == ShownWay(3, 0)
    assert choose("line", listed=IN_LIST, target=None).shown is None
    assert choose("patch", listed=OTHERS, target=None).patch
    assert choose("file", listed=IN_LIST).way == "file"
    with pytest.raises(InputError, match="line: none of the cases"):
        choose("line", listed=OTHERS)
    with pytest.raises(InputError, match="in its list already"):
        choose("patch", listed=IN_LIST)


def test_a_source_without_upstreams_test(choose, tmp_path):
    (tmp_path / "tests/test-backend-ops.cpp").unlink()
    found = choose("auto", listed=IN_LIST)
    assert found.way == "file"
    assert all("this source has no tests/test-backend-ops.cpp" in reason for reason in found.reasons)


def test_what_upstreams_test_says_of_a_failure():
    assert words_of(OpResult("x", "fail", error=0.1, threshold=0.0005)) == "NMSE = 0.100000000 > 0.000500000"
    assert words_of(OpResult("x", "fail")) == "FAIL"


OPS = "FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,nr23=[4,1],kv=512,nb=3,type_K=f16,type_V=f16)"
IDENTITY = Identity("m", "sim:h200", "9.0", "", "sim", "release", "pypi:x==1", "1", "14628-fixup-layout", "0.1")


@pytest.fixture
def found(tmp_path):
    def make(*cases, identity=IDENTITY, suite="quick"):
        with open_history(tmp_path / "h.db") as history:
            run = history.begin(identity, suite)
            history.know([StoredCase.of(case) for case in cases], identity, [])
            for case in cases:
                history.add(run, Result(case.name, case.digest, "fail"))
            history.end(run)
            return past_result(history, run.uid[:8], cases[0].name if cases else "")

    return make


def gqa():
    return one_case(flags.scenario_path("gqa"), "")


def test_a_case_of_a_suite_runs_as_it_was_run(found):
    past = found(gqa())
    assert past.case == gqa()
    assert (past.on, past.source, past.patches) == ("sim:h200", "pypi:x==1", ("faults/14628-fixup-layout",))


def test_a_case_of_a_shipped_scenario_of_an_unknown_suite(found):
    assert found(gqa(), suite="mine").case == gqa()


def test_a_case_of_upstreams(found):
    case = resolve(from_ops(OPS), OPS, "upstream")
    assert found(case, suite="upstream").case == case


def test_a_run_on_a_gpu(found):
    assert found(gqa(), identity=replace(IDENTITY, engine="cuda", device="NVIDIA H200", patches="")).on == "gpu"


def test_what_is_not_known_any_more_is_refused(found):
    other = replace(gqa(), source=replace(gqa().source, seed=5))
    with pytest.raises(InputError, match="gives this case with the same inputs"):
        found(other)
    with pytest.raises(InputError, match="which is not shipped"):
        found(gqa(), identity=replace(IDENTITY, patches="mine"))
    with pytest.raises(InputError, match="has no case ''"):
        found()


def test_the_beginning_of_a_runs_name():
    assert is_uid("27d4ae61") and is_uid("2" * 32)
    assert not any(map(is_uid, ("gqa", "27d", "27d4ae6g", "2" * 33)))
