"""The blocked float64 attention compared with a naive one, with 50-digit arithmetic, and with its definition."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import Params
from fattn_probe.verdict.truth.reference.attention import (
    Blocking,
    alibi_slopes,
    attention,
    attention_and_lse,
    fully_masked_rows,
)


def random_op(
    rng, *, n_seq=1, n_head=2, n_head_kv=1, n_q=3, n_kv=5, hsk=4, hsv=4, mask_seq=None, mask_heads=1, padding=0
):
    """Q, K, V and, with `mask_seq`, a mask of random numbers and -inf whose padded rows (never to be read) are NaN."""
    Q = rng.standard_normal((n_seq, n_head, n_q, hsk)).astype(np.float32) * 2
    K = rng.standard_normal((n_seq, n_head_kv, n_kv, hsk)).astype(np.float16)
    V = rng.standard_normal((n_seq, n_head_kv, n_kv, hsv)).astype(np.float16)
    if mask_seq is None:
        return Q, K, V, None
    mask = rng.uniform(-1, 1, (mask_seq, mask_heads, n_q + padding, n_kv)).astype(np.float16)
    mask[rng.random(mask.shape) < 0.3] = -np.inf
    mask[:, :, n_q:] = np.nan
    return Q, K, V, mask


def naive(arrays, params, sinks):
    """The output and the log-sum-exp, row by row, straight from the formula."""
    Q, K, V, mask = arrays
    Q, K, V = (tensor.astype(np.float64) for tensor in (Q, K, V))
    n_seq, n_head, n_q, _ = Q.shape
    out, lse = np.zeros((n_seq, n_q, n_head, V.shape[3])), np.full((n_seq, n_q, n_head), -np.inf)
    for s, h, q in itertools.product(range(n_seq), range(n_head), range(n_q)):
        kv_head = h // (n_head // K.shape[1])
        logits = params.scale * (K[s, kv_head] @ Q[s, h, q])
        if params.logit_softcap:
            logits = params.logit_softcap * np.tanh(logits / params.logit_softcap)
        if mask is not None:
            row = mask[s % mask.shape[0], h % mask.shape[1], q].astype(np.float64)
            logits = logits + alibi_slopes(n_head, params.max_bias)[h] * row
        extra = [] if sinks is None else [float(sinks[h])]
        top = max([*logits, *extra])
        if top == -np.inf:
            continue
        weights = np.exp(logits - top)
        total = weights.sum() + sum(math.exp(sink - top) for sink in extra)
        out[s, q, h], lse[s, q, h] = weights @ V[s, kv_head] / total, top + math.log(total)
    return out, lse


@st.composite
def ops(draw):
    """Any small op with any features, and a blocking with any boundaries."""
    small = st.integers(1, 3)
    n_head_kv, group, mask_seq, mask_heads, repeat = (draw(small) for _ in range(5))
    n_head = n_head_kv * group * mask_heads
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    masked = draw(st.booleans())
    arrays = random_op(
        rng,
        n_seq=mask_seq * repeat,
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_q=draw(st.integers(1, 7)),
        n_kv=draw(st.integers(1, 20)),
        hsk=draw(st.integers(1, 6)),
        hsv=draw(st.integers(1, 6)),
        mask_seq=mask_seq if masked else None,
        mask_heads=mask_heads,
        padding=draw(small) - 1,
    )
    params = Params(draw(st.floats(0.1, 3)), draw(st.sampled_from([0.0, 8.0])), draw(st.sampled_from([0.0, 2.0, 30.0])))
    sinks = rng.standard_normal(n_head).astype(np.float32) * 3 if draw(st.booleans()) else None
    return (*arrays, params, sinks), Blocking(*(draw(st.integers(1, 9)) for _ in range(3)))


@pytest.mark.parametrize(("beyond", "rtol", "atols"), [(False, 1e-12, (1e-13, 1e-13)), (True, 1e-10, (1e-11, 1e-12))])
@settings(max_examples=150)
@given(ops(), st.integers(0, 2**32 - 1))
def test_equals_the_naive_formula_where_logits_are_beyond_the_range_of_exp_too(beyond, rtol, atols, drawn, seed):
    """Some keys, queries and mask entries are hundreds of times larger: blocks with and without a maximum mix."""
    (Q, K, V, mask, params, sinks), blocking = drawn
    if beyond:
        rng = np.random.default_rng(seed)
        K = np.where(rng.random(K.shape[:3])[..., None] < 0.3, K * np.float16(100), K)
        Q = np.where(rng.random(Q.shape[:3])[..., None] < 0.5, Q, Q / 100)
        if mask is not None:
            mask = np.where(rng.random(mask.shape) < 0.2, mask - np.float16(900), mask)
    got, lse = attention_and_lse(Q, K, V, mask, params=params, sinks=sinks, blocking=blocking)
    out, expected = naive((Q, K, V, mask), params, sinks)
    np.testing.assert_allclose(got, out, rtol=rtol, atol=atols[0])
    np.testing.assert_allclose(lse, expected, rtol=1e-12, atol=atols[1])


def slope_50_digits(h, n_head, max_bias):
    """ggml's slope, from its own words in ops.cpp: m0^(h+1), or m1^(2(h - n_head_log2) + 1)."""
    n = 2 ** int(math.log2(n_head))
    m0, m1 = mpmath.mpf(2) ** (-mpmath.mpf(max_bias) / n), mpmath.mpf(2) ** (-mpmath.mpf(max_bias) / 2 / n)
    return m0 ** (h + 1) if h < n else m1 ** (2 * (h - n) + 1)


