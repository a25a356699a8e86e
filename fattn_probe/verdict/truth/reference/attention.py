"""Exact attention in float64, blocked over queries and KV rows; computes all heads of a group together.

Computes GGML_OP_FLASH_ATTN_EXT as upstream's reference backend defines it
(`ggml_compute_forward_flash_attn_ext_f16_one_chunk`, ggml/src/ggml-cpu/ops.cpp).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F64, Floats
from fattn_probe.base.workers import blas_threads, spread
from fattn_probe.cases.op import Params, Sizes
from fattn_probe.verdict.truth.reference.engine import MINUS_INFINITY, Content, GroupMask, RowBlock, attend, slices
from fattn_probe.verdict.truth.reference.shapes import Rows, check_shapes


@dataclass(frozen=True)
class Blocking:
    """Block sizes: query rows (of all heads of a group together) by KV rows.

    K and V are read once for `held` query rows, whose sums stay in memory.
    """

    rows: int = 512
    kv: int = 512
    held: int = 8192

    def queries(self, shape: Sizes) -> list[slice]:
        """The query blocks of one K/V head."""
        return list(slices(shape.n_q, max(1, self.rows // shape.group)))

    def tasks(self, shape: Sizes, workers: int) -> list[list[slice]]:
        """The query blocks in runs: at most `held` rows each, and enough runs for all workers."""
        blocks = self.queries(shape)
        heads = shape.n_seq * shape.n_head_kv
        longest = max(1, min(self.held // self.rows, len(blocks) * heads // workers))
        return [blocks[run] for run in slices(len(blocks), longest)]


DEFAULT_BLOCKING = Blocking()


def attention(
    Q: Floats,
    K: Rows,
    V: Rows,
    mask: Floats | None = None,
    *,
    params: Params,
    sinks: Floats | None = None,
    blocking: Blocking = DEFAULT_BLOCKING,
) -> F64:
    """The exact output of FLASH_ATTN_EXT, float64 (n_seq, n_q, n_head, hsv): dst's `ne` reversed.

    Shapes are ggml's `ne` reversed: Q (n_seq, n_head, n_q, hsk), K (n_seq, n_head_kv, n_kv, hsk), V (n_seq, n_head_kv,
    n_kv, hsv), mask (mask_seq, mask_heads, >= n_q, n_kv), sinks (n_head). Any float dtype works: a block is converted
    when it is used, so the extra memory is O(block). K and V may also be generated block by block: any object with a
    `shape` that gives float rows for [sequence, head, slice]. Sequence s reads mask s % mask_seq, and head h reads mask
    h % mask_heads. Mask rows beyond n_q are padding and are not read.

    A logit is scale * q.k, or softcap * tanh(scale/softcap * q.k), plus the head's ALiBi slope times the mask. An op's
    `n_kv_max` bounds the finite entries of a mask row; it does not change the exact answer.

    A fully masked row is 0, with sinks (the sink has all the weight) and without, as on the CPU backend (`S == 0.0f ?
    0.0f : 1.0f/S`). With sinks, the CUDA kernels of all releases agree. Without sinks they divide 0 by 0 and write
    NaN (llama.cpp #19098), which a verdict reports. Inputs must be finite, except -inf in the mask; a NaN or infinity
    elsewhere makes the rows that read it NaN.

    InputError if the shapes do not fit together.
    """
    return attention_and_lse(Q, K, V, mask, params=params, sinks=sinks, blocking=blocking)[0]


def attention_and_lse(
    Q: Floats,
    K: Rows,
    V: Rows,
    mask: Floats | None = None,
    *,
    params: Params,
    sinks: Floats | None = None,
    blocking: Blocking = DEFAULT_BLOCKING,
) -> tuple[F64, F64]:
    """The exact output, as from `attention`, and each row's log-sum-exp, float64 (n_seq, n_q, n_head).

    The log-sum-exp is the natural logarithm of the sum of exp(logit) over the KV rows and the sink, FlashAttention's L
    (arXiv 2307.08691). It is -inf for a fully masked row without a sink.
    """
    shape = check_shapes(Q, K, V, mask, sinks)
    out, lse = np.empty(shape.dst), np.empty(shape.dst[:3])
    slopes = alibi_slopes(shape.n_head, params.max_bias)
    known: dict[tuple[int, ...], dict[tuple[int, int], Content]] = {}  # tiles of mask planes that groups share

    def work(task: tuple[int, int, list[slice]]) -> None:
        seq, kv_head, queries = task
        heads = slice(kv_head * shape.group, (kv_head + 1) * shape.group)
        group_mask = None
        if mask is not None:
            n_seq, n_heads = mask.shape[:2]
            chosen = [0] if n_heads == 1 else [head % n_heads for head in range(heads.start, heads.stop)]
            planes = mask[seq % n_seq, slice(0, 1) if n_heads == 1 else chosen, : shape.n_q]
            group_mask = GroupMask(planes, slopes[heads], known.setdefault((seq % n_seq, *chosen), {}))
        blocks = [RowBlock.of(Q[seq, heads, rows] * np.float64(params.factor), rows, shape.hsv, group_mask)
                  for rows in queries]  # fmt: skip
        attend(blocks, K, V, (seq, kv_head), step=blocking.kv, params=params)
        for rows, block in zip(queries, blocks, strict=True):
            if sinks is not None:
                block.state.add_sink(np.repeat(sinks[heads].astype(np.float64), rows.stop - rows.start))
            out[seq, rows, heads] = block.state.mean().reshape(shape.group, -1, shape.hsv).transpose(1, 0, 2)
            lse[seq, rows, heads] = block.state.log_sum_exp().reshape(shape.group, -1).T

    runs = blocking.tasks(shape, blas_threads())
    tasks = [(*head, run) for head in np.ndindex(shape.n_seq, shape.n_head_kv) for run in runs]
    spread(work, tasks, operations=shape.flop)
    return out, lse


def alibi_slopes(n_head: int, max_bias: float) -> F64:
    """Each head's factor for the mask: Press et al., arXiv 2108.12409, extended to any number of heads as in ggml.

    All 1 if `max_bias` is not positive: the mask is then added unchanged.
    """
    if max_bias <= 0.0:
        return np.ones(n_head)
    n_head_log2 = 1 << int(math.log2(n_head))
    h = np.arange(n_head)
    exponent = np.where(h < n_head_log2, h + 1.0, (2.0 * (h - n_head_log2) + 1.0) / 2.0)
    return np.exp2(-max_bias / n_head_log2 * exponent)


def fully_masked_rows(mask: Floats, n_seq: int, n_head: int, n_q: int) -> npt.NDArray[np.bool_]:
    """The rows whose mask is -inf everywhere: bool (n_seq, n_q, n_head), the first axes of dst."""
    rows = mask[:, :, :n_q]
    hidden = (
        rows.view(np.uint16) == MINUS_INFINITY if mask.dtype == np.float16 else np.isneginf(rows)
    )  # comparing bits is 30 times as fast
    dead: npt.NDArray[np.bool_] = np.all(hidden, axis=3)
    full = dead[np.arange(n_seq) % mask.shape[0]][:, np.arange(n_head) % mask.shape[1]]
    return np.ascontiguousarray(full.transpose(0, 2, 1))
