"""Models walked through, tensor by tensor, on the CPU and simulated GPUs; what is prepared for a CUDA device."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fattn_probe.base.errors import InputError, LostError
from fattn_probe.cases.device import Target, load_devices, parse_targets
from fattn_probe.daily.models.capture import LaunchLog, ModelCapture, words_of
from fattn_probe.daily.models.on_device import OnDevice, Rehearsal, kernel_cases, place_of_model
from fattn_probe.daily.models.program import CPU, Prompt, Request
from fattn_probe.daily.models.recorded_op import Index
from fattn_probe.daily.models.show import remarks
from fattn_probe.daily.models.walk import (
    TensorDifference,
    TensorReader,
    blamed,
    device_ops,
    difference_of,
    files_of_device_ops,
    files_of_ops,
    functions_of,
    layer_of,
    merged,
    node_of,
    walk,
)
from fattn_probe.llama.build.sources import CUDA
from fattn_probe.llama.source import DEFAULT_SOURCE, Tree, resolve
from fattn_probe.llama.source.features import probe
from fattn_probe.llama.source.patches import load
from fattn_probe.machine.run.capture import Capture, read_capture
from fattn_probe.machine.run.outcome import Failed, Finding
from fattn_probe.machine.run.session import RunOptions, Session
from tests.daily.models.fault import ROPE, SET_ROWS, fault_in
from tests.daily.models.make import MODELS, make_model
from tests.made import H200, at_night

V100, NOWHERE = parse_targets("sim:v100,cpu", load_devices(None))
# Measured with 40 tokens: 0 or rounding's last bit for most; sin and cos of ROPE and tanh differ in more bits. gelu of
# ggml's CPU backend comes from a table in f16.
NMSE = defaultdict(lambda: 1e-13, ROPE=1e-10, UNARY=1e-10, GLU=1e-6)
SAID: dict[str, Any] = {
    **{"step": 1, "part": 0, "index": 7, "name": "Kcur-3", "op": "ROPE", "type": "f32", "ne": [64, 2, 5, 1]},
    **{"nan": 0, "inf": 0, "largest": 2.5},
    **{"inputs": ["Kcur-3 (reshaped)", "inp_pos"], "inputs_nan": 0, "inputs_inf": 0},
    "device": {"error": 2.0, "signal": 8.0, "max_abs": 1.0, "at": [1, 0, 4, 0], "nan": 0, "inf": 3},
}


def test_a_tensor_as_the_program_says_it():
    found = node_of(SAID, H200)
    assert (found.name, found.layer, found.ne, found.largest) == ("Kcur-3", 3, (64, 2, 5, 1), 2.5)
    assert found.on == {"sim:h200": TensorDifference(0.25, 1.0, (1, 0, 4, 0), 0, 3)}
    assert node_of({**SAID, "device": None}, H200).on == {"sim:h200": None}
    assert node_of({**SAID, "device": None}, NOWHERE).on == {}


@pytest.mark.parametrize(("error", "signal", "nmse"), [(0, 0, 0), (1, 0, float("inf")), (0, 4, 0), (1, 4, 0.25)])
def test_the_error_relative_to_the_signal(error, signal, nmse):
    found = difference_of({**SAID["device"], "error": error, "signal": signal})
    assert found is not None and found.nmse == nmse


@pytest.mark.parametrize(
    ("name", "inputs", "layer"),
    [
        ("Qcur-12", (), 12),
        ("Qcur-3 (view) (permuted)", (), 3),
        ("cache_v_l7 (view)", (), 7),
        ("cache_s_l0 (view) (copy of node_44 (view))", (), 0),
        ("node_64", ("l_out-4", "blk.5.ffn_norm.weight"), 5),
        ("norm", ("l_out-4",), 4),
        ("embd", ("token_embd.weight", "inp_tokens"), None),
        ("node_1", (), None),
    ],
)
def test_the_layer_of_a_tensor(name, inputs, layer):
    assert layer_of(name, inputs) == layer


def test_runs_with_several_devices_are_one_walk():
    here, there = node_of(SAID, H200), node_of({**SAID, "device": None}, V100)
    (both,) = merged([(here,), (there,)])
    assert both == replace(here, on={**here.on, "sim:v100": None})
    with pytest.raises(LostError, match="two runs of the model on the CPU differ"):
        merged([(here,), (replace(there, largest=2.6),)])


def test_what_the_simulator_lacks_is_no_fault_of_the_op():
    assert blamed(Finding("unsupported", "the simulator does not have a barrier of the whole grid")) is None
    assert blamed(Finding("unknown-instruction", "the simulator lacks an instruction")) is None
    for ending in (Finding("out-of-bounds", "global memory"), Failed("CUDA error", ())):
        assert blamed(ending) is ending


def test_the_reader_tells_what_runs():
    told = list[str]()
    reader = TensorReader(H200, told.append)
    said: list[dict[str, Any]] = [
        {"model": {"steps": 2}},
        {"step": 0},
        {"runs": "ROPE Kcur-3"},
        {"node": SAID},
        {"end": {}},
    ]
    assert [reader.answer(line) for line in said] == ["go", "go", "go", "next", ""]
    assert told == ["walking through step 1 of 2", "walking through step 1 of 2: ROPE Kcur-3 on sim:h200"]
    assert reader.nodes == [node_of(SAID, H200)] and reader.running == ""
    with pytest.raises(LostError, match="unexpected message from fattn-capture"):
        reader.answer({"else": 1})


def on_a_model(test):
    """Marks a test for which libllama and the ops of a model are compiled."""
    return pytest.mark.build(pytest.mark.slow(test))


def request_of(folder, name="qwen2", **words):
    return Request(make_model(MODELS[name], folder / f"{name}.gguf"), Prompt(tokens=40, seed=1), **words)


def compared(nodes, target="sim:h200"):
    """The tensors that a device computed, and its differences."""
    return [(node, found) for node in nodes if isinstance(found := node.on[target], TensorDifference)]


def check_right(nodes, target="sim:h200"):
    for node, found in compared(nodes, target):
        assert (found.nan, found.inf) == (0, 0), node
        assert found.nmse < NMSE[node.op], node


def check_order(nodes):
    places = [(node.step, node.part, node.index) for node in nodes]
    assert all(first < second for first, second in pairwise(places))


ELSEWHERE = {"MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT", "SSM_SCAN"}
OF_ALL = {"GET_ROWS", "RMS_NORM", "MUL", "ADD", "SET_ROWS", "GLU"}
OF_ONE = {
    "llama": {"ROPE"},
    "qwen2": {"ROPE"},
    "qwen3": {"ROPE"},
    "gemma2": {"ROPE", "SCALE", "UNARY"},
    "gpt-oss": {"ROPE", "ADD_ID", "ARGSORT", "SOFT_MAX"},
    "deepseek2": {"ROPE", "ARGSORT", "CONCAT", "CONT", "SOFT_MAX"},
    "jamba": {"CONCAT", "CONT", "CPY", "SCALE", "SSM_CONV", "UNARY"},
}


@on_a_model
@pytest.mark.parametrize("name", ["qwen2", *at_night(*sorted(MODELS.keys() - {"qwen2"}))])
def test_each_op_around_attention_runs_on_a_simulated_gpu(session, name, tmp_path):
    nodes = walk(session, request_of(tmp_path, name), [H200])
    check_order(nodes)
    check_right(nodes)
    assert {node.step for node in nodes} == {0, 1}
    assert {node.op for node, _ in compared(nodes)} == OF_ALL | OF_ONE[name]
    assert {node.op for node in nodes if node.on["sim:h200"] is None} <= ELSEWHERE
    assert not any(node.nan or node.inputs_nan for node in nodes)
    assert {node.layer for node in nodes} == {None, 0, 1}


@on_a_model
def test_without_flash_attention_and_without_a_gpu(session, tmp_path):
    nodes = walk(session, request_of(tmp_path, flash_attn=False), [])
    check_order(nodes)
    assert [node.name for node in nodes if node.op == "SOFT_MAX" and node.step == 0] == [
        "kq_soft_max-0",
        "kq_soft_max-1",
    ]
    assert all(node.on == {} for node in nodes)
    # the mask's -inf are in the softmax's inputs, and not in its output
    assert all(node.inputs_inf > 0 and node.inf == 0 for node in nodes if node.op == "SOFT_MAX" and node.step == 0)


@on_a_model
@pytest.mark.night  # CI records them in test_real_capture.py
def test_several_sequences_with_a_quantised_cache(session, tmp_path):
    request = request_of(tmp_path, type_K="q8_0", type_V="q8_0", sequences=3, batch=64, generate=2, every=True)
    nodes = walk(session, request, [H200])
    check_order(nodes)
    check_right(nodes)
    assert {node.step for node in nodes} == {0, 1, 2, 3}
    assert {node.type for node in nodes if node.op == "SET_ROWS"} == {"q8_0"}


@on_a_model
def test_what_a_tensor_holds_is_what_capture_records(session, tmp_path):
    request = request_of(tmp_path)
    index = ModelCapture(session, request, NOWHERE, tmp_path / "ops", lambda note: None).run()
    outputs = {
        (entry.offer.step, entry.offer.part, entry.offer.layer): read_capture(tmp_path / "ops" / entry.file).dst
        for entry in index.entries
    }
    found = [node for node in walk(session, request, []) if node.op == "FLASH_ATTN_EXT"]
    assert [(node.step, node.part, node.layer) for node in found] == list(outputs)
    for node, dst in zip(found, outputs.values(), strict=True):
        assert node.ne[::-1] == dst.shape
        assert node.largest == np.abs(dst).max()


def patched(tree, tmp_path, file, old, new):
    """A session with a line of a file replaced, wherever it stands."""
    return Session(RunOptions(tree, patches=(load(fault_in(tree, tmp_path, file, old, new)),)))


@on_a_model
@pytest.mark.night  # CI has a wrong rotation in triage/test_models.py
@pytest.mark.parametrize(("op", "fault", "name"), [("ROPE", ROPE, ""), ("SET_ROWS", SET_ROWS, "cache_k_l0 (view)")])
def test_a_wrong_rotation_and_a_row_that_is_written_elsewhere_are_found(tree, tmp_path, op, fault, name):
    nodes = walk(patched(tree, tmp_path, *fault), request_of(tmp_path), [H200])
    first = next((node for node, found in compared(nodes) if found.nmse >= NMSE[node.op] or found.nan or found.inf))
    assert (first.op, first.name, first.layer, first.step) == (op, name or first.name, 0, 0)
    wrong = {node.op for node, found in compared(nodes) if found.nmse >= NMSE[node.op]}
    assert wrong == {op}  # every op has the CPU's inputs, so a fault stays where it is


@on_a_model
@pytest.mark.night
def test_how_far_an_output_is_from_the_right_one(tree, tmp_path):
    """An output that is twice the right one is as far from it as that is from zero."""
    faulty = patched(
        tree, tmp_path, "ggml/src/ggml-cuda/scale.cu", "(scale * ggml_cuda_cast", "(2 * scale * ggml_cuda_cast"
    )
    nodes = walk(faulty, request_of(tmp_path, "gemma2"), [H200])
    scaled = [(node, found) for node, found in compared(nodes) if node.op == "SCALE"]
    assert scaled
    for node, found in scaled:
        assert (found.nmse, found.max_abs) == (1.0, node.largest)
        assert all(0 <= place < size for place, size in zip(found.at, node.ne, strict=True))


@on_a_model
@pytest.mark.night
def test_an_op_that_ends_the_program_is_named_and_the_walk_goes_on(tree, tmp_path):
    faulty = patched(tree, tmp_path, SET_ROWS[0], "dst_row = *(src1", "dst_row = (1 << 20) + *(src1")
    nodes = walk(faulty, request_of(tmp_path), [H200])
    check_order(nodes)
    check_right(nodes)
    (ended,) = [node for node in nodes if isinstance(node.on["sim:h200"], Finding)]
    assert (ended.op, ended.name, ended.step) == ("SET_ROWS", "cache_k_l0 (view)", 0)
    fault = ended.on["sim:h200"]
    assert isinstance(fault, Finding) and fault.kind == "out-of-bounds"
    assert any("set-rows.cu" in frame for frame in fault.frames)
    others = [node for node in nodes if node.op == "SET_ROWS" and node is not ended]
    assert others and all(node.on["sim:h200"] is None for node in others)
    assert [node.step for node in nodes if node.op == "ROPE"] == [0] * 4 + [1] * 4


@on_a_model
@pytest.mark.night
def test_two_gpus_in_one_walk(session, tmp_path):
    nodes = walk(session, request_of(tmp_path), [H200, V100])
    for target in ("sim:h200", "sim:v100"):
        check_right(nodes, target)
        assert {node.op for node, _ in compared(nodes, target)} == OF_ALL | OF_ONE["qwen2"]


GPU = Target("cuda")
LAUNCH = '{"order":%d,"kernel":"%s","grid":[%d,1,1],"block":[32,4,1],"shared":0}\n'
MMA = "_Z37ggml_cuda_flash_attn_ext_mma_f16_caseILi64ELi64ELi8ELi8EEvR25ggml_backend_cuda_contextP11ggml_tensor"


def launch(number, kernel="k_get_rows"):
    return LAUNCH % (number, kernel, number + 1)


def test_a_model_runs_on_a_real_gpu_and_for_a_simulated_one_on_the_cpu():
    assert [place_of_model(target) for target in (GPU, H200, CPU)] == [GPU, CPU, CPU]
    request, session = Request(Path("m"), Prompt(tokens=1)), Session(RunOptions(None))
    runs = [ModelCapture(session, request, GPU, Path(), print, model_on=place) for place in (GPU, CPU)]
    assert [run.program for run in runs] == ["fattn-capture-cuda", "fattn-capture"]


def test_the_program_is_told_the_ops_and_the_place_of_cublas():
    assert (OnDevice().words, OnDevice().env) == ([], {})
    found = OnDevice(("ADD", "MUL_MAT"), "/cuda/lib64")
    assert found.words == ["--on-device", "--device-op", "ADD", "--device-op", "MUL_MAT"]
    assert found.env == {"LD_LIBRARY_PATH": "/cuda/lib64"}


def test_a_rehearsal_takes_no_op_and_says_which_kernels_it_skipped():
    steps = list[str]()
    rehearsal = Rehearsal(steps.append)
    said: list[dict[str, Any]] = [{"model": {"steps": 3}}, {"step": 1}, {"offer": {"layer": 0}}, {"end": {}}]
    assert [rehearsal.answer(message) for message in said] == ["go", "go", "no", ""]
    assert steps == ["finding the kernels of step 2 of 3"]
    found = kernel_cases(resolve(DEFAULT_SOURCE, models=True), [MMA, MMA, "_Z5otherv"])
    assert [case.name for case in found] == ["mma 64,64,8,8"]


def test_the_launches_of_an_op_are_those_since_it_was_offered(tmp_path):
    log = LaunchLog(tmp_path / "launches")
    log.skip()
    assert log.launched() == ()
    log.path.write_text(launch(0) + launch(1))
    log.skip()
    log.path.write_text(log.path.read_text() + launch(2, "flash_attn_ext_f16<64>") + launch(3))
    assert [(found.kernel, found.grid) for found in log.launched()] == [
        ("flash_attn_ext_f16", (3, 1, 1)),
        ("k_get_rows", (4, 1, 1)),
    ]
    assert log.launched() == ()


def test_the_ops_by_devices_in_words():
    ran_on = {"CPU": {"MUL_MAT": 2, "GET_ROWS": 1}, "CUDA0": {"ROPE": 4}}
    assert words_of(ran_on) == "CPU: GET_ROWS, MUL_MAT; CUDA0: ROPE"
    run = {"finite": True, "model_on": "gpu:0", "ran_on": ran_on}
    said = remarks(Index(True, run, [], [], 0), "ops")
    assert said == ["0 ops, 0 B, in ops", "the model ran on gpu:0; 3 of its 7 ops ran on the CPU: GET_ROWS, MUL_MAT"]
    assert len(remarks(Index(True, run | {"model_on": "cpu"}, [], [], 0), "ops")) == 1


def test_an_op_that_the_device_did_not_run_is_refused(tmp_path):
    capture = ModelCapture(
        Session(RunOptions(None)), Request(Path("m"), Prompt(tokens=1)), GPU, tmp_path, lambda note: None, model_on=GPU
    )
    empty = np.zeros((1, 1, 1, 1), np.float32)
    own = Capture("layer-00-step-0000", "0", None, {}, empty, (), "wall", (), "CUDA0", "NVIDIA H200", {})
    assert capture.kept(own) is own
    with pytest.raises(InputError, match="layer-00-step-0000: gpu:0 does not support this op: it ran on CPU"):
        capture.kept(replace(own, backend="CPU"))


DISPATCH = (Path(__file__).parent / "dispatch.cu").read_text()
FILES = {
    "ggml-cuda.cu": DISPATCH,
    "mmf.cu": "bool ggml_cuda_should_use_mmf(int type) {\n}\nvoid ggml_cuda_mul_mat_f(context & ctx) {\n}\n",
    "binbcast.cu": "void ggml_cuda_op_add(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {\n}\n",
    "unary.cu": "void ggml_cuda_op_abs(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {\n}\n",
    "solve_tri.cu": "void ggml_cuda_op_solve_tri(context & ctx, ggml_tensor * dst) {\n    cublasSetMathMode(x);\n}\n",
    "fattn.cu": "void ggml_cuda_flash_attn_ext(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {\n}\n",
    "other.cu": "void other() {\n    ggml_cuda_cpy(ctx, a, b);\n}\n",
}


def test_the_functions_of_ops():
    assert functions_of(DISPATCH.partition("static bool supports_op")[0]) == {
        "ADD": "ggml_cuda_op_add",
        "ADD1": "ggml_cuda_op_add",
        "UNARY": "ggml_cuda_op_abs",
        "CPY": "ggml_cuda_cpy",
        "MUL_MAT": "ggml_cuda_mul_mat",
        "SOLVE_TRI": "ggml_cuda_op_solve_tri",
        "FLASH_ATTN_EXT": "ggml_cuda_flash_attn_ext",
    }


@pytest.fixture
def small_tree(tmp_path):
    (tmp_path / CUDA).mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / CUDA / name).write_text(text)
    return Tree("here", tmp_path, "1", "0", probe(tmp_path))


def test_the_files_of_the_ops_of_a_graph_and_of_a_whole_model(small_tree):
    """Not attention, matrix products, what no file defines, nor what calls cuBLAS."""
    assert device_ops(small_tree) == {"ADD": "binbcast.cu", "ADD1": "binbcast.cu", "UNARY": "unary.cu"}
    files = {"ADD": "binbcast.cu", "MUL": "binbcast.cu", "ROPE": "rope.cu", "SCALE": "scale.cu"}
    assert files_of_ops(files, {"ROPE", "MUL", "ADD", "MUL_MAT"}) == ("binbcast.cu", "rope.cu")
    # Of matrix products: the files that ggml's function for them calls, and the conversions to f16 for cuBLAS.
    alone = {"FLASH_ATTN_EXT": (), "ADD": ("binbcast.cu",), "ADD1": ("binbcast.cu",), "UNARY": ("unary.cu",)}
    assert files_of_device_ops(small_tree, cublas=False) == alone
    found = files_of_device_ops(small_tree, cublas=True)
    assert found == alone | {"SOLVE_TRI": ("solve_tri.cu",), "MUL_MAT": ("convert.cu", "mmf.cu")}
