"""The expected output of a correct kernel: the error model's prediction, and the rounding model's output."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F32, F64
from fattn_probe.compare.judge.metrics import Deviation
from fattn_probe.figures import times

RMSE_LIMIT = 2.0
"""Limit of measured / predicted RMSE over the output; correct kernels have 0.5 to 1.5."""
SAMPLING = 5.0
"""If the prediction samples rows, so many of its standard errors widen this limit."""
ROW_LIMIT = 16.0
"""The limit for one row, whose few errors depend on each other."""
MODEL_LIMIT = 0.14
"""Limit of the output's RMSE distance from the model, as a share of the model's own error: 2 % of its NMSE."""
MODEL_ROW_LIMIT = 0.5
LEAST_ULPS = 4.0
"""Differences from the model up to so many float32 ulps of a row's size are ignored: compilers fuse differently."""


class Prediction(Protocol):
    """The predicted errors of a correct kernel (`fattn_probe.truth.error_model.Prediction`), absolute."""

    @property
    def rmse(self) -> float:
        """The expected RMSE over the whole output."""

    @property
    def row_rmse(self) -> F64:
        """The expected RMSE of each row, (n_seq, n_q, n_head)."""

    @property
    def sampled(self) -> npt.NDArray[np.bool_]:
        """The rows that the model evaluated, (n_seq, n_q, n_head); the others copy the nearest of them."""

    @property
    def relative_standard_error(self) -> float:
        """The relative standard error of `rmse` squared that comes from sampling rows; 0 without unsampled rows."""

    @property
    def mean_error(self) -> float:
        """The expected mean signed error over the whole output."""

    @property
    def bound(self) -> F64:
        """The largest |error| a correct element may have, (n_seq, n_q, n_head, hsv); infinite where f16 overflows."""

    @property
    def unsampled_bound(self) -> F64:
        """The bound for unsampled rows, same shape."""

    @property
    def why(self) -> str:
        """The kernel's arithmetic in words."""


@dataclass(frozen=True, eq=False)
class Expected:
    """The expected output of a run; prediction or model may be missing, and `missing` says why.

    `bit_exact`: correct kernels usually equal the model in every bit on this target.
    """

    prediction: Prediction | None = None
    model: F32 | None = None
    missing: str = ""
    bit_exact: bool = False


@dataclass(frozen=True)
class Design:
    """Whether an output is what its kernel's arithmetic gives for the inputs.

    `by` is the yardstick: `model`, `prediction` or `tolerance`. `error_by_bound` is the largest |error| as a share of
    its element's bound. `rmse_by_predicted` and `row_rmse_by_predicted` (worst row) are relative to the prediction.
    `off_model` and `row_off_model` are the RMSE of output - model as a share of the model's own error. `equal_bits` is
    the share of elements that equal the model in every bit. Unknown values are None.
    """

    passes: bool
    by: str
    reason: str
    error_by_bound: float | None = None
    rmse_by_predicted: float | None = None
    row_rmse_by_predicted: float | None = None
    predicted_rmse: float | None = None
    predicted_mean_error: float | None = None
    off_model: float | None = None
    row_off_model: float | None = None
    equal_bits: float | None = None
    why: str = ""


@dataclass(frozen=True, eq=False)
class Held:
    """An output compared with the expected one; `deviation` has its wrong elements (finite ones only)."""

    design: Design
    deviation: Deviation


def hold(dst: F32, reference: F64, expected: Expected) -> Held | None:
    """Compare an output (n_seq, n_q, n_head, hsv) with its model and its prediction; None if there is neither.

    An output that equals the model is as designed, whatever the prediction. NaNs and infinities are judged elsewhere;
    here they only have to agree with the model's.
    """
    by_prediction = None if expected.prediction is None else _against_prediction(dst, reference, expected.prediction)
    if expected.model is None:
        return by_prediction
    by_model = _against_model(dst, reference, expected.model)
    if by_prediction is None:
        return by_model
    return Held(_joined(by_model.design, by_prediction.design), by_model.deviation)


def _joined(model: Design, prediction: Design) -> Design:
    """The model's verdict, with the prediction's numbers."""
    theirs = {name: value for name, value in vars(prediction).items() if name not in ("passes", "by", "reason")}
    mine = {name: value for name, value in vars(model).items() if value is not None and value != ""}
    return Design(**{**theirs, **mine})


