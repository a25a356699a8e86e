"""Runs of a suite into a history, with a judge that returns prepared statuses; builds nothing."""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from fattn_probe.base.console import OUT
from fattn_probe.base.errors import LostError, RegressionError
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.cli.regress import accepted
from fattn_probe.daily.regress.changes import ChangeKind
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.night import night_of
from fattn_probe.daily.regress.records import Identity, Result, parse_shard
from fattn_probe.daily.regress.runner import Planned, SuiteRunner
from fattn_probe.daily.regress.selection import CaseSelection
from fattn_probe.daily.regress.tables import as_json, markdown, raise_if_regressed, render
from fattn_probe.machine.run.session import RunOptions, Session
from tests.made import H200
from tests.stand_in import StandIn

SIM = Identity("here", "sim:h200", "9.0", "", "sim", "release", "pypi:x==1", "11063", "", "0.1.0")
OP = {"version": 1, "about": "x", "hsk": 64, "n_head": 2, "n_q": 1, "n_kv": 64}
NAMES = ["gqa", *(f"sweep-n_q={number}" for number in range(61))]
CASES = tuple(resolve(Scenario.model_validate(OP | {"seed": seed}), name, "f") for seed, name in enumerate(NAMES))
SWEEP = len(NAMES) - 1
MOST_LOST = 0.02


@dataclass(frozen=True)
class Judged(StandIn):
    """A cluster with prepared results: every case passes, except the ones named here."""

    statuses: dict[str, str] = field(default_factory=dict)
    stop: int = -1

    def ask(self, job, function):
        return SIM

    def judged(self, job, cases):
        for number, case in enumerate(cases):
            if number == self.stop:
                raise KeyboardInterrupt
            status = self.statuses.get(case.name, "pass")
            yield Result(case.name, case.digest, status, output="00" if status == "pass" else None)


@contextmanager
def history_at(path):
    with open_history(path / "history.db") as found:
        yield found


def run(history, only="", accept="", shard="1/1", stop=-1, **statuses):
    """One run of the suite's cases whose names match `only`, as `regress` makes it; interrupted after `stop` cases."""
    session = Session(RunOptions(tree=None))
    runner = SuiteRunner(history, session, "quick", cluster=Judged(statuses, stop), only=only)
    selection = CaseSelection(CASES).some(only).of(parse_shard(shard))
    (found,) = runner.outcomes([Planned("quick", session, H200, selection)])
    return accepted(history, found, accept) if accept else found


def said(outcome):
    with OUT.capture() as captured:
        OUT.print(render([outcome]))
    return " ".join(captured.get().split())


@pytest.fixture
def history(tmp_path):
    """A history whose baseline is a run of all 62 cases."""
    with history_at(tmp_path) as found:
        run(found, accept="all of them")
        yield found


def test_one_case_beside_a_larger_baseline_is_compared_with_itself_alone(history):
    outcome = run(history, only="^gqa$")
    raise_if_regressed([outcome], MOST_LOST)
    assert (outcome.planned, outcome.changes, outcome.lost) == (1, (), 0)
    assert list(outcome.results) == ["gqa"]
    assert as_json([outcome])["runs"][0]["filter"] == "^gqa$"
    assert "sim:h200, pypi:x==1: 1 pass" in said(outcome)
    assert "nothing changed" in said(outcome)


def test_one_case_that_fails_beside_a_larger_baseline_is_the_only_change(history):
    outcome = run(history, only="^gqa$", gqa="fail")
    assert [(change.case, change.kind) for change in outcome.changes] == [("gqa", ChangeKind.NEW_FAILURE)]
    with pytest.raises(RegressionError, match=r"^sim:h200: 1 regression \(1 new failure\)$"):
        raise_if_regressed([outcome], MOST_LOST)


def test_matching_cases_that_an_interrupted_run_left_are_not_run(history):
    """The cases that do not match the filter are not reported."""
    outcome = run(history, only="^sweep", stop=SWEEP // 2)
    assert {change.kind for change in outcome.changes} == {ChangeKind.NOT_RUN}
    assert "gqa" not in {change.case for change in outcome.changes}
    assert outcome.lost == (SWEEP - SWEEP // 2) / SWEEP
    with pytest.raises(LostError, match=r"sim:h200: stopped with \d+ cases left"):
        raise_if_regressed([outcome], MOST_LOST)
    with pytest.raises(LostError, match="sim:h200: 51% of the cases were lost or not run"):
        raise_if_regressed([replace(outcome, stopped="")], MOST_LOST)


def test_cases_that_the_suite_no_longer_has_are_reported_and_not_lost(history):
    """A suite that was chosen again has other cases."""
    outcome = run(history, shard="1/2")
    assert {change.kind for change in outcome.changes} == {ChangeKind.REMOVED}
    assert len(outcome.changes) + len(outcome.results) == len(CASES)
    raise_if_regressed([outcome], MOST_LOST)
    (night,) = (night_of(history, run) for run in history.last_runs())
    assert {change.kind for change in night.changes} == {ChangeKind.REMOVED}
    assert night.not_run == 0


def test_the_first_accepted_run_says_that_it_is_the_first(tmp_path):
    with history_at(tmp_path) as history:
        before = run(history)
        assert "has no baseline yet: --accept WHY makes a run the baseline" in said(before)
        assert "**nothing wrong, no baseline yet**" in markdown([before])
        first = run(history, accept="looked at")
        assert f"accepted {first.run.uid[:8]} as the first baseline of sim:h200 (looked at)" in said(first)
        assert "has no baseline yet" not in said(first)
        assert "**nothing wrong, the first baseline**" in markdown([first])
        assert history.baseline(SIM.line, "quick").uid == first.run.uid


def test_a_later_accepted_run_names_the_one_it_replaces(history):
    before = history.baseline(SIM.line, "quick")
    second = run(history, accept="faster")
    assert f"compared with {before.uid[:8]} of" in said(second)
    assert f"accepted {second.run.uid[:8]} as the new baseline of sim:h200 (faster)" in said(second)


def test_the_first_failure_ends_the_run_with_the_exit_code_of_a_whole_one(history):
    said = []
    session = Session(RunOptions(tree=None))
    words = {"sweep-n_q=3": "fail", "sweep-n_q=4": "fail"}
    runner = SuiteRunner(
        history, session, "quick", lambda *told: said.append(told), cluster=Judged(words), exit_first=True
    )
    (outcome,) = runner.outcomes([Planned("quick", session, H200, CaseSelection(CASES))])
    assert said == [("fail sweep-n_q=3 on sim:h200: ", "fail")]
    assert (outcome.stopped, outcome.counts["not run"]) == ("at the first failure", len(CASES) - 5)
    assert outcome.lost == 0
    with pytest.raises(RegressionError, match=r"^sim:h200: 1 regression \(1 new failure\)$"):
        raise_if_regressed([outcome], MOST_LOST)
    assert history.runs()[-1].ended is None, "--resume continues with it"
    assert len(history.results(outcome.run)) == 5


def test_a_failure_of_the_baseline_is_neither_said_nor_an_end(history):
    run(history, accept="it fails", gqa="fail")
    said = []
    session = Session(RunOptions(tree=None))
    judged = Judged({"gqa": "fail"})
    runner = SuiteRunner(history, session, "quick", lambda *told: said.append(told), cluster=judged, exit_first=True)
    (outcome,) = runner.outcomes([Planned("quick", session, H200, CaseSelection(CASES))])
    assert (said, outcome.stopped, outcome.counts["not run"]) == ([], "", 0)
