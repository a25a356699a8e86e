"""Runs of a suite into a history, and beside those of a merge base; a judge returns prepared statuses.

Suites of several entries: each has its own cases, targets, build and checks.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from fattn_probe.base.console import OUT
from fattn_probe.base.errors import InputError, LostError, RegressionError
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.cli.regress import accepted
from fattn_probe.daily.regress import merge_base as module
from fattn_probe.daily.regress.changes import ChangeKind
from fattn_probe.daily.regress.entries import Given, entries_on_targets, run_suite, session_for
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.merge_base import MergeBase, merge_base_of
from fattn_probe.daily.regress.night import night_of, shown
from fattn_probe.daily.regress.records import MERGE_BASE, WHOLE, Result, RunPart, Shard, parse_shard
from fattn_probe.daily.regress.runner import Planned, Standing, SuiteRunner, with_orders
from fattn_probe.daily.regress.schedule import Ordering, Orders
from fattn_probe.daily.regress.selection import CaseSelection
from fattn_probe.daily.regress.suite import CheckSpec, cases_of, load_suite
from fattn_probe.daily.regress.tables import as_json, markdown, raise_if_regressed, render
from fattn_probe.llama.source import Tree
from fattn_probe.machine.run.orders import ENDED, OrderDifference
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.machine.run.session import RunOptions, Session
from tests.daily.regress.made import SIM
from tests.made import H200
from tests.stand_in import StandIn

OP = {"version": 1, "about": "x", "hsk": 64, "n_head": 2, "n_q": 1, "n_kv": 64}
NAMES = ["gqa", *(f"sweep-n_q={number}" for number in range(61))]
CASES = tuple(resolve(Scenario.model_validate(OP | {"seed": seed}), name, "f") for seed, name in enumerate(NAMES))
SWEEP = len(NAMES) - 1
MOST_LOST = 0.02
BROKEN = """building obj/a.cu.o failed:
overlay/ggml/src/ggml-cuda/template-instances/../fattn-mma-f16.cuh:723:61: error: static assertion failed: bad loop
Complete log: build.log"""


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
            status, _, known = self.statuses.get(case.name, "pass").partition(" by ")
            if status == "broken":
                yield Result.lost(case, BROKEN)
                continue
            yield Result(case.name, case.digest, status, output="00" if status == "pass" else None, known=known)


def run(history, only="", accept="", shard="1/1", stop=-1, until_failure=None, **statuses):
    """A run of the cases that match `only`; ends after `stop` cases or the first failure, told to `until_failure`."""
    session, more = Session(RunOptions(tree=None)), {"say": until_failure, "exit_first": True} if until_failure else {}
    runner = SuiteRunner(history, session, "quick", cluster=Judged(statuses, stop), only=only, **more)
    selection = CaseSelection(CASES).some(only).of(parse_shard(shard))
    (found,) = runner.outcomes([Planned("quick", session, H200, selection)])
    return accepted(history, found, accept) if accept else found


def said(*outcomes):
    with OUT.capture() as captured:
        OUT.print(render(outcomes))
    return " ".join(captured.get().split())


@pytest.fixture
def history(empty):
    """A history whose baseline is a run of all 62 cases."""
    run(empty, accept="all of them")
    return empty


def test_one_case_beside_a_larger_baseline_is_compared_with_itself_alone(history):
    outcome = run(history, only="^gqa$")
    raise_if_regressed([outcome], MOST_LOST)
    assert (outcome.planned, outcome.changes, outcome.lost) == (1, (), 0)
    assert list(outcome.results) == ["gqa"]
    assert as_json([outcome])["runs"][0]["filter"] == "^gqa$"
    assert "sim:h200, pypi:x==1: 1 pass" in said(outcome)
    assert "nothing changed" in said(outcome)
    outcome = run(history, only="^gqa$", gqa="fail")
    assert [(change.case, change.kind) for change in outcome.changes] == [("gqa", ChangeKind.NEW_FAILURE)]
    with pytest.raises(RegressionError, match=r"^sim:h200: 1 regression \(1 new failure\)$"):
        raise_if_regressed([outcome], MOST_LOST)


def test_the_bar_counts_known_defects_apart(empty):
    standing, judged = Standing(), Judged({CASES[0].name: "fail", CASES[1].name: "fail by volta-columns"})
    runner = SuiteRunner(empty, Session(RunOptions(tree=None)), "quick", cluster=judged, standing=standing)
    runner.outcomes([Planned("quick", runner.session, H200, CaseSelection(CASES[:3]))])
    assert str(standing).startswith("judged 3 of 3 cases, 1 fail, 1 known to fail, 1 pass, 0:0")


def test_a_kernel_that_does_not_compile_fails_a_run_that_may_lose_cases(empty):
    """Cases may be lost by accident, which is not how an edit's error loses them."""
    gone = "does not compile: static assertion failed: bad loop in ggml/src/ggml-cuda/fattn-mma-f16.cuh:723"
    outcome = run(empty, gqa="broken")
    assert outcome.lost == 0
    assert f"1 case lost: {gone}" in said(outcome)
    assert f"| gqa | lost | {gone} |" in markdown([outcome])
    with pytest.raises(LostError, match=f"^sim:h200: 1 case lost: the source {gone}$"):
        raise_if_regressed([outcome], MOST_LOST)
    outcome = run(empty, until_failure=lambda *_: None, gqa="broken")
    assert (outcome.stopped, outcome.counts["lost"]) == ("at the first failure", 1)
    run(empty, accept="all of them")
    outcome = run(empty, gqa="broken")
    assert [(change.kind, change.words) for change in outcome.changes] == [
        (ChangeKind.UNCOMPILED, "was pass: does not compile: static assertion failed: bad loop")
    ]
    assert gone in said(outcome) and "1 case lost" not in said(outcome)
    with pytest.raises(RegressionError, match=r"^sim:h200: 1 regression \(1 does not compile\)$"):
        raise_if_regressed([outcome], MOST_LOST)
    lost = Result.lost(
        CASES[0], "building obj/a.cu.o failed:\ng++: fatal error: Killed signal terminated program cc1plus"
    )
    assert (lost.reason, lost.uncompiled, lost.place) == ("building obj/a.cu.o failed:", False, "")
    assert replace(lost, finding=Finding("unknown-instruction", "v_new_f32")).uncompiled
    assert Result.lost(CASES[0], 'building a failed:\na.cu(7): error: "x" is undefined').place == " in a.cu:7"


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


