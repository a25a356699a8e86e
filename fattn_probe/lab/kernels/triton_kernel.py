"""FlashAttention-2's forward pass in Triton, with the log-sum-exp.

Imported only where Triton is installed. Triton reads the source of these functions.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def steps(
    acc, l, m, q, K, V, M, scale, rows, start, stop, n_q, n_kv,
    HSK: tl.constexpr, HSV: tl.constexpr, PADDED_HSK: tl.constexpr, PADDED_HSV: tl.constexpr, COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Online softmax over the KV rows [start, stop); only at an EDGE can rows be hidden by `causal` or be missing."""
    k_part, v_part = tl.arange(0, PADDED_HSK), tl.arange(0, PADDED_HSV)
    for first in range(start, stop, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = columns < n_kv
        k = tl.load(
            K + columns[None, :] * HSK + k_part[:, None], mask=inside[None, :] & (k_part < HSK)[:, None], other=0.0
        )
        S = tl.dot(q, k) * (scale * LOG2_E)
        if MASKED:
            seen = (rows < n_q)[:, None] & inside[None, :]
            S += tl.load(M + rows[:, None] * n_kv + columns[None, :], mask=seen, other=0.0).to(tl.float32) * LOG2_E
        if EDGE:
            S = tl.where(inside[None, :], S, float("-inf"))
        if EDGE and CAUSAL:
            S = tl.where(columns[None, :] <= rows[:, None] + (n_kv - n_q), S, float("-inf"))
        m_now = tl.maximum(m, tl.max(S, 1))
        # For a row without a finite logit so far, 0 replaces -inf, because -inf minus -inf would be NaN.
        m_used = tl.where(m_now == float("-inf"), 0.0, m_now)
        P, alpha = tl.exp2(S - m_used[:, None]), tl.exp2(m - m_used)
        l = l * alpha + tl.sum(P, 1)
        v = tl.load(
            V + columns[:, None] * HSV + v_part[None, :], mask=inside[:, None] & (v_part < HSV)[None, :], other=0.0
        )
        acc = tl.dot(P.to(v.dtype), v, acc * alpha[:, None])
        m = m_now
    return acc, l, m


@triton.jit
def attention(
    Q, K, V, M, O, L, scale, n_head, group, n_q, n_kv,
    HSK: tl.constexpr, HSV: tl.constexpr, PADDED_HSK: tl.constexpr, PADDED_HSV: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One tile of ROWS queries of one head: first the KV rows that all these queries see, then the rows at the edge."""
    tile, plane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n_head_kv = n_head // group
    plane_kv = plane // n_head * n_head_kv + plane % n_head // group
    rows, past = tile * ROWS + tl.arange(0, ROWS), n_kv - n_q
    k_part, v_part = tl.arange(0, PADDED_HSK), tl.arange(0, PADDED_HSV)
    q_at = Q + plane * n_q * HSK + rows[:, None] * HSK + k_part[None, :]
    q = tl.load(q_at, mask=(rows < n_q)[:, None] & (k_part < HSK)[None, :], other=0.0)
    K, V = K + plane_kv * n_kv * HSK, V + plane_kv * n_kv * HSV
    acc = tl.zeros([ROWS, PADDED_HSV], tl.float32)
    l, m = tl.zeros([ROWS], tl.float32), tl.full([ROWS], float("-inf"), tl.float32)
    stop, whole = n_kv, n_kv
    if CAUSAL:
        stop = tl.maximum(tl.minimum(n_kv, past + (tile + 1) * ROWS), 0)
        whole = tl.maximum(tl.minimum(n_kv, past + tile * ROWS + 1), 0)
    whole = whole // COLUMNS * COLUMNS
    acc, l, m = steps(acc, l, m, q, K, V, M, scale, rows, 0, whole, n_q, n_kv, HSK, HSV, PADDED_HSK, PADDED_HSV,
                      COLUMNS, CAUSAL, MASKED, False)  # fmt: skip
    acc, l, m = steps(acc, l, m, q, K, V, M, scale, rows, whole, stop, n_q, n_kv, HSK, HSV, PADDED_HSK, PADDED_HSV,
                      COLUMNS, CAUSAL, MASKED, True)  # fmt: skip
    empty = l == 0.0
    o = acc / tl.where(empty, 1.0, l)[:, None]
    o_at = O + plane * n_q * HSV + rows[:, None] * HSV + v_part[None, :]
    tl.store(o_at, o, mask=(rows < n_q)[:, None] & (v_part < HSV)[None, :])
    lse = tl.where(empty, float("-inf"), (m + tl.log2(tl.where(empty, 1.0, l))) * LN_2)
    tl.store(L + plane * n_q + rows, lse, mask=rows < n_q)


BLOCKS = [(128, 64, 4, 3), (128, 32, 4, 3), (64, 64, 4, 2), (64, 32, 4, 2), (64, 32, 4, 1), (32, 32, 4, 1)]
"""The configurations that the tuner tries on a GPU: ROWS, COLUMNS, warps, stages."""
CONFIGS = [triton.Config({"ROWS": r, "COLUMNS": c}, num_warps=w, num_stages=s) for r, c, w, s in BLOCKS]


def tuned():
    """The kernel with the fastest block sizes, measured on the GPU once for each op size."""
    return triton.autotune(configs=CONFIGS, key=["n_q", "n_kv", "HSK", "HSV", "CAUSAL", "MASKED"])(attention)


def is_interpreted() -> bool:
    """Whether Triton interprets the kernel and its own functions, instead of compiling them."""
    return not any(isinstance(it, triton.runtime.JITFunction) for it in (attention, tl.max))


def compiled(arch: int, hsk: int, hsv: int, *, causal: bool, masked: bool):
    """The kernel compiled for an architecture (80, 90, ...), without a GPU: Triton's object, which has PTX and SASS."""
    constants = {"HSK": hsk, "HSV": hsv, "CAUSAL": causal, "MASKED": masked, "ROWS": 64, "COLUMNS": 64}
    constants |= {"PADDED_HSK": triton.next_power_of_2(hsk), "PADDED_HSV": triton.next_power_of_2(hsv)}
    types = dict.fromkeys(("Q", "K", "V", "M"), "*fp16") | dict.fromkeys(("O", "L"), "*fp32") | {"scale": "fp32"}
    types |= dict.fromkeys(("n_head", "group", "n_q", "n_kv"), "i32") | dict.fromkeys(constants, "constexpr")
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(types) if types[name].startswith("*")}
    source = triton.compiler.ASTSource(attention, types, constants, aligned)
    return triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", arch, 32))