def exact_row(arrays, params, sinks, at):
    """One row and its log-sum-exp in 50-digit arithmetic."""
    Q, K, V, mask = arrays
    s, q, h = at
    kv_head = h // (Q.shape[1] // K.shape[1])
    slope = slope_50_digits(h, Q.shape[1], params.max_bias) if params.max_bias else mpmath.mpf(1)
    weights = []
    for row, k in enumerate(K[s, kv_head]):
        dot = mpmath.fsum(mpmath.mpf(float(a)) * mpmath.mpf(float(b)) for a, b in zip(Q[s, h, q], k, strict=True))
        logit = dot * mpmath.mpf(params.scale)
        if params.logit_softcap:
            logit = params.logit_softcap * mpmath.tanh(logit / params.logit_softcap)
        masked = 0.0 if mask is None else float(mask[s % mask.shape[0], h % mask.shape[1], q, row])
        weights.append(mpmath.mpf(0) if masked == -np.inf else mpmath.exp(logit + slope * mpmath.mpf(masked)))
    total = mpmath.fsum(weights) + (0 if sinks is None else mpmath.exp(mpmath.mpf(float(sinks[h]))))
    if total == 0:
        return [0.0] * V.shape[3], -np.inf
    sums = [mpmath.fsum(w * float(x) for w, x in zip(weights, column, strict=True)) for column in V[s, kv_head].T]
    return [float(part / total) for part in sums], float(mpmath.log(total))


