"""A run compared with one of the same cases on the merge base."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.daily.regress import merge_base as module
from fattn_probe.daily.regress.changes import ChangeKind
from fattn_probe.daily.regress.entries import Given
from fattn_probe.daily.regress.merge_base import MergeBase, merge_base_of
from fattn_probe.daily.regress.night import shown
from fattn_probe.daily.regress.records import MERGE_BASE, RunPart
from fattn_probe.daily.regress.runner import SuiteRunner
from fattn_probe.daily.regress.tables import markdown, raise_if_regressed
from fattn_probe.llama.source import Tree
from fattn_probe.machine.run.session import RunOptions, Session
from tests.daily.regress.test_runner import CASES, MOST_LOST, history_at, run
from tests.made import H200

TREE = Tree("/a/fork", Path("/a/fork"), "?", "head", None)
BASE = MergeBase(TREE, "origin/master", "c" * 40, ("fattn.cu",))
KNOWN = {"sweep-n_q=1": "fail"}
PAIRS: Any = [(SimpleNamespace(name=""), H200), (SimpleNamespace(name="races"), H200)]


@pytest.fixture
def ran(monkeypatch):
    """The calls of `run_suite` for the merge base, each of which yields what `results` says."""
    found = SimpleNamespace(calls=[], outcome=None)

    def run_suite(pairs, folder, runner, given):
        found.calls.append(SimpleNamespace(pairs=pairs, runner=runner, given=given))
        yield found.outcome

    monkeypatch.setattr(module, "run_suite", run_suite)
    monkeypatch.setattr(module, "resolve", lambda source: replace(TREE, spec=source, digest="base"))
    monkeypatch.setattr(module, "commit_source", lambda root, commit: f"git+file://{root}@{commit}")
    return found


def compared(history, outcome):
    runner = SuiteRunner(history, Session(RunOptions(TREE)), "quick", part=RunPart(night="mine"))
    return list(BASE.compared([outcome], PAIRS, Path(), runner, Given(only="q")))


def test_only_what_the_merge_base_does_not_do_too_is_a_change(tmp_path, ran):
    with history_at(tmp_path) as history:
        head, ran.outcome = run(history, gqa="fail", **KNOWN), run(history, **KNOWN)
        (found,) = compared(history, head)
        assert [(change.case, change.kind) for change in found.changes] == [("gqa", ChangeKind.NEW_FAILURE)]
        accepted = history.baseline(head.run.identity.line, "quick")
        assert found.baseline.uid == ran.outcome.run.uid == accepted.uid
        assert history.accepted(accepted).endswith(": ccccccccc, the merge base with origin/master")
        (call,) = ran.calls
        assert call.runner.session.options.tree.spec == f"git+file:///a/fork@{'c' * 40}"
        assert (call.runner.part.night, call.given.only) == (MERGE_BASE + "c" * 40, "q")
        assert [entry.name for entry, _ in call.pairs] == [""], "no entry that the branch did not run"
        text = markdown([found], "the files")
        assert "\nthe files\n" in text and "| sweep-n_q=1 | known failure |" in text
        (same,) = compared(history, ran.outcome)
        raise_if_regressed([same], MOST_LOST)


def test_a_run_that_ended_early_is_compared_by_what_it_judged(tmp_path, ran):
    with history_at(tmp_path) as history:
        accepted = run(history, accept="long ago")
        head, ran.outcome = run(history, stop=2), run(history)
        (found,) = compared(history, head)
        names = sorted(head.results)
        assert 0 < len(names) < len(CASES)
        assert ran.calls[0].given.only == f"^(?:{'|'.join(names)})$".replace("-", "\\-")
        assert found.changes == ()
        assert history.baseline(head.run.identity.line, "quick").uid == accepted.run.uid, "it has one already"


def test_the_run_of_a_merge_base_is_not_what_a_report_shows(tmp_path):
    with history_at(tmp_path) as history:
        mine, base = run(history, gqa="fail"), run(history)
        history.connection.execute("UPDATE runs SET night = ? WHERE id = ?", (f"{MERGE_BASE}c", base.run.id))
        assert [one.uid for one in history.last_runs()] == [mine.run.uid]
        assert [night.run.uid for night in shown(history)] == [mine.run.uid]


def test_a_release_has_no_merge_base():
    for tree in (None, replace(TREE, spec="pypi:xllamacpp==2026.10.11549")):
        with pytest.raises(InputError, match="--base needs a git checkout as --source"):
            merge_base_of(tree, "origin/master")
