"""Turn an op and its bytes into the arrays of the reference, for every storage type."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F64, Bytes, Floats
from fattn_probe.base.errors import InputError, NoAnswerError
from fattn_probe.base.workers import spread
from fattn_probe.cases.op import Op, TensorView
from fattn_probe.cases.op.op import type_size
from fattn_probe.cases.op.values import count_non_finite, decode, row_bytes
from fattn_probe.verdict.truth.reference.attention import attention_and_lse, fully_masked_rows
from fattn_probe.verdict.truth.reference.engine import MINUS_INFINITY
from fattn_probe.verdict.truth.reference.shapes import Shape

Inputs = dict[str, Bytes]
NATIVE = {"f32": np.float32, "f16": np.float16}
OF_THE_OP = {"Q": "f32", "mask": "f16", "sinks": "f32"}
AT_ONCE = 4096  # rows


def reference_of(op: Op, inputs: Mapping[str, Bytes], case: str = "") -> F64:
    """The exact output of an op, (n_seq, n_q, n_head, hsv), from the bytes that its kernels read.

    The op's parameters are rounded to float32 first, as the op stores them. NoAnswerError if an input has NaN or
    infinity (except -inf in the mask); InputError if its bytes do not fit the case.
    """
    return reference_and_lse_of(op, inputs, case)[0]


def reference_and_lse_of(op: Op, inputs: Mapping[str, Bytes], case: str = "") -> tuple[F64, F64]:
    """The exact output of an op, and each row's log-sum-exp (n_seq, n_q, n_head)."""
    check_inputs(op, inputs, case)
    rows = operand_values(op, inputs)
    Q, mask, sinks = (None if name not in rows else np.asarray(rows[name]) for name in ("Q", "mask", "sinks"))
    assert Q is not None
    sinks = None if sinks is None else sinks.ravel()
    try:
        return attention_and_lse(Q, rows["K"], rows["V"], mask, params=op.params.stored, sinks=sinks)
    except InputError as error:
        raise InputError(f"{_prefix(case)}{error}") from error


def fully_masked_of(op: Op, inputs: Mapping[str, Bytes]) -> npt.NDArray[np.bool_] | None:
    """The fully masked rows of an op, (n_seq, n_q, n_head); None without a mask."""
    if "mask" not in op.tensors:
        return None
    n_q, n_head, n_seq = op.tensors["Q"].ne[1:]
    return fully_masked_rows(np.asarray(stored_rows(op.operands["mask"], inputs)), n_seq, n_head, n_q)


def operand_values(op: Op, inputs: Mapping[str, Bytes]) -> "dict[str, Floats | StoredRows]":
    """The operands' values by name, as from `stored_rows`; the mask is cut to the columns of K's rows."""
    return {name: stored_rows(view, inputs) for name, view in op.operands.items()}


def stored_rows(view: TensorView, inputs: Mapping[str, Bytes]) -> "Floats | StoredRows":
    """An operand's values without a full copy: an array of its type, or rows that are decoded on access."""
    memory = row_bytes(view, inputs)
    return memory.view(NATIVE[view.type]) if view.type in NATIVE else StoredRows(memory, view.type, view.ne[0])


class StoredRows:
    """Rows of a type that NumPy lacks; [sequence, head, slice] gives float32 (rows, ne[0])."""

    def __init__(self, memory: Bytes, type_: str, ne0: int) -> None:
        self._memory, self._type = memory, type_
        self.shape: Shape = (*memory.shape[:3], ne0)

    def __getitem__(self, at: tuple[int, int, slice]) -> npt.NDArray[np.float32]:
        packed = np.ascontiguousarray(self._memory[at])
        return decode(packed.reshape(-1), self._type).reshape(len(packed), self.shape[3])


def check_inputs(op: Op, inputs: Mapping[str, Bytes], case: str) -> None:
    """InputError, naming every tensor, if inputs are missing or too short; NoAnswerError for NaN or infinities."""
    problems = [f"there is no tensor {name}" for name in "QKV" if name not in op.tensors]
    problems += [problem for view in op.tensors.values() for problem in _misfits(view, inputs)]
    if problems:
        raise InputError(_prefix(case) + "; ".join(problems))
    if odd := [problem for view in op.tensors.values() for problem in _non_finite(view, inputs)]:
        raise NoAnswerError(_prefix(case) + "; ".join(odd))


def check_output(op: Op, dst: npt.NDArray[Any], case: str = "") -> None:
    """InputError if an output does not have the op's shape and type."""
    problems = []
    if dst.dtype != np.float32:
        problems.append(f"dst is {dst.dtype}, but the op writes float32")
    if dst.shape != op.sizes.dst:
        problems.append(f"dst is {dst.shape}, but the op writes {op.sizes.dst}")
    if problems:
        raise InputError(_prefix(case) + "; ".join(problems))


def _prefix(case: str) -> str:
    return f"case {case}: " if case else ""


def _misfits(view: TensorView, inputs: Mapping[str, Bytes]) -> list[str]:
    """The mistakes in a tensor or in its memory."""
    if view.type != OF_THE_OP.get(view.name, view.type):
        return [f"{view.name} is {view.type}, but the op takes {OF_THE_OP[view.name]}"]
    if view.nb[0] != type_size(view.type):
        return [f"{view.name} has nb[0] = {view.nb[0]}, but elements of {view.type} take {type_size(view.type)} bytes"]
    if view.root not in inputs:
        return [f"the bytes of {view.root} are missing; the inputs are {', '.join(sorted(inputs))}"]
    memory: npt.NDArray[Any] = inputs[view.root]
    if memory.dtype != np.uint8 or memory.ndim != 1:
        return [f"{view.root} is {memory.dtype} {memory.shape}; it must be its raw bytes, uint8 and 1-D"]
    if memory.size < view.end:
        return [f"{view.root} has {memory.size} bytes, but {view.name} ({view.type}, ne {view.ne}) ends at {view.end}"]
    return []


def _non_finite(view: TensorView, inputs: Mapping[str, Bytes]) -> list[str]:
    """The tensors with NaN or infinities, for which there is no exact answer."""
    memory, found = row_bytes(view, inputs), list[int]()

    def count(at: tuple[int, ...]) -> None:
        for first in range(0, memory.shape[2], AT_ONCE):
            piece = np.ascontiguousarray(memory[at][first : first + AT_ONCE]).reshape(-1)
            number = count_non_finite(piece, view.type)
            if number and view.name == "mask":  # -inf is allowed there
                number -= int((piece.view(np.uint16) == MINUS_INFINITY).sum())
            found.append(number)

    spread(count, list(np.ndindex(memory.shape[:2])), operations=memory.size)
    return [f"{view.name} holds {sum(found)} values that are NaN or infinite"] if any(found) else []