EVERYTHING = {"n_seq": 2, "n_head": 6, "n_head_kv": 2, "n_q": 3, "n_kv": 9, "hsk": 5, "hsv": 3}
FEATURES = {
    "plain": ({}, Params(0.7), False),
    "GQA, two sequences": ({"n_seq": 2, "n_head": 6, "n_head_kv": 2}, Params(0.7), False),
    "mask": ({"mask_seq": 1, "padding": 3}, Params(1.0), False),
    "masks of heads and sequences": ({"n_seq": 4, "n_head": 4, "mask_seq": 2, "mask_heads": 2}, Params(1.0), False),
    "ALiBi of 6 heads": ({"n_head": 6, "mask_seq": 1}, Params(1.0, max_bias=8.0), False),
    "softcap": ({}, Params(2.0, logit_softcap=1.5), False),
    "sinks": ({"mask_seq": 1}, Params(0.3), True),
    "far logits": ({"n_kv": 20}, Params(300.0), False),
    "far logits, sinks and mask": ({"n_kv": 20, "mask_seq": 1}, Params(300.0), True),
    "everything": (EVERYTHING | {"mask_seq": 1, "padding": 2}, Params(1.3, 8.0, 5.0), True),
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("feature", FEATURES)
def test_equals_50_digits(feature, dtype):
    sizes, params, with_sinks = FEATURES[feature]
    rng = np.random.default_rng(7)
    Q, K, V, mask = random_op(rng, **sizes)
    K, V = K + dtype(rng.standard_normal(1)[0] / 3), V + dtype(0.1)
    if mask is not None:
        mask[0, 0, 1] = -np.inf
    sinks = rng.standard_normal(Q.shape[1]).astype(np.float32) if with_sinks else None
    got, lse = attention_and_lse(Q, K, V, mask, params=params, sinks=sinks, blocking=Blocking(4, 4))
    with mpmath.workdps(50):
        for at in np.ndindex(lse.shape):
            out, expected = exact_row((Q, K, V, mask), params, sinks, at)
            np.testing.assert_allclose(got[at], out, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(lse[at], expected, rtol=1e-12, atol=1e-14)


def test_fully_masked_rows_follow_the_broadcast_and_a_leading_empty_block_makes_no_nan():
    mask = np.zeros((2, 2, 4, 3))
    mask[1, 0, 1] = -np.inf
    mask[:, :, 3] = -np.inf
    rows = fully_masked_rows(mask, n_seq=4, n_head=4, n_q=3)
    assert rows.shape == (4, 3, 4)
    assert np.argwhere(rows).tolist() == [[1, 1, 0], [1, 1, 2], [3, 1, 0], [3, 1, 2]]
    Q, K, V, _ = random_op(np.random.default_rng(2), n_q=2, n_kv=8)
    mask = np.zeros((1, 1, 2, 8))
    mask[0, 0, 0, :6] = -np.inf
    got = attention(Q, K, V, mask, params=Params(0.5), blocking=Blocking(8, 2))
    np.testing.assert_allclose(got[0, 0], attention(Q, K[:, :, 6:], V[:, :, 6:], params=Params(0.5))[0, 0], rtol=1e-13)


def test_slopes_of_ggml():
    """8 heads of max_bias 8 halve each time (the ALiBi paper's own example); beyond a power of two they interleave."""
    np.testing.assert_allclose(alibi_slopes(8, 8.0), 0.5 ** np.arange(1, 9), rtol=1e-15)
    np.testing.assert_allclose(alibi_slopes(6, 8.0), 0.5 ** np.array([2, 4, 6, 8, 1, 3]), rtol=1e-15)
    assert alibi_slopes(3, 0.0).tolist() == [1.0, 1.0, 1.0]


def test_memory_is_the_blocks_not_the_matrix_of_logits():
    import tracemalloc

    Q, K, V, _ = random_op(np.random.default_rng(3), n_q=1024, n_kv=4096, hsk=16, hsv=16)
    tracemalloc.start()
    attention(Q, K, V, params=Params(0.25))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 1024 * 4096 * 8 / 4


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"K": (1, 2, 5, 3)}, "the head size is 3 in K but 4 in Q"),
        ({"K": (1, 3, 5, 4), "V": (1, 3, 5, 4)}, "4 heads are not a multiple of 3 K/V heads"),
        ({"V": (1, 2, 6, 4)}, r"K is \(1, 2, 5\), but V is \(1, 2, 6\)"),
        ({"K": (2, 2, 5, 4), "V": (2, 2, 5, 4)}, "K has 2 sequences, but Q has 1"),
        ({"mask": (1, 1, 2, 5)}, "the mask has 2 rows for 3 queries"),
        ({"mask": (1, 1, 3, 4)}, "a mask row has 4 entries for 5 KV rows"),
        ({"mask": (2, 3, 3, 5)}, "(?s)1 sequences are not a multiple of the mask's 2.*4 heads are not a multiple"),
        ({"sinks": (3,)}, r"sinks are \(3,\), but one for each of 4 heads"),
        ({"Q": (4, 3, 4)}, "Q has 3 dimensions, but 4 are needed"),
        ({"K": (1, 2, 0, 4), "V": (1, 2, 0, 4)}, "empty tensors"),
    ],
)
def test_arrays_at_odds_are_the_users_mistake(arrays, said):
    shapes = {"Q": (1, 4, 3, 4), "K": (1, 2, 5, 4), "V": (1, 2, 5, 4)} | arrays
    tensors = {name: np.zeros(shape) for name, shape in shapes.items()}
    sinks = tensors.pop("sinks", None)
    with pytest.raises(InputError, match=said):
        attention(tensors["Q"], tensors["K"], tensors["V"], tensors.get("mask"), params=Params(1.0), sinks=sinks)


def test_blocks_masked_for_every_query_are_not_worked_on():
    Q, K, V, _ = random_op(np.random.default_rng(4), n_kv=8)
    mask = np.zeros((1, 1, 3, 8))
    mask[..., 4:] = -np.inf
    K[:, :, 4:] = np.nan
    assert np.isfinite(attention(Q, K, V, mask, params=Params(0.5), blocking=Blocking(8, 4))).all()
    assert np.isnan(attention(Q, K, V, mask, params=Params(0.5), blocking=Blocking(8, 8))).all()


def test_a_row_without_visible_keys_starts_at_its_first_logits():
    """The first block is small and hidden from the row, the second is 1000 below zero: without a maximum, all 0."""
    Q = np.ones((1, 1, 2, 1))
    K, V = (
        np.array([1.0, 2.0, -1000.0, -1000.0]).reshape(1, 1, 4, 1),
        np.array([5.0, 7.0, 1.0, 2.0]).reshape(1, 1, 4, 1),
    )
    mask = np.zeros((1, 1, 2, 4))
    mask[0, 0, 0, :2] = -np.inf
    out, lse = attention_and_lse(Q, K, V, mask, params=Params(1.0), blocking=Blocking(2, 2))
    assert out[0, 0].item() == 1.5
    assert lse[0, 0].item() == pytest.approx(-1000 + math.log(2), rel=1e-15)
    assert out[0, 1].item() == pytest.approx((5 + 7 * math.e) / (1 + math.e), rel=1e-14)
