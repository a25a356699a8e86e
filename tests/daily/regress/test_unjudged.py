"""An output that could not be judged: a change, an error of JUnit, an exit code of its own, and never a pass."""

from xml.etree import ElementTree as ET

import pytest

from fattn_probe.base.errors import ComparisonError, UnjudgedError
from fattn_probe.daily.regress.changes import ChangeKind, changes
from fattn_probe.daily.regress.junit import junit
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.runner import Outcome
from fattn_probe.daily.regress.tables import markdown, raise_if_regressed, render
from tests.daily.regress.test_junit import RUN, named
from tests.made import shown

UNJUDGED = Result("wide", "d", "unjudged", "the predicted error is as large as the answer")


def outcome(before, after=UNJUDGED):
    baseline = RUN if before else None
    found = named(after)
    return Outcome(RUN, found, baseline, changes(named(before), found) if before else (), 1)


def kinds_of(found):
    return [change.kind for change in found.changes]


def test_it_has_a_word_and_an_exit_code_of_its_own_with_and_without_a_baseline():
    for found in (outcome(None), outcome(Result("wide", "d", "pass")), outcome(Result("wide", "d", "lost"))):
        with pytest.raises(UnjudgedError, match="sim:h200: 1 output could not be judged"):
            raise_if_regressed([found], 0.05)
        (test,) = ET.fromstring(junit([found])).iter("testcase")
        assert [(child.tag, child.get("type")) for child in test] == [("error", "unjudged")]
        assert "1 unjudged" in markdown([found]) and "1 without a verdict" in markdown([found])
        assert "predicted error is as large" in shown(render([found]))


def test_a_baseline_that_could_not_judge_it_either_accepts_it():
    found = outcome(Result("wide", "d", "unjudged"))
    assert kinds_of(found) == []
    raise_if_regressed([found], 0.05)


def test_what_becomes_of_it_later():
    assert kinds_of(outcome(UNJUDGED, Result("wide", "d", "pass"))) == []
    failed = outcome(UNJUDGED, Result("wide", "d", "fail", "wrong"))
    assert kinds_of(failed) == [ChangeKind.NEW_FAILURE]
    assert failed.alarms


def test_a_failure_comes_first():
    after = named(UNJUDGED, Result("other", "d", "fail", "wrong"))
    with pytest.raises(ComparisonError):
        raise_if_regressed([Outcome(RUN, after, None, (), 2)], 0.05)
