"""The distance between an output and an answer: pure functions of two arrays of shape (n_seq, n_q, n_head, hsv)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, F64, Bools, above
from fattn_probe.base.digest import hexdigest
from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario.schema import Tolerance

POISON = 0x7FC0DEAD
"""The bits of every element of dst before a run: a NaN that no arithmetic produces."""


@dataclass(frozen=True)
class Coordinate:
    """One element of dst by the op's axes; the `ne` order of dst is (d, head, query, sequence)."""

    sequence: int
    query: int
    head: int
    d: int

    def __str__(self) -> str:
        return f"sequence {self.sequence}, query {self.query}, head {self.head}, d {self.d}"


@dataclass(frozen=True)
class Metrics:
    """The errors of an output relative to the exact answer.

    `nmse` is sum((dst-ref)^2)/sum(ref^2) over all elements, NaN if one is not finite; the other errors cover the finite
    elements, and are NaN if there are none. `rmse` is their root mean square. `mean_error` is the mean of dst-ref;
    `bias` is `mean_error` as a share of the mean |ref|: noise averages out, a lost term does not. `max_rel` is the
    largest error relative to the exact value, where that is not 0. `f16_ulps` (largest) and `mean_f16_ulps` are errors
    in units of the f16 spacing at the answer. `nan` does not include `unwritten`. `worst` has the largest absolute
    error; `first_bad` is the first element, in memory order, that is NaN, infinite or unwritten.
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
        """Whether every element was written and is finite."""
        return self.nan == self.inf == self.unwritten == 0


def measure(dst: F32, reference: F64) -> Metrics:
    """The metrics of an output; InputError if the shapes differ."""
    _same_shape(dst.shape, reference.shape)
    unwritten = unwritten_elements(dst)
    finite = np.isfinite(dst)
    error = np.where(finite, dst, 0.0) - np.where(finite, reference, 0.0)
    size = float(np.abs(reference[finite]).sum())
    off, number = np.abs(error), max(1, int(finite.sum()))
    ulps = off / f16_spacing(reference)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.where(reference == 0.0, 0.0, off / np.abs(reference))
    known = 1.0 if finite.any() else float("nan")
    return Metrics(
        elements=dst.size,
        nmse=nmse(dst, reference) if finite.all() else float("nan"),
        max_abs=known * float(off.max()),
        worst=_largest(off),
        rmse=known * float(np.sqrt(np.vdot(error, error) / number)),
        mean_error=known * float(error.sum()) / number,
        bias=known * _ratio(float(error.sum()), size),
        max_rel=known * float(relative.max()),
        f16_ulps=known * float(ulps.max()),
        mean_f16_ulps=known * float(ulps.sum()) / number,
        nan=int((np.isnan(dst) & ~unwritten).sum()),
        inf=int(np.isinf(dst).sum()),
        unwritten=int(unwritten.sum()),
        first_bad=None if finite.all() else coordinate(int((~finite).argmax()), dst.shape),
    )


def f16_spacing(values: F64) -> F64:
    """The distance between neighbouring f16 numbers at these values; above 65504, that of the largest f16 numbers."""
    exponent = np.where(values == 0.0, -14, np.clip(np.frexp(values)[1] - 1, -14, 15))
    return np.asarray(np.ldexp(1.0, exponent - 10), np.float64)


def nmse(dst: npt.NDArray[np.floating[Any]], reference: F64) -> float:
    """sum((dst-ref)^2)/sum(ref^2) in float64; for an answer of zeros, 0 if dst is also zero, else infinite."""
    difference = (dst - reference).ravel()
    answer = reference.ravel()
    return _ratio(float(difference @ difference), float(answer @ answer))


def upstream_nmse(dst: F32, oracle: F32) -> float:
    """NMSE as upstream's `nmse()` (tests/test-backend-ops.cpp) computes it; NaN for two outputs of zeros.

    Differences and squares are rounded to float32, and the divisor is the power of the *tested* output, not that of the
    oracle. Only the order of the (double) sums differs from upstream.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        difference = dst - oracle
        squares = (difference * difference).sum(dtype=np.float64)
        return float(squares / (dst * dst).sum(dtype=np.float64))


