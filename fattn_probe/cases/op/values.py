"""The bytes and the values that a view of memory reads, and the logits of products q.k."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F64, Bytes
from fattn_probe.cases.op.encoding import decode
from fattn_probe.cases.op.ggml_types import row_size
from fattn_probe.cases.op.op import Params
from fattn_probe.cases.op.tensors import TensorView, element_offset, element_strides


def strided(flat: npt.NDArray[Any], view: TensorView) -> npt.NDArray[Any]:
    """A view's elements as a strided window on its root's elements, in NumPy's order (ne[3], ne[2], ne[1], ne[0])."""
    start = element_offset(view)
    strides = [stride * flat.itemsize for stride in reversed(element_strides(view))]
    return np.lib.stride_tricks.as_strided(flat[start:], view.ne[::-1], strides)


def row_bytes(view: TensorView, inputs: Mapping[str, Bytes]) -> Bytes:
    """The bytes of an operand's rows as a window on its root: (ne[3], ne[2], ne[1], row size)."""
    memory = inputs[view.root][view.offset :]
    size = row_size(view.type, view.ne[0])
    return np.lib.stride_tricks.as_strided(memory, (*view.ne[:0:-1], size), (*view.nb[:0:-1], 1), writeable=False)


def cap(logits: F64, softcap: float) -> F64:
    """Apply softcap * tanh(logits) in place; a softcap of 0 means no softcap."""
    if softcap:
        np.tanh(logits, out=logits)
        logits *= softcap
    return logits


def logits_of(products: F64, params: Params, bias: F64 | None = None) -> F64:
    """The logits that enter the softmax: products q.k scaled, capped, and with a bias, the mask times ALiBi's slope."""
    logits = cap(params.factor * products, params.logit_softcap)
    return logits if bias is None else logits + bias


def view_values(view: TensorView, inputs: Mapping[str, Bytes]) -> F64:
    """The values of an operand, dequantised, in NumPy's order (ne[3], ne[2], ne[1], ne[0])."""
    return strided(decode(inputs[view.root], view.type), view).astype(np.float64)
