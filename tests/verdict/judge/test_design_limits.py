"""Where a design ends: an error at a limit is as designed, one beyond it is not, and each limit is what it says."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.verdict.measure import expected as limits
from fattn_probe.verdict.measure import verdict as verdicts
from fattn_probe.verdict.measure.expected import Expected, hold, model_units, predicted_rmse, rmse_limit, with_gaps
from fattn_probe.verdict.measure.verdict import Status, judge
from fattn_probe.verdict.truth.error_model.prediction import RMSE_LIMIT
from tests.verdict import made

SHAPE = (1, 100, 1, 4)
R = 2.0**-10
SIGN = np.where(np.arange(4) % 2, 1.0, -1.0)
REFERENCE = np.ones(SHAPE) * SIGN
"""Every row has the size 1, and no mean."""


def predicted(rmse=R, bound=2.0**-3, sampled=True):
    return made.predicted(SHAPE, rmse, bound, sampled)


def off(size, where=..., base=REFERENCE):
    dst = base.astype(np.float32)
    dst[where] += np.float32(size)
    return dst


def design(dst, prediction=None, model=None):
    return hold(dst, REFERENCE, Expected(lambda: prediction, model)).design


@pytest.mark.parametrize("sign", [1, -1])
def test_the_whole_output_may_have_twice_the_predicted_error(sign):
    at, beyond = design(off(2 * R * sign), predicted()), design(off(2.01 * R * sign), predicted())
    assert at.passes and at.rmse_by_predicted == 2.0 and at.predicted_rmse == R
    assert not beyond.passes and "the RMSE is 2.01 times" in beyond.reason
    assert "the RMSE is 2.01 times" in design(off(2.0137 * R * sign), predicted()).reason
    assert (RMSE_LIMIT, limits.ROW_LIMIT) == (2, 16)


@pytest.mark.parametrize("of_nan_rows", [0.0, 100 * R])
def test_rows_of_nan_count_neither_as_measured_nor_as_predicted(of_nan_rows):
    """As fully masked rows are: the other rows' error is compared with what is predicted of them."""
    prediction = predicted()
    prediction.row_rmse[0, 10:] = of_nan_rows
    right, wrong = (off(size * R) for size in (1.9, 2.1))
    for dst in (right, wrong):
        dst[0, 10:] = np.nan
    assert "the RMSE is" not in design(right, prediction).reason
    assert "the RMSE is 2.1 times" in design(wrong, prediction).reason


def test_one_row_may_have_16_times_its_predicted_error_and_its_rare_roundings_beside():
    at, beyond = design(off(16 * R, (0, 7)), predicted()), design(off(16.1 * R, (0, 7)), predicted())
    assert at.passes and at.row_rmse_by_predicted == 16 and at.rmse_by_predicted == 1.6
    assert not beyond.passes and beyond.reason == "a row's RMSE is 16.1 times its predicted RMSE"
    at, beyond = (design(off(size * R, (0, 7)), made.predicted(SHAPE, R, 2.0**-3, row_flips=R)) for size in (17, 17.1))
    assert at.passes and at.row_rmse_by_predicted == 16 and not beyond.passes


def test_one_element_may_be_at_its_bound_and_without_error_at_a_bound_of_zero():
    prediction = predicted(bound=8 * R)
    at, beyond = design(off(8 * R, (0, 7, 0, 1)), prediction), design(off(8.01 * R, (0, 7, 0, 1)), prediction)
    assert at.passes and at.error_by_bound == 1.0
    assert not beyond.passes and beyond.reason == "an error is 1.001 times its bound"
    prediction = predicted(bound=0.0)
    assert design(off(0.0), prediction).passes
    assert not design(off(R, (0, 7, 0, 1)), prediction).passes


def test_a_row_that_was_not_sampled_is_held_by_its_bound_only():
    prediction = predicted()
    prediction.sampled[0, 7] = False
    assert design(off(17 * R, (0, 7)), prediction).passes
    assert not design(off(17 * R, (0, 8)), prediction).passes
    prediction.bound[0, 7] = 16 * R
    assert not design(off(17 * R, (0, 7)), prediction).passes


