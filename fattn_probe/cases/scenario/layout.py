"""The layouts of a scenario, the positions of tensors in memory, and the period of huge allocations.

A tensor of 10^10 elements is generated, stored and read in seconds if its memory repeats. An allocation of more than
REPEATS_ABOVE bytes therefore repeats a period: a prime number of units, each of whole rows and whole pages. No power of
two is a multiple of it, so an offset that lost its upper bits (2^31 or 2^32 bytes or elements) reads wrong values.
"""

import math
from dataclasses import replace
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fattn_probe.cases.op import Ne, Root, TensorView
from fattn_probe.cases.op.op import row_size
from fattn_probe.cases.scenario.spec import Spec

MOST = 2**31
"""Upper limit on rows, heads and elements, the same as for the op's sizes."""


class Contiguous(Spec):
    """A separate allocation, whose rows are contiguous."""

    kind: Literal["contiguous"] = "contiguous"


class View(Spec):
    """A view into a larger allocation, whose dimensions may be permuted in memory."""

    kind: Literal["view"]
    permute: list[Annotated[int, Field(ge=0, le=3)]] = Field(default=[0, 1, 2, 3], min_length=4, max_length=4)
    """Position in memory of each dimension of the op; with [0, 2, 1, 3], the heads of a row are adjacent."""
    rows: int | None = Field(default=None, ge=1, lt=MOST)
    """Rows (dimension 1 of the op) in the allocation, such as the KV cache's size; default: `offset` + rows used."""
    heads: int | None = Field(default=None, ge=1, lt=MOST)
    """Heads (dimension 2 of the op) in the allocation; default: the heads used."""
    offset: int = Field(default=0, ge=0, lt=MOST)
    """First row of the view."""
    pad: int = Field(default=0, ge=0, lt=MOST)
    """Elements added to each memory row, in whole blocks of the type; 2 with f32 breaks the rows' 16-byte alignment."""
    outside: Literal["random", "zero", "nan"] = "random"
    """Content of the allocation outside the view: data as in the view, zeros, or NaN, which exposes stray reads."""


class ViewOfK(Spec):
    """V is a part of each row of K, as in models with latent attention (MLA)."""

    kind: Literal["view_of_K"]
    offset: int = Field(default=0, ge=0, lt=MOST)
    """First element of V in a row of K. The 576/512 kernels read V at 0; in releases of 2025, at hsk - hsv = 64."""


class MaskLayout(Spec):
    """Padding of the mask: extra columns, and rows of -inf after the queries' rows. ggml needs a contiguous mask."""

    columns: int | None = Field(default=None, ge=1, lt=MOST)
    """Entries in a row; default: n_kv. Entries after K's rows are 0, so the mask scan treats them as visible."""
    pad: int = Field(default=1, ge=1, lt=MOST)
    """The number of rows is padded to a multiple of this; llama.cpp formerly used 64 (GGML_KQ_MASK_PAD), now 1."""
    offset: int = Field(default=0, ge=0, lt=MOST)
    """Rows in the allocation before the mask."""
    per_sequence: bool = True
    """Whether each sequence has its own mask; otherwise one mask is broadcast to all."""

    @model_serializer(mode="wrap")
    def _without_default_columns(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `columns` if it is not set, so that cases older than this key keep their digests."""
        return {name: value for name, value in write(self).items() if name != "columns" or value is not None}


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
    """The view of V: `hsv` elements of each row of K."""
    return TensorView("V", K.type, K.root, (hsv, *K.ne[1:]), K.nb, K.offset + row_size(K.type, layout.offset))


def place_mask(n_kv: int, n_q: int, n_seq: int, layout: MaskLayout) -> tuple[Root, TensorView]:
    """The f16 mask, ne = {n_kv or columns, padded n_q, 1, n_seq or 1}, after `offset` rows of its allocation."""
    rows = -(-n_q // layout.pad) * layout.pad
    sequences = n_seq if layout.per_sequence else 1
    ne = (layout.columns or n_kv, rows, 1, sequences)
    nb = Root("mask", "f16", ne).nb
    root_ne = ne if layout.offset == 0 else (ne[0], layout.offset + rows * sequences, 1, 1)
    return Root("mask", "f16", root_ne), TensorView("mask", "f16", "mask", ne, nb, layout.offset * nb[1])


REPEATS_ABOVE = 1 << 30
LEAST_PERIOD = 16 << 20
MOST_PERIOD = 1 << 30
MOST_PERIODS = 4096
"""Each period is a memory mapping of the process; Linux allows 65,530 of them (vm.max_map_count)."""
PAGE = 4096


def repeating(root: Root) -> Root:
    """The root, with a period if it is large enough to repeat."""
    if root.nbytes <= REPEATS_ABOVE:
        return root
    unit = math.lcm(root.nb[1], PAGE)
    least = max(LEAST_PERIOD, root.nbytes // MOST_PERIODS)
    candidates = count(max(3, -(-least // unit)))
    prime = next(number for number in candidates if all(number % by for by in range(2, math.isqrt(number) + 1)))
    period = unit * prime
    return replace(root, period=period) if period <= min(MOST_PERIOD, root.nbytes // 2) else root
