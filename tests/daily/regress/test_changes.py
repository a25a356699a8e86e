"""What changed between two runs, and the steps in a series of times.

What changed, what is known and what could not be judged, in every output of `regress`: none is a pass.
"""

import html
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fattn_probe.base.errors import ComparisonError, RegressionError, UnjudgedError
from fattn_probe.daily.regress.changes import ChangeKind, changes, last_step, levels
from fattn_probe.daily.regress.junit import junit
from fattn_probe.daily.regress.records import Result, Run, Settings
from fattn_probe.daily.regress.report import report
from fattn_probe.daily.regress.runner import Outcome
from fattn_probe.daily.regress.tables import as_json, markdown, not_checked, raise_if_regressed, render
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.verdict.judge.bitwise import Check, not_made
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.known import defects
from tests.daily.regress.made import SIM, night
from tests.made import shown


def launch(kernel="f<1>", grid=8):
    return f'{{"order":0,"kernel":"{kernel}","grid":[{grid},1,1],"block":[32,4,1],"shared":0}}'


GRIDS = {8: "assumed", 9: "measured"}


def result(status="pass", output="00", launches="", digest="d", **rest):
    return Result("c", digest, status, output=output, launches=launches or launch(), **rest)


ALARMS = {ChangeKind.NEW_FAILURE, ChangeKind.SUPPORT_LOST}


def kinds(before, after):
    found = changes({"c": before}, {"c": after})
    assert [change.alarm for change in found] == [change.kind in ALARMS for change in found]
    return [change.kind for change in found]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (result(), result(), []),
        (result(), result("fail"), [ChangeKind.NEW_FAILURE]),
        (result("fail"), result(), [ChangeKind.FIXED]),
        (result("fail"), result("fail", reason="still"), []),
        (result(), result("unsupported", output=None), [ChangeKind.SUPPORT_LOST]),
        (result("unsupported", output=None), result(), [ChangeKind.SUPPORT_GAINED]),
        (result("unsupported", output=None), result("fail"), [ChangeKind.NEW_FAILURE]),
        (result(), result(output="11"), [ChangeKind.BITS]),
        (result(), result(launches=launch("f<2>")), [ChangeKind.KERNEL]),
        (result(), result(launches=launch(grid=9)), [ChangeKind.LAUNCH]),
        (result(), result(output="11", launches=launch("g")), [ChangeKind.KERNEL, ChangeKind.BITS]),
        (result(), result("lost", output=None, failure="time-out"), [ChangeKind.LOST]),
        (result("lost", output=None), result(), []),
        (result("lost", output=None), result("fail"), [ChangeKind.NEW_FAILURE]),
        (result(digest="a"), result(digest="b"), [ChangeKind.NEW]),
        (result(digest="a"), result("fail", digest="b"), [ChangeKind.NEW, ChangeKind.NEW_FAILURE]),
    ],
)
def test_kinds_of_change(before, after, found):
    assert kinds(before, after) == found


@pytest.mark.parametrize(("kernel", "mark"), [("flash_attn_ext_vec", " (assumed)"), ("dequantize", "")])
def test_a_changed_grid_says_where_its_occupancy_is_from(kernel, mark):
    """The origin alone is no change."""
    before, after = (
        launch(f"{kernel}<1>", grid).replace("}", f',"origin":"{origin}"}}') for grid, origin in GRIDS.items()
    )
    (change,) = changes({"c": result(launches=before)}, {"c": result(launches=after)})
    sizes = [f"{kernel}: grid {grid}x1x1 of 32x4x1, 0 B" for grid in GRIDS]
    assert change.words == f"{sizes[0]}{mark} became {sizes[1]}"
    assert kinds(result(launches=before), result(launches=before.replace("assumed", "measured"))) == []


