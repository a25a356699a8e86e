"""Whole models on a CUDA device: an op of the run and its replay have the same bits and launches."""

import json
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.op.case_file import CaseFile
from fattn_probe.daily.models.capture import ModelCapture
from fattn_probe.daily.models.program import Prompt, Request
from fattn_probe.daily.models.recorded_op import INDEX
from fattn_probe.machine.run.capture import read_capture
from fattn_probe.machine.run.outcome import Ran
from tests.as_user import fattn_probe
from tests.daily.models.make import MODELS, make_model


def launches_of(capture):
    return [(launch.kernel, launch.values, launch.grid, launch.block) for launch in capture.launches]


def assert_same(found, again, again_launches):
    assert np.array_equal(found.dst.view(np.uint32), again.view(np.uint32))
    assert launches_of(found) == again_launches
    assert np.isfinite(found.dst).all() and found.dst.any()


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "on", "backend", "device"),
    [
        ("qwen2", "sim:h200", "CUDA0", "NVIDIA H200"),
        pytest.param("gemma2", "sim:h200", "CUDA0", "NVIDIA H200", marks=pytest.mark.night),
        pytest.param("qwen2", "sim:rx7900xtx", "ROCm0", "AMD Radeon RX 7900 XTX", marks=pytest.mark.night),
    ],
)
def test_a_model_on_a_simulated_gpu(session, name, on, backend, device, tmp_path):
    """Stands in for a real GPU: the scheduler gives the matrix products to the CPU."""
    target = parse_target(on, load_devices(None))
    asked = Request(make_model(MODELS[name], tmp_path / f"{name}.gguf"), Prompt(tokens=40), batch=32)
    folder = tmp_path / "ops"
    index = ModelCapture(session, asked, target, folder, lambda note: None, model_on=target).run()
    assert index.complete and index.run["finite"] is True
    ran_on = index.run["ran_on"]
    assert {"FLASH_ATTN_EXT", "RMS_NORM", "SET_ROWS"} <= set(ran_on[backend])
    assert "MUL_MAT" in ran_on["CPU"] and "FLASH_ATTN_EXT" not in ran_on["CPU"]
    assert len(index.entries) == 4
    for entry in index.entries:
        found = read_capture(folder / entry.file, types=session.kernel_words[0], names=session.kernel_words[1])
        assert (found.backend, found.device, found.provenance["model_on"]) == (backend, device, on)
        assert "MUL_MAT" in found.provenance["ran_on"]
        case = CaseFile(found.name, found.digest, found.op, found.inputs)
        again = session.run(case, found.inputs, target)
        assert isinstance(again, Ran) and again.launches[0].kernel.startswith("flash_attn_")
        again_launches = [(launch.kernel, launch.values, launch.grid, launch.block) for launch in again.launches]
        assert_same(found, again.result.dst, again_launches)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["qwen2", "deepseek2"])
def test_a_model_on_a_gpu(name, tmp_path):
    model = make_model(MODELS[name], tmp_path / f"{name}.gguf")
    ops, replays = tmp_path / "ops", tmp_path / "replays"
    fattn_probe("capture", model, "--tokens", 300, "--batch", 128, "--every", "--on", "gpu", "--out", ops)
    index = json.loads((ops / INDEX).read_text())
    assert (index["model_on"], index["complete"], index["finite"]) == ("gpu:0", True, True)
    assert "FLASH_ATTN_EXT" in index["ran_on"]["CUDA0"] and "FLASH_ATTN_EXT" not in index["ran_on"]["CPU"]
    fattn_probe("run", ops, "--on", "gpu", "--captures", replays)
    again = {capture.digest: capture for capture in map(read_capture, sorted(Path(replays).rglob("*.gguf")))}
    for file in sorted(ops.glob("*.gguf")):
        found = read_capture(file)
        assert_same(found, again[found.digest].dst, launches_of(again[found.digest]))
    rows = json.loads(fattn_probe("compare", ops, "--on", "gpu", "--json").stdout)["rows"]
    assert len(rows) == len(index["ops"]) > 0
    assert {row["status"] for row in rows} == {"pass"}
