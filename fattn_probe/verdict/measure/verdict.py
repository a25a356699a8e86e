"""Turn metrics into a verdict, with its reason in words."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from fattn_probe.base.arrays import F32, F64, Bools, above
from fattn_probe.base.figures import factor
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.verdict.measure.expected import Design, Expected, Held, hold
from fattn_probe.verdict.measure.metrics import Coordinate, Deviation, Metrics, deviation_from, measure, upstream_nmse
from fattn_probe.verdict.measure.wrong_rows import describe_rows

UPSTREAM_TOLERANCE = 5e-4
"""The result of `test_flash_attn_ext::max_nmse_err` (tests/test-backend-ops.cpp), the same for every op."""

BIASED = 1e-3
"""The mean error, as a share of the answer's size, that causes a warning."""
FEW_BITS = "equal the rounding model in every bit; usually all do"
LEAST_BITS = 0.9
"""If a smaller share of elements equals the rounding model, the kernel must compute differently. The shipped cases
give 1.0 on an H200 and on simulated GPUs; other compilers should give at least 0.97."""
CHANCE = 5.0
"""The number of standard deviations by which a mean error must differ from 0."""

NOT_PREDICTED = "have neither a model nor a prediction, and there"
TOO_WIDE = "have a predicted error as large as the answer, so the tolerance decides, and there"
"""The words between the number of rows and their excess over the tolerance."""
ZERO_BY_ZERO = "only in fully masked rows: the result should be 0, but the kernel divides 0 by 0; see llama.cpp #19098"


class Status(StrEnum):
    """The status of one case.

    `unjudged` (no way to decide) and `lost` (a dead debugger, a hung GPU, a time-out) are not verdicts on the kernel.
    """

    PASS = "pass"
    FAIL = "fail"
    CHANGED = "changed"
    UNJUDGED = "unjudged"
    UNSUPPORTED = "unsupported"
    LOST = "lost"


@dataclass(frozen=True)
class Accuracy:
    """Whether an output is close to the exact answer, whatever its kernel's arithmetic; `reason` says why."""

    passes: bool
    reason: str


@dataclass(frozen=True)
class Verdict:
    """A status, its reason, and the metrics of the output if there is one.

    `design`: whether the output is the result of the kernel's arithmetic, None if that is unknown. `accuracy`: whether
    it is close to the exact answer, which alone does not decide the status. `deviation`: the error of each element, and
    the elements that make the verdict fail. `only_masked_nan`: the only wrong values are NaN in fully masked rows.
    ValueError if a passing output is not finite.
    """

    status: Status
    reason: str
    metrics: Metrics | None = None
    design: Design | None = None
    accuracy: Accuracy | None = None
    deviation: Deviation | None = field(default=None, repr=False, compare=False)
    only_masked_nan: bool = False

    def __post_init__(self) -> None:
        if self.status is Status.PASS and self.metrics is not None and not self.metrics.all_finite:
            raise ValueError("an output that contains NaN or infinity cannot pass")


@dataclass(frozen=True)
class UpstreamSays:
    """The verdict of upstream's test on an output, if its oracle were exact."""

    passes: bool
    nmse: float
    reason: str


