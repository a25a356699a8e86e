"""Known defects of upstream in every output of `regress`: named once, with their number; the run still fails."""

import html
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from fattn_probe.base.console import OUT
from fattn_probe.base.errors import ComparisonError, RegressionError
from fattn_probe.daily.regress.changes import ChangeKind, changes
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.junit import junit
from fattn_probe.daily.regress.records import Identity, Result, Run, Settings
from fattn_probe.daily.regress.report import report
from fattn_probe.daily.regress.runner import Outcome
from fattn_probe.daily.regress.tables import as_json, markdown, not_checked, raise_if_regressed, render
from fattn_probe.verdict.judge.bitwise import not_made
from fattn_probe.verdict.judge.checks import Checks

V100 = Identity("here", "sim:v100", "7.0", "", "sim", "release", "pypi:x==1", "11549", "", "0.1.0")
RUN = Run(1, "ab" * 16, V100, "quick", "2026-01-02T03:04:05.678+00:00", None)
TRAPS = [Result(f"trap-{i}", "d", "fail", "trap: __trap()", failure="trap", known="volta-columns") for i in range(46)]
LINE = "46 fail by volta-columns, a known defect of llama.cpp (docs/findings.md)"


def outcome(*others):
    results = {result.name: result for result in [Result("gqa", "d", "pass"), *TRAPS, *others]}
    return Outcome(RUN, results, None, (), len(results))


def on_terminal(found):
    with OUT.capture() as captured:
        OUT.print(render([found]))
    return " ".join(captured.get().split())


WRONG = Result("wrong", "d", "fail", "not as designed")


def test_one_line_instead_of_46_but_other_failures_stay():
    said = on_terminal(outcome(WRONG))
    assert said.count(LINE) == 1
    assert "trap-7" not in said
    assert "fail wrong: not as designed" in said
    assert "1 pass, 47 fail" in said


def test_only_what_is_not_known_fails_the_run():
    raise_if_regressed([outcome()], 0.02)
    with pytest.raises(ComparisonError, match=r"47 cases are wrong \(46 by known defects\)"):
        raise_if_regressed([outcome(WRONG)], 0.02)
    with pytest.raises(ComparisonError, match=r"^sim:v100: 1 case is wrong; no baseline yet$"):
        raise_if_regressed([Outcome(RUN, {WRONG.name: WRONG}, None, (), 1)], 0.02)
    found = changes({"wrong": Result("wrong", "d", "pass")}, {"wrong": WRONG})
    with pytest.raises(RegressionError, match=r"^sim:v100: 1 regression \(1 new failure\)$"):
        raise_if_regressed([Outcome(RUN, {"wrong": WRONG}, RUN, found, 1)], 0.02)


CAUSE = "KV step 0 is left out (KV rows 0 to 31)"
BECAUSE = f"not as designed; cause: {CAUSE}"


def test_every_output_says_the_cause_of_a_wrong_output_and_the_terminal_says_it_once():
    """With a baseline the table has the failure, without one a line of its own."""
    wrong = Result("wrong", "d", "fail", "not as designed", failure="x", diagnosis=CAUSE)
    fresh = Outcome(RUN, {"wrong": wrong}, None, (), 1)
    found = changes({"wrong": Result("wrong", "d", "pass")}, {"wrong": wrong})
    worse = Outcome(RUN, {"wrong": wrong}, RUN, found, 1)
    assert [change.words for change in found] == [f"was pass: {BECAUSE}"]
    for one in (fresh, worse):
        said = on_terminal(one)
        assert [said.count(words) for words in ("not as designed", CAUSE)] == [1, 1]
        assert BECAUSE in markdown([one])
        assert BECAUSE in ET.fromstring(junit([one])).find("testsuite/testcase/failure").get("message")
        assert as_json([one])["runs"][0]["results"][0]["diagnosis"] == CAUSE


def test_the_checks_that_could_not_be_made_are_counted():
    checks = (not_made("roundings", "no model"), not_made("kernels", "not known"))
    results = {
        name: Result(name, "d", "pass", missing="the rounding model was skipped", checks=checks[:number])
        for name, number in (("a", 2), ("b", 1))
    }
    results["c"] = Result("c", "d", "unsupported", "refused", checks=(not_made("support", "no release is known"),))
    lines = [
        "not checked in 2 cases: roundings: no model",
        "not checked in 1 case: kernels: not known",
        "not checked in 1 case: support: no release is known",
    ]
    found = Outcome(RUN, results, None, (), 3)
    assert list(not_checked(found)) == [*lines, "not checked in 2 cases: the rounding model was skipped"]
    without = replace(RUN, settings=Settings(Checks(model="never")))
    assert list(not_checked(replace(found, run=without))) == lines  # as asked
    assert all(line in on_terminal(found) for line in lines)


def test_markdown_has_one_row_for_all():
    said = markdown([outcome(WRONG)])
    assert said.count(f"| volta-columns | known defect | {LINE} |") == 1
    assert "trap-7" not in said
    assert "| wrong | wrong | not as designed |" in said


def test_json_and_junit_have_it_with_each_case():
    (run,) = as_json([outcome()])["runs"]
    assert {item["name"]: item["known"] for item in run["results"]}["trap-7"] == "volta-columns"
    suite = ET.fromstring(junit([outcome(WRONG)])).find("testsuite")
    tests = {test.get("name"): test for test in suite.iter("testcase")}
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "46")
    assert tests["trap-7"].find("properties/property[@name='known']").get("value") == "volta-columns"
    said = tests["trap-7"].find("skipped").get("message")
    assert said.startswith("known failure: volta-columns, a known defect of llama.cpp")
    assert tests["wrong"].find("properties") is None


def test_a_regression_says_which_defect_it_is():
    (change,) = changes({"trap-0": Result("trap-0", "d", "pass")}, {"trap-0": TRAPS[0]})
    assert (change.kind, change.alarm) == (ChangeKind.NEW_FAILURE, True)
    assert change.words == "was pass: volta-columns, a known defect of llama.cpp (docs/findings.md): trap: __trap()"


def test_the_history_keeps_it_and_the_page_names_it_once(tmp_path):
    with open_history(tmp_path / "h.db") as history:
        run = history.begin(V100, "quick", planned=47)
        for result in (*TRAPS, replace(WRONG, diagnosis=CAUSE)):
            history.add(run, result)
        assert {item.known for item in history.results(run).values()} == {"volta-columns", ""}
        assert history.results(run)["wrong"].diagnosis == CAUSE
        page = report(history)
    assert page.count("46 fail by volta-columns") == 1
    wrong = page[page.index("<h3>Wrong outputs</h3>") : page.index("scenarios through")]
    assert "not as designed" in wrong and CAUSE in html.unescape(wrong).replace("<wbr>", "")
    assert "trap-7" not in wrong
