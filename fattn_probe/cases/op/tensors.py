"""Tensors in memory: allocations, and views of them."""

from dataclasses import dataclass

from fattn_probe.cases.op.ggml_types import block_size, row_size, type_size

Ne = tuple[int, int, int, int]


@dataclass(frozen=True)
class Root:
    """A contiguous allocation, as ggml_new_tensor_4d makes it; `ne` in ggml order, innermost first.

    With a `period`, it repeats its first `period` bytes, whole rows and whole pages, and only these are stored.
    """

    name: str
    type: str
    ne: Ne
    period: int | None = None

    @property
    def nb(self) -> Ne:
        """Strides in bytes, ggml order."""
        row = row_size(self.type, self.ne[0])
        return (type_size(self.type), row, row * self.ne[1], row * self.ne[1] * self.ne[2])

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.nb[3] * self.ne[3]

    @property
    def stored(self) -> "Root":
        """The part that is stored: all of it, or the rows of one period."""
        return (
            self if self.period is None else Root(self.name, self.type, (self.ne[0], self.period // self.nb[1], 1, 1))
        )


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
