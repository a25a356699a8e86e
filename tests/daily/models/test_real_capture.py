"""Models of each kind run with libllama, also on CUDA: their attention ops, run again, have its bits and launches."""

import errno
import functools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.base.errors import InputError, LostError, MachineError
from fattn_probe.cases.device import Target, load_devices, parse_target
from fattn_probe.cases.op import gguf_file
from fattn_probe.cases.op.case_file import FILE, CaseFile
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.shipped import find
from fattn_probe.daily.models import capture, program
from fattn_probe.daily.models.capture import ModelCapture
from fattn_probe.daily.models.program import Prompt, Request
from fattn_probe.daily.models.recorded_op import INDEX
from fattn_probe.machine.run.capture import read_capture, write_capture
from fattn_probe.machine.run.outcome import Ran
from fattn_probe.verdict.truth.reference.adapter import fully_masked_of, reference_of
from tests.as_user import answer, fattn_probe
from tests.daily.models.make import MODELS, make_model
from tests.made import H200, at_night

pytestmark = [pytest.mark.build, pytest.mark.slow]
CPU = Target("cpu")
IN_CI = ("qwen2", "gemma2")
"""A plain model, and one with a softcap and a window; libllama compiles others for themselves."""
# ggml's CPU backend sums V in f16: 300 rows lose 1e-5 of the variance. For a quantised K it rounds Q to q8_0.
NMSE = {"f16": 2e-5, "q8_0": 5e-5}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: make_model(model, folder / f"{name}.gguf") for name, model in MODELS.items()}


def record(session, model, folder, **request):
    asked = replace(Request(model, Prompt(tokens=200, seed=1), batch=128), **request)
    return ModelCapture(session, asked, CPU, folder, lambda note: None).run()


def captures(index, folder):
    return [read_capture(folder / entry.file) for entry in index.entries]


@pytest.fixture(scope="module")
def recorded(session, models, tmp_path_factory):
    """The index and the captures of a model by its name, recorded once."""

    @functools.cache
    def once(name):
        folder = tmp_path_factory.mktemp(name)
        index = record(session, models[name], folder)
        return index, captures(index, folder)

    return once


def check_output(session, found):
    """The output is the exact answer as far as the CPU backend rounds, and the op alone gives the same bits."""
    exact = reference_of(found.op, found.inputs, found.name)
    assert np.mean((found.dst - exact) ** 2) / np.mean(exact**2) < NMSE[found.op.type_K]
    again = session.run(CaseFile(found.name, found.digest, found.op, found.inputs), found.inputs, CPU)
    assert isinstance(again, Ran)
    assert np.array_equal(again.result.dst.view(np.uint32), found.dst.view(np.uint32))


@pytest.mark.parametrize("name", [*IN_CI, *at_night(*sorted(MODELS.keys() - {*IN_CI}))])
def test_the_ops_of_a_model(session, recorded, name):
    index, found_ops = recorded(name)
    model = MODELS[name]
    layers = [1] if name == "jamba" else [0, 1]
    assert index.complete and index.run["finite"] is True
    assert [(entry.offer.layer, entry.offer.step) for entry in index.entries] == [
        (layer, step) for step in (1, 2) for layer in layers
    ]
    for found in found_ops:
        sizes = found.op.sizes
        assert (sizes.n_head, sizes.hsk) == (model.n_head, model.head_size)
        assert sizes.n_head_kv == model.n_head_kv
        assert sizes.n_q == (72 if found.provenance["phase"] == "prompt" else 1)
        check_output(session, found)


def ops_of(index, found):
    """The last op of each layer."""
    return {entry.offer.layer: capture for entry, capture in zip(index.entries, found, strict=True)}


def test_softcap_and_window_are_recorded(recorded):
    ops = ops_of(*recorded("gemma2"))
    assert {found.op.params.logit_softcap for found in ops.values()} == {50.0}
    assert [np.isfinite(mask_of(ops[layer])).sum(axis=-1).max() for layer in (0, 1)] == [64, 201]