def test_rows_of_their_own_have_their_own_rmse():
    prediction = predicted()
    prediction.row_rmse[0, :50] = 3 * R
    some = np.zeros(SHAPE[:3], bool)
    some[0, 49:51] = True
    assert predicted_rmse(prediction, some) == pytest.approx(np.sqrt(5) * R)
    assert predicted_rmse(prediction, ~some) == pytest.approx(np.sqrt(5) * R)
    some[0, 50] = False
    assert predicted_rmse(prediction, some) == 3 * R


def test_a_prediction_that_samples_rows_is_wider_by_its_standard_error():
    prediction, every = predicted(), np.ones(SHAPE[:3], bool)
    prediction.row_rmse[0, ::2] = 3 * R
    assert rmse_limit(prediction, every) == 2.0
    prediction.sampled[0, 2:] = False  # two rows are left, with squares 9 and 1: mean 5, deviation 4
    assert rmse_limit(prediction, every) == pytest.approx(2 * np.sqrt(1 + 5 * 4 / 5 / np.sqrt(2)))
    some = every.copy()
    some[0, 2:] = False
    assert rmse_limit(prediction, some) == 2.0
    prediction.row_rmse[0, :2] = 0.0
    assert rmse_limit(prediction, every) == 2.0
    assert rmse_limit(prediction, ~some) == 2.0


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_a_row_whose_elements_all_have_the_same_error_is_one_draw(rows, share):
    """Draws with the predicted variance are as designed; so are 5 deviations of one row, but not of many."""
    shape, draws = (1, rows, 1, 4), np.random.default_rng(0).standard_normal((20000, rows))
    prediction = made.predicted(shape, R, 1.0, common=share)
    limit = rmse_limit(prediction, np.ones(shape[:3], bool))
    assert limit == pytest.approx(np.sqrt(4 + share * 2 * (np.sqrt(X / rows) + X / rows)))
    assert (np.sqrt(1 - share + share * np.square(draws).mean(axis=1)) < limit).all() and limit < 6.7
    assert rows < 100 or limit < 2.3
    reference = np.ones(shape) * SIGN
    for times, passes in ((0.99 * limit, True), (1.01 * limit, False)):
        dst = (reference + times * R).astype(np.float32)
        assert hold(dst, reference, Expected(lambda: prediction)).design.passes == passes


def test_rows_that_are_one_draw_each_count_by_their_own_variance():
    prediction = made.predicted((1, 2, 1, 4), R, 1.0, common=np.array([1.0, 0.25]).reshape(1, 2, 1))
    limit = rmse_limit(prediction, np.ones((1, 2, 1), bool))
    assert limit == pytest.approx(np.sqrt(4 + np.sqrt(X * (1 + 1 / 16)) + X))


X = -np.log(1e-7)


@pytest.mark.parametrize(
    ("rmse", "bound", "sampled", "has_one"),
    [
        (R, 8 * R, True, True),
        (0.0, 0.0, True, True),
        (R, np.inf, True, True),
        (R, np.inf, False, False),
        (R, 8 * R, False, True),
        (np.nan, 8 * R, True, False),
        (np.inf, 8 * R, True, False),
        (float(np.finfo(np.float32).max), 8 * R, True, True),
        (1e39, 8 * R, True, False),
        (-R, 8 * R, True, False),
        (R, np.nan, True, False),
        (R, -R, True, False),
    ],
)
def test_a_row_with_a_prediction_has_a_number_and_a_limit(rmse, bound, sampled, has_one):
    prediction = predicted()
    prediction.row_rmse[0, 3], prediction.bound[0, 3, 0, 1], prediction.sampled[0, 3] = rmse, bound, sampled
    found = prediction.known
    assert found.sum() == 99 + has_one and found[0, 3, 0] == has_one


def test_the_wrong_elements_are_those_that_make_a_limit_fail():
    by_row = off(17 * R, (0, 7))
    by_row[0, 7, 0, 0] -= np.float32(16 * R)
    wrong = hold(by_row, REFERENCE, Expected(predicted)).deviation.wrong  # the row has 14.7 times its RMSE
    assert not wrong.any()
    by_row[0, 7, 0, 3] += np.float32(10 * R)
    wrong = hold(by_row, REFERENCE, Expected(predicted)).deviation.wrong
    assert np.argwhere(wrong).tolist() == [[0, 7, 0, 1], [0, 7, 0, 2], [0, 7, 0, 3]]
    every = off(2.2 * R)  # each row is above the limit of the whole, and so is the whole
    every[0, :50] -= np.float32(R)
    every[0, 50:] += np.float32(R)
    wrong = hold(every, REFERENCE, Expected(predicted)).deviation.wrong
    assert wrong[0, 50:].all() and not wrong[0, :50].any()