def test_cases_that_were_not_run_or_are_new():
    (change,) = changes({"c": result()}, {})
    assert (change.case, change.kind, change.words) == ("c", ChangeKind.NOT_RUN, "was pass")
    assert [change.kind for change in changes({}, {"c": result()})] == [ChangeKind.NEW]
    assert [change.kind for change in changes({}, {"c": result("fail")})] == [ChangeKind.NEW_FAILURE]


def test_words_describe_the_change_before_and_after_in_one_line_of_a_case():
    (change,) = changes({"c": result()}, {"c": result(launches=launch("f<2>"))})
    assert change.words == "f<1> became f<2>"
    (change,) = changes({"c": result()}, {"c": result(launches=launch(grid=9))})
    assert change.words == "f: grid 8x1x1 of 32x4x1, 0 B became f: grid 9x1x1 of 32x4x1, 0 B"
    (change,) = changes(
        {"c": result(launches=f"{launch('f<1>')}\n{launch('g')}")},
        {"c": result(launches=f"{launch('f<1>')}\n{launch('g', grid=3)}")},
    )
    assert change.words == "g: grid 8x1x1 of 32x4x1, 0 B became g: grid 3x1x1 of 32x4x1, 0 B"
    before, after = result(metrics={"equal_bits": 1.0}), result(output="11", metrics={"equal_bits": 0.28})
    (change,) = changes({"c": before}, {"c": after})
    assert change.words.endswith("28 % of the elements match the rounding model bit for bit (before: 100 %)")
    # An out-of-bounds access ends the run: that its kernels were not launched is no change of its own.
    (change,) = changes({"c": result()}, {"c": Result("c", "d", "fail", "out-of-bounds: ...")})
    assert change.kind is ChangeKind.NEW_FAILURE
    (change,) = changes({"c": Result("c", "d", "fail", "out-of-bounds: ...")}, {"c": result()})
    assert change.kind is ChangeKind.FIXED


def series(*pieces, noise=0.005, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([value * (1 + noise * rng.standard_normal(count)) for value, count in pieces]).tolist()


def test_a_step_is_found_where_it_is_and_the_last_one_has_both_levels():
    found = levels(series((1.0, 20), (1.1, 10)))
    assert [(level.start, level.stop) for level in found] == [(0, 20), (20, 30)]
    before, after = last_step(series((1.0, 20), (1.1, 5)))
    assert [found[1].value, after.value / before.value] == pytest.approx([1.1, 1.1], rel=0.01)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0], [1.0] * 30, series((1.0, 30)), [1.0, 2.0]])
def test_no_step(values):
    assert last_step(values) is None


def test_a_slow_run_and_noise_are_no_step():
    values = series((1.0, 30))
    values[12] = 1.5
    assert last_step(values) is None
    values[-1] = 1.5
    assert last_step(values) is None
    # Of 300 series of nights without a change, at 1 % noise.
    assert sum(last_step(series((1.0, 40), noise=0.01, seed=seed)) is not None for seed in range(300)) <= 3


@settings(max_examples=30)
@given(st.integers(8, 25), st.integers(4, 15), st.floats(1.06, 3.0), st.integers(0, 10**6))
@example(11, 6, 3.0, 510510)  # the slower level, as noisy as it is slow, falls in two
def test_any_step_well_above_the_noise_is_seen(first, second, factor, seed):
    step = last_step(series((1.0, first), (factor, second), noise=0.002, seed=seed))
    assert step is not None
    assert step[0].stop == first


RUN = Run(1, "ab" * 16, SIM, "nightly", "2026-01-02T03:04:05.678+00:00", None)
RACE = Finding("race", "race: two warps", "f<1>", "ggml/a.cuh", 7, (0, 1, 0), (3, 2, 0), ("f at ggml/a.cuh:7",))
ABORT = Finding("abort", "GGML_ASSERT failed", file="ggml/b.cu", line=9)


def named(*results):
    return {result.name: result for result in results}


