"""A whole model on a CUDA device: what is prepared for it, what it says, what of it is recorded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.daily.models.capture import LaunchLog, ModelCapture, words_of
from fattn_probe.daily.models.on_device import OnDevice, Rehearsal, kernel_cases, place_of_model
from fattn_probe.daily.models.program import CPU, Prompt, Request
from fattn_probe.daily.models.recorded_op import Index
from fattn_probe.daily.models.show import remarks
from fattn_probe.daily.models.walk import device_ops, files_of_device_ops, files_of_ops, functions_of
from fattn_probe.llama.build.sources import CUDA
from fattn_probe.llama.source import DEFAULT_SOURCE, Tree, resolve
from fattn_probe.llama.source.features import probe
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.session import RunOptions, Session
from tests.made import H200

GPU = Target("cuda")
LAUNCH = '{"order":%d,"kernel":"%s","grid":[%d,1,1],"block":[32,4,1],"shared":0}\n'
MMA = "_Z37ggml_cuda_flash_attn_ext_mma_f16_caseILi64ELi64ELi8ELi8EEvR25ggml_backend_cuda_contextP11ggml_tensor"


def launch(number, kernel="k_get_rows"):
    return LAUNCH % (number, kernel, number + 1)


def test_a_model_runs_on_a_real_gpu_and_for_a_simulated_one_on_the_cpu():
    simulated = H200
    assert [place_of_model(target) for target in (GPU, simulated, CPU)] == [GPU, CPU, CPU]
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
    assert said == ["0 ops, 0 B, in ops", "the model ran on gpu:0, but 3 of its 7 ops on the CPU: GET_ROWS, MUL_MAT"]
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
def tree(tmp_path):
    (tmp_path / CUDA).mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / CUDA / name).write_text(text)
    return Tree("here", tmp_path, "1", "0", probe(tmp_path))


def test_the_files_of_the_ops_of_a_graph_and_of_a_whole_model(tree):
    """Not attention, matrix products, what no file defines, nor what calls cuBLAS."""
    assert device_ops(tree) == {"ADD": "binbcast.cu", "ADD1": "binbcast.cu", "UNARY": "unary.cu"}
    files = {"ADD": "binbcast.cu", "MUL": "binbcast.cu", "ROPE": "rope.cu", "SCALE": "scale.cu"}
    assert files_of_ops(files, {"ROPE", "MUL", "ADD", "MUL_MAT"}) == ("binbcast.cu", "rope.cu")
    # Of matrix products: the files that ggml's function for them calls, and the conversions to f16 for cuBLAS.
    alone = {"FLASH_ATTN_EXT": (), "ADD": ("binbcast.cu",), "ADD1": ("binbcast.cu",), "UNARY": ("unary.cu",)}
    assert files_of_device_ops(tree, cublas=False) == alone
    found = files_of_device_ops(tree, cublas=True)
    assert found == alone | {"SOLVE_TRI": ("solve_tri.cu",), "MUL_MAT": ("convert.cu", "mmf.cu")}
