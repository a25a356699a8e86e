"""The limits of `judge` as numbers, with an expected output, for programs that compare without fattn-probe."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fattn_probe.base.arrays import F32, F64, Floats, above
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.verdict.measure.expected import (
    MODEL_LIMIT,
    MODEL_ROW_LIMIT,
    ROW_LIMIT,
    Expected,
    model_units,
    predicted_rmse,
    rmse_limit,
)
from fattn_probe.verdict.measure.verdict import given
from fattn_probe.verdict.truth.error_model.prediction import Prediction

By = Literal["prediction", "model", "tolerance"]


@dataclass(frozen=True, eq=False)
class Limits:
    """An expected output (n_seq, n_q, n_head, hsv), and the largest absolute distance of a correct output from it.

    `rmse` limits the RMSE of the whole output, `rows` that of each row (n_seq, n_q, n_head), `elements` each element;
    None for no limit. `by` is the basis of the verdict. ValueError for a limit that is NaN.
    """

    by: By
    expected: Floats
    rmse: float
    rows: F64 | None = None
    elements: F64 | None = None

    def __post_init__(self) -> None:
        limits = (np.float64(self.rmse), self.rows, self.elements)
        if any(part is not None and np.isnan(part).any() for part in limits):
            raise ValueError("a limit cannot be NaN")

    def hold(self, dst: F32) -> bool:
        """Whether an output is within the limits; it must be finite exactly where the expected output is."""
        both = np.isfinite(dst) & np.isfinite(self.expected)
        same = (dst == self.expected) | (np.isnan(dst) & np.isnan(self.expected))
        if not (both | same).all():
            return False
        with np.errstate(invalid="ignore"):
            off = np.where(both, np.abs(dst - self.expected.astype(np.float64)), 0.0)
        row_rmse = np.sqrt(np.mean(off**2, axis=3))
        return not (
            above(np.sqrt(np.mean(off**2)), self.rmse)
            or (self.rows is not None and above(row_rmse, self.rows).any())
            or (self.elements is not None and above(off, self.elements).any())
        )


def choose_limits(
    reference: F64,
    tolerance: Tolerance,
    expected: Expected | None = None,
    *,
    dst: F32 | None = None,
    passes: bool = True,
) -> Limits:
    """The limits that reproduce the verdict on an output: for a failing output, the first limits that it exceeds.

    Limits around the exact answer come first, those around the rounding model last. Without an output, or if no limits
    agree with the verdict, the first are chosen.
    """
    found = list(possible_limits(reference, tolerance, expected or Expected()))
    if dst is None:
        return found[0]
    return next((limits for limits in found if limits.hold(dst) == passes), found[0])


def possible_limits(reference: F64, tolerance: Tolerance, expected: Expected) -> Iterator[Limits]:
    """All limits that apply, except limits around the exact answer that the rounding model itself exceeds.

    A prediction or model that lacks rows is not used, because one limit for the whole output cannot leave rows out.
    """
    predicted = expected.predicted
    prediction = expected.prediction if predicted is not None and predicted.all() else None
    model = None if expected.model is None or np.isnan(expected.model).any() else expected.model
    if prediction is not None:
        by_prediction = limits_of_prediction(reference, prediction)
        if model is None or by_prediction.hold(model):
            yield by_prediction
    if (prediction is None and model is None) or given(tolerance):
        yield limits_of_tolerance(reference, tolerance)
    if model is not None:
        yield limits_of_model(reference, model)


def limits_of_prediction(reference: F64, prediction: Prediction) -> Limits:
    """The error model's bounds around the exact answer; each row has a prediction."""
    every = np.ones(reference.shape[:3], np.bool_)
    rows = np.where(prediction.sampled, ROW_LIMIT * prediction.row_rmse + prediction.row_flips, np.inf)
    rmse = rmse_limit(prediction, every) * predicted_rmse(prediction, every)
    return Limits("prediction", reference, rmse, rows, prediction.bound)


def limits_of_model(reference: F64, model: F32) -> Limits:
    """Limits around the rounding model, which allow the differences between compilers."""
    _, unit, spread = model_units(reference, model, np.ones(reference.shape[:3], np.bool_))
    return Limits("model", model, MODEL_LIMIT * spread, MODEL_ROW_LIMIT * unit)


def limits_of_tolerance(reference: F64, tolerance: Tolerance) -> Limits:
    """The scenario's tolerance around the exact answer."""
    most = None if tolerance.max_abs is None else np.full(reference.shape, tolerance.max_abs)
    rmse = float(np.sqrt(tolerance.nmse * np.mean(np.square(reference))))
    return Limits("tolerance", reference, rmse, elements=most)