def judge(
    dst: F32,
    reference: F64,
    tolerance: Tolerance,
    fully_masked: Bools | None = None,
    expected: Expected | None = None,
    *,
    predictions: bool = True,
    describe: Callable[[Bools], str] = describe_rows,
    place: Callable[[Coordinate], Coordinate] | None = None,
) -> Verdict:
    """Judge an output against the exact answer and the expected output of its kernel.

    It passes if every element is written and finite, and the output is as designed and within the tolerance. A default
    tolerance applies only to rows without an expectation. An output is unjudged if the exact answer is not finite. It
    is also unjudged if rows outside the tolerance count as designed only because the prediction allows any value,
    unless these rows match the kernel's own weights applied to V. Arrays have dst's shape (n_seq, n_q, n_head, hsv).
    `fully_masked` (n_seq, n_q, n_head) marks the rows whose mask is -inf everywhere; it does not change the verdict,
    but explains NaNs that occur only there. Without `predictions`, the prediction's numbers are left out where the
    rounding model decides, unless the error is large or has a mean. `describe` puts the wrong rows (n_seq, n_q, n_head)
    into words, and `place` gives an element its coordinate in the whole output. InputError if the shapes differ.
    """
    if not np.isfinite(reference).all():
        return Verdict(Status.UNJUDGED, "the exact answer contains NaN or infinity")
    metrics = measure(dst, reference)
    if place is not None:
        worst, first_bad = (None if at is None else place(at) for at in (metrics.worst, metrics.first_bad))
        metrics = replace(metrics, worst=worst, first_bad=first_bad)
    predictions = predictions or abs(metrics.bias) >= BIASED or bool(above(metrics.nmse, UPSTREAM_TOLERANCE))
    held = hold(dst, reference, expected, predictions=predictions) if expected else None
    inaccurate = [] if held is not None and not given(tolerance) else _inaccurate(metrics, tolerance)
    if held is not None and not inaccurate:
        inaccurate = _inaccurate_rows(dst, reference, tolerance, held.left, NOT_PREDICTED)
    design = None if held is None else held.design
    designed = [] if design is None or design.passes else [f"not as designed: {design.reason}"]
    inaccurate += contradiction(metrics, design)
    bit_exact = expected is not None and expected.bit_exact
    judged = accuracy(dst, reference, metrics, design, bit_exact=bit_exact)
    deviation = _deviation(dst, reference, tolerance, held, bool(inaccurate))
    masked_nan = False  # whether there are non-finite elements, all of which are NaN in fully masked rows
    if fully_masked is not None and metrics.nan and not (metrics.unwritten or metrics.inf):
        masked_nan = not (np.isnan(dst).any(axis=3) & ~fully_masked).any()
    problems = _not_finite(metrics, masked_nan=masked_nan) + designed + inaccurate
    if problems:
        rows: Bools = np.any(deviation.wrong, axis=3)
        reason = "; ".join([*problems, describe(rows)] if rows.any() else problems)
        only_masked_nan = masked_nan and fully_masked is not None and not (rows & ~fully_masked).any()
        return Verdict(Status.FAIL, reason, metrics, design, judged, deviation, only_masked_nan)
    unclear = [] if held is None else _inaccurate_rows(dst, reference, tolerance, held.too_wide, TOO_WIDE)
    prediction = expected.prediction if expected and unclear else None
    if unclear and not (held and prediction and prediction.follow(dst, reference, held.too_wide)):
        return Verdict(Status.UNJUDGED, "; ".join(unclear), metrics, design, judged, deviation)
    if held is None:
        reason = f"NMSE {metrics.nmse:.2e} is within the tolerance {tolerance.nmse:.0e}"
    else:
        number = int((held.left | held.too_wide).sum())
        why = "follow from the weights that the kernel rounds" if unclear else "are within the tolerance"
        rest = f"; {number} of {held.left.size} rows {why}" if number else ""
        accurate = "accurate" if judged.passes else "accuracy warning"
        reason = f"as designed: {held.design.reason}{rest}; {accurate}: {judged.reason}"
    return Verdict(Status.PASS, reason, metrics, design, judged, deviation)


def _deviation(dst: F32, reference: F64, tolerance: Tolerance, held: Held | None, inaccurate: bool) -> Deviation:
    """The error of each element relative to the model, the prediction or the tolerance, whichever decides."""
    by_tolerance = deviation_from(dst, reference, tolerance)
    if held is None or (held.design.passes and inaccurate and not held.left.any()):
        return by_tolerance
    wrong = held.deviation.wrong if not held.design.passes else np.zeros_like(by_tolerance.wrong)
    wrong = wrong | ~np.isfinite(dst) | (by_tolerance.wrong if inaccurate else False)
    left = held.left
    base = np.where(left[..., None], by_tolerance.base, held.deviation.base)
    return Deviation(wrong, base, np.where(left, by_tolerance.unit, held.deviation.unit))


def contradiction(metrics: Metrics, design: Design | None) -> list[str]:
    """A large error that the rounding model has too, but that is beyond the error model's bound, in words.

    The model reads the kernel's template arguments from the launch, so it may follow a kernel that was chosen wrongly.
    """
    if design is None or design.by != "model" or not design.passes or not metrics.all_finite:
        return []
    bound = design.error_by_bound
    if bound is None or not above(bound, 1.0) or not above(metrics.nmse, UPSTREAM_TOLERANCE):
        return []
    return [
        f"an error is {factor(bound, 3)} times its bound, although the output agrees with the rounding model: the "
        f"launched kernel computes something else (NMSE {metrics.nmse:.2e})"
    ]


def given(tolerance: Tolerance) -> bool:
    """Whether the scenario sets the tolerance; otherwise upstream's tolerance applies."""
    return bool(tolerance.model_fields_set)


