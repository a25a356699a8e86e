"""Exact attention in float64, blocked over queries and KV, one K/V head at a time.

What is computed is GGML_OP_FLASH_ATTN_EXT as upstream's reference backend defines it
(`ggml_compute_forward_flash_attn_ext_f16_one_chunk`, ggml/src/ggml-cpu/ops.cpp).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.reference.shapes import AttentionShape, check_shapes
from fattn_probe.reference.softmax import RunningSoftmax

Floats = npt.NDArray[np.floating[Any]]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Blocking:
    """How much is worked on at once: query rows (of all heads of a group together) by KV rows."""

    rows: int = 512
    kv: int = 512

    def queries(self, shape: AttentionShape) -> Iterator[slice]:
        """The query blocks of one K/V head."""
        return _slices(shape.n_q, max(1, self.rows // shape.group))


@dataclass(frozen=True)
class OpParams:
    """The op's float parameters: scale, max_bias (ALiBi, off at 0) and logit_softcap (off at 0)."""

    scale: float
    max_bias: float = 0.0
    logit_softcap: float = 0.0

    @property
    def factor(self) -> float:
        """What multiplies q.k; with a softcap the scale is divided by it first."""
        return self.scale / self.logit_softcap if self.logit_softcap else self.scale

    def cap(self, logits: F64) -> F64:
        """The softcap, softcap * tanh(logits), done in place."""
        if self.logit_softcap:
            np.tanh(logits, out=logits)
            logits *= self.logit_softcap
        return logits


DEFAULT_BLOCKING = Blocking()


def attention(
    Q: Floats,
    K: Floats,
    V: Floats,
    mask: Floats | None = None,
    *,
    params: OpParams,
    sinks: Floats | None = None,
    blocking: Blocking = DEFAULT_BLOCKING,
) -> F64:
    """The exact output of FLASH_ATTN_EXT, float64 (n_seq, n_q, n_head, hsv): dst's `ne` reversed.

    Shapes are ggml's `ne` reversed: Q (n_seq, n_head, n_q, hsk), K (n_seq, n_head_kv, n_kv, hsk),
    V (n_seq, n_head_kv, n_kv, hsv), mask (mask_seq, mask_heads, >= n_q, n_kv), sinks (n_head). Any float dtype: a block
    is converted when it is worked on, so that memory beyond the arrays given is O(block). Sequence s reads mask s %
    mask_seq, head h mask h % mask_heads; rows of the mask beyond n_q are padding and not read.

    A logit is scale * q.k, or softcap * tanh(scale/softcap * q.k), plus the head's ALiBi slope times the mask. The
    `n_kv_max` of an op says how many entries of a mask row are finite; it does not change the exact answer.

    A row whose mask is -inf everywhere is 0, with sinks (all the weight is the sink's) and without: the CPU backend
    says so (`S == 0.0f ? 0.0f : 1.0f/S`). The CUDA kernels of every era agree with sinks; without, they divide 0 by 0
    and write NaN (upstream issue 19098), which a verdict reports as what it is. Inputs are to be finite, but for -inf
    in the mask; NaN or an infinity elsewhere makes the rows that read it NaN.

    Raises InputError where the shapes are at odds.
    """
    shape = check_shapes(Q, K, V, mask, sinks)
    slopes = alibi_slopes(shape.n_head, params.max_bias)
    out = np.empty(shape.dst)
    for seq, kv_head in np.ndindex(shape.n_seq, shape.n_head_kv):
        heads = slice(kv_head * shape.group, (kv_head + 1) * shape.group)
        kv_rows = _KVRows(K[seq, kv_head], V[seq, kv_head], blocking.kv)
        group_mask = None if mask is None else _GroupMask.of(mask, seq, heads, slopes)
        for rows in blocking.queries(shape):
            state = _attend(Q[seq, heads, rows], kv_rows, None if group_mask is None else group_mask.rows(rows), params)
            if sinks is not None:
                state.add_sink(np.repeat(sinks[heads].astype(np.float64), rows.stop - rows.start))
            out[seq, rows, heads] = state.mean().reshape(shape.group, -1, shape.hsv).transpose(1, 0, 2)
    return out


def alibi_slopes(n_head: int, max_bias: float) -> F64:
    """The factor of the mask for each head: Press et al., arXiv 2108.12409, for any number of heads as ggml has it.

    All 1 where `max_bias` is not positive: the mask is then added as it stands.
    """
    if max_bias <= 0.0:
        return np.ones(n_head)
    n_head_log2 = 1 << int(math.log2(n_head))
    h = np.arange(n_head)
    exponent = np.where(h < n_head_log2, h + 1.0, (2.0 * (h - n_head_log2) + 1.0) / 2.0)
    return np.exp2(-max_bias / n_head_log2 * exponent)


def fully_masked_rows(mask: Floats, n_seq: int, n_head: int, n_q: int) -> npt.NDArray[np.bool_]:
    """Which rows have -inf in all of their mask: bool (n_seq, n_q, n_head), as the first axes of dst."""
    dead = np.isneginf(mask[:, :, :n_q].max(axis=3))
    full = dead[np.arange(n_seq) % mask.shape[0]][:, np.arange(n_head) % mask.shape[1]]
    return np.ascontiguousarray(full.transpose(0, 2, 1))


@dataclass(frozen=True)
class _KVRows:
    """The KV rows of one K/V head, k (n_kv, hsk) and v (n_kv, hsv), as float64 block by block."""

    k: Floats
    v: Floats
    step: int

    def __iter__(self) -> Iterator[slice]:
        return _slices(self.k.shape[0], self.step)

    def block(self, rows: slice) -> tuple[F64, F64]:
        """K and V of a block."""
        return self.k[rows].astype(np.float64, copy=False), self.v[rows].astype(np.float64, copy=False)


@dataclass(frozen=True)
class _GroupMask:
    """The mask as the heads of one group see it: one plane for all of them, or one each, and the heads' slopes."""

    planes: Floats
    slopes: F64

    @classmethod
    def of(cls, mask: Floats, seq: int, heads: slice, slopes: F64) -> "_GroupMask":
        planes = mask[seq % mask.shape[0]]
        chosen = planes if planes.shape[0] == 1 else planes[np.arange(heads.start, heads.stop) % planes.shape[0]]
        return cls(chosen, slopes[heads])

    def rows(self, rows: slice) -> "_GroupMask":
        """The same for some of the queries."""
        return _GroupMask(self.planes[:, rows], self.slopes)

    def block(self, kv: slice) -> F64 | None:
        """What to add to the logits, (group or 1, queries, kv); None where all of it is -inf."""
        part = self.planes[:, :, kv].astype(np.float64)
        if np.isneginf(part.max()):
            return None
        return part if (self.slopes == 1.0).all() else part * self.slopes[:, None, None]


def _attend(q: Floats, kv_rows: _KVRows, mask: _GroupMask | None, params: OpParams) -> RunningSoftmax:
    """One block of queries of a group, q (group, queries, hsk), over all KV rows."""
    flat = q.reshape(-1, q.shape[2]).astype(np.float64) * params.factor
    state = RunningSoftmax.empty(flat.shape[0], kv_rows.v.shape[1])
    for kv in kv_rows:
        bias = None if mask is None else mask.block(kv)
        if mask is not None and bias is None:
            continue
        k, v = kv_rows.block(kv)
        logits = params.cap(flat @ k.T)
        if bias is not None:
            logits.reshape(*q.shape[:2], -1)[...] += bias
        state.add(logits, v)
    return state


def _slices(length: int, step: int) -> Iterator[slice]:
    """The range 0..length cut into pieces of `step`."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