@pytest.mark.parametrize(("rmse", "status"), [(0.499, Status.PASS), (0.5, Status.UNJUDGED)])
def test_a_prediction_is_too_wide_if_an_output_of_zeros_is_within_it(rmse, status):
    dst = off(0.25)  # beyond the tolerance
    assert judge(dst, REFERENCE, Tolerance(), expected=Expected(lambda: predicted(rmse, bound=9.0))).status is status


def test_of_a_small_row_a_wide_prediction_decides():
    small = REFERENCE.copy()
    small[0, 3] *= 0.9e-3
    prediction = predicted()
    assert hold(off(R / 2, (0, 3), small), small, Expected(lambda: prediction)).too_wide.sum() == 0
    small[0, 3] *= 1.2
    found = hold(off(R / 2, (0, 3), small), small, Expected(lambda: prediction)).too_wide
    assert np.argwhere(found).tolist() == [[0, 3, 0]]


MODEL = off(R)
"""Its own error is R everywhere."""


@pytest.mark.parametrize(("share", "passes"), [(0.139, True), (0.141, False)])
def test_the_whole_output_may_differ_from_the_model_by_14_percent_of_its_error(share, passes):
    for sign in (1, -1):
        found = design((MODEL + np.float64(sign * share * R)).astype(np.float32), model=MODEL)
        assert found.passes == passes and found.off_model == pytest.approx(share, rel=1e-3)
    assert limits.MODEL_LIMIT == 0.14


@pytest.mark.parametrize(("share", "passes"), [(0.499, True), (0.501, False)])
def test_a_row_may_differ_from_the_model_by_half_its_error(share, passes):
    dst = MODEL.copy()
    dst[0, 7] += np.float32(share * R)
    found = design(dst, model=MODEL)
    assert found.passes == passes and found.row_off_model == pytest.approx(share, rel=1e-3)
    assert found.off_model == pytest.approx(share / 10, rel=1e-3) and found.equal_bits == 0.99


@pytest.mark.parametrize(("ulps", "passes"), [(3, True), (5, False)])
def test_from_a_model_without_error_four_ulps_are_ignored(ulps, passes):
    exact = np.full(SHAPE, 1.0, np.float32)
    dst = exact + np.float32(ulps * 2.0**-23)
    for where in ((...,), (0, 7)):
        some = exact.copy()
        some[where] = dst[where]
        found = hold(some, exact.astype(np.float64), Expected(model=exact))
        assert found.design.passes == passes
        assert found.deviation.wrong.any() != passes
    assert limits.LEAST_ULPS == 4


def test_the_elements_unlike_the_model_are_those_off_by_a_quarter_of_the_rows_error():
    dst = MODEL.copy()
    dst[0, 7, 0, 1] += np.float32(0.24 * R)
    dst[0, 7, 0, 2] -= np.float32(0.26 * R)
    found = hold(dst, REFERENCE, Expected(model=MODEL)).deviation
    assert np.argwhere(found.wrong).tolist() == [[0, 7, 0, 2]]
    assert found.unit.ravel() == pytest.approx(np.full(100, R), rel=1e-3)
    assert (found.base == MODEL).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_finite_in_one_of_the_two_only_is_unlike(value):
    dst = MODEL.copy()
    dst[0, 7, 0, 1] = value
    found = hold(dst, REFERENCE, Expected(model=MODEL))
    assert not found.design.passes and found.design.reason.startswith("1 elements are finite only")
    assert np.argwhere(found.deviation.wrong).tolist() == [[0, 7, 0, 1]]
    odd = MODEL.copy()
    odd[0, 7, 0, 1] = np.inf
    assert not hold(MODEL, REFERENCE, Expected(model=odd)).design.passes
    assert hold(odd, REFERENCE, Expected(model=odd)).design.passes


def half_modelled():
    """A model of the first half of the rows, a prediction of the first three quarters."""
    model, prediction = MODEL.copy(), predicted()
    model[0, 50:] = np.nan
    prediction.row_rmse[0, 75:] = np.nan
    return Expected(lambda: prediction, model)


