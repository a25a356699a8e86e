"""Attention of one head as in the papers: standard, FlashAttention-1 to 3, and split-KV; the backward pass.

Standard attention sends the whole score matrix through slow memory twice. FlashAttention-1 has an outer loop over K/V,
with the output rescaled in slow memory at every step. FlashAttention-2 has an outer loop over queries: O stays on chip
and is divided by l once, at the end. FlashAttention-3 issues the scores of the next tile before P.V of this one.
Split-KV cuts the KV rows into pieces, which run in parallel and are combined by their log-sum-exps. The backward pass
recomputes the scores from L, tile by tile; no n_q x n_kv matrix is stored.
"""

# ruff: noqa: E741  (O and l are the papers' names)

from collections.abc import Iterable, Sequence

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.lab.study.problem import (
    MaskRule,
    SlowMemory,
    StudyHead,
    StudyResult,
    Trace,
    count,
    exp_below,
    log_sum_exp,
    rows_divided,
    tiles,
)


def standard(head: StudyHead, tile_q: int) -> StudyResult:
    """Algorithm 0 of FlashAttention (Dao et al., 2022, arXiv 2205.14135): S, softmax and PV as three passes.

    "Load by blocks" is read favourably: each pass reads each of its inputs once, so `tile_q` only sets how many rows of
    S and P are processed at a time. The paper omits L; here, it is written (n_q elements).
    """
    hbm, every = head.slow_memory(), slice(0, head.n_kv)
    hbm.allocate("S", head.n_q, head.n_kv)
    hbm.allocate("P", head.n_q, head.n_kv)
    trace = Trace(hbm)
    K = hbm.load("K", every)
    for i in tiles(head.n_q, tile_q):  # line 1: load Q, K, compute S = QK^T, write S
        mask_i = hbm.load("mask", i) if "mask" in hbm else None
        hbm.store("S", head.rule.logits(hbm.load("Q", i), K, mask_i), i)
        trace.step("S = QK^T", i, every)
    for i in tiles(head.n_q, tile_q):  # line 2: read S, compute P = softmax(S), write P
        S = hbm.load("S", i)
        _, l_start, before = head.rule.start(S, head.hsv)
        m = np.maximum(before, S.max(axis=-1))
        P = exp_below(S, m[..., None])
        l = exp_below(before, m) * l_start + P.sum(axis=-1)
        hbm.store("P", rows_divided(P, l), i)
        hbm.store("L", log_sum_exp(m, l), i)
        trace.step("tile", i, every, (before, m, l), visible=bool(np.isfinite(S).any()))
    V = hbm.load("V", every)
    for i in tiles(head.n_q, tile_q):  # line 3: load P and V, compute O = PV, write O
        hbm.store("O", hbm.load("P", i) @ V, i)
        trace.step("O = PV", i, every)
    return trace.result()  # line 4


A100_SRAM = 192 * 1024 // 4  # elements: the 192 KiB of one SM of the paper's A100, in float32


