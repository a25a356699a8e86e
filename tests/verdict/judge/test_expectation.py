"""What is expected of a run, and what is missing: the error model, the rounding model, or the constants of a source."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.llama.launch.architecture import CDNA3
from fattn_probe.llama.launch.constants import SHIPPED
from fattn_probe.llama.launch.families import MMA_F16
from fattn_probe.verdict.judge import expectation
from fattn_probe.verdict.judge.expectation import expected_of
from tests.verdict.made import predicted

SHAPE = (1, 6, 2, 4)
MODEL = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


@pytest.fixture
def models(monkeypatch):
    """Both models, and what they were asked."""
    asked: dict[str, Any] = {"prediction": predicted(SHAPE), "model": MODEL}

    def kernel_of(op, geometry, arch):
        return asked["prediction"]

    def predict(op, values, kernel):
        return kernel

    def predict_rows(op, values, kernel, rows):
        return predicted((1, len(rows), 1, 4))

    def model_of(case, inputs, kernel, arch, *, constants, wanted):
        asked["constants"], asked["wanted"] = constants, wanted
        return asked["model"]

    monkeypatch.setattr(expectation, "operand_values", lambda op, inputs: {})
    for one in (kernel_of, predict, predict_rows, model_of):
        monkeypatch.setattr(expectation, one.__name__, one)
    return asked


CASE: Any = SimpleNamespace(
    op=SimpleNamespace(sizes=SimpleNamespace(flop=1.0, n_seq=1, n_q=6, n_head=2), roots={}), recorded=False
)
GEOMETRY: Any = SimpleNamespace(kernel=SimpleNamespace(family=MMA_F16))


def expected(model="auto", **more):
    return expected_of(CASE, {}, GEOMETRY, 90, model, **more)


def test_both_models_are_there(models):
    found = expected()
    assert found.prediction is models["prediction"] and found.model is MODEL and found.missing == ""
    assert models["constants"] is SHIPPED and models["wanted"] is None


@pytest.mark.parametrize(
    ("change", "how", "missing"),
    [
        ({"prediction": None}, {}, "there is no error model of this kernel"),
        ({}, {"model": "never"}, "the rounding model was skipped"),
        ({}, {"constants": None}, "the rounding model lacks the configurations of this source's kernels"),
        ({"model": None}, {}, "there is no rounding model of this kernel"),
    ],
)
def test_what_is_missing_is_named(models, change, how, missing):
    models.update(change)
    found = expected(**how)
    assert found.missing.startswith(missing) and found.model is None
    assert (found.prediction is None) == ("prediction" in change)


def test_the_rounding_model_of_an_amd_gpu_decides_nothing(models):
    found = expected_of(CASE, {}, GEOMETRY, CDNA3, "always")
    assert found.prediction is models["prediction"] and found.model is None
    assert found.missing == "the rounding model does not decide on an AMD GPU, whose arithmetic is partly assumed"


def test_constants_of_the_source_are_used(models):
    mine: Any = object()
    expected(constants=mine)
    assert models["constants"] is mine


def test_of_some_rows_the_model_computes_and_gives_these(models):
    rows = np.array([(0, 1, 1), (0, 5, 0)])
    found = expected(rows=rows)
    assert np.argwhere(models["wanted"]).tolist() == [[0, 1, 1], [0, 5, 0]]
    assert (found.model == np.stack([MODEL[0, 1, 1], MODEL[0, 5, 0]])[None, :, None]).all()
    assert found.prediction is not None and found.prediction.bound.shape == found.model.shape
    models["model"] = None
    assert expected(rows=rows).model is None