def bits_of(dst: F32) -> npt.NDArray[np.uint32]:
    """An output's bits, with each NaN as a GPU's arithmetic writes it; unwritten elements keep their bits."""
    bits = np.ascontiguousarray(dst, np.float32).view(np.uint32)
    return np.where(np.isnan(dst) & (bits != POISON), np.uint32(0x7FFFFFFF), bits)


def digest_of(dst: F32) -> str:
    """The sha256 of an output's bits; see `bits_of`."""
    return hexdigest(bits_of(dst).tobytes())


def unwritten_elements(dst: F32) -> Bools:
    """The elements that still contain the pattern from before the run."""
    return np.asarray(np.ascontiguousarray(dst).view(np.uint32) == POISON)


@dataclass(frozen=True, eq=False)
class Deviation:
    """The errors of an output, element by element.

    `base` is correct, `wrong` marks wrong elements, (n_seq, n_q, n_head, hsv); `unit` is each row's expected error.
    """

    wrong: Bools
    base: F64
    unit: F64

    def of(self, dst: F32) -> F64:
        """The absolute error in units of `unit`; infinite where an output is not finite or `unit` is 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.abs(dst - self.base)
            return np.where(off == 0.0, 0.0, np.where(np.isfinite(dst), off / self.unit[..., None], np.inf))


@dataclass(frozen=True)
class Likeness:
    """The agreement of two outputs of one op; `nmse` uses the first as the answer, and is NaN if either is not finite.

    `worst` is the largest difference; an element that is finite in only one output comes first.
    """

    elements: int
    equal_bits: int
    nmse: float
    max_abs: float
    worst: Coordinate | None

    @property
    def share(self) -> float:
        """The share of elements that are identical in every bit."""
        return self.equal_bits / self.elements

    @property
    def identical(self) -> bool:
        """Whether every element has the same bits."""
        return self.equal_bits == self.elements


def liken(a: F32, b: F32) -> Likeness:
    """Compare two outputs by bits and by value; NaN equals NaN. InputError if the shapes differ."""
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
    """The elements that differ in any bit; see `bits_of`."""
    return np.asarray(bits_of(a) != bits_of(b))


def deviation_from(dst: F32, reference: F64, tolerance: Tolerance) -> Deviation:
    """The errors; non-finite elements and the main contributors to rows over the tolerance are wrong."""
    finite = np.isfinite(dst)
    difference = np.where(finite, dst, 0.0) - np.where(finite, reference, 0.0)
    off = np.einsum("sqhd,sqhd->sqh", difference, difference)
    allowed = tolerance.nmse * np.einsum("sqhd,sqhd->sqh", reference, reference)
    share = allowed / reference.shape[3]
    wrong = above(off, allowed)[..., None] & (difference**2 > share[..., None])
    if tolerance.max_abs is not None:
        wrong |= above(np.abs(difference), tolerance.max_abs)
    return Deviation(np.asarray(wrong | ~finite), reference, np.sqrt(allowed / reference.shape[3]))


def _same_shape(found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected or len(found) != 4 or 0 in found:
        raise InputError(f"outputs of different shapes (sequences, queries, heads, head size): {found} and {expected}")


def _ratio(part: float, whole: float) -> float:
    if whole == 0.0:
        return 0.0 if part == 0.0 else float("inf")
    return part / whole


def _largest(values: F64) -> Coordinate | None:
    """The coordinate of the largest value; None if all are zero."""
    index = int(values.argmax())
    return coordinate(index, values.shape) if values.flat[index] > 0.0 else None


def worst_rows(errors: F64, most: int) -> Iterator[tuple[int, int, int]]:
    """At most `most` rows (sequence, query, head), those with the largest errors first."""
    order = np.argsort(-errors, axis=None, kind="stable")[:most]
    return ((int(s), int(q), int(h)) for s, q, h in zip(*np.unravel_index(order, errors.shape), strict=True))


def coordinate(index: int, shape: tuple[int, ...]) -> Coordinate:
    """The element of dst at an index in memory order."""
    return Coordinate(*(int(i) for i in np.unravel_index(index, shape)))