BEFORE = named(
    *(Result(name, "d", "pass", output="00") for name in ("new", "bits", "support", "gone")),
    Result("known", "d", "fail", "wrong since long"),
)
AFTER = named(
    Result("new", "d", "fail", "an error | is 3 times its bound", failure="long\x00text <&>"),
    Result("bits", "d", "pass", output="11"),
    Result("support", "d", "unsupported", "no kernel"),
    Result("known", "d", "fail", "wrong since long"),
    Result("lost", "d", "lost", "time-out", failure="time-out after 600 s"),
    Result("timed", "d", "pass", seconds=(3e-5, 1e-5, 2e-5)),
)


def outcome(baseline=RUN, planned=9):
    return Outcome(RUN, AFTER, baseline, changes(BEFORE, AFTER) if baseline else (), planned)


def parsed(found):
    (suite,) = ET.fromstring(junit([found])).iter("testsuite")
    tests = {test.get("name"): test for test in suite.iter("testcase")}
    return suite, tests, {name: [child.tag for child in test] for name, test in tests.items()}


def test_junit_has_the_kind_message_and_time_of_each_case():
    suite, _, kinds = parsed(outcome())
    assert kinds == {
        "new": ["failure"],
        "bits": [],
        "support": ["failure"],
        "known": ["skipped"],
        "lost": ["error"],
        "timed": [],
        "gone": ["error"],
        "2 cases": ["error"],
    }
    counted = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counted == {"tests": "8", "failures": "2", "errors": "3", "skipped": "1"}
    _, _, kinds = parsed(outcome(None, 6))
    assert (kinds["known"], kinds["new"], kinds["support"]) == (["failure"], ["failure"], ["skipped"])
    suite, tests, _ = parsed(outcome())
    assert tests["new"][0].get("message") == "new failure: was pass: an error | is 3 times its bound"
    assert tests["new"][0].text == "long?text <&>"
    assert float(tests["timed"].get("time")) == pytest.approx(2e-5)
    assert suite.find("properties/property[@name='source']").get("value") == "pypi:x==1"


def test_the_step_summary_says_the_verdict_first_and_escapes():
    said = markdown([outcome()])
    assert "| sim:h200 | `pypi:x==1` | **5 changed, 2 regressions; 4 without a verdict** |" in said
    assert "| new | **new failure** | was pass: an error \\| is 3 times its bound |" in said
    assert "| known | known failure | wrong since long |" in said
    assert said.index("**support lost**") < said.index("| bits |")
    said = markdown([outcome(None, 6)])
    assert "**2 wrong, no baseline yet; 1 without a verdict**" in said


@pytest.mark.parametrize("accepted", [True, False])
def test_where_a_kernel_was_stopped(accepted):
    """In the message, in properties, and as the file and line that CI systems link to, new failure or known one."""
    before = {"race": Result("race", "d", "pass"), "abort": Result("abort", "d", "fail")}
    after = named(
        Result("race", "d", "fail", "race: two warps", failure="with its stack", finding=RACE),
        Result("abort", "d", "fail", "GGML_ASSERT failed", finding=ABORT),
    )
    found = Outcome(RUN, after, RUN, changes(before, after), 2) if accepted else Outcome(RUN, after, None, (), 2)
    _, tests, kinds = parsed(found)
    assert kinds == {"race": ["properties", "failure"], "abort": ["properties", "skipped" if accepted else "failure"]}
    race, abort = tests["race"], tests["abort"]
    known = {item.get("name"): item.get("value") for item in race.iter("property")}
    assert known == {"finding": "race", "kernel": "f<1>", "block": "0,1,0", "thread": "3,2,0"}
    assert (race.get("file"), race.get("line")) == ("ggml/a.cuh", "7")
    place = "race: two warps in f<1>, block (0, 1, 0), thread (3, 2, 0), ggml/a.cuh:7"
    assert race.find("failure").get("message").endswith(place)
    assert [item.get("name") for item in abort.iter("property")] == ["finding"]
    assert abort[1].get("message").endswith("GGML_ASSERT failed in ggml/b.cu:9")


