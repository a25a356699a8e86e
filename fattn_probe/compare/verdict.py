"""From metrics to a verdict, with its reason in words."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from fattn_probe.compare.metrics import F32, F64, Bools, Metrics, Tolerance, measure, upstream_nmse
from fattn_probe.compare.where import where_in_words
from fattn_probe.errors import InputError

UPSTREAM_TOLERANCE = 5e-4
"""What `test_flash_attn_ext::max_nmse_err` of tests/test-backend-ops.cpp returns, whatever the op."""

ZERO_BY_ZERO = (
    "only in rows that are masked everywhere: the op is 0 there, the kernel divides 0 by 0, see upstream's 19098"
)


class Status(StrEnum):
    """What can be said of one case. `lost` (a dead debugger, a hung GPU, a time-out) says nothing about the kernel."""

    PASS = "pass"
    FAIL = "fail"
    CHANGED = "changed"
    UNSUPPORTED = "unsupported"
    LOST = "lost"


@dataclass(frozen=True)
class Verdict:
    """A status, why, and, where there was an output to judge, its metrics."""

    status: Status
    reason: str
    metrics: Metrics | None = None


@dataclass(frozen=True)
class UpstreamSays:
    """What upstream's test would have said of an output, had its oracle been exact."""

    passes: bool
    nmse: float
    reason: str


def judge(dst: F32, reference: F64, tolerance: Tolerance, fully_masked: Bools | None = None) -> Verdict:
    """Hold an output against the exact answer: pass if all of it was written, is finite, and is within the tolerance.

    Arrays have dst's shape (n_seq, n_q, n_head, hsv). `fully_masked` (n_seq, n_q, n_head) marks the rows whose mask is
    -inf everywhere; it changes no verdict, but NaN found only there gets its known reason. Raises InputError for
    different shapes or a reference that is not finite.
    """
    if not np.isfinite(reference).all():
        raise InputError("the exact answer is not finite everywhere: an input holds NaN or an infinity")
    metrics = measure(dst, reference)
    problems = _not_finite(metrics, dst, fully_masked) + _inaccurate(metrics, tolerance)
    if not problems:
        return Verdict(Status.PASS, f"NMSE {metrics.nmse:.2e} is within the tolerance {tolerance.nmse:.0e}", metrics)
    return Verdict(Status.FAIL, "; ".join([*problems, where_in_words(dst, reference, tolerance)]), metrics)


def upstream_says(dst: F32, reference: F64, tolerance: float = UPSTREAM_TOLERANCE) -> UpstreamSays:
    """The verdict of test-backend-ops, by its own rules, with the exact answer (rounded to float32) for its CPU oracle.

    By those rules an element of +-FLT_MAX counts as infinite, and two outputs of nothing but zeros, whose NMSE is 0/0,
    pass.
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


def _not_finite(metrics: Metrics, dst: F32, fully_masked: Bools | None) -> list[str]:
    """What was not written, or written as NaN or an infinity, in words."""
    counts = {"never written": metrics.unwritten, "NaN": metrics.nan, "infinite": metrics.inf}
    found = [f"{count} of {metrics.elements} elements {what}" for what, count in counts.items() if count]
    if not found:
        return []
    words = f"{', '.join(found)}, first at {metrics.first_bad}"
    only_nan = metrics.unwritten == metrics.inf == 0
    if only_nan and fully_masked is not None and not (np.isnan(dst).any(axis=3) & ~fully_masked).any():
        words += f" ({ZERO_BY_ZERO})"
    return [words]


def _inaccurate(metrics: Metrics, tolerance: Tolerance) -> list[str]:
    """What is wrong with the numbers themselves, in words."""
    words = []
    if metrics.all_finite and metrics.nmse > tolerance.nmse:
        words.append(f"NMSE {metrics.nmse:.2e} is above the tolerance {tolerance.nmse:.0e}")
    if tolerance.max_abs is not None and metrics.max_abs > tolerance.max_abs:
        words.append(f"an error is above the tolerance {tolerance.max_abs:g}")
    if not words:
        return []
    bias = f", mean error {100 * metrics.bias:+.2g} %" if abs(metrics.bias) >= 1e-3 else ""
    return [f"{' and '.join(words)}, largest error {metrics.max_abs:.3g} at {metrics.worst}{bias}"]
