"""What follows from a wrong row by linear algebra, and what does not."""

from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.geometry import TilePart
from fattn_probe.verdict.diagnose.algebra import is_outside
from fattn_probe.verdict.diagnose.faults import causes_by_algebra
from fattn_probe.verdict.diagnose.row import Around, AttentionRow, WrongRow
from tests.made import case_of, shape

UNIT = 1e-6


@pytest.fixture(scope="module")
def rows():
    return rows_of(256)


def rows_of(n_kv):
    case = case_of(shape(64, 1, 1, 8, n_kv))
    inputs = make_inputs(case)
    places = [Around(case, inputs, 0, query, 0) for query in range(8)]
    return [(AttentionRow.of(around), around) for around in places]


def causes(rows, wrong, step=64, parts=()):
    """What is said of rows with other answers, each by `wrong(row, around)`."""
    examined = []
    for row, around in rows:
        base = row.output(row.logits)
        out = wrong(row, around)
        noise = UNIT * np.random.default_rng(0).standard_normal(out.shape) / 2
        which = np.abs(out - base) > 10 * UNIT
        examined.append(WrongRow(row, around, out + noise, base, which, step, parts, unit=UNIT))
    return [(said.cause.kind, said.cause.detail) for said in causes_by_algebra(examined, 1.0)]


def weighted(factors):
    """An answer whose KV rows have their weight times a factor, and no new sum."""
    return lambda row, around: (row.weights(row.logits) * factors(np.arange(len(row.V)))) @ row.V


def test_weights_by_kv_steps_slices_rows_and_shares(rows):
    found = causes(rows, weighted(lambda i: np.choose(i // 64, [1, 0, 1, 2.5])))
    assert found == [("kv-parts", "KV step 3: 2.5 times, KV step 1: left out, KV step 0, 2: 1 times")]
    found = causes(rows, weighted(lambda i: np.where(i // 16 % 4 == 2, 0.5, 1.0)))
    assert found == [("kv-parts", "slice n % 4 = 2: 0.5 times, slice n % 4 = 0..1, 3: 1 times")]
    found = causes(rows, weighted(lambda i: 1.0 + i % 2))
    assert found == [("weights", "KV row n % 2 = 1: 2 times, KV row n % 2 = 0: 1 times")]
    parts = (TilePart(0, 0, 3, 1, False), TilePart(1, 3, 4, 1, True))
    found = causes(rows, weighted(lambda i: np.where(i < 192, 1.0, 3.0)), parts=parts)
    assert found == [("share", "share 1: 3 times, share 0: 1 times")]


def test_another_rows_share(rows):
    parts = (TilePart(0, 0, 2, 1, False), TilePart(1, 2, 4, 1, True))
    other = rows[0][0]

    def wrong(row, around):
        first = np.arange(256) < 128
        return (row.weights(row.logits) * first) @ row.V + (other.weights(other.logits) * ~first) @ other.V

    found = causes(rows[1:], wrong, parts=parts)
    assert found == [("share", "that of query 0")]


def test_slices_of_v_with_the_weights_of_others(rows):
    def wrong(row, around):
        p = row.weights(row.logits).reshape(-1, 4, 16)
        return p[:, [0, 0, 1, 2]].ravel() @ row.V

    found = causes(rows, wrong)
    assert [kind for kind, _ in found] == ["kv-parts"]


def test_weights_that_no_sets_share_are_met_with_silence_if_there_are_more_rows_than_columns(rows):
    factors = np.random.default_rng(1).uniform(0.5, 1.5, 256)
    assert causes(rows, weighted(lambda i: factors / factors.mean())) == []


def test_single_weights_if_there_are_fewer_rows_than_columns():
    factors = np.random.default_rng(1).choice([0.5, 1.5], 40)
    factors[3:9] = 1.0
    (found,) = causes(rows_of(40), weighted(lambda i: factors))
    assert found == ("weights", "KV rows 0..2, 9..39")


def test_no_sum_of_v_if_there_are_few_rows():
    rows = rows_of(30)
    assert [kind for kind, _ in causes(rows, lambda row, around: np.roll(row.output(row.logits), 1))] == ["v-sum"]


def test_some_columns(rows):
    def wrong(row, around):
        out = row.output(row.logits)
        out[48:] = row.V[7, 48:] / 8
        return out

    assert causes(rows, wrong) == [("columns", "d 48..63")]


def test_columns_with_small_errors_do_not_make_the_others_right(rows):
    def wrong(row, around):
        error = np.where(np.arange(64) < 16, 9 * UNIT, 30 * UNIT)
        return row.output(row.logits) + error * np.random.default_rng(4).choice([-1, 1], 64)

    assert causes(rows, wrong) == []


def test_outside_of_the_hull(rows):
    assert [kind for kind, _ in causes(rows, lambda row, around: 9 * row.V[5] + row.V[100])] == ["outside"]


def test_columns_of_the_product_that_are_left_out(rows):
    def wrong(row, around):
        other = replace(row, raw=around.raw(np.where(np.arange(64) < 48, row.K, 0.0)))
        return other.output(other.logits)

    assert causes(rows, wrong) == [("k-columns", "d 48..63: left out")]


@pytest.mark.parametrize("same", [True, False])
def test_columns_of_the_product_with_other_values(rows, same):
    """Other values of Q, the same for all rows of K, or of K."""
    wrong, order = np.arange(64) % 8 >= 4, np.random.default_rng(2).permuted(np.tile(np.arange(64), (256, 1)), axis=1)

    def other(row, around):
        K = np.take_along_axis(row.K, order, axis=1)
        q = np.where(wrong, np.random.default_rng(2).standard_normal(64), around.q)
        raw = row.K @ q if same else np.where(wrong, K, row.K) @ around.q
        changed = replace(row, raw=raw * around.case.op.params.stored.scale)
        return changed.output(changed.logits)

    assert causes(rows, other) == ([("k-columns", "d % 8 in 4..7")] if same else [])


def test_k_of_the_first_warp(rows):
    def wrong(row, around):
        i = np.arange(256)
        other = replace(row, raw=row.raw[i - i % 64 + i % 16])
        return other.output(other.logits)

    assert causes(rows, wrong) == [("k-elsewhere", "slices of 16 KV rows, 4 warps: that of the first warp")]


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_a_statement_holds_for_half_of_all_rows(rows, share):
    wrong = int(share * len(rows))
    lost = weighted(lambda i: i // 64 != 1)
    noise = np.random.default_rng(3).standard_normal(64)
    numbers = {id(row): number for number, (row, _) in enumerate(rows)}

    def some(row, around):
        return lost(row, around) if numbers[id(row)] < wrong else row.output(row.logits) + 0.01 * noise

    assert [kind for kind, _ in causes(rows, some)] == (["kv-parts"] if share > 0.5 else [])


def test_noise_is_met_with_silence(rows):
    noise = np.random.default_rng(3).standard_normal(64)
    assert causes(rows, lambda row, around: row.output(row.logits) + 0.01 * noise) == []


def test_hull():
    square = np.array([[0.0, 0], [1, 0], [0, 1], [1, 1]])
    slack = np.full(2, 1e-9)
    assert not is_outside(square, np.array([0.3, 0.9]), slack)
    assert is_outside(square, np.array([0.3, 1.1]), slack)
    assert is_outside(square[:3], np.array([0.6, 0.6]), slack)
    assert not is_outside(square[:3], np.array([0.6, 0.6]), np.full(2, 0.2))
