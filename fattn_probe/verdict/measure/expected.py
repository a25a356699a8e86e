"""The expected output of a correct kernel: the error model's prediction, and the rounding model's output."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from fattn_probe.base.arrays import F32, F64, Bools, above
from fattn_probe.base.figures import factor
from fattn_probe.verdict.measure.metrics import Deviation
from fattn_probe.verdict.truth.error_model.prediction import ODDS, RMSE_LIMIT, Prediction

SAMPLING = 5.0
"""If the prediction samples rows, the limit is widened by this many of its standard errors."""
ROW_LIMIT = 16.0
"""The limit for a single row; it is wide because a row's few errors depend on each other."""
MODEL_LIMIT = 0.14
"""Limit on the output's RMSE distance from the model, as a share of the model's own RMSE (2 % of its NMSE)."""
MODEL_ROW_LIMIT = 0.5
DECIDES = "the scenario's tolerance decides"
SMALL_ROW = 1e-3
"""For a row whose answer is smaller than this share of the output's size, only the absolute error counts."""
LEAST_ULPS = 4.0
"""Differences from the model of up to this many f32 ulps of a row's size are ignored: compilers fuse differently."""


@dataclass(frozen=True, eq=False)
class Expected:
    """The expected output of a run; the prediction or the model may be missing, and `missing` says why.

    `predict` computes the prediction when it is first read: this is a third of the work of judging, and is wasted where
    the model decides. `bit_exact`: correct kernels usually match the model bit for bit on this target.
    """

    predict: Callable[[], Prediction] | None = None
    model: F32 | None = None
    missing: str = ""
    bit_exact: bool = False

    @cached_property
    def prediction(self) -> Prediction | None:
        """The error model's prediction; ValueError if its shape is not that of the model."""
        found = None if self.predict is None else self.predict()
        if found is not None and self.model is not None and self.model.shape != found.bound.shape:
            raise ValueError(f"a model of shape {self.model.shape}, a prediction of {found.bound.shape}")
        return found

    @cached_property
    def predicted(self) -> Bools | None:
        """The rows (n_seq, n_q, n_head) that have a prediction; None if there is no prediction."""
        return None if self.prediction is None else self.prediction.known


