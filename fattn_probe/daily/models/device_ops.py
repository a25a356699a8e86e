"""The ops around attention that a device can run, and the .cu files of a tree that contain them."""

import re
from collections.abc import Iterable, Mapping

from fattn_probe.llama.build.sources import BACKEND, CONVERSIONS, CUDA
from fattn_probe.llama.build.symbols import defining_source
from fattn_probe.llama.source import Tree

ATTENTION = "FLASH_ATTN_EXT"
PRODUCTS = {
    op: re.compile(rf"^static void ggml_cuda_{op.lower()}\(.*?^\}}", re.MULTILINE | re.DOTALL)
    for op in ("MUL_MAT", "MUL_MAT_ID")
}
"""ggml's functions for matrix products, which choose among cuBLAS and the kernels of several files."""
CALL = re.compile(r"\b(ggml_cuda_\w+|\w+_cuda)\(")
ELSEWHERE = frozenset({ATTENTION, *PRODUCTS, "OUT_PROD"})
"""Attention is replayed by `capture`; matrix products need cuBLAS, and files that take minutes to compile."""
CUBLAS = re.compile(r"\bcublas\w+\(")
DISPATCH = re.compile(r"^static bool ggml_cuda_compute_forward\(.*?^\}", re.MULTILINE | re.DOTALL)
# `case GGML_OP_ADD: case GGML_OP_ADD1: ggml_cuda_op_add(ctx, dst);`; for a switch in the case, its first call
CASE = re.compile(r"(?P<cases>(?:case\s+GGML_OP_\w+:[^\n]*\s+)+)(?P<body>[^;]*?)\b(?P<function>ggml_cuda_\w+)\(")
OP = re.compile(r"GGML_OP_(\w+)")


def device_ops(tree: Tree, *, cublas: bool = False) -> dict[str, str]:
    """The .cu files in ggml-cuda/ of ops, by ggml's op names; without those that call cuBLAS, unless requested."""
    cuda = tree.root / CUDA
    dispatch = DISPATCH.search((cuda / BACKEND).read_text(errors="replace"))
    functions = functions_of(dispatch.group()) if dispatch else {}
    files = sorted(cuda.glob("*.cu"))
    files = [path for path in files if cublas or not CUBLAS.search(path.read_text(errors="replace"))]
    found = {op: defining_source(name, files) for op, name in functions.items() if op not in ELSEWHERE}
    return {op: file for op, file in found.items() if file not in (None, BACKEND)}


def files_of_device_ops(tree: Tree, *, cublas: bool) -> dict[str, tuple[str, ...]]:
    """The .cu files of ops that a model may need on a CUDA device: attention, `device_ops`, matrix products.

    With `cublas`, they include the files that call cuBLAS, those that ggml's functions for matrix products call, and
    the conversions for cuBLAS.
    """
    found: dict[str, tuple[str, ...]] = {ATTENTION: ()}
    found |= {op: (file,) for op, file in device_ops(tree, cublas=cublas).items()}
    if not cublas:
        return found
    cuda = tree.root / CUDA
    text = (cuda / BACKEND).read_text(errors="replace")
    files = [path for path in sorted(cuda.glob("*.cu")) if path.name != BACKEND]
    bodies = {op: PRODUCTS[op].search(text) for op in PRODUCTS}
    calls = {op: dict.fromkeys(CALL.findall(body.group())) for op, body in bodies.items() if body}
    named = {op: {defining_source(name, files) for name in names} for op, names in calls.items()}
    return found | {op: tuple(sorted({CONVERSIONS, *filter(None, names)})) for op, names in named.items()}


def functions_of(dispatch: str) -> dict[str, str]:
    """The function that runs each op, as the text of ggml's dispatch calls it."""
    return {op: match["function"] for match in CASE.finditer(dispatch) for op in OP.findall(match["cases"])}


def files_of_ops(files: Mapping[str, str], ops: Iterable[str]) -> tuple[str, ...]:
    """The files that these ops need, each once."""
    return tuple(sorted({files[op] for op in ops if op in files}))