@pytest.mark.night
def test_sinks_and_a_latent_V_are_recorded(recorded):
    sinks = [found.inputs["sinks"].view(np.float32) for found in ops_of(*recorded("gpt-oss")).values()]
    assert [values.shape for values in sinks] == [(16,), (16,)]
    assert not np.array_equal(*sinks)
    for found in ops_of(*recorded("deepseek2")).values():
        assert found.op.V_is_K_view
        assert set(found.inputs) == {"Q", "K", "mask"}
        assert found.op.sizes.hsv == 512


def mask_of(found):
    view = found.op.tensors["mask"]
    assert view.nb == (2, 2 * view.ne[0], 2 * view.ne[0] * view.ne[1], 2 * view.ne[0] * view.ne[1] * view.ne[2])
    return found.inputs["mask"].view(np.float16).reshape(view.ne[::-1])


def test_several_sequences_with_a_quantised_cache(session, models, tmp_path):
    index = record(
        session,
        models["qwen2"],
        tmp_path,
        prompt=Prompt(tokens=50),
        sequences=3,
        type_K="q8_0",
        type_V="q8_0",
        generate=2,
        every=True,
        layers=(1,),
        context=700,
    )
    assert [(entry.offer.step, entry.offer.phase) for entry in index.entries] == [
        (0, "prompt"),
        (1, "prompt"),
        (2, "generate"),
        (3, "generate"),
    ]
    assert len(index.run["prompts"]) == 3
    for found in captures(index, tmp_path):
        assert (found.op.sizes.n_seq, found.op.type_K, found.op.type_V) == (3, "q8_0", "q8_0")
        K = found.op.tensors["K"]
        assert K.nb[3] >= 700 * K.nb[1]  # the sequences lie apart as in the cache
        assert len(found.inputs["K"]) == K.end  # and what none of them reaches is left out
        assert fully_masked_of(found.op, found.inputs).sum() == 0
        check_output(session, found)


def test_steps_and_layers_share_what_they_store(session, models, tmp_path):
    index = record(session, models["qwen2"], tmp_path, prompt=Prompt(tokens=500), generate=20, every=True)
    alone = sum(entry.offer.bytes for entry in index.entries)
    on_disk = sum(path.stat().st_size for path in tmp_path.iterdir() if path.name != INDEX)
    assert index.bytes == on_disk < alone / 2  # the rest is Q and the output of the prompt
    for found in captures(index, tmp_path)[-4:]:
        check_output(session, found)


def test_a_prompt_in_words(session, models, tmp_path):
    index = record(session, models["llama"], tmp_path, prompt=Prompt("Hi \u00e9"), generate=0)
    tokens = index.run["prompts"][0]
    assert (
        bytes(token - 3 for token in tokens if token >= 3).replace(b"\xe2\x96\x81", b" ").strip()
        == "Hi \u00e9".encode()
    )
    assert tokens[0] == 1
    assert [entry.offer.phase for entry in index.entries] == ["prompt", "prompt"]


def test_the_same_run_gives_the_same_files(session, models, tmp_path):
    first, second = (record(session, models["qwen2"], tmp_path / name, prompt=Prompt(tokens=9)) for name in "ab")
    assert [entry.digest for entry in first.entries] == [entry.digest for entry in second.entries]
    other = record(session, models["qwen2"], tmp_path / "c", prompt=Prompt(tokens=9, seed=5))
    assert other.run["prompts"] != first.run["prompts"]


def test_a_folder_with_captures_is_not_mixed_with_others(session, models, tmp_path):
    record(session, models["llama"], tmp_path, prompt=Prompt(tokens=3))
    with pytest.raises(InputError, match="holds captured ops: choose another folder"):
        record(session, models["llama"], tmp_path)