def test_the_first_accepted_run_says_that_it_is_the_first(empty):
    before = run(empty)
    assert said(before).endswith("no baseline yet: --accept WHY makes a run the baseline")
    assert "**nothing wrong, no baseline yet**" in markdown([before])
    first = run(empty, accept="looked at")
    assert f"accepted {first.run.uid[:8]} as the first baseline of sim:h200 (looked at)" in said(first)
    assert "no baseline yet" not in said(first)
    assert "no baseline yet on sim:h200: --accept" in said(first, before)
    assert "**nothing wrong, the first baseline**" in markdown([first])
    assert empty.baseline(SIM.line, "quick").uid == first.run.uid


def test_a_later_accepted_run_names_the_one_it_replaces(history):
    before = history.baseline(SIM.line, "quick")
    second = run(history, accept="faster")
    assert f"compared with {before.uid[:8]} of" in said(second)
    assert f"accepted {second.run.uid[:8]} as the new baseline of sim:h200 (faster)" in said(second)


def test_the_first_failure_ends_the_run_unless_the_baseline_has_it(history):
    say = Mock()
    outcome = run(history, until_failure=say, **{"sweep-n_q=3": "fail", "sweep-n_q=4": "fail"})
    say.assert_called_once_with("fail sweep-n_q=3 on sim:h200: ", "fail")
    assert (outcome.stopped, outcome.counts["not run"]) == ("at the first failure", len(CASES) - 5)
    assert outcome.lost == 0
    with pytest.raises(RegressionError, match=r"^sim:h200: 1 regression \(1 new failure\)$"):
        raise_if_regressed([outcome], MOST_LOST)
    assert history.runs()[-1].ended is None, "--resume continues with it"
    assert len(history.results(outcome.run)) == 5
    assert said(outcome, replace(outcome, results={})) == said(outcome)
    shown = said(outcome) + markdown([outcome])
    assert ("not run was pass" in shown, "| not run |" in shown, f"{len(CASES) - 5} not run" in shown) == (0, 0, 1)
    run(history, accept="it fails", gqa="fail")
    say = Mock()
    outcome = run(history, until_failure=say, gqa="fail")
    assert (say.called, outcome.stopped, outcome.counts["not run"]) == (False, "", 0)


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


