"""How far an output is from an answer: pure functions of two arrays of dst's shape (n_seq, n_q, n_head, hsv)."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F32, F64, Bools
from fattn_probe.errors import InputError

POISON = 0x7FC0DEAD
"""The bits every element of dst holds before a run: a NaN that no arithmetic makes."""


class Tolerance(Protocol):
    """What an output may be off by, as a scenario says it."""

    @property
    def nmse(self) -> float:
        """Of the whole output."""

    @property
    def max_abs(self) -> float | None:
        """Of any element; None for any."""


@dataclass(frozen=True)
class Coordinate:
    """One element of dst, in words of the op; `ne` order of dst is (d, head, query, sequence)."""

    sequence: int
    query: int
    head: int
    d: int

    def __str__(self) -> str:
        return f"sequence {self.sequence}, query {self.query}, head {self.head}, d {self.d}"


@dataclass(frozen=True)
class Metrics:
    """What one output is like beside the exact answer.

    `nmse` is sum((dst-ref)^2)/sum(ref^2) over everything, NaN as soon as one element is not finite; the other errors
    are over the finite elements. `rmse` is their root mean square. `mean_error` is the mean of dst-ref, `bias` the same
    as a share of the mean |ref|: noise averages out of it, a lost term does not. `max_rel` is the largest error as a
    share of its element's own answer, where that is not 0; `f16_ulps` and `mean_f16_ulps` are errors in units of the
    spacing of f16 numbers at the answer. `nan` does not count the `unwritten`. `worst` has the largest absolute error,
    `first_bad` is the first element, in memory order, that is NaN, infinite or unwritten.
    """

    elements: int
    nmse: float
    max_abs: float
    worst: Coordinate | None
    rmse: float
    mean_error: float
    bias: float
    max_rel: float
    f16_ulps: float
    mean_f16_ulps: float
    nan: int
    inf: int
    unwritten: int
    first_bad: Coordinate | None

    @property
    def all_finite(self) -> bool:
        """Whether every element was written and is a finite number."""
        return self.nan == self.inf == self.unwritten == 0


def measure(dst: F32, reference: F64) -> Metrics:
    """The metrics of an output; raises InputError where the shapes differ."""
    _same_shape(dst.shape, reference.shape)
    unwritten = unwritten_elements(dst)
    finite = np.isfinite(dst)
    error = np.where(finite, dst, 0.0) - np.where(finite, reference, 0.0)
    size = float(np.abs(reference[finite]).sum())
    off, number = np.abs(error), max(1, int(finite.sum()))
    ulps = off / f16_spacing(reference)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(reference == 0.0, 0.0, off / np.abs(reference))
    return Metrics(
        elements=dst.size,
        nmse=nmse(dst, reference) if finite.all() else float("nan"),
        max_abs=float(off.max()),
        worst=_largest(off),
        rmse=float(np.sqrt(np.vdot(error, error) / number)),
        mean_error=float(error.sum()) / number,
        bias=_ratio(float(error.sum()), size),
        max_rel=float(relative.max()),
        f16_ulps=float(ulps.max()),
        mean_f16_ulps=float(ulps.sum()) / number,
        nan=int((np.isnan(dst) & ~unwritten).sum()),
        inf=int(np.isinf(dst).sum()),
        unwritten=int(unwritten.sum()),
        first_bad=_first(~finite),
    )


def f16_spacing(values: F64) -> F64:
    """The distance of f16 numbers from each other at these values; that of the largest ones above 65504."""
    exponent = np.where(values == 0.0, -14, np.clip(np.frexp(values)[1] - 1, -14, 15))
    return np.asarray(np.ldexp(1.0, exponent - 10), np.float64)


def nmse(dst: npt.NDArray[np.floating[Any]], reference: F64) -> float:
    """sum((dst-ref)^2)/sum(ref^2) in float64; for an answer of zeros 0 if dst is zero too, else infinite."""
    difference = (dst - reference).ravel()
    answer = reference.ravel()
    return _ratio(float(difference @ difference), float(answer @ answer))


def upstream_nmse(dst: F32, oracle: F32) -> float:
    """NMSE as upstream's `nmse()` (tests/test-backend-ops.cpp) computes it; NaN for two outputs of zeros.

    Differences and squares are rounded to float32, and the divisor is the *tested* output's power, not the oracle's.
    Only the order of the (double) sums differs.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        difference = dst - oracle
        squares = (difference * difference).sum(dtype=np.float64)
        return float(squares / (dst * dst).sum(dtype=np.float64))


