"""The judge's limits as numbers beside an expected output, for a program that compares without fattn-probe."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fattn_probe.arrays import F32, F64, Floats
from fattn_probe.compare.judge.expected import (
    MODEL_LIMIT,
    MODEL_ROW_LIMIT,
    ROW_LIMIT,
    Expected,
    Prediction,
    model_units,
    rmse_limit,
)
from fattn_probe.compare.judge.metrics import Tolerance
from fattn_probe.compare.judge.verdict import given

By = Literal["prediction", "model", "tolerance"]


@dataclass(frozen=True, eq=False)
class Limits:
    """An expected output (n_seq, n_q, n_head, hsv), and how far from it a right one may be, absolute.

    `rmse` is the limit of the whole output, `rows` that of each row's RMSE (n_seq, n_q, n_head), `elements` that of
    each element; None for no limit. `by` is the judge's yardstick.
    """

    by: By
    expected: Floats
    rmse: float
    rows: F64 | None = None
    elements: F64 | None = None

    def hold(self, dst: F32) -> bool:
        """Whether an output is within the limits; it must be finite where the expected one is, and nowhere else."""
        both = np.isfinite(dst) & np.isfinite(self.expected)
        same = (dst == self.expected) | (np.isnan(dst) & np.isnan(self.expected))
        if not (both | same).all():
            return False
        with np.errstate(invalid="ignore"):
            off = np.where(both, np.abs(dst - self.expected.astype(np.float64)), 0.0)
        row_rmse = np.sqrt(np.mean(off**2, axis=3))
        return not (
            float(np.sqrt(np.mean(off**2))) > self.rmse
            or (self.rows is not None and bool((row_rmse > self.rows).any()))
            or (self.elements is not None and bool((off > self.elements).any()))
        )


def choose_limits(
    reference: F64,
    tolerance: Tolerance,
    expected: Expected | None = None,
    *,
    dst: F32 | None = None,
    passes: bool = True,
) -> Limits:
    """The limits that show what the judge says of an output: the first that an output that fails exceeds.

    Those around the exact answer come first, those around the rounding model last. Without an output, or if none fits
    the verdict, the first.
    """
    found = list(_possible(reference, tolerance, expected or Expected()))
    if dst is None:
        return found[0]
    return next((limits for limits in found if limits.hold(dst) == passes), found[0])


def _possible(reference: F64, tolerance: Tolerance, expected: Expected) -> Iterator[Limits]:
    """All limits that apply, without those around the exact answer that the rounding model itself exceeds."""
    prediction, model = expected.prediction, expected.model
    if prediction is not None:
        by_prediction = limits_of_prediction(reference, prediction)
        if model is None or by_prediction.hold(model):
            yield by_prediction
    if (prediction is None and model is None) or given(tolerance):
        yield limits_of_tolerance(reference, tolerance)
    if model is not None:
        yield limits_of_model(reference, model)


def limits_of_prediction(reference: F64, prediction: Prediction) -> Limits:
    """The error model's bounds around the exact answer."""
    rows = np.where(prediction.sampled, ROW_LIMIT * prediction.row_rmse, np.inf)
    return Limits("prediction", reference, rmse_limit(prediction) * prediction.rmse, rows, prediction.bound)


def limits_of_model(reference: F64, model: F32) -> Limits:
    """The distance from the rounding model that other compilers may cause."""
    _, unit, spread = model_units(reference, model)
    return Limits("model", model, MODEL_LIMIT * spread, MODEL_ROW_LIMIT * unit)


def limits_of_tolerance(reference: F64, tolerance: Tolerance) -> Limits:
    """The scenario's tolerance around the exact answer."""
    most = None if tolerance.max_abs is None else np.full(reference.shape, tolerance.max_abs)
    rmse = float(np.sqrt(tolerance.nmse * np.mean(np.square(reference))))
    return Limits("tolerance", reference, rmse, elements=most)