def test_only_what_the_merge_base_does_not_do_too_is_a_change(empty, ran):
    head, ran.outcome = run(empty, gqa="fail", **KNOWN), run(empty, **KNOWN)
    (found,) = compared(empty, head)
    assert [(change.case, change.kind) for change in found.changes] == [("gqa", ChangeKind.NEW_FAILURE)]
    accepted = empty.baseline(head.run.identity.line, "quick")
    assert found.baseline.uid == ran.outcome.run.uid == accepted.uid
    assert empty.accepted(accepted).endswith(": ccccccccc, the merge base with origin/master")
    (call,) = ran.calls
    assert call.runner.session.options.tree.spec == f"git+file:///a/fork@{'c' * 40}"
    assert (call.runner.part.night, call.given.only) == (MERGE_BASE + "c" * 40, "q")
    assert [entry.name for entry, _ in call.pairs] == [""], "no entry that the branch did not run"
    text = markdown([found], "the files")
    assert "\nthe files\n" in text and "| sweep-n_q=1 | known failure |" in text
    (same,) = compared(empty, ran.outcome)
    raise_if_regressed([same], MOST_LOST)


def test_a_run_that_ended_early_is_compared_by_what_it_judged(empty, ran):
    accepted = run(empty, accept="long ago")
    head, ran.outcome = run(empty, stop=2), run(empty)
    (found,) = compared(empty, head)
    names = sorted(head.results)
    assert 0 < len(names) < len(CASES)
    assert ran.calls[0].given.only == f"^(?:{'|'.join(names)})$".replace("-", "\\-")
    assert found.changes == ()
    assert empty.baseline(head.run.identity.line, "quick").uid == accepted.run.uid, "it has one already"


def test_the_run_of_a_merge_base_is_not_what_a_report_shows(empty):
    mine, base = run(empty, gqa="fail"), run(empty)
    empty.connection.execute("UPDATE runs SET night = ? WHERE id = ?", (f"{MERGE_BASE}c", base.run.id))
    assert [one.uid for one in empty.last_runs()] == [mine.run.uid]
    assert [night.run.uid for night in shown(empty)] == [mine.run.uid]


def test_a_release_has_no_merge_base():
    for tree in (None, replace(TREE, spec="pypi:xllamacpp==2026.10.11549")):
        with pytest.raises(InputError, match="--base needs a git checkout as --source"):
            merge_base_of(tree, "origin/master")


DIFFERENCE = OrderDifference("gqa", ("softcap", "mla"), "other", shrunk=True)
SAID = "not the same in every order: different bits or launches from a separate run, after [softcap, mla]"
ORDERS = Orders({"gqa": DIFFERENCE}, 2)


def test_orders_decide_about_a_case_that_passes_and_the_first_one_that_differs_is_told():
    failed = with_orders(Result("gqa", "d", "pass", "as designed", output="00"), ORDERS, 3)
    assert (failed.status, failed.reason, failed.failure) == ("fail", f"{SAID}; apart from that, as designed", SAID)
    assert [(check.name, check.fails) for check in failed.checks] == [("order", True)]
    right = with_orders(Result("sinks", "d", "pass", "as designed", output="00"), ORDERS, 3)
    assert (right.status, right.reason) == ("pass", "as designed")
    (check,) = right.checks
    assert (check.passes, check.reason) == (True, "the same bits in 3 orders of 2 ops in one process")
    wrong = with_orders(Result("gqa", "d", "fail", "wrong", output="00"), ORDERS, 3)
    assert (wrong.status, wrong.reason, [check.fails for check in wrong.checks]) == ("fail", "wrong", [True])
    lost = replace(ORDERS, missing="killed by SIGKILL")
    assert with_orders(Result("gqa", "d", "pass", "as designed", output="00"), lost, 3).status == "fail"
    (check,) = with_orders(Result("sinks", "d", "pass", "as designed", output="00"), lost, 3).checks
    assert (check.passes, check.fails, check.reason) == (False, False, "killed by SIGKILL")
    later = OrderDifference("gqa", ("mla",), "third")
    assert Ordering({"gqa": "x", "mla": "y", "odd": ENDED}, {2: [later], 1: [DIFFERENCE, later]}).found == ORDERS


def test_a_suite_asks_for_orders():
    assert CheckSpec(order=5).checks.order == 5
    assert CheckSpec().checks.order == 0