ABSURD: dict[str, tuple[str, dict[str, int], type[Exception], str]] = {
    "heads": ("llama", {"attention.head_count": 4_000_000_000}, InputError, "has wrong shape"),
    "head-size": ("llama", {"attention.key_length": 10_000_000}, InputError, "cannot load the model"),
    "layers": ("llama", {"block_count": 1_000_000}, LostError, "GGML_ASSERT"),
    "experts": ("gpt-oss", {"expert_used_count": 4_000_000_000}, LostError, "GGML_ASSERT"),
}


@pytest.mark.parametrize("kind", ABSURD)
def test_absurd_sizes_end_with_one_error_and_no_folder(session, tmp_path, kind):
    name, extra, error, said = ABSURD[kind]
    model = MODELS[name]
    path = make_model(replace(model, extra=model.extra | extra), tmp_path / "absurd.gguf")
    with pytest.raises(error, match=said):
        record(session, path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_without_its_tensors(session, tmp_path):
    path = make_model(replace(MODELS["llama"], arch="gemma2", window=64), tmp_path / "other.gguf")
    with pytest.raises(InputError, match=r"post_attention_norm\.weight. not found"):
        record(session, path, tmp_path / "out")


def test_a_context_that_is_too_short_or_does_not_fit_memory(session, models, tmp_path, monkeypatch):
    monkeypatch.setattr(capture, "available_memory", lambda: 512 << 20)
    with pytest.raises(MachineError, match=r"cannot make a context of 2000000 positions: .*insufficient memory"):
        record(session, models["llama"], tmp_path, context=2_000_000)
    assert 0 < program.available_memory() < 1 << 50
    with pytest.raises(InputError, match="a context of 100 positions is less than the 201"):
        record(session, models["llama"], tmp_path, context=100)


def test_a_full_disk_leaves_whole_files(session, models, tmp_path, monkeypatch):
    write, written = gguf_file._header, list[Path]()

    def full(path, fields, tensors):
        if len(written) == 2:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        return write(path, fields, tensors)

    monkeypatch.setattr(gguf_file, "_header", full)
    with pytest.raises(MachineError, match=r"layer-00-step-0002\.gguf: cannot be written: No space left on device"):
        record(session, models["llama"], tmp_path)
    monkeypatch.undo()
    assert_is_whole(tmp_path, 2)


def assert_is_whole(folder, least):
    """The index of a run that ended early, and the ops that it names, which can be read."""
    index = json.loads((folder / INDEX).read_text())
    files = {op["file"] for op in index["ops"]}
    assert index["complete"] is False
    assert len(files) >= least
    assert {path.name for path in folder.iterdir()} - {FILE} == files | {INDEX}
    for file in files:
        assert read_capture(folder / file).dst.size


def test_an_interrupted_capture_stays_usable(session, models, tmp_path):
    words = ["capture", models["llama"], "--tokens", "3", "--generate", "4000", "--every", "--out", tmp_path / "out"]
    running = subprocess.Popen([sys.executable, "-m", "fattn_probe", *map(str, words)], stderr=subprocess.DEVNULL)
    while len(list((tmp_path / "out").glob("layer-*.gguf"))) < 5 and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert_is_whole(tmp_path / "out", 5)


def test_an_interrupt_waits_until_an_op_is_in_the_index(session, models, tmp_path, monkeypatch):
    def interrupted(*op):
        write_capture(*op)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(capture, "write_capture", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record(session, models["llama"], tmp_path)
    assert_is_whole(tmp_path, 1)


def test_the_command_prints_one_document(session, models, tmp_path):
    words = ["capture", models["qwen2"], "--prompt", "hello", "--out", tmp_path / "out", "--json"]
    found = json.loads(fattn_probe(*words).stdout)
    assert found["folder"] == str(tmp_path / "out")
    assert [op["file"] for op in found["ops"]] == sorted(
        (op["file"] for op in found["ops"]), key=lambda name: name[14:]
    )
    assert found | {"folder": None} == json.loads((tmp_path / "out" / INDEX).read_text()) | {"folder": None}


def test_a_simulated_gpu_runs_the_ops_of_a_model(session, models, tmp_path):
    asked = Request(models["qwen2"], Prompt(tokens=20))
    index = ModelCapture(session, asked, H200, tmp_path, lambda note: None).run()
    kernels = [found.launches[0].kernel for found in captures(index, tmp_path)]
    assert kernels == ["flash_attn_ext_f16", "flash_attn_ext_f16", "flash_attn_ext_vec", "flash_attn_ext_vec"]
    for found in captures(index, tmp_path):
        exact = reference_of(found.op, found.inputs, found.name)
        assert np.mean((found.dst - exact) ** 2) / np.mean(exact**2) < 1e-6
        assert (found.provenance["device"], found.provenance["model_on"]) == ("sim:h200", "cpu")


def test_stats_are_shown_and_written_by_head(models, tmp_path):
    words = ("capture", models["gpt-oss"], "--tokens", "100", "--stats", "--out", tmp_path / "ops")
    said = fattn_probe(*words).stdout
    assert "VKQ up to" in said and "layer-00-step-0000" in said
    page = (tmp_path / "ops" / "statistics.html").read_text()
    assert page.count("<section") == 1 + len(json.loads((tmp_path / "ops" / INDEX).read_text())["ops"])
    found = answer(*words[:-1], tmp_path / "more")
    assert [one["op"] for one in found["statistics"]] == [op["file"].removesuffix(".gguf") for op in found["ops"]]
    assert all(0 < head["largest_sum"] < 65504 for one in found["statistics"] for head in one["heads"])


THREE = "sim:h200,sim:rtx4090,sim:rtx2060"


@pytest.mark.network
@pytest.mark.night  # CI triages a healthy model
@pytest.mark.parametrize("name", MODELS)
def test_the_ops_of_a_model_pass(name, tmp_path):
    model = make_model(MODELS[name], tmp_path / f"{name}.gguf")
    fattn_probe("capture", model, "--tokens", 100, "--out", tmp_path / "ops")
    rows = answer("compare", tmp_path / "ops", "--on", THREE)["rows"]
    assert len(rows) == 3 * len(list((tmp_path / "ops").glob("*.gguf"))) > 0
    assert {row["status"] for row in rows} == {"pass"}
    assert all(row["design"]["equal_bits"] == 1.0 for row in rows)


def launches_of(capture):
    return [(launch.kernel, launch.values, launch.grid, launch.block) for launch in capture.launches]


def assert_same(found, again, again_launches):
    assert np.array_equal(found.dst.view(np.uint32), again.view(np.uint32))
    assert launches_of(found) == again_launches
    assert np.isfinite(found.dst).all() and found.dst.any()


@pytest.mark.parametrize(
    ("name", "on", "backend", "device"),
    [
        ("qwen2", "sim:h200", "CUDA0", "NVIDIA H200"),
        pytest.param("gemma2", "sim:h200", "CUDA0", "NVIDIA H200", marks=pytest.mark.night),
        pytest.param("qwen2", "sim:rx7900xtx", "ROCm0", "AMD Radeon RX 7900 XTX", marks=pytest.mark.night),
    ],
)
def test_a_model_on_a_simulated_gpu(session, name, on, backend, device, tmp_path):
    """Stands in for a real GPU: the scheduler gives the matrix products to the CPU.

    In a build with the launches of another head size, gemma2's ops launched nothing, and their outputs were NaN.
    """
    target = parse_target(on, load_devices(None))
    (other,) = cases_of([find("scenario", "gqa")])
    assert isinstance(session.run(other, make_inputs(other), target), Ran)
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
        again = session.run(CaseFile(found.name, found.digest, found.op, found.inputs), found.inputs, target)
        assert isinstance(again, Ran) and again.launches[0].kernel.startswith("flash_attn_")
        assert_same(found, again.result.dst, launches_of(again))


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
    rows = answer("compare", ops, "--on", "gpu")["rows"]
    assert len(rows) == len(index["ops"]) > 0
    assert {row["status"] for row in rows} == {"pass"}