def test_each_row_is_decided_by_the_model_else_by_the_prediction_else_by_neither():
    found = hold(MODEL, REFERENCE, half_modelled())
    assert found.design.passes and found.design.by == "model"
    assert found.left[0, 75:].all() and not found.left[0, :75].any()
    assert (found.deviation.base[0, :50] == MODEL[0, :50]).all()
    assert (found.deviation.base[0, 50:75] == REFERENCE[0, 50:75]).all()
    dst = MODEL.copy()
    dst[0, [10, 60, 80]] += np.float32(20 * R)  # far from all; the last is left to the tolerance
    found = hold(dst, REFERENCE, half_modelled())
    assert not found.design.passes
    assert sorted(set(np.argwhere(found.deviation.wrong)[:, 1].tolist())) == [10, 60]
    assert "the rounding model" in found.design.reason and "predicted RMSE" in found.design.reason
    by_row = {at: hold(off(20 * R, (0, at), MODEL), REFERENCE, half_modelled()) for at in (10, 60, 80)}
    assert [found.design.passes for found in by_row.values()] == [False, False, True]
    assert "predicted" not in by_row[10].design.reason and "rounding model" not in by_row[60].design.reason
    assert by_row[10].design.row_rmse_by_predicted == 1  # of the rows that the prediction decides
    assert by_row[60].design.off_model == 0.0 and by_row[60].design.row_rmse_by_predicted == pytest.approx(21, rel=0.01)


def test_rows_with_too_wide_a_prediction_are_a_part_of_their_own():
    expected = half_modelled()
    expected.prediction.row_rmse[0, 60:75], expected.prediction.bound[0, 60:75] = 0.6, 9.0
    dst = MODEL.copy()
    dst[0, [10, 55, 65]] += np.float32(20 * R)
    found = hold(dst, REFERENCE, expected)
    assert np.flatnonzero(found.too_wide).tolist() == list(range(60, 75))
    assert sorted(set(np.argwhere(found.deviation.wrong)[:, 1].tolist())) == [10, 55]
    assert found.deviation.unit[0, [55, 65], 0].tolist() == [R, 0.6]
    assert (
        "; 40 of 100 rows are within the tolerance; " in judge(MODEL, REFERENCE, Tolerance(), expected=expected).reason
    )


def test_the_predictions_numbers_stand_beside_those_of_a_model_that_decides_alone():
    prediction = replace(predicted(), mean_error=R)
    found = hold(MODEL, REFERENCE, Expected(lambda: prediction, MODEL)).design
    assert (found.by, found.off_model, found.rmse_by_predicted, found.predicted_mean_error) == ("model", 0, 1, R)
    assert found.why == prediction.why
    prediction.row_rmse[0, 3] = np.nan
    assert hold(MODEL, REFERENCE, Expected(lambda: prediction, MODEL)).design.rmse_by_predicted == 1
    expected = Expected(lambda: replace(prediction, mean_error=np.inf))
    assert hold(off(9.0), REFERENCE, expected).design.predicted_mean_error is None


def test_a_prediction_is_computed_only_where_it_decides_or_is_shown(monkeypatch):
    """A mean error is always compared with the prediction."""
    monkeypatch.setattr(verdicts, "BIASED", 2 * R)
    asked = Mock(side_effect=predicted)
    expected = Expected(asked, MODEL)
    assert with_gaps(expected).missing == ""
    found = judge(MODEL, REFERENCE, Tolerance(), expected=expected, predictions=False)
    assert found.status is Status.PASS and found.design.rmse_by_predicted is None and not asked.called
    for number, biased in enumerate((off(2 * R), off(-2 * R)), 1):
        judge(biased, REFERENCE, Tolerance(), expected=Expected(asked, MODEL), predictions=False)
        assert asked.call_count == number
    odd = MODEL.copy()
    odd[0, 3, 0, 1] = np.nan
    some = judge(MODEL, REFERENCE, Tolerance(), expected=Expected(asked, odd), predictions=False)
    assert some.design.rmse_by_predicted is not None and asked.call_count == 3