SCENARIO = "version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_q: 1\nn_kv: 64\nmatrix: {n_q: [1, 2], n_kv: [64, 128]}\n"
SUITE = """version: 1
about: three entries
scenarios: [a.yaml]
cases: [a-n_q=1-n_kv=64, a-n_q=2-n_kv=128]
entries:
  - name: races
    scenarios: [a.yaml]
    only: n_q=2
    on: [sim:h200, sim:t4]
    flavour: check
    check: {model: never, repeat: 3}
  - name: memory
    scenarios: [a.yaml]
    sanitize: [address]
    quants: [q5_1-q4_0]
    check: {sample: 8}
"""


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "a.yaml").write_text(SCENARIO)
    path = tmp_path / "three.yaml"
    path.write_text(SUITE)
    return path


def run_all(path: Path, given: Given, part: RunPart = WHOLE):
    with open_history(path.parent / "h.db") as history:
        session = Session(RunOptions(tree=None))
        runner = SuiteRunner(history, session, path.stem, cluster=Judged(), only=given.only, part=part)
        return run_suite(list(entries_on_targets(load_suite(path), path.parent, given)), path.parent, runner, given)


def test_every_entry_runs_on_its_targets_with_its_checks(suite):
    found = run_all(suite, Given())
    assert [(outcome.run.suite, len(outcome.results)) for outcome in found] == [
        ("three", 2),
        ("three/races", 2),
        ("three/races", 2),
        ("three/memory", 4),
    ]
    checks = [outcome.run.settings.checks for outcome in found]
    assert [(one.model, one.repeat, one.sample) for one in checks] == [
        ("auto", 1, "auto"),
        ("never", 3, "auto"),
        ("never", 3, "auto"),
        ("auto", 1, 8),
    ]
    assert [outcome.run.place for outcome in found][::3] == ["sim:h200", "sim:h200 (memory)"]
    assert len({outcome.run.uid for outcome in found}) == 4, "a result is of its own entry"


def test_each_entry_has_its_own_build(suite):
    session = Session(RunOptions(tree=None, flavour="release"))
    builds = [session_for(entry, session).options for entry in load_suite(suite).parts]
    assert [(options.flavour, options.sanitize, options.quants) for options in builds] == [
        ("release", (), ()),
        ("check", (), ()),
        ("release", ("address",), ("q5_1-q4_0",)),
    ]
    session = Session(RunOptions(tree=None, quants=("q8_0-f16", "q5_1-q4_0")))
    assert session_for(load_suite(suite).parts[-1], session).options.quants == ("q8_0-f16", "q5_1-q4_0")


def test_a_run_says_what_replaces_the_suites_own(suite):
    found = run_all(suite, Given(on="sim:v100", only="n_kv=128", model="always", sample="all"))
    assert [(outcome.run.suite, sorted(outcome.results)) for outcome in found] == [
        ("three", ["a-n_q=2-n_kv=128"]),
        ("three/races", ["a-n_q=2-n_kv=128"]),
        ("three/memory", ["a-n_q=1-n_kv=128", "a-n_q=2-n_kv=128"]),
    ]
    assert {(one.run.settings.checks.model, one.run.settings.checks.sample) for one in found} == {("always", "all")}


def test_the_targets_of_an_entry_are_its_own_or_the_runs(suite):
    parts, notes = load_suite(suite).parts, list[str]()
    given = Given(on="gpu", note=notes.append)
    assert [[str(target) for target in given.targets(entry, suite.parent)] for entry in parts] == [["gpu:0"], [], []]
    assert "races needs a simulated GPU: skipping gpu:0" in notes
    (suite.parent / "few.yaml").write_text('devices:\n  few: {like: h200, name: "few", multiProcessorCount: 5}\n')
    suite.write_text(SUITE.replace("on: [sim:h200, sim:t4]", "on: [sim:few]\n    devices: few.yaml"))
    assert [outcome.run.suite for outcome in run_all(suite, Given())] == ["three", "three/races", "three/memory"]
    (_, entry, _) = load_suite(suite).parts
    (target,) = Given().targets(entry, suite.parent)
    assert target.device.multiProcessorCount == 5
    text = (
        "version: 1\nabout: two\nscenarios: [a.yaml]\nentries:\n  - {name: small, scenarios: [a.yaml], on: [sim:t4]}\n"
    )
    suite.write_text(text)
    assert [outcome.run.suite for outcome in run_all(suite, Given())] == ["three", "three/small"]
    assert [outcome.run.suite for outcome in run_all(suite, Given(on="sim:v100"))] == ["three"]
    suite.write_text(text.replace("on: [sim:t4]", "check: {repeat: 2}"))
    assert [outcome.run.suite for outcome in run_all(suite, Given(on="sim:v100"))] == ["three", "three/small"]


