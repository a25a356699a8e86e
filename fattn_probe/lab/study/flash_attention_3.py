"""FlashAttention-3's schedule: the scores of the next tile are issued before P.V of this one."""

# ruff: noqa: E741  (O and l are the papers' names)

from collections.abc import Sequence

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.lab.study.memory import SlowMemory
from fattn_probe.lab.study.problem import StudyHead, exp_below, log_sum_exp, rows_divided, tiles
from fattn_probe.lab.study.trace import StudyResult, Trace


def flash_attention_3(head: StudyHead, B_r: int, B_c: int) -> StudyResult:
    """Algorithm 2 of FlashAttention-3 (Shah et al., 2024, arXiv 2407.08608): a consumer warpgroup's two-stage pipeline.

    The arithmetic is FlashAttention-2's. Only the order differs, and V of a tile is read one step after K.
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
    has them. The loop includes the last tile, which the paper's bound, j < T_c - 1, would omit.
    """
    Q_i = hbm.load("Q", i)  # line 3
    O_i, l_i, m_i = head.rule.start(Q_i, head.hsv)  # line 2
    S_cur = scores(head, hbm, Q_i, i, kv[0])  # lines 3 and 4
    P_cur, l_i, m_i = softmax(S_cur, l_i, m_i, trace=trace, i=i, j=kv[0])  # line 6; O is still 0
    for j in range(1, len(kv)):  # line 7
        S_next = scores(head, hbm, Q_i, i, kv[j])  # line 9: issued without waiting
        O_i = O_i + P_cur @ hbm.load("V", kv[j - 1])  # line 11: issued after it
        m_old = m_i
        P_next, l_i, m_i = softmax(S_next, l_i, m_i, trace=trace, i=i, j=kv[j])  # line 13, overlapping line 11
        O_i = exp_below(m_old, m_i)[:, None] * O_i  # line 14: P_cur V is complete, so it is rescaled too
        P_cur = P_next  # line 16
    return O_i + P_cur @ hbm.load("V", kv[-1]), l_i, m_i  # lines 18 and 19


def scores(head: StudyHead, hbm: SlowMemory, Q_i: F64, i: slice, j: slice) -> F64:
    """S of a tile: the first of the two matrix products."""
    K_j = hbm.load("K", j)
    return head.rule.logits(Q_i, K_j, hbm.load("mask", i, j) if "mask" in hbm else None)


def softmax(S: F64, l: F64, m: F64, *, trace: Trace, i: slice, j: slice) -> tuple[F64, F64, F64]:
    """P, l and m of a tile of scores."""
    m_new = np.maximum(m, S.max(axis=-1))
    P = exp_below(S, m_new[:, None])
    l_new = exp_below(m, m_new) * l + P.sum(axis=-1)
    trace.step("tile", i, j, (m, m_new, l_new), visible=bool(np.isfinite(S).any()))
    return P, l_new, m_new
