"""Scenarios like the ops of models: the same op, statistics within a tolerance, and right on a simulated GPU."""

import pytest

from fattn_probe.cases.op.case_file import read_case
from fattn_probe.cases.scenario.cases import expand
from fattn_probe.cases.scenario.check import load
from fattn_probe.cases.scenario.from_capture import of_file
from fattn_probe.cases.scenario.inputs import make_inputs
from tests.as_user import answer, fattn_probe

from .make import MODELS, make_model

pytestmark = [pytest.mark.build, pytest.mark.network, pytest.mark.night]
WIDTH, LOGITS, WEIGHT = 0.1, 0.03, 0.25
"""Relative differences that are allowed: of the standard deviations, of the logits', of the largest weight.

The last is not that of an op with one query: the mean over a few rows is up to chance, and the command says so."""


def strides(op):
    """Types, shapes and strides, as far as they say something: not of dimensions with one element."""
    return {
        name: (view.type, view.ne, [nb for nb, n in zip(view.nb, view.ne, strict=True) if n > 1])
        for name, view in op.tensors.items()
    }


@pytest.mark.parametrize("name", ["qwen2", "gemma2", "gpt-oss", "deepseek2"])
def test_the_ops_of_a_model(name, tmp_path):
    model = make_model(MODELS[name], tmp_path / f"{name}.gguf")
    fattn_probe("capture", model, "--tokens", 200, "--batch", 128, "--out", tmp_path / "ops")
    captures = sorted((tmp_path / "ops").glob("*.gguf"))
    fattn_probe("scenario", "from-capture", *captures, "--out", tmp_path / "made")
    files = sorted((tmp_path / "made").glob("*.yaml"))
    assert [path.stem for path in files] == [path.stem for path in captures] and len(files) == 4
    for capture, file in zip(captures, files, strict=True):
        check_likeness(capture, file)
    rows = answer("compare", tmp_path / "made", "--on", "sim:h200")["rows"]
    assert [row["status"] for row in rows] == ["pass"] * 4
    assert all(file.stat().st_size < 1000 for file in files)


def check_likeness(capture, file):
    recorded, (made,) = read_case(capture), expand(load(file))
    assert made.op.params.stored == recorded.op.params.stored
    assert strides(made.op) == strides(recorded.op)
    assert (make_inputs(made)["mask"] == recorded.inputs["mask"]).all()
    found = of_file(capture)
    a, b = found.recorded, found.made
    for operand in "QKV":
        assert b.tensors[operand].std == pytest.approx(a.tensors[operand].std, rel=WIDTH)
    assert b.logit_std == pytest.approx(a.logit_std, rel=LOGITS)
    alike = b.largest_weight == pytest.approx(a.largest_weight, rel=WEIGHT)
    assert alike or (found.scenario.n_q == 1 and any("largest softmax weight" in said for said in found.missing))
