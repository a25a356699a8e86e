from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from fattn_probe.daily.regress.changes import changes
from fattn_probe.daily.regress.junit import junit
from fattn_probe.daily.regress.records import Identity, Result, Run, Settings
from fattn_probe.daily.regress.runner import Outcome
from fattn_probe.daily.regress.tables import markdown
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.verdict.judge.checks import Checks

SIM = Identity("here", "sim:h200", "9.0", "", "sim", "release", "pypi:x==1", "11063", "", "0.1.0")
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
    kinds = {name: [child.tag for child in test] for name, test in tests.items()}
    return suite, tests, kinds


def test_cases_that_end_the_command_fail_and_lost_ones_never_pass():
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


def test_a_failure_is_one_where_nothing_was_accepted():
    _, _, kinds = parsed(outcome(None, 6))
    assert (kinds["known"], kinds["new"], kinds["support"]) == (["failure"], ["failure"], ["skipped"])


def test_messages_times_and_what_xml_has_no_letter_for():
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


def test_the_step_summary_of_a_first_run():
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