def accuracy(dst: F32, reference: F64, metrics: Metrics, design: Design | None, *, bit_exact: bool) -> Accuracy:
    """Whether an output is close to the exact answer: its NMSE against upstream's bound, and the bias of its errors.

    A mean error counts if it is at least a thousandth of the answer's size, and either predicted or far larger than
    chance allows. With `bit_exact`, many elements that differ from the rounding model also cause a warning.
    """
    if not metrics.all_finite:
        return Accuracy(False, "the output contains NaN or infinity")
    warnings = []
    if abs(metrics.bias) >= BIASED:
        expected = None if design is None else design.predicted_mean_error
        foretold = expected is not None and 0.5 < expected / metrics.mean_error < 2
        why = "the kernel's known arithmetic does not explain it"
        if design is not None and foretold:
            why = design.lost
        elif design is not None and design.by == "model" and design.passes:
            why = "it follows from the kernel's own arithmetic"
        if foretold or _is_systematic(dst - reference):
            warnings.append(f"mean error {100 * metrics.bias:+.2g} %: {why}")
    if metrics.nmse > UPSTREAM_TOLERANCE:
        warnings.append(f"NMSE {metrics.nmse:.2e} is above upstream's limit of {UPSTREAM_TOLERANCE:.0e}")
    if few := few_bits(design, bit_exact=bit_exact):
        warnings.append(few)
    return Accuracy(not warnings, "; ".join(warnings) or f"NMSE {metrics.nmse:.2e}")


def few_bits(design: Design | None, *, bit_exact: bool) -> str:
    """A warning that many elements differ from the rounding model where usually all match; otherwise empty."""
    bits = None if design is None or not bit_exact else design.equal_bits
    return "" if bits is None or bits >= LEAST_BITS else f"{100 * bits:.2g} % of the elements {FEW_BITS}"


def _is_systematic(error: F64) -> bool:
    """Whether the mean error is far larger than chance allows."""
    rows = error.mean(axis=3).ravel()
    spread = rows.std() / np.sqrt(rows.size) if rows.size > 1 else error.std() / np.sqrt(error.size)
    return bool(abs(rows.mean()) > CHANCE * spread)


def upstream_says(dst: F32, reference: F64, tolerance: float = UPSTREAM_TOLERANCE) -> UpstreamSays:
    """The verdict that test-backend-ops would give, with the exact answer (rounded to float32) as its oracle.

    By its rules, an element of +-FLT_MAX counts as infinite, and two outputs of zeros, whose NMSE is 0/0, pass.
    """
    oracle = reference.astype(np.float32)
    if np.isnan(dst).any():
        return UpstreamSays(False, float("nan"), "NaN")
    if (np.abs(dst) >= np.finfo(np.float32).max).any():
        return UpstreamSays(False, float("nan"), "infinite where the oracle is not")
    error = upstream_nmse(dst, oracle)
    if error > tolerance:
        return UpstreamSays(False, error, f"ERR = {error:.9f} > {tolerance:.9f}")
    return UpstreamSays(True, error, "OK")


def _not_finite(metrics: Metrics, *, masked_nan: bool) -> list[str]:
    """The unwritten, NaN and infinite elements, in words."""
    counts = {"never written": metrics.unwritten, "NaN": metrics.nan, "infinite": metrics.inf}
    found = [f"{count} of {metrics.elements} elements {what}" for what, count in counts.items() if count]
    if not found:
        return []
    words = f"{', '.join(found)}, first at {metrics.first_bad}"
    return [f"{words} ({ZERO_BY_ZERO})" if masked_nan else words]


def _inaccurate(metrics: Metrics, tolerance: Tolerance) -> list[str]:
    """The exceeded tolerances, in words."""
    words = []
    if metrics.all_finite and above(metrics.nmse, tolerance.nmse):
        words.append(f"NMSE {metrics.nmse:.2e} is above the tolerance {tolerance.nmse:.0e}")
    if tolerance.max_abs is not None and np.isfinite(metrics.max_abs) and above(metrics.max_abs, tolerance.max_abs):
        words.append(f"an error is above the tolerance {tolerance.max_abs:g}")
    if not words:
        return []
    bias = f", mean error {100 * metrics.bias:+.2g} %" if abs(metrics.bias) >= BIASED else ""
    place = f" at {metrics.worst}" if metrics.worst else ""
    return [f"{' and '.join(words)}, largest error {metrics.max_abs:.3g}{place}{bias}"]


def _inaccurate_rows(dst: F32, reference: F64, tolerance: Tolerance, rows: Bools, why: str) -> list[str]:
    """The exceeded tolerances of single rows (n_seq, n_q, n_head); `why` is the reason why the tolerance decides."""
    if not rows.any():
        return []
    metrics = measure(dst[rows][None, None], reference[rows][None, None])
    found = _inaccurate(replace(metrics, worst=None), tolerance)
    return [f"{int(rows.sum())} of {rows.size} rows {why} {words}" for words in found]
