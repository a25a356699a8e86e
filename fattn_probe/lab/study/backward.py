"""The backward pass: recomputes the scores from L, tile by tile; no n_q x n_kv matrix is stored."""

# ruff: noqa: E741  (O and l are the papers' names)

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.lab.study.problem import SlowMemory, StudyHead, StudyResult, exp_below, tiles


@dataclass(frozen=True, eq=False)
class Gradients:
    """dQ (n_q, hsk), dK (n_kv, hsk), dV (n_kv, hsv) of a loss whose gradient at the output is dO, and the traffic."""

    dQ: F64
    dK: F64
    dV: F64
    reads: Mapping[str, int]
    writes: Mapping[str, int]


def backward(head: StudyHead, forward: StudyResult, dO: F64, B_r: int, B_c: int) -> Gradients:
    """Algorithm 2 of FlashAttention-2 (Dao, 2023, arXiv 2307.08691), the backward pass.

    Line 9 of the paper loads O_i and dQ_i too. O_i is not used after line 4, and dQ_i is loaded by line 15, so line 9
    loads neither here. Not computed: gradients of mask and sinks. For heads that share a K/V head, sum dK and dV.
    """
    hbm = _slow_memory(head, forward, dO)
    hbm.store("dQ", np.zeros(head.Q.shape), slice(0, head.n_q))  # line 3
    for i in tiles(head.n_q, B_r):  # line 4: D = rowsum(dO * O)
        hbm.store("D", (hbm.load("dO", i) * hbm.load("O", i)).sum(axis=-1), i)
    for j in tiles(head.n_kv, B_c):  # line 5
        K_j, V_j = hbm.load("K", j), hbm.load("V", j)  # line 6
        dK_j, dV_j = np.zeros(K_j.shape), np.zeros(V_j.shape)  # line 7
        for i in tiles(head.n_q, B_r):  # line 8
            Q_i, dO_i, L_i, D_i = (hbm.load(name, i) for name in ("Q", "dO", "L", "D"))  # line 9
            S_ij = head.rule.logits(Q_i, K_j, hbm.load("mask", i, j) if "mask" in hbm else None)  # line 10
            P_ij = exp_below(S_ij, L_i[:, None])  # line 11
            dV_j += P_ij.T @ dO_i  # line 12
            dP_ij = dO_i @ V_j.T  # line 13
            dS_ij = P_ij * (dP_ij - D_i[:, None]) * slope(head, Q_i, K_j)  # line 14
            hbm.store("dQ", hbm.load("dQ", i) + dS_ij @ K_j, i)  # line 15
            dK_j += dS_ij.T @ Q_i  # line 16
        hbm.store("dK", dK_j, j)  # line 18
        hbm.store("dV", dV_j, j)
    return Gradients(hbm.array("dQ"), hbm.array("dK"), hbm.array("dV"), dict(hbm.reads), dict(hbm.writes))


def slope(head: StudyHead, Q_i: F64, K_j: F64) -> F64 | float:
    """dS/d(q.k): the scale; with a softcap s = c tanh(scale/c q.k), times 1 - (s/c)^2."""
    params = head.rule.params
    if not params.logit_softcap:
        return params.scale
    return params.scale * (1.0 - np.tanh(params.factor * (Q_i @ K_j.T)) ** 2)


def _slow_memory(head: StudyHead, forward: StudyResult, dO: F64) -> SlowMemory:
    """The results of the forward pass (not counted), and space for the gradients."""
    arrays = {"Q": head.Q, "K": head.K, "V": head.V, "O": forward.out, "L": forward.lse, "dO": dO}
    hbm = SlowMemory(**arrays, **({} if head.mask is None else {"mask": head.mask}))
    for name, rows, size in (("dQ", head.n_q, head.hsk), ("dK", head.n_kv, head.hsk), ("dV", head.n_kv, head.hsv)):
        hbm.allocate(name, rows, size)
    hbm.allocate("D", head.n_q)
    return hbm


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