def _against_prediction(dst: F32, reference: F64, prediction: Prediction) -> Held:
    finite = np.isfinite(dst)
    error = np.abs(np.where(finite, dst, reference) - reference)
    bound, rows = prediction.bound, _root_mean_square(error)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_bound = np.where(error == 0.0, 0.0, error / bound)
        by_row = np.where(rows == 0.0, 0.0, rows / prediction.row_rmse)
    by_row = np.where(prediction.sampled, by_row, 0.0)  # an unsampled row's prediction is only an estimate
    rmse = float(np.sqrt((error**2).sum() / max(1, int(finite.sum()))))
    whole = rmse / prediction.rmse if prediction.rmse else float(np.inf if rmse else 0.0)
    limit = rmse_limit(prediction)
    problems = [
        _limit("an error is {} times its bound", float(by_bound.max()), 1.0),
        _limit("the RMSE is {} times the predicted RMSE", whole, limit),
        _limit("a row's RMSE is {} times its predicted RMSE", float(by_row.max()), ROW_LIMIT),
    ]
    found = [problem for problem in problems if problem]
    wide = (by_row > ROW_LIMIT) | (by_row > limit if whole > limit else False)
    wrong = (by_bound > 1.0) | (wide[..., None] & (error > 2 * prediction.row_rmse[..., None]))
    said = f"RMSE {whole:.2f} of the predicted, largest error {by_bound.max():.2f} of its bound"
    if not finite.any():
        said = "no element is finite"
    design = Design(
        passes=not found,
        by="prediction",
        reason=" and ".join(found) or said,
        error_by_bound=float(by_bound.max()) if finite.any() else None,
        rmse_by_predicted=whole if finite.any() else None,
        row_rmse_by_predicted=float(by_row.max()) if finite.any() else None,
        predicted_rmse=prediction.rmse,
        predicted_mean_error=prediction.mean_error,
        why=prediction.why,
    )
    return Held(design, Deviation(wrong, reference, prediction.row_rmse))


def _against_model(dst: F32, reference: F64, model: F32) -> Held:
    equal = (dst == model) | (np.isnan(dst) & np.isnan(model))
    both = np.isfinite(dst) & np.isfinite(model)
    with np.errstate(invalid="ignore"):
        off = np.where(both, np.abs(dst.astype(np.float64) - model), 0.0)
    floor, unit, spread = model_units(reference, model)
    rows = _root_mean_square(off)
    with np.errstate(divide="ignore", over="ignore"):  # of a row that the model has exactly, such as zeros
        by_row = np.divide(rows, unit, out=np.zeros_like(rows), where=rows > 0)
    distance = float(np.sqrt(np.mean(off**2)))
    whole = distance / spread if spread else (np.inf if distance else 0.0)
    unlike = ~both & ~equal
    problems = [
        f"{int(unlike.sum())} elements are finite only in the output or only in the model" if unlike.any() else "",
        _apart("the output", whole, "the kernel's", MODEL_LIMIT),
        _apart("a row", float(by_row.max()), "its", MODEL_ROW_LIMIT),
    ]
    found = [problem for problem in problems if problem]
    wrong = unlike | (off > np.maximum(MODEL_ROW_LIMIT / 2 * unit, floor)[..., None])
    share = float(equal.mean())
    design = Design(
        passes=not found,
        by="model",
        reason=" and ".join(found) or f"{100 * share:.4g} % of the elements equal the model in every bit",
        off_model=whole,
        row_off_model=float(by_row.max()),
        equal_bits=share,
    )
    return Held(design, Deviation(wrong, np.where(np.isfinite(model), model, reference), unit))


def rmse_limit(prediction: Prediction) -> float:
    """The largest measured / predicted RMSE of a correct output."""
    return RMSE_LIMIT * float(np.sqrt(1 + SAMPLING * prediction.relative_standard_error))


def model_units(reference: F64, model: F32) -> tuple[F64, F64, float]:
    """What differences from a rounding model are measured by, absolute.

    By row, the difference that is ignored and the model's own error; and the own error of the whole output.
    """
    with np.errstate(invalid="ignore"):
        own = np.where(np.isfinite(model), model - reference, 0.0)
    floor = LEAST_ULPS * np.finfo(np.float32).eps * _root_mean_square(reference)
    unit = np.hypot(_root_mean_square(own), floor / MODEL_ROW_LIMIT)
    spread = float(np.hypot(np.sqrt(np.mean(own**2)), np.sqrt(np.mean(floor**2)) / MODEL_LIMIT))
    return floor, unit, spread


def _apart(what: str, value: float, whose: str, most: float) -> str:
    if np.isinf(value):
        return f"{what} differs from the rounding model, whose own error is 0"
    return _limit(f"{what} differs from the rounding model by {{}} times {whose} own error", value, most)


def _limit(words: str, value: float, most: float) -> str:
    return words.format(times(value)) if value > most else ""


def _root_mean_square(values: F64) -> F64:
    """The root mean square of each row."""
    return np.asarray(np.sqrt(np.einsum("sqhd,sqhd->sqh", values, values) / values.shape[3]))
