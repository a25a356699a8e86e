"""The ops around attention that a device can run: which .cu files of a tree have them."""

import re
from collections.abc import Iterable, Mapping

from fattn_probe.build.sources import BACKEND, CUDA
from fattn_probe.build.symbols import defining_source
from fattn_probe.source import Tree

ELSEWHERE = frozenset({"FLASH_ATTN_EXT", "MUL_MAT", "MUL_MAT_ID", "OUT_PROD"})
"""Attention is replayed by `capture`; matrix products need files that compile for minutes, and cuBLAS."""
CUBLAS = re.compile(r"\bcublas\w+\(")
DISPATCH = re.compile(r"^static bool ggml_cuda_compute_forward\(.*?^\}", re.MULTILINE | re.DOTALL)
# `case GGML_OP_ADD: case GGML_OP_ADD1: ggml_cuda_op_add(ctx, dst);`; for a switch in the case, its first call
CASE = re.compile(r"(?P<cases>(?:case\s+GGML_OP_\w+:[^\n]*\s+)+)(?P<body>[^;]*?)\b(?P<function>ggml_cuda_\w+)\(")
OP = re.compile(r"GGML_OP_(\w+)")


def device_ops(tree: Tree) -> dict[str, str]:
    """The .cu files in ggml-cuda/ of ops, by ggml's names of the ops; without those that call cuBLAS."""
    cuda = tree.root / CUDA
    dispatch = DISPATCH.search((cuda / BACKEND).read_text(errors="replace"))
    functions = functions_of(dispatch.group()) if dispatch else {}
    files = [path for path in sorted(cuda.glob("*.cu")) if not CUBLAS.search(path.read_text(errors="replace"))]
    found = {op: defining_source(name, files) for op, name in functions.items() if op not in ELSEWHERE}
    return {op: file for op, file in found.items() if file not in (None, BACKEND)}


def functions_of(dispatch: str) -> dict[str, str]:
    """The function that runs each op, as the text of ggml's dispatch calls it."""
    return {op: match["function"] for match in CASE.finditer(dispatch) for op in OP.findall(match["cases"])}


def files_of_ops(files: Mapping[str, str], ops: Iterable[str]) -> tuple[str, ...]:
    """The files that these ops need, each once."""
    return tuple(sorted({files[op] for op in ops if op in files}))
