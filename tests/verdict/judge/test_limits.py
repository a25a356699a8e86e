"""Limits hold an output at the limit, and not beyond; of each limit the output, one row, one element."""

import numpy as np
import pytest

from fattn_probe.base.arrays import above
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.verdict.measure.expected import MODEL_LIMIT, MODEL_ROW_LIMIT, ROW_LIMIT, Expected
from fattn_probe.verdict.measure.limits import (
    Limits,
    choose_limits,
    limits_of_model,
    limits_of_prediction,
    limits_of_tolerance,
)
from tests.verdict.made import predicted

SHAPE = (2, 1, 2, 4)
ZEROS = np.zeros(SHAPE)


@pytest.mark.parametrize(
    ("value", "most", "is_above"),
    [(0.9, 1.0, False), (1.0, 1.0, False), (1.1, 1.0, True), (np.nan, 1.0, True), (0.0, np.nan, True)],
)
def test_above_a_limit_is_all_that_is_not_known_to_be_within(value, most, is_above):
    assert above(value, most) == is_above
    assert above([0.0, value], [0.0, most]).tolist() == [False, is_above]


def off(size, where=...):
    dst = np.zeros(SHAPE, np.float32)
    dst[where] = size
    return dst


@pytest.mark.parametrize("sign", [1, -1])
def test_a_limit_holds_what_is_at_it(sign):
    every, one_row, one = off(0.5 * sign), off(sign, (1, 0, 0)), off(2 * sign, (1, 0, 0, 3))
    for dst, rmse, row, element in ((every, 0.5, 0.5, 0.5), (one_row, 0.5, 1.0, 1.0), (one, 0.5, 1.0, 2.0)):
        rows, elements = np.full(SHAPE[:3], row), np.full(SHAPE, element)
        assert Limits("tolerance", ZEROS, rmse, rows, elements).hold(dst)
        assert Limits("tolerance", ZEROS, rmse).hold(dst)
        assert not Limits("tolerance", ZEROS, 0.99 * rmse).hold(dst)
        assert not Limits("tolerance", ZEROS, rmse, rows=0.99 * rows).hold(dst)
        assert not Limits("tolerance", ZEROS, rmse, elements=0.99 * elements).hold(dst)


def test_only_the_limit_of_the_row_that_is_wrong_counts():
    rows = np.full(SHAPE[:3], np.inf)
    assert Limits("tolerance", ZEROS, np.inf, rows).hold(off(9.0, (1, 0, 0)))
    rows[1, 0, 0] = 8.9
    assert not Limits("tolerance", ZEROS, np.inf, rows).hold(off(9.0, (1, 0, 0)))
    assert Limits("tolerance", ZEROS, np.inf, rows).hold(off(9.0, (0, 0, 0)))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_must_be_where_it_is_expected(odd):
    wide = Limits("model", off(odd, (0, 0, 0, 1)), np.inf)
    assert wide.hold(off(odd, (0, 0, 0, 1)))
    assert not wide.hold(off(0.0)) and not wide.hold(off(odd, (0, 0, 0, 2))) and not wide.hold(off(odd))
    assert not wide.hold(off(-odd if np.isinf(odd) else np.inf, (0, 0, 0, 1)))
    assert not Limits("model", ZEROS, np.inf).hold(off(odd, (0, 0, 0, 1)))


def test_no_part_of_a_limit_may_be_nan():
    some = np.ones(SHAPE)
    some[0, 0, 0, 0] = np.nan
    for limits in ((np.nan,), (1.0, some[..., 0]), (1.0, None, some)):
        with pytest.raises(ValueError, match="NaN"):
            Limits("model", ZEROS, *limits)
    Limits("model", ZEROS, np.inf, np.full(SHAPE[:3], np.inf), np.full(SHAPE, np.inf))


ANSWER = np.full(SHAPE, 2.0)


def test_the_limits_of_a_tolerance_of_a_prediction_and_of_a_model():
    found = limits_of_tolerance(ANSWER, Tolerance(nmse=0.0625))
    assert (found.rmse, found.rows, found.elements) == (0.5, None, None)  # a quarter of the answer
    assert limits_of_tolerance(ANSWER * np.array([1, 1, 1, 0]), Tolerance(nmse=0.01)).rmse == pytest.approx(0.03**0.5)
    assert (limits_of_tolerance(ANSWER, Tolerance(max_abs=0.25)).elements == 0.25).all()
    found = limits_of_prediction(ANSWER, prediction(unsampled=(0, 0, 1), row_flips=1e-3))
    assert found.rmse == pytest.approx(2e-3) and (found.elements == 8e-3).all()
    assert found.rows.ravel() == pytest.approx([17e-3, np.inf, 17e-3, 17e-3]) and ROW_LIMIT == 16
    model = (ANSWER + np.array([[[[0.01]], [[0.02]]], [[[0.01]], [[0.02]]]]).reshape(2, 1, 2, 1)).astype(np.float32)
    found = limits_of_model(ANSWER, model)
    assert found.rmse == pytest.approx(MODEL_LIMIT * 0.025**0.5 / 10 * 1, rel=1e-3)
    assert found.rows.ravel() == pytest.approx(MODEL_ROW_LIMIT * np.array([0.01, 0.02, 0.01, 0.02]), rel=1e-3)
    assert (MODEL_LIMIT, MODEL_ROW_LIMIT) == (0.14, 0.5)


def prediction(rmse=1e-3, unsampled=(), **more):
    found = predicted(SHAPE, rmse, **more)
    found.sampled[unsampled] = not unsampled
    return found


def test_the_first_limits_that_show_the_verdict_are_chosen():
    model = (ANSWER + 1e-3).astype(np.float32)
    both = Expected(prediction, model)
    assert choose_limits(ANSWER, Tolerance(), both).by == "prediction"
    right, wrong = model, (ANSWER + 1).astype(np.float32)
    for dst, passes, by in ((right, True, "prediction"), (wrong, False, "prediction"), (-right, True, "prediction")):
        assert choose_limits(ANSWER, Tolerance(), both, dst=dst, passes=passes).by == by
    assert choose_limits(ANSWER, Tolerance(), both, dst=right).by == "prediction"  # it passes if nothing is said
    assert choose_limits(ANSWER, Tolerance(), Expected(lambda: prediction(1e-5), model), dst=right).by == "model"
    other = (ANSWER - 1e-3).astype(np.float32)
    assert choose_limits(ANSWER, Tolerance(), both, dst=other, passes=False).by == "model"
    assert choose_limits(ANSWER, Tolerance(), both, dst=other).by == "prediction"
    assert choose_limits(ANSWER, Tolerance()).by == "tolerance"
    assert choose_limits(ANSWER, Tolerance(), Expected(prediction)).by == "prediction"
    assert choose_limits(ANSWER, Tolerance(), Expected(model=model)).by == "model"
    assert choose_limits(ANSWER, Tolerance(nmse=1e-9), Expected(model=model)).by == "tolerance"


def test_what_lacks_a_number_gives_no_limits():
    some = np.full(SHAPE, 2.0, np.float32)
    some[0, 0, 0, 0] = np.nan
    assert choose_limits(ANSWER, Tolerance(), Expected(model=some)).by == "tolerance"
    lacking = prediction()
    lacking.row_rmse[0, 0, 0] = np.nan
    assert choose_limits(ANSWER, Tolerance(), Expected(lambda: lacking)).by == "tolerance"
    overflows = np.full(SHAPE, 2.0, np.float32)
    overflows[0, 0, 0, 0] = np.inf
    assert choose_limits(ANSWER, Tolerance(), Expected(model=overflows)).by == "model"
