"""Planted patterns come out first, whatever the noise."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fattn_probe.cases.scenario import expand, loads
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.verdict.diagnose.patterns import find_patterns, labellings

ARGS = tuple((name, value) for name, value in zip(
    ("DKQ", "DV", "ncols1", "ncols2", "softcap", "V_is_K_view", "sparse"),
    ("64", "64", "8", "4", "false", "false", "false"),
    strict=True,
))  # fmt: skip
SCENARIO = "version: 1\nabout: patterns\nhsk: 64\nn_head: 8\nn_head_kv: 2\nn_q: 100\nn_kv: 1024\nn_seq: 2\n"
(CASE,) = expand(loads(SCENARIO, "patterns.yaml"))
SHAPE = (2, 100, 8, 64)
LAUNCH = LaunchRecord(0, "flash_attn_ext_f16", ARGS, (54, 1, 1), (32, 4, 1), 0)
GEOMETRY = geometry_of(CASE.op, [LAUNCH], 90)
HIDDEN = np.zeros((2, 100, 16), bool)
HIDDEN[:, 40:60, 0] = True
HIDDEN[1, 10:13] = True
HIDDEN[:, :70, 15] = True
LABELLINGS = labellings(SHAPE, 4, GEOMETRY, HIDDEN)
TILE = GEOMETRY.indices(SHAPE[:3])[..., None]


def axis(number):
    shape = [1, 1, 1, 1]
    shape[number] = SHAPE[number]
    return np.arange(SHAPE[number]).reshape(shape)


SEQUENCE, QUERY, HEAD, D = map(axis, range(4))
SEAM = next(i for i, parts in enumerate(GEOMETRY.parts) if len(parts) == 2)
BLOCKS = [part.block for part in GEOMETRY.parts[SEAM]]
PLANTED = {
    "head 3": HEAD == 3,
    "heads >= 6": HEAD >= 6,
    "heads 1..2, 6": (HEAD == 1) | (HEAD == 2) | (HEAD == 6),
    "K/V head 1, the last of 2": HEAD // 4 == 1,
    "head 2 of each group of 4": HEAD % 4 == 2,
    "sequence 1": SEQUENCE == 1,
    "queries >= 64": QUERY >= 64,
    "queries < 20": QUERY < 20,
    "queries 30..49": (QUERY >= 30) & (QUERY < 50),
    "query 17": QUERY == 17,
    "query 99, the last of 100": QUERY == 99,
    "every 32nd query (query % 32 = 5)": QUERY % 32 == 5,
    "the last query of each tile of 8": QUERY % 8 == 7,
    "query tile 12, the last of 13": QUERY // 8 == 12,
    "d >= 32": D >= 32,
    "d 9": D == 9,
    "every 8th column (d % 8 = 5)": D % 8 == 5,
    "d % 8 in 4..7": D % 8 >= 4,
    "rows whose first KV tile is fully masked": HIDDEN[..., 0][..., None, None],
    "fully masked rows": np.all(HIDDEN, axis=2, keepdims=True)[..., None],
    "rows that see the last KV tile": ~HIDDEN[..., 15][..., None, None],
    f"the seam between blocks {BLOCKS[0]} and {BLOCKS[1]}": TILE == SEAM,
}


def noisy(where, hit, noise, seed):
    """Wrong elements: that share of those planted, and that share of all others."""
    where = np.broadcast_to(where, SHAPE)
    chance = np.random.default_rng(seed).random(SHAPE)
    return np.where(where, chance < hit, chance < noise)


def named(pattern):
    return {pattern.words, *pattern.also}


@pytest.mark.parametrize("words", PLANTED)
@settings(max_examples=3, phases=[Phase.generate])
@given(hit=st.floats(0.5, 1.0), noise=st.floats(0.0, 0.01), seed=st.integers(0, 1000))
def test_a_planted_pattern_comes_first(words, hit, noise, seed):
    first = find_patterns(noisy(PLANTED[words], hit, noise, seed), LABELLINGS)[0]
    assert words.removesuffix(", the last of 2") in {name.removesuffix(", the last of 2") for name in named(first)}
    assert first.precision == pytest.approx(hit, abs=0.15)


@settings(max_examples=20, phases=[Phase.generate])
@given(
    row=st.sampled_from(["head 3", "sequence 1", "queries >= 64", "the last query of each tile of 8"]),
    column=st.sampled_from(["d >= 32", "every 8th column (d % 8 = 5)"]),
    hit=st.floats(0.6, 1.0),
    seed=st.integers(0, 1000),
)
def test_rows_and_columns_are_joined(row, column, hit, seed):
    first = find_patterns(noisy(PLANTED[row] & PLANTED[column], hit, 0.001, seed), LABELLINGS)[0]
    parts = set(first.words.split(" of ", 1)) | {first.words}
    assert any(row in part for part in parts)
    assert column in first.words
    assert first.recall > 0.7


def test_two_causes_make_two_patterns():
    wrong = noisy(PLANTED["head 3"], 0.9, 0.0, 0) | noisy(PLANTED["every 8th column (d % 8 = 5)"], 0.9, 0.0, 1)
    words = [pattern.words for pattern in find_patterns(wrong, LABELLINGS)]
    assert set(words[:2]) == {"head 3", "every 8th column (d % 8 = 5)"}


@settings(max_examples=10, phases=[Phase.generate])
@given(share=st.floats(0.0, 1.0), seed=st.integers(0, 1000))
def test_noise_has_no_pattern(share, seed):
    assert find_patterns(noisy(np.array(False), 0, share, seed), LABELLINGS) == []


def test_an_entirely_wrong_output_has_no_pattern():
    assert find_patterns(np.ones(SHAPE, bool), LABELLINGS) == []
    assert find_patterns(np.zeros(SHAPE, bool), LABELLINGS) == []


def test_a_pattern_says_how_well_it_fits():
    first = find_patterns(noisy(PLANTED["head 3"], 0.5, 0.0, 0), LABELLINGS)[0]
    assert str(first) == "head 3; 50 % of it is wrong"
    whole = find_patterns(noisy(PLANTED["sequence 1"], 1.0, 0.0, 0), LABELLINGS)[0]
    assert str(whole).startswith("all of sequence 1")


def test_the_same_elements_in_other_words():
    first = find_patterns(np.broadcast_to(HEAD >= 4, SHAPE), LABELLINGS)[0]
    assert "heads >= 4" in named(first)
    assert "K/V head 1" in named(first)