@dataclass(frozen=True)
class Design:
    """Whether an output is the result of its kernel's arithmetic.

    `by` is the basis of the decision: `model` or `prediction`. `error_by_bound` is the largest |error| as a share of
    its element's bound. `rmse_by_predicted` and `row_rmse_by_predicted` (worst row) are relative to the prediction.
    `off_model` and `row_off_model` are the RMSE of output - model as a share of the model's own error. `equal_bits` is
    the share of elements that match the model bit for bit. Unknown values are None. `lost` gives the origin of the
    predicted mean error; `assumed` the parts of the kernel's arithmetic that are only assumed, if the prediction
    depends on any. Raises ValueError if an output passes although one of its figures is NaN.
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
    lost: str = ""
    assumed: str = ""

    def __post_init__(self) -> None:
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, float)}
        if self.passes and any(np.isnan(value) for value in numbers.values()):
            raise ValueError(f"an output with a NaN figure cannot count as designed: {numbers}")


@dataclass(frozen=True, eq=False)
class Held:
    """An output compared with the expected one.

    `deviation` marks the wrong finite elements. `left` (n_seq, n_q, n_head) marks rows with neither a model nor a
    prediction. `too_wide` marks rows with only a prediction, so wide that an output of zeros would be within it.
    """

    design: Design
    deviation: Deviation
    left: Bools
    too_wide: Bools


def hold(dst: F32, reference: F64, expected: Expected, *, predictions: bool = True) -> Held | None:
    """Compare an output (n_seq, n_q, n_head, hsv) with its model and its prediction; None if no row has either.

    A row is judged by the model if the model has no NaN there or the same NaNs as the output, otherwise by the
    prediction. The design passes if all rows do. If the model judges all rows, the numbers of the prediction are only
    shown next to those of the model, and left out without `predictions`. NaN and infinity are judged elsewhere; here
    they only have to match those of the model.
    """
    none = np.zeros(dst.shape[:3], np.bool_)
    modelled = none
    if expected.model is not None:
        unknown = np.isnan(expected.model)
        modelled = np.asarray(~unknown.any(axis=3) | (unknown == np.isnan(dst)).all(axis=3))
    prediction = expected.prediction if predictions or not modelled.all() else None
    predicted = none if prediction is None else prediction.known
    parts: list[tuple[Bools, Design, Deviation]] = []
    if expected.model is not None and modelled.any():
        parts.append((modelled, *_against_model(dst, reference, expected.model, modelled)))
    too_wide = none
    if prediction is not None:
        too_wide = _too_wide(prediction, reference, predicted & ~modelled)
        for rows in (predicted & ~modelled & ~too_wide, too_wide):
            if rows.any():
                parts.append((rows, *_against_prediction(dst, reference, prediction, rows)))
        if modelled.all() and predicted.any():  # only the model decides; the prediction's numbers are shown next to it
            numbers, _ = _against_prediction(dst, reference, prediction, predicted)
            ((_, design, deviation),) = parts
            parts = [(modelled, _beside(design, numbers), deviation)]
    if not parts:
        return None
    designs = [design for _, design, _ in parts]
    failed = [design for design in designs if not design.passes] or designs
    reason = " and ".join(design.reason for design in failed)
    joined = replace(reduce(_beside, designs), passes=all(one.passes for one in designs), reason=reason)
    found = parts[-1][2]  # the last part decides for rows that neither covers
    for rows, _, own in reversed(parts[:-1]):
        here = rows[..., None]
        found = Deviation(
            found.wrong | own.wrong, np.where(here, own.base, found.base), np.where(rows, own.unit, found.unit)
        )
    return Held(joined, found, ~(modelled | predicted), too_wide)


def _beside(design: Design, other: Design) -> Design:
    """The first design, with missing numbers filled in from the second."""
    mine = {name: value for name, value in vars(design).items() if value is not None and value != ""}
    return Design(**{**vars(other), **mine})


def with_gaps(expected: Expected) -> Expected:
    """Add to `missing` the rows in which the model is NaN, and those of them that have no prediction either."""
    gaps = []
    odd = None if expected.model is None else np.isnan(expected.model).any(axis=3)
    if odd is None or odd.any():
        predicted = expected.predicted
        if predicted is not None and (left := ~predicted if odd is None else odd & ~predicted).any():
            gaps.append(
                f"the error model has no number for {int(left.sum())} of {left.size} rows, whose K or V is too large: "
                f"{DECIDES} for these"
            )
    if odd is not None and odd.any():
        gaps.append(
            f"the rounding model has NaN in {int(odd.sum())} of {odd.size} rows, which it leaves to the error model"
        )
    return replace(expected, missing="; ".join(filter(None, (expected.missing, *gaps))))


def _too_wide(prediction: Prediction, reference: F64, rows: Bools) -> Bools:
    """The rows for which an output of zeros, or twice the answer, would be within the prediction.

    Rows whose answer is too small for the kernel's number format do not count: zeros are correct there.
    """
    size = _root_mean_square(reference)
    matters = size > SMALL_ROW * np.sqrt(np.mean(size**2))
    with np.errstate(invalid="ignore"):
        wide = RMSE_LIMIT * prediction.row_uncertainty >= size
    return np.asarray(rows & matters & wide)


def _against_prediction(dst: F32, reference: F64, prediction: Prediction, rows: Bools) -> tuple[Design, Deviation]:
    finite = np.isfinite(dst) & rows[..., None]
    error = np.abs(np.where(finite, dst, reference) - reference)
    row_rmse, row_error = prediction.row_rmse, _root_mean_square(error)
    by_bound, by_row = _share(error, prediction.bound), _share(row_error, row_rmse + prediction.row_flips / ROW_LIMIT)
    by_row = np.where(prediction.sampled, by_row, 0.0)  # an unsampled row's prediction is only an estimate
    rmse = float(np.sqrt((error**2).sum() / max(1, int(finite.sum()))))
    measured = rows & finite.any(axis=3) if finite.any() else rows  # a fully masked row is NaN, with predicted error 0
    predicted = predicted_rmse(prediction, measured)
    whole = float(_share(np.array(rmse), np.array(predicted)))
    limit = rmse_limit(prediction, measured)
    problems = [
        _limit("an error is {} times its bound", float(by_bound.max()), 1.0),
        _limit("the RMSE is {} times the predicted RMSE", whole, limit),
        _limit("a row's RMSE is {} times its predicted RMSE", float(by_row.max()), ROW_LIMIT),
    ]
    found = [problem for problem in problems if problem]
    wide = above(by_row, ROW_LIMIT) | (above(by_row, limit) if above(whole, limit) else False)
    with np.errstate(invalid="ignore"):
        wrong = above(by_bound, 1.0) | (wide[..., None] & (error > 2 * row_rmse[..., None]))
    said = f"RMSE {whole:.2f} times the prediction, largest error {by_bound.max():.2f} times its bound"
    if not finite.any():
        said = "no element is finite"
    design = Design(
        passes=not found,
        by="prediction",
        reason=" and ".join(found) or said,
        error_by_bound=float(by_bound.max()) if finite.any() else None,
        rmse_by_predicted=whole if finite.any() else None,
        row_rmse_by_predicted=float(by_row.max()) if finite.any() else None,
        predicted_rmse=predicted,
        predicted_mean_error=prediction.mean_error if np.isfinite(prediction.mean_error) else None,
        why=prediction.why,
        lost=prediction.lost,
        assumed=prediction.assumed,
    )
    return design, Deviation(wrong, reference, row_rmse)


def _against_model(dst: F32, reference: F64, model: F32, rows: Bools) -> tuple[Design, Deviation]:
    here = rows[..., None]
    equal = (dst == model) | (np.isnan(dst) & np.isnan(model)) | ~here
    both = np.isfinite(dst) & np.isfinite(model)
    with np.errstate(invalid="ignore"):
        off = np.where(both & here, np.abs(dst.astype(np.float64) - model), 0.0)
    floor, unit, spread = model_units(reference, model, rows)
    row_off = _root_mean_square(off)
    with np.errstate(divide="ignore", over="ignore"):  # in a row where the model is exact, such as all zeros
        by_row = np.divide(row_off, unit, out=np.zeros_like(row_off), where=row_off > 0)
    distance = float(np.sqrt(np.mean(off[rows] ** 2)))
    whole = distance / spread if spread else (np.inf if distance else 0.0)
    unlike = ~both & ~equal
    problems = [
        f"{int(unlike.sum())} elements are finite only in the output or only in the model" if unlike.any() else "",
        _apart("the output", whole, "the kernel's", MODEL_LIMIT),
        _apart("a row", float(by_row.max()), "its", MODEL_ROW_LIMIT),
    ]
    found = [problem for problem in problems if problem]
    wrong = unlike | above(off, np.maximum(MODEL_ROW_LIMIT / 2 * unit, floor)[..., None])
    share = float(equal[rows].mean())
    design = Design(
        passes=not found,
        by="model",
        reason=" and ".join(found) or f"{100 * share:.4g} % of the elements equal the model in every bit",
        off_model=whole,
        row_off_model=float(by_row.max()),
        equal_bits=share,
    )
    return design, Deviation(wrong & here, np.where(np.isfinite(model), model, reference), unit)


def predicted_rmse(prediction: Prediction, rows: Bools) -> float:
    """The expected RMSE of these rows together."""
    return float(np.sqrt(np.mean(np.square(prediction.row_rmse[rows]))))


def rmse_limit(prediction: Prediction, rows: Bools) -> float:
    """The largest measured / predicted RMSE of a correct output, for these rows together.

    The prediction's standard error, which comes from sampling rows, widens this limit. So do rows whose elements all
    have the same error, as with a constant V: their mean square is that of one random draw, not of many. The sum of the
    draws' squares exceeds its mean by more than the limit allows with a probability of `ODDS` (Laurent and Massart,
    Annals of Statistics 28(5), 2000, lemma 1).
    """
    squares, common = np.square(prediction.row_rmse[rows & prediction.sampled]), prediction.row_common[rows]
    sampling, odds = 1.0, -np.log(ODDS)
    if not prediction.sampled[rows].all() and squares.any():
        sampling += SAMPLING * float(squares.std() / squares.mean()) / np.sqrt(squares.size)
    draws = 2 * np.sqrt(odds * np.square(common).sum()) + 2 * odds * common.max()
    of_draws = draws / (np.square(prediction.row_rmse[rows]).sum() or 1.0)
    return float(np.sqrt(RMSE_LIMIT**2 * sampling + of_draws))


def model_units(reference: F64, model: F32, rows: Bools) -> tuple[F64, F64, float]:
    """Units for differences from a rounding model, as absolute values.

    For each row, the difference that is ignored and the model's own error; then the model's own error over all `rows`.
    """
    with np.errstate(invalid="ignore"):
        own = np.where(np.isfinite(model), model - reference, 0.0)
    floor = LEAST_ULPS * np.finfo(np.float32).eps * _root_mean_square(reference)
    unit = np.hypot(_root_mean_square(own), floor / MODEL_ROW_LIMIT)
    spread = float(np.hypot(np.sqrt(np.mean(own[rows] ** 2)), np.sqrt(np.mean(floor[rows] ** 2)) / MODEL_LIMIT))
    return floor, unit, spread


def _apart(what: str, value: float, whose: str, most: float) -> str:
    if np.isinf(value):
        return f"{what} differs from the rounding model, whose own error is 0"
    return _limit(f"{what} differs from the rounding model by {{}} times {whose} own error", value, most)


def _limit(words: str, value: float, most: float) -> str:
    return words.format(factor(value, 3)) if above(value, most) else ""


def _share(part: F64, whole: F64) -> F64:
    """part / whole, or 0 if the part is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(part == 0.0, 0.0, part / whole)


def _root_mean_square(values: F64) -> F64:
    """The root mean square of each row."""
    return np.asarray(np.sqrt(np.einsum("sqhd,sqhd->sqh", values, values) / values.shape[3]))
