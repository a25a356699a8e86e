"""FlashAttention-2: an outer loop over queries; O stays on chip and is divided by l once, at the end."""

from collections.abc import Iterable

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.lab.study.memory import SlowMemory
from fattn_probe.lab.study.problem import MaskRule, StudyHead, exp_below, log_sum_exp, rows_divided, tiles
from fattn_probe.lab.study.trace import StudyResult, Trace

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
        mask_ij = hbm.load("mask", i, j) if "mask" in hbm else None
        S_ij = rule.logits(Q_i, K_j, mask_ij)  # line 8
        m_old, m_i = m_i, np.maximum(m_i, S_ij.max(axis=-1))  # line 9
        P_ij = exp_below(S_ij, m_i[..., None])
        l_i = exp_below(m_old, m_i) * l_i + P_ij.sum(axis=-1)
        O_i = exp_below(m_old, m_i)[..., None] * O_i + P_ij @ V_j  # line 10
        trace.step("tile", i, j, (m_old, m_i, l_i), worker=worker, visible=bool(np.isfinite(S_ij).any()))
    return O_i, l_i, m_i
