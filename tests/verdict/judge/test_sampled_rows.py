"""Which rows of a large output are checked exactly, the verdict from them, and how far others may lie from V's hull."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.selection import Selection, rows_of_tiles
from fattn_probe.verdict.measure import sampled
from fattn_probe.verdict.measure.expected import Expected
from fattn_probe.verdict.measure.metrics import POISON, Coordinate
from fattn_probe.verdict.measure.sampled import Sampled, judge_sample, rows_of, rows_of_selection, sampled_of
from fattn_probe.verdict.measure.verdict import Status
from fattn_probe.verdict.truth.reference.adapter import reference_of
from fattn_probe.verdict.truth.reference.sampled import Sample, choose_rows, sample
from tests.made import case_with, launch_of
from tests.verdict import made
from tests.verdict.judge.test_no_prediction import WITHOUT_MASK


def case_of(**fields):
    return case_with(**{"hsk": 128, "n_q": 40, "n_kv": 1000, "n_head": 8, "n_head_kv": 2} | fields)


def geometry_for(case, blocks):
    """Tiles of 8 queries and 4 heads; stream-K among so many blocks."""
    launch = launch_of("flash_attn_ext_f16<128, 128, 8, 4, false, false, false>", (blocks, 1, 1))
    return geometry_of(case.op, [launch], 90)


def test_first_and_last_rows_and_both_sides_of_seams_of_tiles_and_blocks_are_checked_in_each_head():
    case = case_of()
    least = rows_of(case, geometry_for(case, 1), 1)  # no random rows
    heads = [set(least[least[:, 2] == head][:, 1].tolist()) for head in range(case.op.sizes.n_head)]
    assert set.intersection(*heads) == {0, 7, 8, 15, 16, 23, 24, 31, 32, 39}
    assert len(least) == 80
    assert rows_of(case, None, 1)[:, 1].tolist() == [0] * 8 + [39] * 8
    without, shared = (rows_of(case, geometry_for(case, blocks), 1) for blocks in (1, 3))
    assert {tuple(row) for row in shared.tolist()} == {tuple(row) for row in without.tolist()}  # ends of tiles
    groups = case_of(n_q=20, n_head=12)  # the second tile of a group has two heads, the third of queries four
    found = list(sampled._block_seams(groups, geometry_for(groups, 5)))  # they share tiles 2, 4, 7 and 9 of 12
    assert found == [(0, 16, 0), (0, 19, 3), (0, 8, 4), (0, 15, 5), (0, 8, 6), (0, 15, 9), (0, 0, 10), (0, 7, 11)]


def test_a_number_of_rows_is_kept_to_if_it_is_more_than_the_required():
    case = case_of()
    least = {tuple(row) for row in rows_of(case, None, 1).tolist()}
    for number, expected in ((1, 16), (16, 16), (17, 17), (100, 100), (320, 320), (9999, 320)):
        rows = rows_of(case, None, number)
        assert len(rows) == expected == len(np.unique(rows, axis=0))
        assert least <= {tuple(row) for row in rows.tolist()}
        assert (rows >= 0).all() and (rows < (1, 40, 8)).all()
        assert (np.lexsort(rows.T[::-1]) == np.arange(len(rows))).all()
    assert (rows_of(case, None, 50) == rows_of(case, None, 50)).all()
    assert len(rows_of(case_of(n_q=1_000_000), None)) == 8 * (2 + 8)  # eight at random of each head


def selection(*tiles):
    return Selection((), np.array(tiles), np.array(tiles), 0)


def test_of_a_chosen_tile_the_first_and_the_last_row_are_checked():
    case = case_of()
    geometry = geometry_for(case, 3)
    rows = rows_of_selection(case, geometry, selection(1, 6))
    assert {(0, 8, 0), (0, 15, 3), (0, 8, 4), (0, 15, 7)} <= {tuple(row) for row in rows.tolist()}
    many = case_of(n_q=1000)
    assert len(rows_of_selection(many, geometry_for(many, 3), selection(*range(0, 250, 10)))) > 25 * 3.8
    assert len(rows) <= 12  # the ends, two others of each, and the heads between the ends
    inside = {tuple(row) for row in rows_of_tiles(geometry, case.op.sizes, np.array([1, 6])).tolist()}
    for number in (1, 4, 12, 30, 64, 9999):
        more = rows_of_selection(case, geometry, selection(1, 6), number)
        assert {tuple(row) for row in more.tolist()} <= inside
        assert len(more) == min(max(number, 8), 64)  # the ends, and a row of each head between them
    two = case_of(n_seq=2)
    assert len(rows_of_selection(two, geometry_for(two, 3), selection(6, 11), 9999)) == 64  # a tile of each sequence


@pytest.mark.parametrize("number", [None, 1, 9])
def test_each_head_of_a_tile_has_a_row_that_is_checked(number):
    """A head without one had no bound of its errors, and its rows failed where f16 sums lose most of the answer."""
    case = case_of(n_seq=2, n_q=400, n_head=32, n_head_kv=4)  # two tiles for the eight heads of a K/V head
    geometry = geometry_for(case, 3)
    for tiles, complete in ([0], [0]), ([0], [0, 50]), ([0, 77], [0, 77]), ([60], [60, 110]), ([60], [60, 300]):
        rows = rows_of_selection(case, geometry, Selection((), np.array(tiles), np.array(complete), 0), number)
        computed = rows_of_tiles(geometry, case.op.sizes, np.array(complete))
        chosen = rows_of_tiles(geometry, case.op.sizes, np.array(tiles))
        groups = {(seq, head // 8) for seq, _, head in chosen.tolist()}
        expected = {(seq, head) for seq, _, head in computed.tolist() if (seq, head // 8) in groups}
        assert {(seq, head) for seq, _, head in rows.tolist()} == expected
        assert len(np.unique(rows, axis=0)) == len(rows)


def test_what_was_checked_is_counted():
    case, rows = case_of(n_seq=2), np.zeros((5, 3), np.int64)
    ran = SimpleNamespace(launches=(None, SimpleNamespace(number=3, of=7)), attention=1)
    part: Any = SimpleNamespace(selection=ran, rows=np.zeros((32, 3)))
    assert sampled_of(case, rows, None, Target("sim")) == Sampled(5, 640)
    assert sampled_of(case, rows, part, Target("sim")) == Sampled(5, 640, 3, 7, 32)
    assert sampled_of(case, rows, part, Target("cpu")) == Sampled(5, 640, complete=32)
    some = str(Sampled(5, 640, 3, 7, 32))
    assert some.startswith("ran 3 of 7 blocks of the attention kernel, checked 5 of 640 rows") and "27 other" in some
    assert str(Sampled(5, 640, complete=32)).startswith("checked 5 of 640 rows exactly, in the first")


HULL = (1, 1, 4)
LOW, HIGH = np.full(HULL, -4.0), np.full(HULL, 1.0)
ONE = Sample(np.array([(0, 0, 0)]), np.full((1, 4), 0.5), np.zeros(1), LOW, HIGH)
"""The first row is sampled and right."""


def judged(value, expected=None, tolerance=None, low=LOW, high=HIGH, **more):
    """Of two rows, an element of the second has a value."""
    dst = np.full((1, 2, 1, 4), 0.5, np.float32)
    dst[0, 1, 0, 2] = value
    return judge_sample(
        WITHOUT_MASK, dst, replace(ONE, low=low, high=high), expected, tolerance or Tolerance(nmse=1.0 / 256), **more
    )


def test_a_row_that_is_not_sampled_may_be_outside_the_hull_by_the_tolerance_if_it_was_computed():
    assert judged(1.25).status is Status.PASS  # 1/16 of the largest |V|, 4
    assert judged(1.26).status is Status.FAIL
    assert judged(-4.25).status is Status.PASS
    assert judged(-4.26).status is Status.FAIL
    assert judged(1.26, low=-HIGH, high=-LOW).status is Status.PASS  # within it
    assert judged(4.26, low=-HIGH, high=-LOW).status is Status.FAIL
    assert judged(-1.26, low=-HIGH, high=-LOW).status is Status.FAIL
    assert judged(9.0, among=np.array([(0, 0, 0)])).status is Status.PASS
    assert judged(9.0, among=np.array([(0, 0, 0), (0, 1, 0)])).status is Status.FAIL


def test_the_largest_value_of_a_head_allows_all_its_channels_and_unwritten_elements_are_counted():
    low = np.array([[[-4.0, -1, -1, -1]]])
    assert judged(1.25, low=low).status is Status.PASS  # its own channel has no value above 1
    assert judged(1.26, low=low).status is Status.FAIL
    dst = np.full((1, 2, 2, 4), 0.5, np.float32)
    dst[0, 1, 1, 2] = 1.25
    sample = replace(ONE, low=np.concatenate([low, np.full((1, 1, 4), -1.0)], axis=1), high=np.ones((1, 2, 4)))
    assert judge_sample(WITHOUT_MASK, dst, sample, None, Tolerance(nmse=1 / 256)).status is Status.FAIL
    poison = np.uint32(POISON).view(np.float32)
    found = judged(poison)
    assert "1 elements never written" in found.reason and not found.only_masked_nan
    dst = np.full((1, 3, 1, 4), poison, np.float32)
    dst[0, 0] = 0.5
    some = judge_sample(WITHOUT_MASK, dst, ONE, None, Tolerance(), among=np.array([(0, 0, 0), (0, 1, 0)]))
    assert "; 4 elements never written" in some.reason
    assert "; 8 elements never written" in judge_sample(WITHOUT_MASK, dst, ONE, None, Tolerance()).reason


def predicted(bound):
    return Expected(lambda: made.predicted((1, 1, 1, 4), bound=bound))


def test_with_a_prediction_the_largest_bound_of_a_heads_sampled_rows_counts_for_it():
    assert judged(1.5, predicted(0.5)).status is Status.PASS
    assert judged(1.51, predicted(0.5)).status is Status.FAIL
    assert judged(1.2, predicted(0.1)).status is Status.FAIL
    assert judged(1.25, predicted(np.inf)).status is Status.PASS
    assert judged(1.26, predicted(np.inf)).status is Status.FAIL
    rows = np.array([(0, 0, 0), (0, 0, 1), (0, 1, 0)])
    expected = Expected(lambda: made.predicted((1, 3, 1, 4), bound=np.array([0.1, 0.2, 0.5])[None, :, None, None]))
    sample = Sample(rows, np.full((3, 4), 0.5), np.zeros(3), np.full((1, 2, 4), -1.0), np.ones((1, 2, 4)))
    for head, most in ((0, 0.5), (1, 0.2)):
        for value, status in ((0.99 * most, Status.PASS), (1.01 * most, Status.FAIL)):
            dst = np.full((1, 3, 2, 4), 0.5, np.float32)
            dst[0, 2, head, 1] = 1 + value
            assert judge_sample(WITHOUT_MASK, dst, sample, expected, Tolerance()).status is status


def test_a_wrong_sampled_row_and_an_odd_one_are_both_named():
    dst = np.full((1, 2, 1, 4), 0.5, np.float32)
    dst[0, 0], dst[0, 1] = 0.9, 9.0
    found = judge_sample(WITHOUT_MASK, dst, ONE, None, Tolerance(nmse=1e-3))
    assert found.reason.startswith("1 rows (sequence, query, head: (0, 1, 0)) are not finite, or outside")
    assert "; NMSE 6.40e-01 is above the tolerance" in found.reason
    dst[0, 0] = 0.5
    found = judge_sample(WITHOUT_MASK, dst, ONE, None, Tolerance(nmse=1e-3))
    assert found.status is Status.FAIL and found.reason.endswith("V's convex hull")


def test_zeros_are_plausible_only_in_fully_masked_rows():
    case = case_of(n_q=4, n_kv=64, n_head=1, n_head_kv=1, mask={"kind": "masked_rows", "every": 4, "first": 1})
    high = np.full((1, 1, 128), 2.0)
    dst = np.full((1, 4, 1, 128), 1.5, np.float32)
    sample = Sample(np.array([(0, 0, 0)]), np.full((1, 128), 1.5), np.zeros(1), 0.5 * high, high)
    dst[0, 1] = 0.0
    assert judge_sample(case, dst, sample, None, Tolerance(nmse=1e-6)).status is Status.PASS
    dst[0, 1, 0, 3] = 1e-30
    assert judge_sample(case, dst, sample, None, Tolerance(nmse=1e-6)).status is Status.FAIL
    dst[0, 1], dst[0, 2] = 1.5, 0.0
    assert judge_sample(case, dst, sample, None, Tolerance(nmse=1e-6)).status is Status.FAIL
    dst[0, 1] = 0.0
    found = judge_sample(case, dst, sample, None, Tolerance(nmse=1e-6))
    assert found.status is Status.FAIL and "1 rows (sequence, query, head: (0, 2, 0))" in found.reason


@pytest.mark.parametrize(("number", "words"), [(3, "(0, 2, 0))"), (4, "(0, 2, 0), ...)")])
def test_of_many_rows_three_are_listed(number, words):
    rows = np.array([(0, query, 0) for query in range(number)])
    assert sampled._listed(rows) == f"{number} rows (sequence, query, head: (0, 0, 0), (0, 1, 0), {words}"


def test_zeros_in_any_number_of_fully_masked_rows_are_plausible():
    case = case_of(n_q=400, n_kv=64, n_head=1, n_head_kv=1, mask={"kind": "masked_rows", "every": 2})
    high = np.full((1, 1, 128), 2.0)
    dst = np.full((1, 400, 1, 128), 1.5, np.float32)
    dst[0, ::2] = 0.0
    sample = Sample(np.array([(0, 1, 0)]), np.full((1, 128), 1.5), np.zeros(1), 0.5 * high, high)
    assert judge_sample(case, dst, sample, None, Tolerance(nmse=1e-6)).status is Status.PASS
    for query, least in ((3, "at least "), (131, "at least "), (399, "")):
        wrong = dst.copy()
        wrong[0, query] = 0.0
        found = judge_sample(case, wrong, sample, None, Tolerance(nmse=1e-6))
        assert found.status is Status.FAIL and found.reason.startswith(
            f"{least}1 rows (sequence, query, head: (0, {query}"
        )


@pytest.fixture(scope="module")
def case():
    return case_of(hsk=32, n_q=200, n_kv=300, n_head=4, mask={"kind": "causal"}, tolerance={"nmse": 1e-6})


@pytest.fixture(scope="module")
def rows(case):
    return sample(case, choose_rows(case, random=2))


@pytest.fixture
def dst(case):
    return reference_of(case.op, make_inputs(case)).astype(np.float32)


def test_a_sampled_row_that_is_wrong_has_its_own_coordinates(case, rows, dst):
    verdict = judge_sample(case, dst, rows)
    assert verdict.status is Status.PASS and f"sampled: {len(rows.rows)} of 800 rows" in verdict.reason
    dst[0, 199, 3] *= np.float32(1.1)
    verdict = judge_sample(case, dst, rows)
    assert verdict.status is Status.FAIL
    assert "(0, 199, 3)" in verdict.reason
    assert (verdict.metrics.worst.query, verdict.metrics.worst.head) == (199, 3)
    assert f"sequence 0, query 199, head 3, d {verdict.metrics.worst.d}" in verdict.reason


def place(row):
    sequence, query, head = map(int, row)
    return Coordinate(sequence, query, head, 2)


def test_coordinates_in_a_reason_are_data_not_text(case, dst):
    """They were put into the text by replacing: here the place of the error was then replaced by that of the NaN."""
    rows = sample(case, choose_rows(case, random=20))
    number = len(rows.rows)
    worst = next(at for at in rows.rows if at[2] == 0 and at[1] < number and tuple(rows.rows[at[1]]) != tuple(at))
    first_bad = rows.rows[worst[1]]  # in the sample, its coordinates are the error's in the output
    dst[(*worst, 2)] = 9.0
    dst[(*first_bad, 2)] = np.nan
    verdict = judge_sample(case, dst, rows, tolerance=Tolerance(nmse=1e-6, max_abs=1e-3))
    assert verdict.metrics.worst == place(worst)
    assert verdict.metrics.first_bad == place(first_bad)
    assert f"first at {verdict.metrics.first_bad}" in verdict.reason
    assert f"at {verdict.metrics.worst}" in verdict.reason