def test_a_shard_without_a_case_is_a_run_too(suite):
    """So that the shards of a night can be merged; a filter that no case matches is a mistake in any shard."""
    suite.write_text("version: 1\nabout: one\nscenarios: [a.yaml]\ncases: [a-n_q=1-n_kv=64]\n")
    found = [run_all(suite, Given(), RunPart(Shard(number, 2), "night")) for number in (1, 2)]
    assert sorted(len(outcome.results) for (outcome,) in found) == [0, 1]
    with pytest.raises(InputError, match="no case name matches 'other'"):
        run_all(suite, Given(only="other"), RunPart(Shard(1, 2), "night"))


def test_a_filter_may_leave_an_entry_without_cases_but_not_all(suite):
    assert [outcome.run.suite for outcome in run_all(suite, Given(only="n_q=1-n_kv=128"))] == ["three/memory"]
    with pytest.raises(InputError, match="no case name matches 'other'"):
        run_all(suite, Given(only="other"))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("name: memory", "name: races", r":12: entries.1.name: found 'races', which the entry on line 6 already has"),
        (
            "  - name: memory\n    scenarios",
            "  - scenarios",
            r":12: entries.1: without a name, allowed: a unique name",
        ),
        (
            "    only: n_q=2",
            "    only: '['",
            r":\d+: entries.\d.only: found '\[', allowed: a regular expression \(untermi",
        ),
        ("    only: n_q=2", "    flavour: coverage", "flavour"),
        ("scenarios: [a.yaml]\n    sanitize", "sanitize", r"entries.1: without cases, allowed: scenarios, or up"),
        ("name: memory", "name: a/b", "name: found 'a/b', allowed: a name of lower-case letters, digits and -$"),
        ("{sample: 8}", "{sampel: 8}", r":16: entries.1.check.sampel: unknown key, .*; did you mean 'sample'\?$"),
        ("{sample: 8}", "{sample: 0}", r":16: entries.1.check.sample: found 0, allowed: auto, all or at least 1$"),
        ("sanitize: [address]", "sanitize: [thread]", "sanitize.0: found 'thread', allowed: address, undefined$"),
        ("    flavour: check", "    flavour: check\n    sanitize: [address]", r":6: entries.0: the check flavour"),
        ("about: three entries", "about: three\nabout: four", r"three.yaml:3: "),
        ("version: 1", "version: [", r"three.yaml:\d+: not YAML"),
        ("[a.yaml]\ncases", "[no/*.yaml]\ncases", r":3: scenarios.0: no scenario matches 'no/\*\.yaml', allowed: a p"),
        ("[a.yaml]\n    only", "[gpa]\n    only", r"three.yaml:7: entries.0.scenarios.0: no .*did you mean 'gqa'"),
    ],
)
def test_mistakes_of_entries_are_named(suite, before, after, message):
    assert before in SUITE
    suite.write_text(SUITE.replace(before, after))
    with pytest.raises(InputError, match=message):
        load_suite(suite)


def test_a_name_of_no_case(suite):
    suite.write_text(SUITE.replace("n_kv=128]", "n_kv=129]"))
    with pytest.raises(InputError, match=r"the suite: its scenarios have no case 'a-n_q=2-n_kv=129'; did you mean 'a-"):
        cases_of(load_suite(suite), suite.parent)


def test_scenarios_by_shipped_name_unless_a_file_has_that_name_and_by_an_absolute_pattern(suite):
    suite.write_text("version: 1\nabout: x\nscenarios: [known-faults/k-stride, gqa]\n")
    assert [case.scenario for case in cases_of(load_suite(suite), suite.parent)] == ["k-stride", "gqa"]
    suite.with_name("gqa").write_text(SCENARIO)
    assert len(cases_of(load_suite(suite), suite.parent)) > 2
    suite.write_text(f"version: 1\nabout: x\nscenarios: ['{suite.parent}/*.yaml']\nonly: ^a-\n".replace("*", "[a]"))
    assert len(cases_of(load_suite(suite), suite.parent)) == 4
