"""What a model gives the kernels, replayed on simulated GPUs: every op is judged, and none is wrong."""

import json

import pytest

from tests.as_user import fattn_probe

from .make import MODELS, make_model

pytestmark = [pytest.mark.build, pytest.mark.network]
THREE = "sim:h200,sim:rtx4090,sim:rtx2060"


@pytest.mark.parametrize(
    ("name", "on"),
    [
        pytest.param("qwen2", "sim:h200", marks=pytest.mark.slow),
        *(pytest.param(name, THREE, marks=pytest.mark.night) for name in MODELS),
    ],
)
def test_the_ops_of_a_model_pass(name, on, tmp_path):
    model = make_model(MODELS[name], tmp_path / f"{name}.gguf")
    fattn_probe("capture", model, "--tokens", 100, "--out", tmp_path / "ops")
    done = fattn_probe("compare", tmp_path / "ops", "--on", on, "--json")
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == len(on.split(",")) * len(list((tmp_path / "ops").glob("*.gguf"))) > 0
    assert {row["status"] for row in rows} == {"pass"}
    assert all(row["design"]["equal_bits"] == 1.0 for row in rows)