def test_how_the_cases_were_judged():
    checked = replace(RUN, settings=Settings(Checks(model="never"), "^gqa"))
    known = {
        item.get("name"): item.get("value") for item in parsed(replace(outcome(), run=checked))[0].iter("property")
    }
    assert known["checks"] == "rounding model never, rows auto, 1 run"
    assert known["filter"] == "^gqa"


UNJUDGED = Result("wide", "d", "unjudged", "the predicted error is as large as the answer")


def outcome_of(before, after=UNJUDGED):
    baseline = RUN if before else None
    found = named(after)
    return Outcome(RUN, found, baseline, changes(named(before), found) if before else (), 1)


def kinds_of(found):
    return [change.kind for change in found.changes]


def test_an_output_that_could_not_be_judged_has_a_word_and_an_exit_code_of_its_own_with_and_without_a_baseline():
    for found in (outcome_of(None), outcome_of(Result("wide", "d", "pass")), outcome_of(Result("wide", "d", "lost"))):
        with pytest.raises(UnjudgedError, match="sim:h200: 1 output could not be judged"):
            raise_if_regressed([found], 0.05)
        (test,) = ET.fromstring(junit([found])).iter("testcase")
        assert [(child.tag, child.get("type")) for child in test] == [("error", "unjudged")]
        assert "1 unjudged" in markdown([found]) and "1 without a verdict" in markdown([found])
        assert "predicted error is as large" in on_terminal(found)


def test_an_output_that_is_unjudged_in_one_run_only_and_a_failure_beside_one():
    found = outcome_of(Result("wide", "d", "unjudged"))
    assert kinds_of(found) == []
    raise_if_regressed([found], 0.05)
    assert kinds_of(outcome_of(UNJUDGED, Result("wide", "d", "pass"))) == []
    failed = outcome_of(UNJUDGED, Result("wide", "d", "fail", "wrong"))
    assert kinds_of(failed) == [ChangeKind.NEW_FAILURE]
    assert failed.alarms
    after = named(UNJUDGED, Result("other", "d", "fail", "wrong"))
    with pytest.raises(ComparisonError):
        raise_if_regressed([Outcome(RUN, after, None, (), 2)], 0.05)


TRAPS = [Result(f"trap-{i}", "d", "fail", "trap: __trap()", failure="trap", known="volta-columns") for i in range(46)]
LINE = f"46 fail because of volta-columns, a known defect of llama.cpp: {defects()['volta-columns'].about}"


def with_traps(*others):
    results = {result.name: result for result in [Result("gqa", "d", "pass"), *TRAPS, *others]}
    return Outcome(RUN, results, None, (), len(results))


def on_terminal(found):
    return " ".join(shown(render([found])).split())


WRONG = Result("wrong", "d", "fail", "not as designed")


def test_a_known_defect_is_one_line_or_row_instead_of_46_but_other_failures_stay():
    said = on_terminal(with_traps(WRONG))
    assert said.count(LINE) == 1
    assert "trap-7" not in said
    assert "fail wrong: not as designed" in said
    assert "1 pass, 47 fail" in said
    said = markdown([with_traps(WRONG)])
    assert said.count(f"| volta-columns | known defect | {LINE} |") == 1
    assert "trap-7" not in said
    assert "| wrong | wrong | not as designed |" in said


def test_only_what_is_no_known_defect_fails_the_run():
    raise_if_regressed([with_traps()], 0.02)
    with pytest.raises(ComparisonError, match=r"47 cases are wrong \(46 known defects\)"):
        raise_if_regressed([with_traps(WRONG)], 0.02)
    with pytest.raises(ComparisonError, match=r"^sim:h200: 1 case is wrong; no baseline yet$"):
        raise_if_regressed([Outcome(RUN, {WRONG.name: WRONG}, None, (), 1)], 0.02)
    found = changes({"wrong": Result("wrong", "d", "pass")}, {"wrong": WRONG})
    with pytest.raises(RegressionError, match=r"^sim:h200: 1 regression \(1 new failure\)$"):
        raise_if_regressed([Outcome(RUN, {"wrong": WRONG}, RUN, found, 1)], 0.02)


