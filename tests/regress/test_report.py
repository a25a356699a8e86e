import re

import pytest

from fattn_probe.regress.history import open_history
from fattn_probe.regress.records import Identity, Result
from fattn_probe.regress.report import Night, report, spark, strip

SIM = Identity("here", "sim:h200", "9.0", "", "sim", "release", "pypi:x==1", "11063", "", "0.1.0")
LAUNCH = '{"order":0,"kernel":"f<1>","grid":[8,1,1],"block":[32,4,1],"shared":0}'


def result(status="pass", output="00", name="gqa", reason=""):
    return Result(name, "d", status, reason, {"nmse": 1e-7}, output, LAUNCH)


@pytest.fixture
def history(tmp_path):
    with open_history(tmp_path / "h.db") as found:
        for night, status in enumerate(("pass", "pass", "fail")):
            run = found.begin(SIM, "nightly")
            found.add(run, result(status, reason="NMSE <b>1</b>" if status == "fail" else ""))
            found.add(run, result(name="mha", output=f"{night // 2}"))
            found.end(run)
            if night == 0:
                found.accept(run, "me", "good")
        yield found


def test_the_page_names_what_changed(history):
    page = report(history)
    assert "2 changed, 1 of them regressions" in page
    assert "new failure" in page
    assert "bits changed" in page
    assert "the output is wrong now" in page
    assert page.count('class="f"') == 1


def test_the_page_is_complete_in_itself_and_escapes(history):
    page = report(history)
    assert "<b>1</b>" not in page
    assert not re.search(r'(src|href)="(?!#)', page)


def test_a_history_without_runs(tmp_path):
    with open_history(tmp_path / "h.db") as empty:
        assert "There are no runs in this history." in report(empty)


def test_a_suite_of_its_own(history):
    assert "There are no runs" in report(history, "quick")


def test_a_strip_marks_nights_whose_bits_changed(history):
    run = history.runs()[0]
    nights = [Night(run, result(output=output)) for output in ("a", "a", "b", "b")]
    assert strip(nights).count('class="bits"') == 1


def test_a_spark_needs_two_values():
    assert spark([1.0], 1.0) == ""
    assert spark([None, None], 1.0) == ""
    assert "polyline" in spark([1.0, None, 2.0], 1.0)
