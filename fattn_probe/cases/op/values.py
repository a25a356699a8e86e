"""Conversion between bytes of ggml's types and floats, views as arrays, and logits from the products q.k."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, quants

from fattn_probe.base.arrays import F32, F64, Bytes
from fattn_probe.cases.op.op import (
    Params,
    TensorView,
    block_size,
    element_offset,
    element_strides,
    is_quantized,
    row_size,
    type_size,
)

SMALLEST_NORMAL_F16, LARGEST_F16 = np.array([2**-14, 65504], np.float32).view(np.uint32) << 1  # without the sign

AT_ONCE = 32768  # elements per call to `gguf`, which converts a long row 20 to 60 times as fast as many short rows


def encode(values: F32, name: str) -> Bytes:
    """Convert floats to the raw bytes (1-D) of a ggml type, in C order; values out of range become infinite.

    The `gguf` package quantises as ggml's reference functions do. It cannot write iq4_nl; here each value gets the
    nearest code, and the scale puts the block's largest value at the end of the table.
    """
    if name == "f32":
        return np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "f16":
            return values.astype(np.float16).reshape(-1).view(np.uint8)
        if name == "iq4_nl":
            blocks = values.reshape(-1, 32)
            table = np.array(quants.IQ4_NL.kvalues, np.float32)
            largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
            scale = (largest / table[0]).astype(np.float16)
            inverse = np.divide(1, scale, out=np.zeros(scale.shape, np.float32), where=scale != 0)
            codes = np.searchsorted((table[1:] + table[:-1]) / 2, blocks * inverse).astype(np.uint8)
            halves = codes[:, :16] | (codes[:, 16:] << 4)
            return np.concatenate([scale.view(np.uint8), halves], axis=1).reshape(-1)
        flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        packed = np.empty(row_size(name, flat.size), np.uint8)
        for first in range(0, flat.size, AT_ONCE):
            piece = quants.quantize(flat[None, first : first + AT_ONCE], GGMLQuantizationType[name.upper()])
            packed[row_size(name, first) :][: piece.size] = piece.view(np.uint8).reshape(-1)
        return packed


def decode(data: Bytes, name: str) -> F32:
    """Convert raw bytes of a ggml type to floats (1-D), in memory order."""
    if name == "f32":
        return data.view(np.float32)
    if name == "f16":
        return data.view(np.float16).astype(np.float32)
    values = np.empty(data.size // type_size(name) * block_size(name), np.float32)
    for first in range(0, values.size, AT_ONCE):
        piece = data[None, row_size(name, first) : row_size(name, first + AT_ONCE)]
        values[first : first + AT_ONCE] = quants.dequantize(piece, GGMLQuantizationType[name.upper()]).reshape(-1)
    return values


def rounded(values: F32, name: str) -> F32:
    """Floats rounded to a ggml type: decode(encode(values)), in the same shape."""
    if name == "f32":
        return values
    if name == "f16":
        # The nearest f16, ties to even, in a quarter of the time that a conversion to f16 and back takes.
        # Bitwise: add half a unit in the last remaining place, minus one bit if that place is even, then truncate.
        # Subnormal numbers and overflows are left to NumPy.
        flat = values.reshape(-1)
        bits = flat.view(np.uint32)
        cut = bits >> np.uint32(13)
        cut &= np.uint32(1)
        cut += np.uint32(0x0FFF)
        cut += bits
        cut &= np.uint32(0xFFFFE000)
        result = cut.view(np.float32)
        size = bits << np.uint32(1)
        size -= SMALLEST_NORMAL_F16
        odd = np.flatnonzero(size >= LARGEST_F16 - SMALLEST_NORMAL_F16)
        with np.errstate(over="ignore"):
            result[odd] = flat[odd].astype(np.float16)
        return result.reshape(values.shape)
    return decode(encode(values, name), name).reshape(values.shape)


def count_non_finite(data: Bytes, name: str) -> int:
    """The number of NaN or infinite elements in raw bytes; a non-finite scale counts as all elements of its block."""
    if name == "f32":
        return int((~np.isfinite(data.view(np.float32))).sum())
    if not is_quantized(name):
        exponent = np.uint16(0x7C00 if name == "f16" else 0x7F80)
        exponents = data.view(np.uint16) & exponent
        return int((exponents == exponent).sum()) if exponents.max(initial=0) == exponent else 0
    blocks = data.reshape(-1, type_size(name))
    scales = np.ascontiguousarray(blocks[:, : 4 if name.endswith("_1") else 2]).view(np.float16)
    return int((~np.isfinite(scales)).any(axis=1).sum()) * block_size(name)


def nan_block(name: str) -> Bytes:
    """A block of a type in which every element decodes to NaN."""
    if not is_quantized(name):
        return encode(np.array([np.nan], np.float32), name)
    block = np.zeros(type_size(name), np.uint8)
    block[:2] = np.array([np.nan], np.float16).view(np.uint8)
    return block


def strided(flat: npt.NDArray[Any], view: TensorView) -> npt.NDArray[Any]:
    """A view's elements as a strided window on its root's elements, shape (ne[3], ne[2], ne[1], ne[0])."""
    start = element_offset(view)
    strides = [stride * flat.itemsize for stride in reversed(element_strides(view))]
    return np.lib.stride_tricks.as_strided(flat[start:], view.ne[::-1], strides)


def row_bytes(view: TensorView, inputs: Mapping[str, Bytes]) -> Bytes:
    """The bytes of an operand's rows as a window on its root, shape (ne[3], ne[2], ne[1], row size)."""
    memory = inputs[view.root][view.offset :]
    size = row_size(view.type, view.ne[0])
    return np.lib.stride_tricks.as_strided(memory, (*view.ne[:0:-1], size), (*view.nb[:0:-1], 1), writeable=False)


def cap(logits: F64, softcap: float) -> F64:
    """Replace logits by softcap * tanh(logits), in place; a softcap of 0 changes nothing."""
    if softcap:
        np.tanh(logits, out=logits)
        logits *= softcap
    return logits


def logits_of(products: F64, params: Params, bias: F64 | None = None) -> F64:
    """The logits that enter the softmax: products q.k, scaled, capped, plus a bias (the mask times ALiBi's slope)."""
    logits = cap(params.factor * products, params.logit_softcap)
    return logits if bias is None else logits + bias


def view_values(view: TensorView, inputs: Mapping[str, Bytes]) -> F64:
    """The values of an operand, dequantised, shape (ne[3], ne[2], ne[1], ne[0])."""
    return strided(decode(inputs[view.root], view.type), view).astype(np.float64)
