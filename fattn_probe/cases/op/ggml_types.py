"""The ggml types of K and V, and the sizes of their blocks."""

from typing import Literal, get_args

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
"""Elements and bytes of a type's block."""


def block_size(name: str) -> int:
    """ggml_blck_size: elements in a block, 1 for the float types."""
    return BLOCKS[name][0]


def type_size(name: str) -> int:
    """ggml_type_size: bytes in a block."""
    return BLOCKS[name][1]


def row_size(name: str, ne0: int) -> int:
    """ggml_row_size: bytes in a row of `ne0` elements, which must be whole blocks."""
    return ne0 // block_size(name) * type_size(name)


def is_quantized(name: str) -> bool:
    """Whether a type stores elements in blocks."""
    return block_size(name) > 1
