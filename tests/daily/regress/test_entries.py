"""Suites of several entries: each has its own cases, targets, build and checks."""

from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.daily.regress.entries import Given, entries_on_targets, run_suite, session_for
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import WHOLE, RunPart, Shard
from fattn_probe.daily.regress.runner import SuiteRunner
from fattn_probe.daily.regress.suite import cases_of, load_suite
from fattn_probe.machine.run.session import RunOptions, Session
from tests.daily.regress.test_runner import Judged

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


def run(path: Path, given: Given, part: RunPart = WHOLE):
    with open_history(path.parent / "h.db") as history:
        session = Session(RunOptions(tree=None))
        runner = SuiteRunner(history, session, path.stem, cluster=Judged(), only=given.only, part=part)
        pairs = list(entries_on_targets(load_suite(path), path.parent, given))
        return run_suite(pairs, path.parent, runner, given)


def test_every_entry_runs_on_its_targets_with_its_checks(suite):
    found = run(suite, Given())
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
    found = run(suite, Given(on="sim:v100", only="n_kv=128", model="always", sample="all"))
    assert [(outcome.run.suite, sorted(outcome.results)) for outcome in found] == [
        ("three", ["a-n_q=2-n_kv=128"]),
        ("three/races", ["a-n_q=2-n_kv=128"]),
        ("three/memory", ["a-n_q=1-n_kv=128", "a-n_q=2-n_kv=128"]),
    ]
    assert {(one.run.settings.checks.model, one.run.settings.checks.sample) for one in found} == {("always", "all")}


def test_a_real_gpu_runs_only_the_entries_that_need_no_simulator(suite):
    parts, notes = load_suite(suite).parts, list[str]()
    given = Given(on="gpu", note=notes.append)
    assert [[str(target) for target in given.targets(entry, suite.parent)] for entry in parts] == [["gpu:0"], [], []]
    assert "races needs a simulated GPU: skipping gpu:0" in notes


def test_an_entry_has_gpus_of_its_own(suite):
    (suite.parent / "few.yaml").write_text('devices:\n  h200-5: {like: h200, name: "few", multiProcessorCount: 5}\n')
    suite.write_text(SUITE.replace("on: [sim:h200, sim:t4]", "on: [sim:h200-5]\n    devices: few.yaml"))
    assert [outcome.run.suite for outcome in run(suite, Given())] == ["three", "three/races", "three/memory"]
    (_, entry, _) = load_suite(suite).parts
    (target,) = Given().targets(entry, suite.parent)
    assert target.device.multiProcessorCount == 5


def test_with_targets_of_the_run_no_entry_repeats_the_suites_own_cases(suite):
    text = (
        "version: 1\nabout: two\nscenarios: [a.yaml]\nentries:\n  - {name: small, scenarios: [a.yaml], on: [sim:t4]}\n"
    )
    suite.write_text(text)
    assert [outcome.run.suite for outcome in run(suite, Given())] == ["three", "three/small"]
    assert [outcome.run.suite for outcome in run(suite, Given(on="sim:v100"))] == ["three"]
    suite.write_text(text.replace("on: [sim:t4]", "check: {repeat: 2}"))
    assert [outcome.run.suite for outcome in run(suite, Given(on="sim:v100"))] == ["three", "three/small"]


def test_a_shard_without_a_case_is_a_run_too(suite):
    """So that the shards of a night can be merged; a filter that no case matches is a mistake in any shard."""
    suite.write_text("version: 1\nabout: one\nscenarios: [a.yaml]\ncases: [a-n_q=1-n_kv=64]\n")
    found = [run(suite, Given(), RunPart(Shard(number, 2), "night")) for number in (1, 2)]
    assert sorted(len(outcome.results) for (outcome,) in found) == [0, 1]
    with pytest.raises(InputError, match="no case name matches 'other'"):
        run(suite, Given(only="other"), RunPart(Shard(1, 2), "night"))


def test_a_filter_may_leave_an_entry_without_cases_but_not_all(suite):
    assert [outcome.run.suite for outcome in run(suite, Given(only="n_q=1-n_kv=128"))] == ["three/memory"]
    with pytest.raises(InputError, match="no case name matches 'other'"):
        run(suite, Given(only="other"))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("name: memory", "name: races", r":12: entries.1.name: found 'races', which the entry on line 6 has"),
        (
            "  - name: memory\n    scenarios",
            "  - scenarios",
            r":12: entries.1: without a name, allowed: a name of its own",
        ),
        (
            "    only: n_q=2",
            "    only: '['",
            r":\d+: entries.\d.only: found '\[', allowed: a regular expression \(untermi",
        ),
        ("    only: n_q=2", "    flavour: coverage", "flavour"),
        ("scenarios: [a.yaml]\n    sanitize", "sanitize", r"entries.1: without cases, allowed: scenarios, or up"),
        ("name: memory", "name: a/b", "name: found 'a/b', allowed: a name of small letters, digits and -$"),
        ("{sample: 8}", "{sampel: 8}", r":16: entries.1.check.sampel: unknown key, .*; did you mean 'sample'\?$"),
        ("{sample: 8}", "{sample: 0}", r":16: entries.1.check.sample: found 0, allowed: auto, all or at least 1$"),
        ("sanitize: [address]", "sanitize: [thread]", "sanitize.0: found 'thread', allowed: address, undefined$"),
        ("    flavour: check", "    flavour: check\n    sanitize: [address]", r":6: entries.0: flavour check cannot"),
        ("about: three entries", "about: three\nabout: four", r"three.yaml:3: "),
        ("version: 1", "version: [", r"three.yaml:\d+: not YAML"),
    ],
)
def test_mistakes_of_entries_are_named(suite, before, after, message):
    assert before in SUITE
    suite.write_text(SUITE.replace(before, after))
    with pytest.raises(InputError, match=message):
        load_suite(suite)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("n_kv=128]", "n_kv=129]", "its scenarios have no case 'a-n_q=2-n_kv=129'; did you mean 'a-n_q=2-n_kv=\\d+'"),
        ("[a.yaml]\ncases", "[no/*.yaml]\ncases", r"no scenario matches 'no/\*\.yaml'"),
    ],
)
def test_a_name_or_a_pattern_of_no_scenario(suite, before, after, message):
    suite.write_text(SUITE.replace(before, after))
    with pytest.raises(InputError, match=f"the suite: {message}"):
        cases_of(load_suite(suite), suite.parent)


def test_scenarios_by_an_absolute_pattern(suite):
    suite.write_text(f"version: 1\nabout: x\nscenarios: ['{suite.parent}/*.yaml']\nonly: ^a-\n".replace("*", "[a]"))
    assert len(cases_of(load_suite(suite), suite.parent)) == 4
