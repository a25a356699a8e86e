"""Split-KV: the KV rows are cut into pieces, computed in parallel and combined by their log-sum-exps."""

# ruff: noqa: E741  (O and l are the papers' names)

from collections.abc import Sequence

import numpy as np

from fattn_probe.lab.study.flash_attention_2 import attend
from fattn_probe.lab.study.memory import SlowMemory
from fattn_probe.lab.study.problem import StudyHead, count, exp_below, log_sum_exp, rows_divided, tiles
from fattn_probe.lab.study.trace import StudyResult, Trace


def split_kv(head: StudyHead, B_r: int, B_c: int, splits: int) -> StudyResult:
    """FlashDecoding (Dao, Haziza, Massa and Sizov, "Flash-Decoding for long-context inference", 2023), its three steps.

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