OTHER = Result("gqa", "d", "fail", "another kernel: mma, but b11549 launches tile; apart from that, as designed")
OTHER = replace(OTHER, checks=(Check("kernels", False, True, "another kernel: mma, but b11549 launches tile"),))


def test_a_correct_output_of_another_kernel_is_not_called_wrong_and_says_how_to_accept_it():
    alone, hint = Outcome(RUN, {"gqa": OTHER}, None, (), 1), "if another kernel is intended (its output is correct)"
    with pytest.raises(ComparisonError, match=r"^sim:h200: 1 case with a correct output of another kernel; no base"):
        raise_if_regressed([alone], 0.02)
    with pytest.raises(ComparisonError, match=r"^sim:h200: 1 case is wrong, 1 case with a correct output of another"):
        raise_if_regressed([Outcome(RUN, {"gqa": OTHER, "wrong": WRONG}, None, (), 2)], 0.02)
    assert hint in on_terminal(alone) and "fail gqa: another kernel: mma" in on_terminal(alone)
    said = markdown([alone])
    assert "**nothing wrong, no baseline yet; 1 with another kernel**" in said and "| gqa | another kernel |" in said
    worse = Outcome(RUN, {"gqa": OTHER}, RUN, changes({"gqa": Result("gqa", "d", "pass")}, {"gqa": OTHER}), 1)
    assert hint in on_terminal(worse)
    with pytest.raises(RegressionError, match="1 new failure"):
        raise_if_regressed([worse], 0.02)
    accepted = Outcome(RUN, {"gqa": OTHER}, RUN, changes({"gqa": OTHER}, {"gqa": OTHER}), 1)
    assert hint not in on_terminal(accepted)
    raise_if_regressed([accepted], 0.02)
    racy = replace(OTHER, checks=(*OTHER.checks, Check("deterministic", False, True, "not deterministic")))
    with pytest.raises(ComparisonError, match="1 case is wrong; no baseline yet"):
        raise_if_regressed([Outcome(RUN, {"gqa": racy}, None, (), 1)], 0.02)


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


def test_json_junit_and_a_regression_name_the_known_defect():
    (run,) = as_json([with_traps()])["runs"]
    assert {item["name"]: item["known"] for item in run["results"]}["trap-7"] == "volta-columns"
    suite, tests, _ = parsed(with_traps(WRONG))
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "46")
    assert tests["trap-7"].find("properties/property[@name='known']").get("value") == "volta-columns"
    said = tests["trap-7"].find("skipped").get("message")
    assert said.startswith("known failure: volta-columns, a known defect of llama.cpp")
    assert tests["wrong"].find("properties") is None
    (change,) = changes({"trap-0": Result("trap-0", "d", "pass")}, {"trap-0": TRAPS[0]})
    assert (change.kind, change.alarm) == (ChangeKind.NEW_FAILURE, True)
    assert change.words == "was pass: volta-columns, a known defect of llama.cpp: trap: __trap()"


def test_the_history_keeps_a_known_defect_and_the_page_names_it_once(empty):
    run = night(empty, *TRAPS, replace(WRONG, diagnosis=CAUSE), planned=47, ended=False)
    assert {item.known for item in empty.results(run).values()} == {"volta-columns", ""}
    assert empty.results(run)["wrong"].diagnosis == CAUSE
    page = report(empty)
    assert page.count("46 fail because of volta-columns") == 1
    wrong = page[page.index("<h3>Wrong outputs</h3>") : page.index("scenarios through")]
    assert "not as designed" in wrong and CAUSE in html.unescape(wrong).replace("<wbr>", "")
    assert "trap-7" not in wrong
