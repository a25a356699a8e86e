"""One wrong line in a llama.cpp tree: `regress -x` shows the first failure, and stops."""

import pytest

from benchmarks.edit_to_verdict import EDITS, copy_of, edited
from fattn_probe.daily.regress.history import open_history
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.llama.source.features import CUDA
from tests.as_user import fattn_probe
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