@pytest.mark.parametrize(
    ("error", "bound", "status"),
    [(0.125, 0.125, Status.PASS), (0.125, 0.12, Status.FAIL), (0.022, 0.02, Status.PASS)],
    ids=["at its bound", "beyond it", "with a small NMSE"],
)
def test_a_large_error_beyond_its_bound_fails_although_the_model_has_it_too(error, bound, status):
    """The model follows the kernel that was launched, which may be a wrong one."""
    wrong = off(error)
    for predictions in (True, False):
        expected = Expected(lambda: predicted(0.1, bound), wrong)
        found = judge(wrong, REFERENCE, Tolerance(), expected=expected, predictions=predictions)
        assert found.status is status
        if status is Status.FAIL:
            assert found.reason.startswith(
                "an error is 1.04 times its bound, although the output agrees with the rounding model"
            )
            assert found.deviation.wrong.all()


def test_the_deviation_is_from_what_decides():
    """Its unit is the row's predicted RMSE, or what the tolerance allows a row."""
    tight, dst = Tolerance(nmse=2.0**-22), off(R)
    found = judge(dst, REFERENCE, tight, expected=Expected(predicted))
    assert found.design.passes and found.status is Status.FAIL
    assert (found.deviation.unit == 2.0**-11).all() and found.deviation.wrong.any()
    found = judge(off(4 * R), REFERENCE, tight, expected=Expected(predicted))
    assert not found.design.passes and (found.deviation.unit == R).all()
    lacking = predicted()
    lacking.row_rmse[0, 3] = np.nan
    for dst, passes in ((off(R), True), (off(4 * R), False)):
        found = judge(dst, REFERENCE, tight, expected=Expected(lambda: lacking))
        assert found.design.passes == passes
        assert found.deviation.unit[0, 2:5, 0].tolist() == [R, 2.0**-11, R]
        assert found.deviation.wrong[0, 3].any()
    within = judge(off(R), REFERENCE, Tolerance(nmse=1.0), expected=Expected(predicted)).deviation
    assert (within.unit == R).all() and not within.wrong.any()


def test_rows_without_a_number_are_counted():
    said = with_gaps(replace(half_modelled(), missing="so")).missing.split("; ")
    assert said[0] == "so" and "no number for 25 of 100 rows" in said[1] and "NaN in 50 of 100 rows" in said[2]
    assert with_gaps(Expected(predicted, MODEL, "so")).missing == "so"
    one = MODEL.copy()
    one[0, 3, 0, 1] = np.nan
    missing = {with_gaps(expected).missing for expected in (Expected(model=one), Expected(predicted, one))}
    assert missing == {"the rounding model has NaN in 1 of 100 rows, which it leaves to the error model"}


def test_without_any_row_nothing_is_held():
    nothing = np.full(SHAPE, np.nan, np.float32)
    assert hold(MODEL, REFERENCE, Expected()) is None
    assert hold(MODEL, REFERENCE, Expected(model=nothing)) is None
    assert hold(MODEL, REFERENCE, Expected(lambda: predicted(np.nan), nothing)) is None
    assert hold(nothing, REFERENCE, Expected(model=nothing)).design.passes


def test_a_row_is_small_beside_the_root_mean_square_of_the_rows():
    answer = REFERENCE * np.where(np.arange(100) % 2, 4.0, 2.0)[None, :, None, None]  # sqrt(10) in all
    answer[0, 3], answer[0, 4] = 0.0035 * SIGN, 0.0025 * SIGN
    found = hold(answer.astype(np.float32), answer, Expected(lambda: predicted(0.01))).too_wide
    assert np.flatnonzero(found).tolist() == [3]
    zeros = np.zeros(SHAPE)
    assert not hold(zeros.astype(np.float32), zeros, Expected(predicted)).too_wide.any()


def test_wrong_are_errors_below_the_answer_too_and_of_a_wrong_row_those_beyond_twice_its_rmse():
    dst = off(-8.1 * R, (0, 7, 0, 1))
    dst[0, 7, 0, 2] += np.float32(7.9 * R)  # within its bound
    found = hold(dst, REFERENCE, Expected(lambda: predicted(bound=8 * R)))
    assert not found.design.passes and np.argwhere(found.deviation.wrong).tolist() == [[0, 7, 0, 1]]
    dst = off(0.0)
    dst[0, 7, 0] += np.array([40 * R, 2 * R, 2.5 * R, -3.5 * R], np.float32)
    assert np.argwhere(hold(dst, REFERENCE, Expected(predicted)).deviation.wrong)[:, 3].tolist() == [0, 2, 3]


