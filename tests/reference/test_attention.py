"""The blocked float64 attention against a naive one, against 50 digits, and against what it must be by definition."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fattn_probe.errors import InputError
from fattn_probe.reference.attention import Blocking, OpParams, alibi_slopes, attention, fully_masked_rows


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
    """Row by row, as the formula stands."""
    Q, K, V, mask = arrays
    Q, K, V = (tensor.astype(np.float64) for tensor in (Q, K, V))
    n_seq, n_head, n_q, _ = Q.shape
    out = np.zeros((n_seq, n_q, n_head, V.shape[3]))
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
        out[s, q, h] = weights @ V[s, kv_head] / (weights.sum() + sum(math.exp(sink - top) for sink in extra))
    return out


@st.composite
def ops(draw):
    """Any op of small size with any of its features, and a blocking that cuts it anywhere."""
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
    params = OpParams(
        draw(st.floats(0.1, 3)), draw(st.sampled_from([0.0, 8.0])), draw(st.sampled_from([0.0, 2.0, 30.0]))
    )
    sinks = rng.standard_normal(n_head).astype(np.float32) * 3 if draw(st.booleans()) else None
    return (*arrays, params, sinks), Blocking(draw(st.integers(1, 9)), draw(st.integers(1, 9)))


@settings(max_examples=150, deadline=None)
@given(ops())
def test_equals_the_naive_formula(drawn):
    (Q, K, V, mask, params, sinks), blocking = drawn
    got = attention(Q, K, V, mask, params=params, sinks=sinks, blocking=blocking)
    np.testing.assert_allclose(got, naive((Q, K, V, mask), params, sinks), rtol=1e-12, atol=1e-13)


def slope_50_digits(h, n_head, max_bias):
    """ggml's slope, from its own words in ops.cpp: m0^(h+1), or m1^(2(h - n_head_log2) + 1)."""
    n = 2 ** int(math.log2(n_head))
    m0, m1 = mpmath.mpf(2) ** (-mpmath.mpf(max_bias) / n), mpmath.mpf(2) ** (-mpmath.mpf(max_bias) / 2 / n)
    return m0 ** (h + 1) if h < n else m1 ** (2 * (h - n) + 1)


def exact_row(arrays, params, sinks, at):
    """One row in 50-digit arithmetic."""
    Q, K, V, mask = arrays
    s, q, h = at
    kv_head = h // (Q.shape[1] // K.shape[1])
    slope = slope_50_digits(h, Q.shape[1], params.max_bias)
    weights = []
    for k, masked in zip(K[s, kv_head], mask[s % mask.shape[0], 0, q], strict=True):
        dot = mpmath.fsum(mpmath.mpf(float(a)) * mpmath.mpf(float(b)) for a, b in zip(Q[s, h, q], k, strict=True))
        logit = params.logit_softcap * mpmath.tanh(dot * mpmath.mpf(params.scale) / params.logit_softcap)
        weights.append(mpmath.mpf(0) if np.isneginf(masked) else mpmath.exp(logit + slope * mpmath.mpf(float(masked))))
    total = mpmath.fsum(weights) + mpmath.exp(mpmath.mpf(float(sinks[h])))
    return [float(mpmath.fsum(w * float(x) for w, x in zip(weights, V[s, kv_head, :, d], strict=True)) / total)
            for d in range(V.shape[3])]  # fmt: skip


