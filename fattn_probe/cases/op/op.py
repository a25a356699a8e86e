"""One FLASH_ATTN_EXT op: parameters and tensors; everything else is derived from these."""

import json
import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from fattn_probe.base.digest import short

TypeName = Literal["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"]
TYPE_NAMES: tuple[str, ...] = get_args(TypeName)
BLOCKS = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "iq4_nl": (32, 18),
}
"""Elements and bytes in a block of each type."""


def block_size(name: str) -> int:
    """The number of elements in a block (ggml_blck_size); 1 for the float types."""
    return BLOCKS[name][0]


def type_size(name: str) -> int:
    """The number of bytes in a block (ggml_type_size)."""
    return BLOCKS[name][1]


def row_size(name: str, ne0: int) -> int:
    """The number of bytes in a row of `ne0` elements, which must be whole blocks (ggml_row_size)."""
    return ne0 // block_size(name) * type_size(name)


def is_quantized(name: str) -> bool:
    """Whether a type is quantised (stores elements in blocks)."""
    return block_size(name) > 1


Ne = tuple[int, int, int, int]


@dataclass(frozen=True)
class Root:
    """A contiguous allocation, as ggml_new_tensor_4d creates it; `ne` is in ggml's order, innermost first.

    With a `period`, only the first `period` bytes (whole rows and whole pages) are stored, and the rest repeats them.
    """

    name: str
    type: str
    ne: Ne
    period: int | None = None

    @property
    def nb(self) -> Ne:
        """Strides in bytes, in ggml order."""
        row = row_size(self.type, self.ne[0])
        return (type_size(self.type), row, row * self.ne[1], row * self.ne[1] * self.ne[2])

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.nb[3] * self.ne[3]

    @property
    def stored(self) -> "Root":
        """The part that is stored: the whole allocation, or the rows of one period."""
        return (
            self if self.period is None else Root(self.name, self.type, (self.ne[0], self.period // self.nb[1], 1, 1))
        )


@dataclass(frozen=True)
class TensorView:
    """An operand of the op: `ne` and `nb` (bytes) in ggml order, `offset` in bytes from the start of the named root."""

    name: str
    type: str
    root: str
    ne: Ne
    nb: Ne
    offset: int

    @property
    def end(self) -> int:
        """The offset in the root of the first byte after the view."""
        last = sum((n - 1) * stride for n, stride in zip(self.ne[1:], self.nb[1:], strict=True))
        return self.offset + last + row_size(self.type, self.ne[0])


def element_strides(view: TensorView) -> Ne:
    """Strides of a view in elements instead of bytes, innermost first; for quantised types, whole blocks."""
    block, size = block_size(view.type), type_size(view.type)
    return (1, *(stride // size * block for stride in view.nb[1:]))  # type: ignore[return-value]


def element_offset(view: TensorView) -> int:
    """A view's offset in elements instead of bytes; it must be at the start of a block."""
    return view.offset // type_size(view.type) * block_size(view.type)


PREC = {"default": 0, "f32": 10}
"""The values of ggml_prec."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of an op; `hsk` and `hsv` are the head sizes of K and V (the kernels' DKQ and DV)."""

    n_seq: int
    n_head: int
    n_head_kv: int
    n_q: int
    n_kv: int
    hsk: int
    hsv: int

    @property
    def group(self) -> int:
        """Query heads per K/V head (upstream's `gqa_ratio`)."""
        return self.n_head // self.n_head_kv

    @property
    def flop(self) -> int:
        """Floating-point operations in the two matrix products, as test-backend-ops counts them."""
        return 2 * self.n_seq * self.n_head * self.n_q * self.n_kv * (self.hsk + self.hsv)

    @property
    def dst(self) -> tuple[int, int, int, int]:
        """The shape of the output (n_seq, n_q, n_head, hsv): dst's `ne` reversed."""
        return (self.n_seq, self.n_q, self.n_head, self.hsv)


@dataclass(frozen=True)
class Params:
    """The op's parameters; 0 turns off `max_bias` (ALiBi), `logit_softcap` or `n_kv_max`; `prec` is a ggml_prec."""

    scale: float
    max_bias: float = 0.0
    logit_softcap: float = 0.0
    prec: int = PREC["f32"]
    n_kv_max: int = 0

    @property
    def stored(self) -> "Params":
        """The parameters as the op stores them, in float32."""
        scale, bias, softcap = map(float32, (self.scale, self.max_bias, self.logit_softcap))
        return replace(self, scale=scale, max_bias=bias, logit_softcap=softcap)

    @property
    def factor(self) -> float:
        """The factor applied to q.k: the scale, divided by the softcap if there is one."""
        return self.scale / self.logit_softcap if self.logit_softcap else self.scale


@dataclass(frozen=True)
class Op:
    """A FLASH_ATTN_EXT op: its parameters, and its operands (Q, K, V, mask, sinks) and their allocations by name."""

    params: Params
    tensors: Mapping[str, TensorView] = field(hash=False)
    roots: Mapping[str, Root] = field(hash=False)

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes, from Q, K and V."""
        (hsk, n_q, n_head, n_seq), K, V = self.tensors["Q"].ne, self.tensors["K"], self.tensors["V"]
        return Sizes(n_seq, n_head, K.ne[2], n_q, K.ne[1], hsk, V.ne[0])

    @property
    def type_K(self) -> str:
        """The ggml type of K."""
        return self.tensors["K"].type

    @property
    def type_V(self) -> str:
        """The ggml type of V."""
        return self.tensors["V"].type

    @property
    def has_mask(self) -> bool:
        """Whether there is a mask."""
        return "mask" in self.tensors

    @property
    def has_sinks(self) -> bool:
        """Whether there are attention sinks."""
        return "sinks" in self.tensors

    @cached_property
    def operands(self) -> Mapping[str, TensorView]:
        """The part of each tensor that attention reads: if the mask is wider than K, only the columns for K's rows."""
        mask = self.tensors.get("mask")
        if mask is None or mask.ne[0] == self.sizes.n_kv:
            return self.tensors
        return {**self.tensors, "mask": replace(mask, ne=(self.sizes.n_kv, *mask.ne[1:]))}

    @property
    def V_is_K_view(self) -> bool:
        """Whether V is the first part of K's rows, as the MLA kernels require."""
        K, V = self.tensors["K"], self.tensors["V"]
        return (K.root, K.offset, K.nb) == (V.root, V.offset, V.nb)

    def to_json(self) -> dict[str, Any]:
        """The op as plain data, for `from_json` and for digests; keys must not change, even if a field is renamed."""
        views = {
            name: {"type": view.type, "root": view.root, "ne": view.ne, "nb": view.nb, "offset": view.offset}
            for name, view in self.tensors.items()
        }
        roots = {
            name: {"type": root.type, "ne": root.ne} | ({"period": root.period} if root.period else {})
            for name, root in self.roots.items()
        }
        return {"params": asdict(self.params), "tensors": views, "roots": roots}

    @cached_property
    def digest(self) -> str:
        """16 hex digits for the parameters, tensors and roots; the data do not affect the choice of a kernel."""
        return short(json.dumps(self.to_json(), sort_keys=True))

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "Op":
        """The op from the output of `to_json`, even after a JSON round trip, which turns tuples into lists."""
        views = {
            name: TensorView(name, view["type"], view["root"], _four(view["ne"]), _four(view["nb"]), view["offset"])
            for name, view in plain["tensors"].items()
        }
        roots = {
            name: Root(name, root["type"], _four(root["ne"]), root.get("period"))
            for name, root in plain["roots"].items()
        }
        return cls(Params(**plain["params"]), views, roots)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:  # noqa: ANN401 (pydantic's)
        from pydantic_core import core_schema as schema

        to_json = schema.plain_serializer_function_ser_schema(cls.to_json)
        return schema.no_info_plain_validator_function(cls.from_json, serialization=to_json)

    @classmethod
    def contiguous(
        cls, sizes: Sizes, params: Params, types: tuple[str, str], *, mask: bool = False, sinks: bool = False
    ) -> "Op":
        """An op whose tensors are separate contiguous allocations; `types` are the types of K and V."""
        s = sizes
        roots = [
            Root("Q", "f32", (s.hsk, s.n_q, s.n_head, s.n_seq)),
            Root("K", types[0], (s.hsk, s.n_kv, s.n_head_kv, s.n_seq)),
            Root("V", types[1], (s.hsv, s.n_kv, s.n_head_kv, s.n_seq)),
        ]
        roots += [Root("mask", "f16", (s.n_kv, s.n_q, 1, s.n_seq))] * mask
        roots += [Root("sinks", "f32", (s.n_head, 1, 1, 1))] * sinks
        views = {root.name: TensorView(root.name, root.type, root.name, root.ne, root.nb, 0) for root in roots}
        return cls(params, views, {root.name: root for root in roots})


def default_scale(hsk: int) -> float:
    """1/sqrt(hsk), rounded like the float32 arithmetic of ggml's callers."""
    return float32(1 / float32(math.sqrt(float32(hsk))))


def float32(value: float) -> float:
    """The nearest float32, rounded as in NumPy, but without importing NumPy, which takes 0.1 s."""
    return array("f", (value,))[0]


def _four(numbers: Iterable[int]) -> tuple[int, int, int, int]:
    a, b, c, d = numbers
    return (a, b, c, d)
