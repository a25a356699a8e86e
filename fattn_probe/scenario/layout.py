"""The layouts that a scenario can ask for, and where they place a tensor in memory."""

from typing import Annotated, Literal

from pydantic import Field

from fattn_probe.op import Ne, Root, TensorView
from fattn_probe.op.ggml_types import row_size

from .spec import Spec

MOST = 2**31
"""Rows, heads and elements are fewer than this, as the op's own sizes are."""


class Contiguous(Spec):
    """An allocation of its own, rows one after the other."""

    kind: Literal["contiguous"] = "contiguous"


class View(Spec):
    """A part of a larger allocation, whose dimensions may lie in memory in another order."""

    kind: Literal["view"]
    permute: list[Annotated[int, Field(ge=0, le=3)]] = Field(default=[0, 1, 2, 3], min_length=4, max_length=4)
    """Place in memory of each dimension of the op: with [0, 2, 1, 3] the heads of a row lie side by side."""
    rows: int | None = Field(default=None, ge=1, lt=MOST)
    """Rows (dimension 1 of the op) the allocation has, such as the KV cache's size; default: `offset` + those used."""
    heads: int | None = Field(default=None, ge=1, lt=MOST)
    """Heads (dimension 2 of the op) the allocation has; default: those used."""
    offset: int = Field(default=0, ge=0, lt=MOST)
    """First row that belongs to the view."""
    pad: int = Field(default=0, ge=0, lt=MOST)
    """Elements added to each memory row, whole blocks of the type: 2 of f32 give strides no multiple of 16 bytes."""
    outside: Literal["random", "zero", "nan"] = "random"
    """What the allocation holds outside the view: data like the view's, zeros, or NaN, which shows if it is used."""


class ViewOfK(Spec):
    """V is a part of every row of K, as models with latent attention (MLA) have it."""

    kind: Literal["view_of_K"]
    offset: int = Field(default=0, ge=0, lt=MOST)
    """First element of the part. The 576/512 kernels take V from K: at 0, but in releases of 2025 at hsk - hsv = 64."""


class MaskLayout(Spec):
    """Rows of the mask beyond those of the queries, all -inf; ggml wants the mask itself contiguous."""

    pad: int = Field(default=1, ge=1, lt=MOST)
    """The number of rows is rounded up to a multiple of this; llama.cpp long used 64 (GGML_KQ_MASK_PAD), now 1."""
    offset: int = Field(default=0, ge=0, lt=MOST)
    """Rows of the allocation before the mask begins."""
    per_sequence: bool = True
    """One mask for each sequence, or one broadcast to all."""


TensorLayout = Annotated[Contiguous | View, Field(discriminator="kind")]
VLayout = Annotated[Contiguous | View | ViewOfK, Field(discriminator="kind")]


class Layout(Spec):
    """The layout of each operand."""

    Q: TensorLayout = Contiguous()
    K: TensorLayout = Contiguous()
    V: VLayout = Contiguous()
    mask: MaskLayout = MaskLayout()


def place(name: str, type_: str, ne: Ne, layout: Contiguous | View) -> tuple[Root, TensorView]:
    """The allocation and the view of an operand of `ne` = {elements, rows, heads, sequences}."""
    view = layout if isinstance(layout, View) else View(kind="view")
    rows = view.offset + ne[1] if view.rows is None else view.rows
    op_ne = (ne[0] + view.pad, rows, ne[2] if view.heads is None else view.heads, ne[3])
    memory_ne = [0, 0, 0, 0]
    for dimension, position in enumerate(view.permute):
        memory_ne[position] = op_ne[dimension]
    root = Root(name, type_, (memory_ne[0], memory_ne[1], memory_ne[2], memory_ne[3]))
    nb = [root.nb[position] for position in view.permute]
    return root, TensorView(name, type_, name, ne, (nb[0], nb[1], nb[2], nb[3]), view.offset * nb[1])


def view_of_K(K: TensorView, hsv: int, layout: ViewOfK) -> TensorView:
    """V as `hsv` elements of each row of K."""
    return TensorView("V", K.type, K.root, (hsv, *K.ne[1:]), K.nb, K.offset + row_size(K.type, layout.offset))


def place_mask(n_kv: int, n_q: int, n_seq: int, layout: MaskLayout) -> tuple[Root, TensorView]:
    """The f16 mask, ne = {n_kv, padded n_q, 1, n_seq or 1}, after `offset` rows of its allocation."""
    rows = -(-n_q // layout.pad) * layout.pad
    sequences = n_seq if layout.per_sequence else 1
    ne = (n_kv, rows, 1, sequences)
    nb = Root("mask", "f16", ne).nb
    root_ne = ne if layout.offset == 0 else (n_kv, layout.offset + rows * sequences, 1, 1)
    return Root("mask", "f16", root_ne), TensorView("mask", "f16", "mask", ne, nb, layout.offset * nb[1])
