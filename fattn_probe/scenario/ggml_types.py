"""The ggml types that K and V may have: sizes of their blocks, and conversion from and to floats."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

TypeName = Literal["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"]
TYPE_NAMES: tuple[str, ...] = get_args(TypeName)
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def gguf_type(name: str) -> GGMLQuantizationType:
    """The `gguf` package's enumerator of a ggml type name such as `q8_0`."""
    return GGMLQuantizationType[name.upper()]


def block_size(name: str) -> int:
    """ggml_blck_size: elements in a block, 1 for the float types."""
    return int(GGML_QUANT_SIZES[gguf_type(name)][0])


def type_size(name: str) -> int:
    """ggml_type_size: bytes in a block."""
    return int(GGML_QUANT_SIZES[gguf_type(name)][1])


def row_size(name: str, ne0: int) -> int:
    """ggml_row_size: bytes in a row of `ne0` elements, which must be whole blocks."""
    return ne0 // block_size(name) * type_size(name)


def is_quantized(name: str) -> bool:
    """Whether a type packs elements in blocks."""
    return block_size(name) > 1


def encode(values: Floats, name: str) -> Bytes:
    """Convert floats to the raw bytes of a ggml type, last axis first; 1-D result.

    Quantisation is that of the `gguf` package, which follows ggml's reference functions; iq4_nl, which it cannot
    write, takes the nearest code with the block's largest value at the end of the table.
    """
    if name == "f32":
        return np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint8)
    if name == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).reshape(-1).view(np.uint8)
    if name == "iq4_nl":
        return _encode_iq4_nl(values.reshape(-1, 32))
    packed: Bytes = quants.quantize(np.ascontiguousarray(values, dtype=np.float32), gguf_type(name))
    return packed.reshape(-1).view(np.uint8)


def decode(data: Bytes, name: str) -> Floats:
    """Convert raw bytes of a ggml type to floats, 1-D, in the order of memory."""
    if name == "f32":
        return data.view(np.float32)
    if name == "f16":
        return data.view(np.float16).astype(np.float32)
    values: Floats = quants.dequantize(data.reshape(-1, type_size(name)), gguf_type(name))
    return values.reshape(-1)


def nan_blocks(count: int, name: str) -> Bytes:
    """Blocks of a type whose every element decodes to NaN."""
    if not is_quantized(name):
        return encode(np.full(count, np.nan, np.float32), name)
    blocks = np.zeros((count, type_size(name)), np.uint8)
    blocks[:, :2] = np.array([np.nan], np.float16).view(np.uint8)
    return blocks.reshape(-1)


def _encode_iq4_nl(blocks: Floats) -> Bytes:
    table = np.array(quants.IQ4_NL.kvalues, np.float32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scale = (largest / table[0]).astype(np.float16)
    inverse = np.divide(1, scale, out=np.zeros(scale.shape, np.float32), where=scale != 0)
    codes = np.searchsorted((table[1:] + table[:-1]) / 2, blocks * inverse).astype(np.uint8)
    packed = codes[:, :16] | (codes[:, 16:] << 4)
    return np.concatenate([scale.view(np.uint8), packed], axis=1).reshape(-1)