def test_equals_50_digits_with_every_feature():
    """GQA of 3, two sequences on one mask, ALiBi of 6 heads (no power of two), softcap, sinks, a fully masked row."""
    rng = np.random.default_rng(7)
    Q, K, V, mask = random_op(rng, n_seq=2, n_head=6, n_head_kv=2, n_q=3, n_kv=9, hsk=5, hsv=3, mask_seq=1, padding=2)
    mask[0, 0, 1] = -np.inf
    params = OpParams(scale=1.3, max_bias=8.0, logit_softcap=5.0)
    sinks = rng.standard_normal(6).astype(np.float32)
    got = attention(Q, K, V, mask, params=params, sinks=sinks, blocking=Blocking(4, 4))
    with mpmath.workdps(50):
        for at in np.ndindex(2, 3, 6):
            np.testing.assert_allclose(got[at], exact_row((Q, K, V, mask), params, sinks, at), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("sinks", [None, np.array([-2.0, 3.0], np.float32)])
def test_fully_masked_row_is_zero_and_its_neighbours_are_not(sinks):
    Q, K, V, _ = random_op(np.random.default_rng(1))
    mask = np.zeros((1, 1, 3, 5), np.float16)
    mask[0, 0, 1] = -np.inf
    got = attention(Q, K, V, mask, params=OpParams(0.5), sinks=sinks, blocking=Blocking(6, 2))
    assert (got[0, 1] == 0.0).all()
    assert (got[0, [0, 2]] != 0.0).all()
    assert fully_masked_rows(mask, 1, 2, 3).tolist() == [[[False, False], [True, True], [False, False]]]


def test_fully_masked_rows_follow_the_broadcast_and_ignore_padding():
    mask = np.zeros((2, 2, 4, 3))
    mask[1, 0, 1] = -np.inf
    mask[:, :, 3] = -np.inf
    rows = fully_masked_rows(mask, n_seq=4, n_head=4, n_q=3)
    assert rows.shape == (4, 3, 4)
    assert np.argwhere(rows).tolist() == [[1, 1, 0], [1, 1, 2], [3, 1, 0], [3, 1, 2]]


def test_logits_far_beyond_the_range_of_exp():
    """The maximum is subtracted, also when it comes last, and rows 2000 below it vanish."""
    Q = np.full((1, 1, 1, 1), 1.0)
    K = np.array([-1000.0, 0.0, 1000.0, 1000.0]).reshape(1, 1, 4, 1)
    V = np.array([5.0, 7.0, 1.0, 2.0]).reshape(1, 1, 4, 1)
    assert attention(Q, K, V, params=OpParams(1.0), blocking=Blocking(1, 1)).item() == 1.5


def test_a_leading_block_without_any_entry_does_not_make_nan():
    Q, K, V, _ = random_op(np.random.default_rng(2), n_q=2, n_kv=8)
    mask = np.zeros((1, 1, 2, 8))
    mask[0, 0, 0, :6] = -np.inf
    got = attention(Q, K, V, mask, params=OpParams(0.5), blocking=Blocking(8, 2))
    np.testing.assert_allclose(
        got[0, 0], attention(Q, K[:, :, 6:], V[:, :, 6:], params=OpParams(0.5))[0, 0], rtol=1e-13
    )


def test_slopes_of_ggml():
    """8 heads of max_bias 8 halve each time (the ALiBi paper's own example); beyond a power of two they interleave."""
    np.testing.assert_allclose(alibi_slopes(8, 8.0), 0.5 ** np.arange(1, 9), rtol=1e-15)
    np.testing.assert_allclose(alibi_slopes(6, 8.0), 0.5 ** np.array([2, 4, 6, 8, 1, 3]), rtol=1e-15)
    assert alibi_slopes(3, 0.0).tolist() == [1.0, 1.0, 1.0]


def test_memory_is_the_blocks_not_the_matrix_of_logits():
    import tracemalloc

    Q, K, V, _ = random_op(np.random.default_rng(3), n_q=1024, n_kv=4096, hsk=16, hsv=16)
    tracemalloc.start()
    attention(Q, K, V, params=OpParams(0.25))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 1024 * 4096 * 8 / 4


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"K": (1, 2, 5, 3)}, "head size of K is 3, of Q 4"),
        ({"K": (1, 3, 5, 4), "V": (1, 3, 5, 4)}, "4 heads are not a multiple of 3 K/V heads"),
        ({"V": (1, 2, 6, 4)}, r"K is \(1, 2, 5\), V \(1, 2, 6\)"),
        ({"K": (2, 2, 5, 4), "V": (2, 2, 5, 4)}, "K has 2 sequences, Q 1"),
        ({"mask": (1, 1, 2, 5)}, "the mask has 2 rows for 3 queries"),
        ({"mask": (1, 1, 3, 4)}, "a mask row has 4 entries for 5 KV rows"),
        ({"mask": (2, 3, 3, 5)}, "(?s)1 sequences are not a multiple of the mask's 2.*4 heads are not a multiple"),
        ({"sinks": (3,)}, r"sinks are \(3,\), one for each of 4 heads"),
        ({"Q": (4, 3, 4)}, "Q has 3 dimensions, 4 are needed"),
        ({"K": (1, 2, 0, 4), "V": (1, 2, 0, 4)}, "empty tensors"),
    ],
)
def test_arrays_at_odds_are_the_users_mistake(arrays, said):
    shapes = {"Q": (1, 4, 3, 4), "K": (1, 2, 5, 4), "V": (1, 2, 5, 4)} | arrays
    tensors = {name: np.zeros(shape) for name, shape in shapes.items()}
    sinks = tensors.pop("sinks", None)
    with pytest.raises(InputError, match=said):
        attention(tensors["Q"], tensors["K"], tensors["V"], tensors.get("mask"), params=OpParams(1.0), sinks=sinks)


def test_blocks_masked_for_every_query_are_not_worked_on():
    Q, K, V, _ = random_op(np.random.default_rng(4), n_kv=8)
    mask = np.zeros((1, 1, 3, 8))
    mask[..., 4:] = -np.inf
    K[:, :, 4:] = np.nan
    assert np.isfinite(attention(Q, K, V, mask, params=OpParams(0.5), blocking=Blocking(8, 4))).all()
    assert np.isnan(attention(Q, K, V, mask, params=OpParams(0.5), blocking=Blocking(8, 8))).all()
