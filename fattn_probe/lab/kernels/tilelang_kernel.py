"""FlashAttention-2's forward pass in TileLang, at the level of tiles and fragments.

Imported only where TileLang is installed. TileLang reads the source of these functions: annotations and assignments in
them have a meaning in TileLang, not in Python.
"""

import tilelang.language as T

from fattn_probe.cases.op import Sizes
from fattn_probe.lab.kernels.tilelang_attention import TileLangTiling

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@T.macro
def mask_scores(S, M, first_q, first_kv, sizes, factor, causal, masked):
    """Scale a tile of q.k to base 2, add the mask, and hide the KV rows that the queries do not see."""
    for i, j in T.Parallel(S.shape[0], S.shape[1]):
        q, kv = first_q + i, first_kv + j
        sees = kv < sizes.n_kv
        if causal:
            sees = T.And(sees, kv <= q + sizes.n_kv - sizes.n_q)
        x = S[i, j] * factor
        if masked:
            inside = T.And(q < sizes.n_q, kv < sizes.n_kv)
            x = x + T.if_then_else(inside, T.cast(M[q, kv], "float32"), 0.0) * LOG2_E
        S[i, j] = T.if_then_else(sees, x, -T.infinity("float32"))


@T.macro
def softmax(S, P, m, m_before, m_used, alpha, l_tile, l):
    """Online softmax of a tile of logits; computes P in f16, and alpha, the factor for the earlier sums.

    A row without a finite logit so far has m = -inf, for which `m_used` is 0.
    """
    T.copy(m, m_before)
    T.reduce_max(S, m, dim=1, clear=False)
    for i in T.Parallel(m.shape[0]):
        m_used[i] = T.if_then_else(m[i] == -T.infinity("float32"), 0.0, m[i])
        alpha[i] = T.exp2(m_before[i] - m_used[i])
    for i, j in T.Parallel(S.shape[0], S.shape[1]):
        S[i, j] = T.exp2(S[i, j] - m_used[i])
    T.reduce_sum(S, l_tile, dim=1)
    for i in T.Parallel(m.shape[0]):
        l[i] = l[i] * alpha[i] + l_tile[i]
    T.copy(S, P)


@T.macro
def divide(acc, m, l):
    """Divide the sums by l, and replace l with the log-sum-exp; 0 and -inf for a row that sees nothing."""
    for i, j in T.Parallel(acc.shape[0], acc.shape[1]):
        acc[i, j] = T.if_then_else(l[i] == 0.0, 0.0, acc[i, j] / l[i])
    for i in T.Parallel(l.shape[0]):
        l[i] = (m[i] + T.log2(l[i])) * LN_2


def attention(sizes: Sizes, tiling: TileLangTiling, scale: float, *, causal: bool, masked: bool):
    """The kernel for these sizes: Q, K, V and M in f16, O and L (log-sum-exp) in f32. M is read only if `masked`."""
    n_seq, n_head, n_head_kv = sizes.n_seq, sizes.n_head, sizes.n_head_kv
    n_q, n_kv, hsk, hsv = sizes.n_q, sizes.n_kv, sizes.hsk, sizes.hsv
    rows, columns, group = tiling.rows, tiling.columns, sizes.group
    half, single = "float16", "float32"

    @T.prim_func
    def attention(
        Q: T.Tensor((n_seq, n_head, n_q, hsk), half),
        K: T.Tensor((n_seq, n_head_kv, n_kv, hsk), half),
        V: T.Tensor((n_seq, n_head_kv, n_kv, hsv), half),
        M: T.Tensor((n_q, n_kv), half),
        O: T.Tensor((n_seq, n_head, n_q, hsv), single),
        L: T.Tensor((n_seq, n_head, n_q), single),
    ):
        with T.Kernel(T.ceildiv(n_q, rows), n_head, n_seq, threads=tiling.threads) as (tile, head, seq):
            Q_shared = T.alloc_shared((rows, hsk), half)
            K_shared = T.alloc_shared((columns, hsk), half)
            V_shared = T.alloc_shared((columns, hsv), half)
            S = T.alloc_fragment((rows, columns), single)
            P = T.alloc_fragment((rows, columns), half)
            acc = T.alloc_fragment((rows, hsv), single)
            m = T.alloc_fragment((rows,), single)
            m_before = T.alloc_fragment((rows,), single)
            m_used = T.alloc_fragment((rows,), single)
            alpha = T.alloc_fragment((rows,), single)
            l_tile = T.alloc_fragment((rows,), single)
            l = T.alloc_fragment((rows,), single)

            T.copy(Q[seq, head, tile * rows : (tile + 1) * rows, :], Q_shared)
            T.fill(acc, 0)
            T.fill(l, 0)
            T.fill(m, -T.infinity(single))
            every = T.ceildiv(n_kv, columns)
            seen = T.max(T.ceildiv((tile + 1) * rows + n_kv - n_q, columns), 0)
            for step in T.Pipelined(T.min(every, seen) if causal else every, num_stages=tiling.stages):
                T.copy(K[seq, head // group, step * columns : (step + 1) * columns, :], K_shared)
                T.clear(S)
                T.gemm(Q_shared, K_shared, S, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                mask_scores(S, M, tile * rows, step * columns, sizes, scale * LOG2_E, causal, masked)
                softmax(S, P, m, m_before, m_used, alpha, l_tile, l)
                for i, j in T.Parallel(rows, hsv):
                    acc[i, j] *= alpha[i]
                T.copy(V[seq, head // group, step * columns : (step + 1) * columns, :], V_shared)
                T.gemm(P, V_shared, acc, policy=T.GemmWarpPolicy.FullRow)
            divide(acc, m, l)
            T.copy(acc, O[seq, head, tile * rows : (tile + 1) * rows, :])
            T.copy(l, L[seq, head, tile * rows : (tile + 1) * rows])

    return attention
