"""A self-contained C++ file that uses ggml's public API, and the GGUF file with its inputs and expected output."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fattn_probe.base.arrays import F64, Bytes, Floats
from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import Op
from fattn_probe.cases.op.case_file import Named, case_fields, case_tensors
from fattn_probe.cases.op.gguf_file import TensorData, f32, string, write_gguf
from fattn_probe.cases.op.op import PREC
from fattn_probe.cases.op.tensors import Ne
from fattn_probe.verdict.measure.limits import Limits

PROGRAM = "reproduce.cpp"
INPUTS = "inputs.gguf"
TEMPLATE = Path(__file__).with_name(PROGRAM)
SETTERS = "    // SETTERS\n"
HEADER = Path("ggml/include/ggml.h")
ACCUMULATOR = re.compile(r"\bggml_prec_set_acc\(")
"""The replacement for ggml_flash_attn_ext_set_prec, which is deprecated since 2026."""


def program_text(case: Named, root: Path) -> str:
    """The C++ file for a case and a source; the source's ggml.h determines the setters."""
    setters = "".join(f"    {line}\n" for line in setters_of(case.op, (root / HEADER).read_text(errors="replace")))
    return TEMPLATE.read_text().replace("NAME", one_line(case.name), 1).replace(SETTERS, setters)


def setters_of(op: Op, ggml_h: str) -> list[str]:
    """The calls for parameters that ggml_flash_attn_ext does not accept; InputError if ggml.h lacks a setter."""
    calls = []
    if op.params.prec != PREC["default"]:
        setter = "ggml_prec_set_acc" if ACCUMULATOR.search(ggml_h) else "ggml_flash_attn_ext_set_prec"
        known = "GGML_PREC_F32" if op.params.prec == PREC["f32"] else f"ggml_prec({op.params.prec})"
        calls.append((setter, known))
    if op.has_sinks:
        calls.append(("ggml_flash_attn_ext_add_sinks", 'operand(ctx, backend, file, "sinks")'))
    if op.params.n_kv_max:
        calls.append(("ggml_flash_attn_ext_set_n_kv_max", str(op.params.n_kv_max)))
    for setter, _ in calls:
        if setter not in ggml_h:
            raise InputError(f"this source's ggml has no {setter}, which the op needs")
    return [f"{setter}(dst, {argument});" for setter, argument in calls]


def one_line(text: str) -> str:
    """A name without a final backslash, which would continue a C++ comment."""
    return " ".join(text.replace("\\", "/").split())


def write_inputs(case: Named, inputs: Mapping[str, Bytes], reference: F64, limits: Limits, path: Path) -> None:
    """Write a case file that also has the expected output and its limits.

    Tensors: `expected`, in dst's shape; `exact` if that is not the exact answer; `element_bound` and `row_bound`, if
    there are any. Key `reproduce.rmse_bound` is the limit of the whole output, `reproduce.by` the origin of the limits.
    """
    fields = case_fields(case.name, case.digest, case.op) | {
        "reproduce.rmse_bound": f32(limits.rmse),
        "reproduce.by": string(limits.by),
    }
    n_seq, n_q, n_head, hsv = case.op.sizes.dst
    dst, rows = (hsv, n_head, n_q, n_seq), (n_head, n_q, n_seq, 1)
    tensors = case_tensors(case.op, inputs) | {"expected": floats(limits.expected, dst)}
    if limits.by == "model":
        tensors["exact"] = floats(reference, dst)
    if limits.elements is not None:
        tensors["element_bound"] = floats(limits.elements, dst)
    if limits.rows is not None:
        tensors["row_bound"] = floats(limits.rows, rows)
    write_gguf(path, fields, tensors)


def floats(values: Floats, ne: Ne) -> TensorData:
    """Values as a tensor of floats; values beyond float32 become infinite."""
    with np.errstate(over="ignore"):
        return TensorData("f32", ne, np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8))
