"""FlashAttention-1: an outer loop over K/V, with the output rescaled in slow memory at every step."""

# ruff: noqa: E741  (O and l are the papers' names)

import numpy as np

from fattn_probe.lab.study.problem import StudyHead, count, exp_below, log_sum_exp, rows_divided, tiles
from fattn_probe.lab.study.trace import StudyResult, Trace

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
            mask_ij = hbm.load("mask", i, j) if "mask" in hbm else None
            S_ij = head.rule.logits(Q_i, K_j, mask_ij)  # line 9
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
