"""Masks against their definitions, one element at a time, and their random properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fattn_probe.cases.scenario.draw import blocks, some_rows, visible
from fattn_probe.cases.scenario.mask import Mask, MaskShape, max_finite, sees_something

INF = -np.inf
shapes = st.builds(
    MaskShape, st.integers(1, 200), st.integers(1, 150), st.integers(1, 2), st.integers(0, 3), st.just(9)
)
past = st.none() | st.integers(0, 30)


def mask_of(kind, **settings):
    return TypeAdapter(Mask).validate_python({"kind": kind} | settings)


def whole(mask, shape):
    values = np.full((shape.n_seq, shape.n_q, shape.n_kv), np.nan)
    for sequence, first, rows in blocks(mask, shape):
        assert rows.dtype == np.float16
        values[sequence, first : first + len(rows)] = rows
    assert not np.isnan(values).any()
    return values


def by_element(shape, rule):
    values = [[rule(i, j) for j in range(shape.n_kv)] for i in range(shape.n_q)]
    return np.broadcast_to(np.array(values, np.float64), (shape.n_seq, shape.n_q, shape.n_kv))


def position(mask, shape, i):
    return i + (max(0, shape.n_kv - shape.n_q) if mask.past is None else mask.past)


@settings(max_examples=25)
@given(shapes, past)
def test_causal(shape, past):
    mask = mask_of("causal", past=past)
    expected = by_element(shape, lambda i, j: 0 if j <= position(mask, shape, i) else INF)
    np.testing.assert_array_equal(whole(mask, shape), expected)


@settings(max_examples=25)
@given(shapes, past, st.integers(1, 60))
def test_sliding_window(shape, past, window):
    mask = mask_of("sliding_window", past=past, window=window)
    expected = by_element(shape, lambda i, j: 0 if 0 <= position(mask, shape, i) - j < window else INF)
    np.testing.assert_array_equal(whole(mask, shape), expected)


@settings(max_examples=25)
@given(shapes, past, st.booleans())
def test_alibi(shape, past, causal):
    mask = mask_of("alibi", past=past, causal=causal)
    expected = by_element(
        shape, lambda i, j: INF if causal and j > position(mask, shape, i) else -abs(position(mask, shape, i) - j)
    )
    np.testing.assert_array_equal(whole(mask, shape), expected)


@settings(max_examples=25)
@given(shapes, st.integers(1, 4), st.booleans(), st.booleans())
def test_sequences(shape, count, interleaved, causal):
    count = min(count, shape.n_q, shape.n_kv)
    mask = mask_of("sequences", count=count, interleaved=interleaved, causal=causal)
    queries = [i * count // shape.n_q for i in range(shape.n_q)]
    keys = [j % count if interleaved else j * count // shape.n_kv for j in range(shape.n_kv)]

    def rule(i, j):
        if queries[i] != keys[j]:
            return INF
        queries_after, keys_after = queries[i + 1 :].count(queries[i]), keys[j + 1 :].count(keys[j])
        return INF if causal and keys_after < queries_after else 0

    np.testing.assert_array_equal(whole(mask, shape), by_element(shape, rule))


def test_an_even_division_gives_every_sequence_its_last_key_and_tiles_and_rows_are_masked():
    values = whole(mask_of("sequences", count=3), MaskShape(12, 6, 1, 0))
    np.testing.assert_array_equal((values[0] == 0).sum(axis=1), [3, 4, 3, 4, 3, 4])
    shape = MaskShape(10, 7, 1, 0)
    tiles = whole(mask_of("masked_tiles", leading=3, trailing=2), shape)[0]
    np.testing.assert_array_equal(tiles, np.broadcast_to([INF] * 3 + [0] * 5 + [INF] * 2, (7, 10)))
    rows = whole(mask_of("masked_rows", every=3, first=1), shape)[0]
    np.testing.assert_array_equal(rows[:, 0], [0, INF, 0, 0, INF, 0, 0])
    np.testing.assert_array_equal(rows, np.broadcast_to(rows[:, :1], (7, 10)))


def test_blocks_are_constant_on_their_grid_and_as_many_as_asked():
    values = whole(mask_of("blocks", q=10, kv=20, fraction=0.5), MaskShape(400, 200, 2, 1))
    tiles = values.reshape(2, 20, 10, 20, 20)
    np.testing.assert_array_equal(tiles, np.broadcast_to(tiles[:, :, :1, :, :1], tiles.shape))
    assert 0.4 < np.isinf(values).mean() < 0.6
    assert not np.array_equal(values[0], values[1])


def test_random_is_upstream_s_mixture():
    values = whole(mask_of("random", scale=2), MaskShape(1000, 500, 1, 1))
    finite = values[np.isfinite(values)]
    assert 0.03 < np.isinf(values).mean() < 0.2
    assert 0.03 < (finite == 0).mean() < 0.25
    assert np.abs(finite).max() <= 2
    assert np.all(np.isfinite(whole(mask_of("random", blocks=0), MaskShape(1000, 500, 1, 1))))


@settings(max_examples=20)
@given(shapes, st.integers(1, 40))
def test_sparse_rows_have_as_many_finite_entries_as_upstream_s(shape, finite):
    finite = min(finite, shape.n_kv)
    counts = np.isfinite(whole(mask_of("sparse", finite=finite), shape)).sum(axis=2).ravel()
    np.testing.assert_array_equal(counts, [finite - row % min(finite, 17) for row in range(shape.n_seq * shape.n_q)])


def test_a_sum_hides_what_any_part_hides_and_its_random_parts_differ():
    shape = MaskShape(20, 5, 1, 0)
    parts: list = [mask_of("causal"), mask_of("sliding_window", window=4), mask_of("alibi")]
    np.testing.assert_array_equal(whole(mask_of("sum", of=parts), shape), sum(whole(part, shape) for part in parts))
    shape = MaskShape(64, 64, 1, 0)
    part = mask_of("random", blocks=0)
    assert not np.array_equal(whole(mask_of("sum", of=[part, part]), shape), 2 * whole(part, shape))


MASKS = [
    {"kind": "none"},
    *({"kind": kind, "past": past} for kind in ("causal", "alibi") for past in (None, 0, 7)),
    {"kind": "alibi", "causal": False},
    *({"kind": "sliding_window", "window": 5, "past": past} for past in (None, 0, 190)),
    *({"kind": "sequences", "count": count} for count in (1, 3)),
    {"kind": "sequences", "count": 2, "interleaved": True},
    {"kind": "sequences", "count": 2, "interleaved": True, "causal": False},
    {"kind": "blocks", "q": 5, "kv": 7},
    {"kind": "masked_tiles", "leading": 11, "trailing": 4},
    {"kind": "masked_tiles", "leading": 150, "trailing": 100},
    {"kind": "masked_rows", "every": 3, "first": 1},
    {"kind": "random"},
    {"kind": "sparse"},
]


@st.composite
def masks(draw):
    """A mask, or the sum of two."""
    some = draw(st.lists(st.sampled_from(MASKS), min_size=1, max_size=2))
    text = some[0] if len(some) == 1 or {"kind": "none"} in some else {"kind": "sum", "of": some}
    return mask_of(**text)


SUM = {"kind": "sum", "of": [{"kind": "causal", "past": 2}, {"kind": "sparse", "finite": 5}]}


@pytest.mark.parametrize("mask", [*MASKS, SUM])
@settings(max_examples=15)
@given(shapes.filter(lambda shape: min(shape.n_q, shape.n_kv) >= 9))
def test_max_finite_bounds_every_row(mask, shape):
    made = mask_of(**mask)
    assert np.isfinite(whole(made, shape)).sum(axis=2).max() <= max_finite(made, shape)


@settings(max_examples=150)
@given(masks(), st.integers(10, 200), st.integers(1, 150), st.integers(0, 3), st.data())
def test_some_rows_of_a_mask_and_what_they_see(mask, n_kv, n_q, seed, data):
    shape = MaskShape(n_kv, n_q, 2, seed, 9)
    rows = whole(mask, shape)
    queries = np.array(data.draw(st.lists(st.integers(0, n_q - 1), min_size=1, max_size=5)))
    for sequence in range(2):
        np.testing.assert_array_equal(some_rows(mask, shape, sequence, queries), rows[sequence, queries])
    begin, stop = visible(mask, shape, queries)
    seen = np.isfinite(rows[:, queries])
    columns = np.arange(n_kv)
    assert not seen[:, (columns < begin[:, None]) | (columns >= stop[:, None])].any()
    if sees_something(mask):
        assert (seen.any(axis=2) == (begin < stop)).all()


@pytest.mark.parametrize("mask", [mask_of("random"), mask_of("blocks"), mask_of("sparse")])
def test_random_masks_depend_only_on_the_seed(mask):
    shape = MaskShape(300, 200, 2, 5, 100)
    np.testing.assert_array_equal(whole(mask, shape), whole(mask, shape))
    assert not np.array_equal(whole(mask, shape), whole(mask, MaskShape(300, 200, 2, 6, 100)))