def unwritten_elements(dst: F32) -> Bools:
    """Which elements still hold the poison."""
    return np.asarray(np.ascontiguousarray(dst).view(np.uint32) == POISON)


@dataclass(frozen=True, eq=False)
class Deviation:
    """How an output is off, element by element.

    `base` is what it should be and `wrong` where it is not, (n_seq, n_q, n_head, hsv); `unit` (n_seq, n_q, n_head) is
    the error that a row may be expected to have.
    """

    wrong: Bools
    base: F64
    unit: F64

    def of(self, dst: F32) -> F64:
        """The absolute error of an output in these units; infinite where it is not finite or should have none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.abs(dst - self.base)
            return np.where(off == 0.0, 0.0, np.where(np.isfinite(dst), off / self.unit[..., None], np.inf))


@dataclass(frozen=True)
class Likeness:
    """How alike two outputs of one op are; `nmse` takes the first as the answer, NaN if either is not finite.

    `worst` is where they differ most, an element that is finite in one output only before all others.
    """

    elements: int
    equal_bits: int
    nmse: float
    max_abs: float
    worst: Coordinate | None

    @property
    def share(self) -> float:
        """The share of elements equal to the last bit."""
        return self.equal_bits / self.elements

    @property
    def identical(self) -> bool:
        """Whether every element has the same bits."""
        return self.equal_bits == self.elements


def liken(a: F32, b: F32) -> Likeness:
    """Compare two outputs bit by bit and by value; NaN equals NaN where the bits do. InputError where shapes differ."""
    _same_shape(a.shape, b.shape)
    equal = ~unequal(a, b)
    answer = a.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(answer - b)
    difference[equal] = 0.0
    difference[np.isnan(difference)] = np.inf
    return Likeness(
        elements=a.size,
        equal_bits=int(equal.sum()),
        nmse=nmse(b, answer) if np.isfinite(a).all() and np.isfinite(b).all() else float("nan"),
        max_abs=float(difference.max()),
        worst=_largest(difference) if not equal.all() else None,
    )


def unequal(a: F32, b: F32) -> Bools:
    """Which elements differ in a bit."""
    return np.asarray(np.ascontiguousarray(a).view(np.uint32) != np.ascontiguousarray(b).view(np.uint32))


def deviation_from(dst: F32, reference: F64, tolerance: Tolerance) -> Deviation:
    """Which elements are not finite, or much of what makes their row (sequence, query, head) break the tolerance."""
    finite = np.isfinite(dst)
    difference = np.where(finite, dst, 0.0) - np.where(finite, reference, 0.0)
    off = np.einsum("sqhd,sqhd->sqh", difference, difference)
    allowed = tolerance.nmse * np.einsum("sqhd,sqhd->sqh", reference, reference)
    share = np.minimum(allowed, off) / reference.shape[3]
    wrong = (off > allowed)[..., None] & (difference**2 >= share[..., None])
    if tolerance.max_abs is not None:
        wrong |= np.abs(difference) > tolerance.max_abs
    return Deviation(np.asarray(wrong | ~finite), reference, np.sqrt(allowed / reference.shape[3]))


def _same_shape(found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected or len(found) != 4 or 0 in found:
        raise InputError(f"outputs of different shapes (sequences, queries, heads, head size): {found} and {expected}")


def _ratio(part: float, whole: float) -> float:
    if whole == 0.0:
        return 0.0 if part == 0.0 else float("inf")
    return part / whole


def _largest(values: F64) -> Coordinate | None:
    """Where the largest value is; None where all are zero."""
    index = int(values.argmax())
    return coordinate(index, values.shape) if values.flat[index] > 0.0 else None


def _first(which: Bools) -> Coordinate | None:
    return coordinate(int(which.argmax()), which.shape) if which.any() else None


def coordinate(index: int, shape: tuple[int, ...]) -> Coordinate:
    """The element of dst at a place in memory order."""
    return Coordinate(*(int(i) for i in np.unravel_index(index, shape)))
