"""Models run as users run them, with faults planted in attention, in other ops and in the graph: who is guilty?"""

import json
from dataclasses import replace

import pytest

from fattn_probe.cases.op.case_file import read_case
from fattn_probe.daily.triage.show import REPORT, VERDICT
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from tests.as_user import fattn_probe
from tests.daily.models.fault import ROPE, fault_in
from tests.daily.models.make import MODELS, make_model

pytestmark = [pytest.mark.build, pytest.mark.network, pytest.mark.slow]
ON = "sim:h200"


@pytest.fixture(scope="module")
def tree():
    return resolve(DEFAULT_SOURCE, models=True)


def model_of(folder, name="qwen2", **scales):
    return make_model(MODELS[name], folder / f"{name}.gguf", scales=scales)


def triage(folder, model, *words, code=5, tokens=40):
    """The document of a triage, which stdout and the folder both have; each file that it names is there."""
    out = folder / "out"
    done = fattn_probe("triage", model, "--tokens", tokens, "--on", ON, "--out", out, "--json", *words, code=code)
    document = json.loads(done.stdout)
    written = json.loads((out / VERDICT).read_text())
    assert {path.name for path in out.iterdir()} == set(written.pop("files"))
    assert document == written | {"folder": str(out)}
    assert document["sentence"] in (out / REPORT).read_text()
    assert (document["sentence"] in done.stderr) == (code == 5)
    return document


def test_a_healthy_model(tmp_path):
    found = triage(tmp_path, model_of(tmp_path), code=0)
    assert found["verdict"] == "Innocent"
    assert {row["status"] for row in found["attention"]} == {"pass"}
    assert [(layer["layer"], layer["attention"], layer["wrong"]) for layer in found["layers"]] == [
        (0, {"pass": 2}, 0),
        (1, {"pass": 2}, 0),
        (None, {}, 0),
    ]
    assert all(layer["ran"] > 0 and layer["share"] < 0.5 for layer in found["layers"])


@pytest.mark.night
@pytest.mark.parametrize("name", [name for name in MODELS if name != "qwen2"])
def test_healthy_models_of_other_architectures(name, tmp_path):
    found = triage(tmp_path, model_of(tmp_path, name), code=0)
    assert found["verdict"] == "Innocent"
    assert all(layer["share"] < 0.5 for layer in found["layers"])


FAULTS = {
    # the products of a generated token are rounded to f16: decode, small errors in all elements
    "faults/17549-vec-f16-product": ("qwen2", 1, "flash_attn_ext_vec<64,1,", "products of Q and K are rounded to f16"),
    # the host's scale: wrong logits everywhere
    "faults/8542-softcap-scale": (
        "gemma2",
        0,
        "flash_attn_ext_f16<256,256,",
        "the logits are not divided by the softcap",
    ),
    # a sink for each part of a tile: wrong where several CUDA blocks share one
    "faults/15157-sinks-twice": ("gpt-oss", 0, "flash_attn_ext_f16<64,64,", "the sink is counted the wrong number of"),
}


@pytest.mark.night  # CI has the verdict in test_verdict.py, and attention as the guilty op when its sums overflow
@pytest.mark.parametrize("patch", FAULTS)
def test_a_fault_in_attention(patch, tmp_path):
    name, step, kernel, cause = FAULTS[patch]
    found = triage(tmp_path, model_of(tmp_path, name), "--patch", patch)
    guilty = found["guilty"]
    assert found["verdict"] == "AttentionWrong"
    assert (guilty["layer"], guilty["step"], guilty["target"]) == (0, step, ON)
    assert guilty["kernel"].startswith(kernel)
    assert cause in guilty["cause"]
    assert guilty["worst"]["head"] < MODELS[name].n_head and guilty["tile"] and guilty["blocks"]
    assert found["others"] == []
    assert read_case(tmp_path / "out" / f"{guilty['case']}.gguf").op.sizes.n_head == MODELS[name].n_head
    shown = fattn_probe(
        *("compare", tmp_path / "out" / f"{guilty['case']}.gguf", "--on", ON, "--patch", patch, "--no-maps"), code=5
    )
    assert cause in shown.stdout


