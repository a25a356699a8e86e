"""Which way is taken: the first that shows the failure, and why not a shorter one."""

from types import SimpleNamespace
from typing import Any

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target, load_devices, parse_target
from fattn_probe.cases.scenario.cases import op_of
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.daily.ops.parse import OpResult
from fattn_probe.daily.reproduce import ways
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
