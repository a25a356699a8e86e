"""Which files of ggml-cuda/ have the ops of a graph, read from ggml's dispatch."""

from pathlib import Path

import pytest

from fattn_probe.daily.models.device_ops import device_ops, files_of_device_ops, files_of_ops, functions_of
from fattn_probe.llama.build.sources import CUDA
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import probe

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


def test_the_files_of_ops(tree):
    """Not attention, matrix products, what no file defines, nor what calls cuBLAS."""
    assert device_ops(tree) == {"ADD": "binbcast.cu", "ADD1": "binbcast.cu", "UNARY": "unary.cu"}


def test_the_files_that_a_graph_needs():
    files = {"ADD": "binbcast.cu", "MUL": "binbcast.cu", "ROPE": "rope.cu", "SCALE": "scale.cu"}
    assert files_of_ops(files, {"ROPE", "MUL", "ADD", "MUL_MAT"}) == ("binbcast.cu", "rope.cu")


def test_a_whole_model_has_attention_too_and_with_cublas_what_calls_it(tree):
    """Of matrix products: the files that ggml's function for them calls, and the conversions to f16 for cuBLAS."""
    alone = {"FLASH_ATTN_EXT": (), "ADD": ("binbcast.cu",), "ADD1": ("binbcast.cu",), "UNARY": ("unary.cu",)}
    assert files_of_device_ops(tree, cublas=False) == alone
    found = files_of_device_ops(tree, cublas=True)
    assert found == alone | {"SOLVE_TRI": ("solve_tri.cu",), "MUL_MAT": ("convert.cu", "mmf.cu")}
