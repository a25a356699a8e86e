from xml.etree import ElementTree as ET

import pytest

from fattn_probe.regress.changes import changes
from fattn_probe.regress.junit import junit
from fattn_probe.regress.records import Identity, Result, Run
from fattn_probe.regress.runner import Outcome
from fattn_probe.regress.tables import markdown

SIM = Identity("here", "sim:h200", "9.0", "", "sim", "release", "pypi:x==1", "11063", "", "0.1.0")
RUN = Run(1, "ab" * 16, SIM, "nightly", "2026-01-02T03:04:05.678+00:00", None)


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


def test_what_ends_the_command_fails_and_what_is_lost_never_passes():
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
    assert "| sim:h200 | `pypi:x==1` | **6 changed, 2 of them regressions; of 4 nothing can be said** |" in said
    assert "| new | **new failure** | was pass: an error \\| is 3 times its bound |" in said
    assert "| known | known failure | wrong since long |" in said
    assert said.index("**support lost**") < said.index("| bits |")


def test_the_step_summary_of_a_first_run():
    said = markdown([outcome(None, 6)])
    assert "**2 wrong, no run accepted yet; of 1 nothing can be said**" in said
