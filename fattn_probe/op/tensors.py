"""Tensors in memory: allocations, views of them, and the bytes and values that a view reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F64, Bytes
from fattn_probe.op.ggml_types import block_size, decode, row_size, type_size

Ne = tuple[int, int, int, int]


@dataclass(frozen=True)
class Root:
    """A contiguous allocation, as ggml_new_tensor_4d makes it; `ne` in ggml order, innermost first."""

    name: str
    type: str
    ne: Ne

    @property
    def nb(self) -> Ne:
        """Strides in bytes, ggml order."""
        row = row_size(self.type, self.ne[0])
        return (type_size(self.type), row, row * self.ne[1], row * self.ne[1] * self.ne[2])

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.nb[3] * self.ne[3]


@dataclass(frozen=True)
class TensorView:
    """An operand of the op: `ne` and `nb` (bytes) in ggml order, `offset` in bytes into the root of that name."""

    name: str
    type: str
    root: str
    ne: Ne
    nb: Ne
    offset: int

    @property
    def end(self) -> int:
        """One past the last byte of the root that the view reads."""
        last = sum((n - 1) * stride for n, stride in zip(self.ne[1:], self.nb[1:], strict=True))
        return self.offset + last + row_size(self.type, self.ne[0])


def element_strides(view: TensorView) -> Ne:
    """Strides of a view in elements instead of bytes, for types in whole blocks; innermost first."""
    block, size = block_size(view.type), type_size(view.type)
    return (1, *(stride // size * block for stride in view.nb[1:]))  # type: ignore[return-value]


def element_offset(view: TensorView) -> int:
    """A view's offset in elements instead of bytes; it must be at the start of a block."""
    return view.offset // type_size(view.type) * block_size(view.type)


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


def view_values(view: TensorView, inputs: Mapping[str, Bytes]) -> F64:
    """The values of an operand, dequantised, in NumPy's order (ne[3], ne[2], ne[1], ne[0])."""
    return strided(decode(inputs[view.root], view.type), view).astype(np.float64)