def test_the_numbers_are_those_of_the_finite_elements():
    dst = np.full(SHAPE, np.nan, np.float32)
    dst[0, 7, 0, 1] = REFERENCE[0, 7, 0, 1] + R
    nothing = design(np.full_like(dst, np.nan), predicted())
    assert (nothing.error_by_bound, nothing.rmse_by_predicted, nothing.row_rmse_by_predicted) == (None, None, None)
    assert nothing.reason == "no element is finite"
    found = design(dst, predicted())
    assert (found.rmse_by_predicted, found.row_rmse_by_predicted) == (1.0, 0.5)
    assert found.error_by_bound == R / 2.0**-3 and found.reason.startswith("RMSE 1.00 times the prediction")


def test_a_models_unit_is_its_own_error_beside_what_is_ignored():
    eps = 2.0**-23
    answer = np.ones(SHAPE)
    answer[0, :50] = 3.0  # four ulps of it are three times as large
    model = (answer + 8 * eps).astype(np.float32)
    floor, unit, spread = model_units(answer, model, np.ones(SHAPE[:3], bool))
    assert floor[0, [0, 99], 0] == pytest.approx([12 * eps, 4 * eps])
    assert unit[0, [0, 99], 0] == pytest.approx([np.hypot(8, 24) * eps, np.hypot(8, 8) * eps])
    assert spread == pytest.approx(np.hypot(8, np.sqrt((144 + 16) / 2) / 0.14) * eps)
    last = np.arange(100)[None, :, None] >= 50
    assert model_units(answer, model, last)[2] == pytest.approx(np.hypot(8, 4 / 0.14) * eps)


def test_the_expected_error_is_as_designed_and_says_so():
    verdict = judge(MODEL, REFERENCE, Tolerance(), expected=Expected(predicted))
    assert verdict.status is Status.PASS and verdict.design.rmse_by_predicted == 1.0
    assert verdict.reason.startswith("as designed: RMSE 1.00 times the prediction, largest error 0.")
    assert verdict.design.why == "mma-f16 sums P.V in f16"


def test_a_model_that_is_zero_everywhere_has_no_error_to_measure_by():
    zeros = np.zeros(SHAPE)
    expected = Expected(model=zeros.astype(np.float32))
    assert hold(zeros.astype(np.float32), zeros, expected).design.passes
    found = hold(np.full(SHAPE, 1e-3, np.float32), zeros, expected).design
    assert not found.passes and found.off_model == np.inf
    assert found.reason.startswith("the output differs from the rounding model, whose own error is 0")
    dst, some = MODEL.copy(), REFERENCE.copy()
    dst[0, 0], some[0, 0] = 1e-3, 0.0
    reason = hold(dst, some, Expected(model=some.astype(np.float32))).design.reason
    assert reason.endswith("a row differs from the rounding model, whose own error is 0")


def with_other_bits(share):
    """An output that differs from the model by one bit in a share of the elements, far below its own error."""
    other = np.random.default_rng(1).random(SHAPE) < share
    return np.where(other, np.nextafter(MODEL, np.float32(9)), MODEL)


@pytest.mark.parametrize(("other", "warned"), [(0.0, False), (0.05, False), (0.72, True), (1.0, True)])
def test_a_share_of_bits_far_below_the_usual_warns_without_failing(other, warned):
    expected = Expected(predicted, MODEL, bit_exact=True)
    verdict = judge(with_other_bits(other), REFERENCE, Tolerance(), expected=expected)
    assert verdict.status is Status.PASS
    share = f"{100 * verdict.design.equal_bits:.2g} %"
    words = f"accuracy warning: {share} of the elements equal the rounding model in every bit; usually all do"
    assert verdict.reason.endswith(words) == warned
    assert verdict.accuracy.passes == (not warned)
    wrong = judge(off(1.5 * R), REFERENCE, Tolerance(), expected=expected)
    assert wrong.status is Status.FAIL and "differs from the rounding model" in wrong.reason
    assert "accuracy warning" not in wrong.reason


@pytest.mark.parametrize(
    "expected", [Expected(predicted, MODEL), Expected(predicted, bit_exact=True), Expected(bit_exact=True), None]
)
def test_a_share_of_bits_is_omitted_without_a_model_or_if_unknown(expected):
    assert judge(with_other_bits(0.72), REFERENCE, Tolerance(), expected=expected).accuracy.passes
