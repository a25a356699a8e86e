"""Quantised K as fattn-vec reads it (integers and scales), and Q quantised to q8_1 for the product with K."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, Bytes
from fattn_probe.cases.op.op import type_size
from fattn_probe.cases.scenario import Case
from fattn_probe.verdict.truth.rounding_model.arithmetic import FloatFunctions
from fattn_probe.verdict.truth.rounding_model.functions import fma
from fattn_probe.verdict.truth.rounding_model.softmax import total

BLOCK = 32
TOGETHER = 4
"""Elements that one dp4a instruction multiplies and adds."""
ZERO_CODE = {"q4_0": 8, "q4_1": 0, "q5_0": 16, "q5_1": 0, "q8_0": 0}


@dataclass(frozen=True)
class Codes:
    """Rows of a quantised tensor: integers `code` (..., D), and a scale `d` and perhaps an offset `m` per block of 32.

    A value is d * (code - zero) + m. `sum` is the sum of a block's values before quantisation, for q8_1.
    """

    code: F32
    d: F32
    m: F32 | None = None
    zero: int = 0
    sum: F32 | None = None

    def __getitem__(self, place: tuple[int, int] | slice) -> "Codes":
        """Some of the rows."""
        offsets = None if self.m is None else self.m[place]
        return Codes(self.code[place], self.d[place], offsets, self.zero)


def codes_of(case: Case, inputs: dict[str, Bytes]) -> Codes:
    """The codes of K, in the shape of its `ne` reversed."""
    view = case.op.tensors["K"]
    size = type_size(view.type)
    shape = (*view.ne[:0:-1], view.ne[0] // BLOCK, size)  # (ne[3], ne[2], ne[1], blocks of a row, bytes of a block)
    blocks = np.lib.stride_tricks.as_strided(inputs[view.root][view.offset :], shape, (*view.nb[:0:-1], size, 1))
    scales = np.ascontiguousarray(blocks[..., :4]).view(np.float16).astype(np.float32)
    m = scales[..., 1] if view.type.endswith("_1") else None
    code = _unpacked(view.type, blocks).astype(np.float32)
    return Codes(code.reshape(*code.shape[:3], -1), scales[..., 0], m, ZERO_CODE[view.type])


def _unpacked(type_: str, blocks: Bytes) -> npt.NDArray[np.integer]:
    """The codes of each block, which has scales, a high bit per code (q5), then the low bits of two codes per byte."""
    if type_ == "q8_0":
        return np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    body = blocks[..., 4 if type_.endswith("_1") else 2 :]
    low = np.concatenate([body[..., -16:] & 15, body[..., -16:] >> 4], axis=-1)
    if type_.startswith("q4"):
        return low
    return np.asarray(low | np.unpackbits(np.ascontiguousarray(body[..., :4]), axis=-1, bitorder="little") << 4)


def quantised_q8_1(values: F32, functions: FloatFunctions) -> Codes:
    """Quantise rows of float32 to q8_1: the step is 1/127 of a block's largest |value|; keeps the block's sum."""
    blocks = values.reshape(*values.shape[:-1], -1, BLOCK)
    d = functions.divided(np.abs(blocks).max(axis=-1), np.full(1, np.float32(127)))
    ratio = functions.divided(blocks, d[..., None])
    code = np.where(d[..., None] == 0, 0, np.copysign(np.floor(np.abs(ratio) + 0.5), ratio)).astype(np.float32)
    lanes = blocks.reshape(*blocks.shape[:-1], -1, TOGETHER)
    found = lanes[..., 0]
    for i in range(1, TOGETHER):  # each lane adds four neighbours in order, then 8 lanes are added pairwise
        found = found + lanes[..., i]
    return Codes(code.reshape(values.shape), d, sum=total(found))


def products(Q: Codes, K: Codes) -> tuple[F32, F32]:
    """Q K as sums over groups of four elements: two factors per group, (columns, rows, D/4) each."""
    fours = np.zeros((len(Q.code), len(K.code), Q.code.shape[-1] // TOGETHER), np.float32)
    for i in range(TOGETHER):
        fours += Q.code[:, None, i::TOGETHER] * K.code[None, :, i::TOGETHER]
    d_Q, d_K = _by_fours(Q.d[:, None]), _by_fours(K.d[None])
    if K.zero == 0 and K.m is None:
        return d_K * d_Q, fours
    assert Q.sum is not None
    sums, share = _by_fours(Q.sum[:, None]), np.float32(TOGETHER / BLOCK)
    if K.m is None:
        return np.broadcast_to(d_K, fours.shape), fma(fours, d_Q, -np.float32(K.zero) * share * sums)
    return fma(d_K * d_Q, fours, _by_fours(K.m[None]) * sums * share), np.ones(fours.shape, np.float32)


def _by_fours(parts: F32) -> F32:
    """Repeat each block's value for every group of four elements."""
    return np.repeat(parts, BLOCK // TOGETHER, axis=-1)