def test_a_fault_in_rope(tree, tmp_path):
    found = triage(tmp_path, model_of(tmp_path), "--patch", fault_in(tree, tmp_path, *ROPE))
    node = found["guilty"]["node"]
    assert found["verdict"] == "OtherOpWrong"
    assert (node["op"], node["name"], node["layer"], node["step"]) == ("ROPE", "Qcur-0", 0, 0)
    assert found["guilty"]["found"]["nmse"] > 0.1
    assert {row["status"] for row in found["attention"]} == {"pass"}
    assert "attention is correct in 4 of 4 judged ops" in found["sentence"]


@pytest.mark.night  # CI has the verdict in test_verdict.py, and a model of a changed tree in test_a_fault_in_rope
def test_a_fault_in_the_graph_with_flash_attention(tree, tmp_path):
    old = "ggml_flash_attn_ext(ctx0, q, k, v, kq_mask, kq_scale,"
    patch = fault_in(tree, tmp_path, "src/llama-graph.cpp", old, old.replace("kq_scale", "4.0f*kq_scale"))
    found = triage(tmp_path, model_of(tmp_path), "--patch", patch)
    assert found["verdict"] == "PartsWithout"
    assert (found["guilty"]["node"]["layer"], found["guilty"]["node"]["step"]) == (0, 0)
    assert {row["status"] for row in found["attention"]} == {"pass"}


@pytest.mark.night
def test_weights_that_overflow_the_cache(tmp_path):
    found = triage(tmp_path, model_of(tmp_path, **{"blk.1.attn_v.weight": 1e5}))
    guilty = found["guilty"]
    assert found["verdict"] == "NotFinite"
    assert (guilty["node"]["op"], guilty["node"]["name"]) == ("SET_ROWS", "cache_v_l1 (view)")
    assert guilty["inputs_largest"] > 65504
    assert [row["status"] for row in found["attention"]] == ["pass", "unjudged"] * 2
    assert [step["command"] for step in found["next"]] == [""]


@pytest.mark.night
def test_a_cache_of_wider_range_moves_the_overflow_to_attention(tmp_path):
    """The mma kernel gets K and V in f16, whatever the type of the cache."""
    model = model_of(tmp_path, **{"blk.1.attn_v.weight": 1e5})
    found = triage(tmp_path, model, "--type-k", "bf16", "--type-v", "bf16")
    assert found["verdict"] == "AttentionOverflows"
    assert (found["guilty"]["layer"], found["guilty"]["step"]) == (1, 0)
    assert found["others"][0]["node"]["op"] == "MUL_MAT"  # for which the CPU rounds to f16 too


def test_weights_that_overflow_the_accumulators(tmp_path):
    """V fits f16, but not the sum of 300 of its rows, which the kernel makes in f16 before it divides."""
    found = triage(tmp_path, model_of(tmp_path, **{"blk.1.attn_v.bias": 5e4}), tokens=300)
    guilty = found["guilty"]
    assert found["verdict"] == "AttentionOverflows"
    assert (guilty["layer"], guilty["step"]) == (1, 0)
    assert guilty["elements"] > 0
    assert [row["status"] for row in found["attention"]] == ["pass", "fail", "pass", "pass"]


def test_a_folder_with_other_files_is_refused_before_the_model_runs(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    done = fattn_probe("triage", tmp_path / "none.gguf", "--tokens", 4, "--out", tmp_path / "out", code=2)
    assert "has files not from a triage, such as notes.txt" in done.stderr


def test_a_model_that_is_none_leaves_no_folder(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    fattn_probe("triage", "model.gguf", "--tokens", 4, "--on", ON, code=2, cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_two_gpus_and_an_op_that_none_of_them_supports(tmp_path):
    model = make_model(replace(MODELS["llama"], head_size=48), tmp_path / "odd.gguf")
    done = fattn_probe("triage", model, "--tokens", 9, "--on", "sim:h200,sim:h100", "--out", tmp_path / "out", code=5)
    assert "runs on the CPU instead of sim:h100" in done.stdout
    assert "Nothing is known to be wrong, but no attention op was judged (sim:h200: " in done.stderr
