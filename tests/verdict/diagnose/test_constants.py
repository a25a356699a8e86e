"""Each number of a diagnosis names the test that pins it: those without a whole diagnosis; planted patterns."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.verdict.diagnose import constants, patterns
from fattn_probe.verdict.diagnose import kv_faults as kv
from fattn_probe.verdict.diagnose import read_faults as read
from fattn_probe.verdict.diagnose import score_faults as score
from fattn_probe.verdict.diagnose.algebra import no_average
from fattn_probe.verdict.diagnose.faults import agreed
from fattn_probe.verdict.diagnose.patterns import Labelling, code_length, find_patterns, label_sets, labellings
from fattn_probe.verdict.diagnose.row import Around, AttentionRow, Candidate, Cause, Moves, WrongRow, fitting
from tests.made import case_of, launch_of

QUERIES = "version: 1\nabout: many queries of one head\nhsk: 64\nn_head: 1\nn_q: 100\nn_kv: 64\n"
AROUND: Any = SimpleNamespace(scale=1.0)


def test_each_constant_names_a_test():
    tests = "".join(path.read_text() for path in Path(__file__).parents[2].rglob("test_*.py"))
    named = dict(re.findall(r"(?m)^([A-Z][A-Z0-9_]+) = .*?  # (test_\w+)$", Path(constants.__file__).read_text()))
    assert set(named) == {name for name in vars(constants) if name.isupper()}
    assert [test for test in named.values() if f"def {test}(" not in tests] == []


def test_a_search_has_a_limit_of_work():
    K = np.zeros((1 << 14, 128))
    row = WrongRow(AttentionRow(K, K, K[:, 0], K[:, 0], 0.0, None), None, K[0], K[0], K[0] > 0)
    assert (row.affords(64), row.affords(65)) == (True, False)


def wrong_row(V, out, base, unit=0.0, mask=0.0, raw=0.0):
    """A wrong row of values V (n_kv, hsv), with equal weights unless there are other logits."""
    V, zeros = np.array(V, np.float64), np.zeros(len(V))
    row = AttentionRow(np.zeros_like(V), V, zeros + raw, zeros + mask, 0.0, None)
    return WrongRow(row, AROUND, np.array(out), np.array(base), np.array(out) != base, unit=unit)


def is_explained(left):
    """By a cause that leaves this share of the square error."""
    moves = Moves(np.array([[1.0, left**0.5, 0.0]]), lambda index, factor: Cause("k", "w", ""))
    return bool(fitting(np.array([1.0, 0.0, 0.0]), [moves]))


def is_explained_by_many(left):
    wrong = wrong_row([[0.0, 0.0]], out=[1.0, 0.0], base=[0.0, 0.0], unit=1.0)
    return wrong.explained(np.array([1.0 - left, 0.0]), many=True)


def is_left_out(weight):
    said = kv._weighted(np.ones((1, 2)), np.zeros(1), lambda index: Cause("", "a row", "")).say(0, weight - 1)
    return "left out" in said.words


def is_added_twice(factor):
    logits, mask = np.array([0.3, 0.1, -0.2]), np.array([0.0, -0.3, -0.9])
    row = wrong_row([[1.0], [-1.0], [0.5]], [0.0], [0.0], mask=mask, raw=logits).row
    wrong = WrongRow(row, AROUND, row.output(logits + factor * mask), row.out, np.ones(1, np.bool_))
    (found,) = [one for moves in score.searched(wrong) if (one := moves.say(0, 1.0)).kind == "mask-scale"]
    assert found.factor == pytest.approx(factor, abs=1e-6)
    return "it is added twice" in found.detail


def agree(kind, *factors):
    rows = [[Candidate(Cause(kind, "words", "", factor=factor), 0.0)] for factor in factors]
    return [said.cause.kind for said in agreed(rows)] == [kind]


def is_all_but_one(labels):
    wrong = np.where(np.arange(labels) == labels // 2, 0, 50)
    return labels - 1 in [len(chosen) for chosen, _, _ in label_sets(wrong, np.full(labels, 50), (0, 0), False)]


@pytest.mark.parametrize(
    ("holds", "inside", "outside"),
    [
        (is_explained, 0.9e-4, 1.1e-4),  # EXPLAINED
        (is_explained_by_many, 0.019, 0.021),  # LEFT_OF_MANY
        (is_left_out, 0.09, 0.11),  # WHOLE
        (is_added_twice, 2.0058, 2.0062),  # NAMED
        (lambda off: agree("output-scale", 2 - off, 2.0, 2 + off), 0.0039, 0.0041),  # FINE
        (lambda off: agree("scale", 1.01 - off, 1.01, 1.01 + off), 0.00079, 0.00081),  # NEAR_ONE
        (lambda o: not list(no_average(wrong_row([[-1.0], [1.0]], out=[o], base=[0.0]))), 1.00095, 1.00101),  # F16_ULP
        (is_all_but_one, 24, 25),  # FEW
    ],
)
def test_a_number_is_a_limit(holds, inside, outside):
    assert holds(inside) and not holds(outside)


def test_queries_nearby_are_searched():
    case = case_of(QUERIES)
    around = Around(case, make_inputs(case), 0, 50, 0)
    row = AttentionRow.of(around)
    wrong = WrongRow(row, around, row.out, row.out, np.zeros(64, np.bool_))
    assert [name for name, _ in read.other_Q(wrong)] == [f"query {q}" for q in range(18, 83) if q != 50]


def halves(queries, bits):
    """The property of being in the first or the second half of the queries."""
    labels = (np.arange(queries) >= queries // 2).astype(np.int64)[None, :, None]
    return Labelling("rows", labels, 2, lambda chosen: f"half {chosen}", bits)


@pytest.mark.parametrize(("queries", "bits", "share"), [(60, 12.0, 0.0), (400, 0.0, 0.15)], ids=["LEAST_BITS", "WORTH"])
def test_a_pattern_saves_some_bits_and_a_share_of_them(queries, bits, share):
    wrong = (np.arange(queries) < queries // 2)[None, :, None, None]
    least = bits + share * float(code_length(np.array(wrong.sum()), np.array(wrong.size)))
    (free,) = find_patterns(wrong, [halves(queries, 0.0)])
    assert [len(find_patterns(wrong, [halves(queries, free.saved - least + more)])) for more in (-0.1, 0.1)] == [1, 0]


@pytest.mark.parametrize(("rest", "found"), [(58, 1), (62, 0)])
def test_a_pattern_is_denser_than_the_whole(rest, found):
    wrong = np.zeros((1, 100, 1, 20), np.bool_)
    wrong[0, :50] = True
    wrong[0, 50:].flat[: 10 * rest] = True  # `rest` per cent of a half; of the whole, half of that and of 100
    assert len(find_patterns(wrong, [halves(100, 1.0)])) == found


def test_the_search_for_patterns_extends_six_regions(monkeypatch):
    """Three conditions: one region, then six twice."""
    queries, d, inside = np.arange(64)[None, :, None], np.arange(16), Mock(side_effect=patterns._inside)
    properties = [Labelling("rows", (queries >> bit & 1).astype(np.int64), 2, str) for bit in range(6)]
    properties += [Labelling("columns", d >> bit & 1, 2, str) for bit in range(4)]
    wrong = (queries % 4 == 3)[..., None] & (d % 2 == 1)
    wrong |= np.random.default_rng(0).random(wrong.shape) < 0.05

    monkeypatch.setattr(patterns, "_inside", inside)
    find_patterns(wrong, properties)
    assert [len(region.named) for (region, *_), _ in inside.call_args_list[:13]] == [0, *[1] * 6, *[2] * 6]


SCENARIO = "version: 1\nabout: patterns\nhsk: 64\nn_head: 8\nn_head_kv: 2\nn_q: 100\nn_kv: 1024\nn_seq: 2\n"
CASE = case_of(SCENARIO)
SHAPE = (2, 100, 8, 64)
LAUNCH = launch_of("flash_attn_ext_f16<64, 64, 8, 4, false, false, false>", (54, 1, 1))
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
BLOCKS = list(GEOMETRY.parts[SEAM])
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
@settings(max_examples=2, phases=[Phase.generate])
@given(hit=st.floats(0.5, 1.0), noise=st.floats(0.0, 0.01), seed=st.integers(0, 1000))
def test_a_planted_pattern_comes_first(words, hit, noise, seed):
    first = find_patterns(noisy(PLANTED[words], hit, noise, seed), LABELLINGS)[0]
    assert words.removesuffix(", the last of 2") in {name.removesuffix(", the last of 2") for name in named(first)}
    assert first.precision == pytest.approx(hit, abs=0.15)


@settings(max_examples=8, phases=[Phase.generate])
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


@settings(max_examples=10, phases=[Phase.generate])
@given(share=st.floats(0.0, 1.0), seed=st.integers(0, 1000))
def test_noise_has_no_pattern(share, seed):
    assert find_patterns(noisy(np.array(False), 0, share, seed), LABELLINGS) == []


def test_a_pattern_says_how_well_it_fits_and_in_which_other_words_and_two_causes_make_two():
    for wrong in (np.ones(SHAPE, bool), np.zeros(SHAPE, bool)):
        assert find_patterns(wrong, LABELLINGS) == []
    assert str(find_patterns(noisy(PLANTED["head 3"], 0.5, 0.0, 0), LABELLINGS)[0]) == "head 3; 50 % of it is wrong"
    whole = find_patterns(noisy(PLANTED["sequence 1"], 1.0, 0.0, 0), LABELLINGS)[0]
    assert str(whole).startswith("all of sequence 1")
    assert {"heads >= 4", "K/V head 1"} <= named(find_patterns(np.broadcast_to(HEAD >= 4, SHAPE), LABELLINGS)[0])
    wrong = noisy(PLANTED["head 3"], 0.9, 0.0, 0) | noisy(PLANTED["every 8th column (d % 8 = 5)"], 0.9, 0.0, 1)
    words = [pattern.words for pattern in find_patterns(wrong, LABELLINGS)]
    assert set(words[:2]) == {"head 3", "every 8th column (d % 8 = 5)"}