def block_sizes(M: int, hsk: int, hsv: int) -> tuple[int, int]:
    """B_r and B_c for an on-chip memory of M elements: line 1, B_c = ceil(M/4d), B_r = min(ceil(M/4d), d).

    4 d covers one row each of Q, K, V and O; if K and V differ in head size, it is 2 (hsk + hsv).
    """
    B_c = count(M, 2 * (hsk + hsv))
    return min(B_c, (hsk + hsv) // 2), B_c


def flash_attention_1(head: StudyHead, B_r: int, B_c: int) -> StudyResult:
    """Algorithm 1 of FlashAttention (Dao et al., 2022, arXiv 2205.14135); `block_sizes` is its line 1.

    After every step O is the finished result for the KV rows so far; l and m go through slow memory with it. The
    paper's function returns O, l and m; L = m + log l is computed from them here and not counted.
    """
    hbm = head.slow_memory()
    hbm.allocate("l", head.n_q)
    hbm.allocate("m", head.n_q)
    trace = Trace(hbm)
    O, l, m = head.rule.start(head.Q, head.hsv)  # line 2: initialise O, l, m in slow memory
    for name, values in (("O", O), ("l", l), ("m", m)):
        hbm.store(name, values, slice(0, head.n_q))
    trace.step("O, l, m = 0", slice(0, head.n_q), slice(0, 0))
    for j in tiles(head.n_kv, B_c):  # line 5
        K_j, V_j = hbm.load("K", j), hbm.load("V", j)  # line 6
        for i in tiles(head.n_q, B_r):  # line 7
            Q_i, O_i, l_i, m_i = (hbm.load(name, i) for name in ("Q", "O", "l", "m"))  # line 8
            S_ij = scores(head.rule, hbm, Q_i, K_j, i=i, j=j)  # line 9
            m_ij = S_ij.max(axis=-1)  # line 10
            P_ij = exp_below(S_ij, m_ij[:, None])
            l_ij = P_ij.sum(axis=-1)
            m_new = np.maximum(m_i, m_ij)  # line 11
            old, new = exp_below(m_i, m_new), exp_below(m_ij, m_new)
            l_new = old * l_i + new * l_ij
            O_new = (l_i * old)[:, None] * O_i + new[:, None] * (P_ij @ V_j)  # line 12
            hbm.store("O", rows_divided(O_new, l_new), i)
            hbm.store("l", l_new, i)  # line 13
            hbm.store("m", m_new, i)
            trace.step("tile", i, j, (m_i, m_new, l_new), visible=bool(np.isfinite(m_ij).any()))
    hbm.array("L")[...] = log_sum_exp(hbm.array("m"), hbm.array("l"))
    return trace.result()  # line 16


State = tuple[F64, F64, F64]
"""O, not yet divided by l; l; m."""


def flash_attention_2(head: StudyHead, B_r: int, B_c: int) -> StudyResult:
    """Algorithm 1 of FlashAttention-2 (Dao, 2023, arXiv 2307.08691), the forward pass."""
    hbm = head.slow_memory()
    trace = Trace(hbm)
    for i in tiles(head.n_q, B_r):  # line 3
        Q_i = hbm.load("Q", i)  # line 4
        start = head.rule.start(Q_i, head.hsv)  # line 5
        O_i, l_i, m_i = attend(head.rule, hbm, trace, Q_i, start, i=i, kv_tiles=tiles(head.n_kv, B_c))
        hbm.store("O", rows_divided(O_i, l_i), i)  # lines 12 and 14
        hbm.store("L", log_sum_exp(m_i, l_i), i)  # lines 13 and 15
        trace.step("store O, L", i, slice(0, head.n_kv))
    return trace.result()  # line 17


def attend(
    rule: MaskRule,
    hbm: SlowMemory,
    trace: Trace,
    Q_i: F64,
    state: State,
    *,
    i: slice,
    kv_tiles: Iterable[slice],
    worker: int = 0,
) -> State:
    """Lines 6 to 11: the inner loop over K/V tiles.

    Line 10 of the paper has diag(e^(m_old - m_new))^-1 O; the inverse is wrong (Dao-AILab/flash-attention issue 991).
    """
    O_i, l_i, m_i = state
    for j in kv_tiles:  # line 6
        K_j, V_j = hbm.load("K", j), hbm.load("V", j)  # line 7
        S_ij, m_old = scores(rule, hbm, Q_i, K_j, i=i, j=j), m_i  # line 8
        P_ij, l_i, m_i = softmax(S_ij, l_i, m_i, trace=trace, i=i, j=j, worker=worker)  # line 9
        O_i = exp_below(m_old, m_i)[..., None] * O_i + P_ij @ V_j  # line 10
    return O_i, l_i, m_i


def flash_attention_3(head: StudyHead, B_r: int, B_c: int) -> StudyResult:
    """Algorithm 2 of FlashAttention-3 (Shah et al., 2024, arXiv 2407.08608): a consumer warpgroup's two-stage pipeline.

    The arithmetic is that of FlashAttention-2. Only the order differs, and V of a tile is read one step after K.
    """
    hbm = head.slow_memory()
    trace = Trace(hbm)
    for i in tiles(head.n_q, B_r):
        O_i, l_i, m_i = consume(head, hbm, i, list(tiles(head.n_kv, B_c)), trace)
        hbm.store("O", rows_divided(O_i, l_i), i)  # line 20, the epilogue
        hbm.store("L", log_sum_exp(m_i, l_i), i)
        trace.step("store O, L", i, slice(0, head.n_kv))
    return trace.result()


def consume(head: StudyHead, hbm: SlowMemory, i: slice, kv: Sequence[slice], trace: Trace) -> tuple[F64, F64, F64]:
    """Lines 2 to 19 for one tile of queries.

    Waiting for, committing and releasing buffer stages (lines 5, 8 to 10, 14, 15) concern the hardware; `warpgroups`
    models them. The loop includes the last tile, which the paper's bound, j < T_c - 1, would omit.
    """
    Q_i = hbm.load("Q", i)  # line 3
    O_i, l_i, m_i = head.rule.start(Q_i, head.hsv)  # line 2
    S_cur = scores(head.rule, hbm, Q_i, hbm.load("K", kv[0]), i=i, j=kv[0])  # lines 3 and 4
    P_cur, l_i, m_i = softmax(S_cur, l_i, m_i, trace=trace, i=i, j=kv[0])  # line 6; O is still 0
    for j in range(1, len(kv)):  # line 7
        S_next = scores(head.rule, hbm, Q_i, hbm.load("K", kv[j]), i=i, j=kv[j])  # line 9: issued without waiting
        O_i = O_i + P_cur @ hbm.load("V", kv[j - 1])  # line 11: issued after it
        m_old = m_i
        P_next, l_i, m_i = softmax(S_next, l_i, m_i, trace=trace, i=i, j=kv[j])  # line 13, overlapping line 11
        O_i = exp_below(m_old, m_i)[:, None] * O_i  # line 14: P_cur V is complete, so it is also rescaled
        P_cur = P_next  # line 16
    return O_i + P_cur @ hbm.load("V", kv[-1]), l_i, m_i  # lines 18 and 19


def scores(rule: MaskRule, hbm: SlowMemory, Q_i: F64, K_j: F64, *, i: slice, j: slice) -> F64:
    """S of a tile: the first of the two matrix products, with the mask if there is one."""
    return rule.logits(Q_i, K_j, hbm.load("mask", i, j) if "mask" in hbm else None)


def softmax(S: F64, l: F64, m: F64, *, trace: Trace, i: slice, j: slice, worker: int = 0) -> tuple[F64, F64, F64]:
    """P, l and m of a tile of scores."""
    m_new = np.maximum(m, S.max(axis=-1))
    P = exp_below(S, m_new[..., None])
    l_new = exp_below(m, m_new) * l + P.sum(axis=-1)
    trace.step("tile", i, j, (m, m_new, l_new), worker=worker, visible=bool(np.isfinite(S).any()))
    return P, l_new, m_new


def split_kv(head: StudyHead, B_r: int, B_c: int, splits: int) -> StudyResult:
    """FlashDecoding's three steps (Dao, Haziza, Massa and Sizov, "Flash-Decoding for long-context inference", 2023).

    It helps when there are too few queries to occupy a GPU. llama.cpp's vec and tile kernels do the same: blocks take
    turns on the KV tiles (`parallel_blocks`), and `flash_attn_combine_results` adds the results.
    """
    hbm, ranges = head.slow_memory(), split_ranges(head.n_kv, B_c, splits)  # step 1
    hbm.allocate("O_split", len(ranges), head.n_q, head.hsv)
    hbm.allocate("L_split", len(ranges), head.n_q)
    trace = Trace(hbm)
    for s, kv in enumerate(ranges):  # step 2: FlashAttention-2 on each piece; in parallel on a GPU
        for i in tiles(head.n_q, B_r):
            Q_i = hbm.load("Q", i)
            start = head.rule.start(Q_i, head.hsv, with_sink=s == 0)
            O_i, l_i, m_i = attend(
                head.rule, hbm, trace, Q_i, start, i=i, kv_tiles=tiles(kv.stop, B_c, kv.start), worker=s
            )
            hbm.store("O_split", rows_divided(O_i, l_i), s, i)
            hbm.store("L_split", log_sum_exp(m_i, l_i), s, i)
            trace.step("store part", i, kv, worker=s)
    for i in tiles(head.n_q, B_r):  # step 3
        combine(hbm, i, ranges, trace)
    return trace.result()


def combine(hbm: SlowMemory, i: slice, ranges: Sequence[slice], trace: Trace) -> None:
    """O = sum of e^(L_s - L) O_s where L = log sum of e^(L_s): a softmax over the pieces, with a running maximum."""
    m, l, O_i = np.full(i.stop - i.start, -np.inf), np.zeros(i.stop - i.start), np.zeros(())
    for s, kv in enumerate(ranges):
        O_s, L_s = hbm.load("O_split", s, i), hbm.load("L_split", s, i)
        m_old, m = m, np.maximum(m, L_s)
        l = exp_below(m_old, m) * l + exp_below(L_s, m)
        O_i = exp_below(m_old, m)[:, None] * O_i + exp_below(L_s, m)[:, None] * O_s
        trace.step("combine", i, kv, (m_old, m, l), worker=s, visible=bool(np.isfinite(L_s).any()))
    hbm.store("O", rows_divided(O_i, l), i)
    hbm.store("L", log_sum_exp(m, l), i)
    trace.step("store O, L", i, slice(0, ranges[-1].stop))


def split_ranges(n_kv: int, B_c: int, splits: int) -> list[slice]:
    """The KV rows of each piece: equal numbers of whole tiles, except in the last."""
    return list(tiles(n_kv, B_c * count(count(n_kv, B_c), splits)))


def backward(head: StudyHead, forward: StudyResult, dO: F64, B_r: int, B_c: int) -> SlowMemory:
    """Algorithm 2 of FlashAttention-2 (Dao, 2023, arXiv 2307.08691), the backward pass.

    The result contains dQ (n_q, hsk), dK (n_kv, hsk), dV (n_kv, hsv) of a loss whose gradient at the output is dO.
    Line 9 of the paper also loads O_i and dQ_i. O_i is not used after line 4, and dQ_i is loaded by line 15, so line 9
    loads neither here. Mask and sink gradients are not computed. For heads that share a K/V head, sum dK and dV.
    """
    # the results of the forward pass (not counted), and space for the gradients
    arrays = {"Q": head.Q, "K": head.K, "V": head.V, "O": forward.out, "L": forward.lse, "dO": dO}
    hbm = SlowMemory(**arrays, **({} if head.mask is None else {"mask": head.mask}))
    for name, rows, size in (("dQ", head.n_q, head.hsk), ("dK", head.n_kv, head.hsk), ("dV", head.n_kv, head.hsv)):
        hbm.allocate(name, rows, size)
    hbm.allocate("D", head.n_q)
    hbm.store("dQ", np.zeros(head.Q.shape), slice(0, head.n_q))  # line 3
    for i in tiles(head.n_q, B_r):  # line 4: D = rowsum(dO * O)
        hbm.store("D", (hbm.load("dO", i) * hbm.load("O", i)).sum(axis=-1), i)
    for j in tiles(head.n_kv, B_c):  # line 5
        K_j, V_j = hbm.load("K", j), hbm.load("V", j)  # line 6
        dK_j, dV_j = np.zeros(K_j.shape), np.zeros(V_j.shape)  # line 7
        for i in tiles(head.n_q, B_r):  # line 8
            Q_i, dO_i, L_i, D_i = (hbm.load(name, i) for name in ("Q", "dO", "L", "D"))  # line 9
            S_ij = scores(head.rule, hbm, Q_i, K_j, i=i, j=j)  # line 10
            P_ij = exp_below(S_ij, L_i[:, None])  # line 11
            dV_j += P_ij.T @ dO_i  # line 12
            dP_ij = dO_i @ V_j.T  # line 13
            dS_ij = P_ij * (dP_ij - D_i[:, None]) * slope(head, Q_i, K_j)  # line 14
            hbm.store("dQ", hbm.load("dQ", i) + dS_ij @ K_j, i)  # line 15
            dK_j += dS_ij.T @ Q_i  # line 16
        hbm.store("dK", dK_j, j)  # line 18
        hbm.store("dV", dV_j, j)
    return hbm


def slope(head: StudyHead, Q_i: F64, K_j: F64) -> F64 | float:
    """dS/d(q.k): the scale; with a softcap s = c tanh(scale/c q.k), times 1 - (s/c)^2."""
    params = head.rule.params
    if not params.logit_softcap:
        return params.scale
    return params.scale * (1.0 - np.tanh(params.factor * (Q_i @ K_j.T)) ** 2)


def standard_backward(head: StudyHead, dO: F64) -> tuple[F64, F64, F64]:
    """dQ, dK, dV from the complete P: Algorithm 3 of FlashAttention (arXiv 2205.14135), the standard backward pass."""
    S = head.rule.logits(head.Q, head.K, head.mask)
    _, l, before = head.rule.start(head.Q, head.hsv)
    m = np.maximum(before, S.max(axis=-1))
    P = exp_below(S, m[:, None])
    total = exp_below(before, m) * l + P.sum(axis=-1)
    P /= np.where(total == 0.0, 1.0, total)[:, None]
    dV = P.T @ dO
    dP = dO @ head.V.T
    dS = P * (dP - (P * dP).sum(axis=-1, keepdims=True)) * slope(head, head.Q, head.K)
    return dS @ head.K, dS.T @ head.Q, dV
