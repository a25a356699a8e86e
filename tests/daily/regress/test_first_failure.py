"""One wrong line in a llama.cpp tree: `regress -x` shows the first failure, stops, and says how to repeat it."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.edit_to_verdict import EDITS, copy_of, edited
from fattn_probe.base.fingerprint import Fingerprint
from fattn_probe.cases.scenario.cases import cases_like, cases_of
from fattn_probe.cli.regress import repeating
from fattn_probe.cli.setup import BuildFlags, Where
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import Result, Settings
from fattn_probe.daily.regress.runner import Outcome
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.llama.source.features import CUDA
from fattn_probe.verdict.judge.checks import Checks
from tests.as_user import fattn_probe
from tests.daily.regress.made import GPU, SIM
from tests.daily.regress.test_verdicts import with_wrong_sum

SUITE = """version: 1
about: cases of one kernel, whose blocks' parts are combined
scenarios: [steps.yaml]
on: ["sim:h200"]
entries:
  - {name: other, scenarios: [steps.yaml], on: ["sim:h200"], check: {sample: 2}}
"""
SIZES = "hsk: 64\nn_head: 4\nn_q: 1\nn_kv: 256\n"
STEPS = f"version: 1\nabout: two parallel blocks\n{SIZES}matrix: {{seed: [1, 2, 3, 4, 5, 6, 7, 8]}}\n"


@pytest.mark.parametrize("file", EDITS)
def test_each_edit_of_the_benchmark_makes_one_line_wrong(file):
    before = (resolve(DEFAULT_SOURCE).root / CUDA / file).read_text()
    after = edited(before, EDITS[file]).splitlines()
    assert sum(old != new for old, new in zip(before.splitlines(), after, strict=False)) == 1


@pytest.mark.build
@pytest.mark.network
def test_one_wrong_line_is_shown_at_once_and_the_rest_is_left(tmp_path):
    tree = copy_of(resolve(DEFAULT_SOURCE), tmp_path / "llama.cpp")
    path = tree / CUDA / "fattn-vec.cuh"
    path.write_text(with_wrong_sum(path.read_text()))  # the same build as that of the other test
    (tmp_path / "steps.yaml").write_text(STEPS)
    suite, history = tmp_path / "s.yaml", tmp_path / "h.db"
    suite.write_text(SUITE)
    words = ("regress", suite, "--source", tree, "--history", history, "--workers", 1)
    lines = fattn_probe(*words, "-x", code=5).stderr.splitlines()
    (shown,) = [number for number, line in enumerate(lines) if line.startswith("fail steps-seed=")]
    assert "on sim:" in lines[shown]
    (stopped,) = [number for number, line in enumerate(lines) if line.startswith("stopped at the first failure: ")]
    assert shown < stopped
    with open_history(history, reading=True) as opened:
        runs = opened.runs()
        kept = [result for run in runs for result in opened.results(run).values()]
    assert len(runs) == 2
    assert 0 < len(kept) < 16, "what was judged is kept"
    again = fattn_probe(*words, "--resume", code=5)
    with open_history(history, reading=True) as opened:
        assert sum(len(opened.results(run)) for run in opened.runs()) == 16
    assert "stopped" not in again.stderr
    assert "to repeat" not in again.stderr, "compare knows no such case: its suite is the user's"


def test_a_failure_of_a_suite_is_repeated_by_compare(tmp_path):
    """The command has what the suite's entry adds to the user's words: its build, and its checks."""
    name = "pairs-type_K=q5_0-type_V=q4_1"
    (case,) = cases_of([cases_like(Path(name))[name]])
    built = Fingerprint(flavour="check", quants=("q5_0-q4_1", "f16-q8_0"))
    failed = Result(case.name, case.digest, "fail")
    others = Result("gqa", "", "pass"), Result("mha", "", "fail"), Result("mla", "", "lost")

    def told(*results, identity=SIM, order=0, **flags):
        with open_history(tmp_path / "h.db") as history:
            settings = Settings(Checks(roundings=True, repeat=9, order=order))
            run = history.begin(replace(identity, fingerprint=built), "nightly", settings=settings)
        words = repeating(Outcome(run, {one.name: one for one in results}, None, (), 1), BuildFlags(**flags), Where())
        return " ".join(words) if words else None

    assert told(*others) is None, "mha has another digest: it is a case of the same name in the user's suite"
    assert told(replace(failed, known="kv-head-offset")) is None
    assert told(failed, order=2) is None, "it depends on the order of the whole entry"
    assert told(replace(failed, reason="passes alone, fails after gqa: GGML_ASSERT(a > 0) failed")) is None
    assert told(*others, failed, source="here", patch=["a", "b"]) == (
        f"fattn-probe compare {name} --source here --on sim:h200 --check --quants q5_0-q4_1,f16-q8_0 --repeat 9 "
        "--roundings --patch a --patch b"
    )
    assert "--on gpu --build made --check --repeat 9 " in told(failed, identity=GPU, folder=Path("made"))
