"""Standard attention: the whole score matrix goes through slow memory twice."""

# ruff: noqa: E741  (O and l are the papers' names)

import numpy as np

from fattn_probe.lab.study.problem import StudyHead, exp_below, log_sum_exp, rows_divided, tiles
from fattn_probe.lab.study.trace import StudyResult, Trace


def standard(head: StudyHead, tile_q: int) -> StudyResult:
    """Algorithm 0 of FlashAttention (Dao et al., 2022, arXiv 2205.14135): S, softmax and PV as three passes.

    "Load by blocks" is read favourably: each pass reads each of its inputs once, so `tile_q` only sets how many rows of
    S and P are processed at a time. The paper omits L; it is written here (n_q elements), as in the other algorithms.
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
