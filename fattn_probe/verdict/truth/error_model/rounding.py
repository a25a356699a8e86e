"""The error of one rounding to nearest, given the increment and the sum; the measured error of tanh.approx.f32.

Sources: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., ch. 2 (the model) and 4 (sums); Widrow and
Kollar, Quantization Noise, ch. 4 and 5 (the Fourier series of a quantiser's error for a Gaussian input).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, F64, Floats

MEAN_SQUARE = (1 - 0.25) / (2 * np.log(2)) / 12
"""Mean of (error/ulp)^2 * (ulp/value)^2 over values spread log-uniformly over a binade, in units of 2^-2t."""

NARROW, WIDE = 0.25, 0.7
"""Standard deviations of an increment, in ulps. Below NARROW, a rounding has three possible results. Above WIDE, its
error no longer depends on the mean: exp(-2 pi^2 0.7^2) = 6e-5."""
SAMPLE = 1 << 16
"""The number of values of V that stand for a whole head."""
OwnError = Callable[[F32], F32]


@dataclass(frozen=True)
class Format:
    """A floating-point format: bits after the leading one, exponent of the smallest normal number, largest number."""

    fraction: int
    least: int
    largest: float

    @property
    def relative(self) -> float:
        """Mean square of the relative error of one rounding: 4.3e-8 for f16, 6.4e-16 for f32."""
        return float(MEAN_SQUARE * 2.0 ** (-2 * self.fraction))

    @property
    def half_ulp(self) -> float:
        """The unit roundoff u: the largest relative error of one rounding."""
        return float(2.0 ** (-self.fraction - 1))

    @property
    def half_step(self) -> float:
        """Half the distance between subnormal numbers: the largest error of one rounding to them."""
        return float(2.0 ** (self.least - self.fraction - 1))

    def ulp(self, values: Floats) -> npt.NDArray[np.float32]:
        """The distance between neighbouring numbers at |values|; near 0, that of subnormal numbers."""
        power = (np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)
        return np.asarray(np.maximum(power, np.float32(2.0**self.least)) * np.float32(2.0**-self.fraction))


HALF = Format(10, -14, 65504.0)
SINGLE = Format(23, -126, 3.4e38)


def added_error(mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    """Mean and mean square of the error, in ulps of the sum, when a normally distributed increment (in ulps) is added.

    An increment that spreads over an ulp is rounded without bias and with mean square 1/12. One that stays below half
    an ulp is lost: its mean error is -mean.
    """
    first, second = np.zeros_like(mean), np.full_like(mean, 1 / 12)
    narrow = deviation < NARROW
    middling = ~narrow & (deviation < WIDE)
    first[narrow], second[narrow] = _near_one_number(mean[narrow], deviation[narrow])
    first[middling], second[middling] = _by_series(mean[middling], deviation[middling])
    return first, second


def own_error(v: Floats, mean: F64) -> OwnError:
    """`added_error` as a function of a factor, for wide increments, factor * V; a quantised V has few distinct values.

    Each value has the sign that makes its channel's mean positive. Ties go either way, with the parity of the sum.
    """
    rows = v[:: -(-v.size // SAMPLE)] * np.copysign(1, mean)
    halves, counts = np.unique(np.clip(rows, -HALF.largest, HALF.largest).astype(np.float16), return_counts=True)
    values, shares = halves.astype(np.float32), counts / counts.sum()
    known = np.full((2, 1 << 18), np.nan, np.float32)

    def error(factors: F32) -> F32:
        places = (factors.view(np.uint32) + 0x1000) >> 13  # rounded to the bits of f16
        for place in np.unique(places[np.isnan(known[0, places])]):
            exact = np.uint32(place << 13).view(np.float32) * values
            off = np.rint(exact) - exact
            known[:, place] = np.where(np.abs(off) == 0.5, 0, off) @ shares, max(1 / 12, off**2 @ shares)
        return known[:, places]

    return error


def largest_bias(deviation: Floats) -> Floats:
    """The largest mean error, in ulps, of adding a normal increment of this standard deviation, over all means.

    It is the sum of the absolute values of the series' terms, at most half an ulp.
    """
    damping = np.exp(-2 * np.pi**2 * np.minimum(deviation, 8.0) ** 2)
    return np.asarray(np.minimum(0.5, sum(damping ** (k * k) / (np.pi * k) for k in (1, 2, 3, 4))))


def correlation(deviation: Floats) -> Floats:
    """The largest correlation of two channels' rounding errors: the first term of the series.

    Two sawtooth waves; the shift, the values' difference, is normal with standard deviation `deviation`, in ulps.
    """
    return np.asarray(np.exp(-4 * np.pi**2 * np.minimum(deviation, 3.0) ** 2))


def _by_series(mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    """round(y) - y = sum over k of (-1)^k / (pi k) sin(2 pi k y); the spread of y damps term k."""
    first, second = np.zeros_like(mean), np.full_like(mean, 1 / 12)
    angle, damping = 2 * np.pi * np.mod(mean, 1.0), np.exp(-2 * np.pi**2 * deviation**2)
    for k in (1, 2, 3):
        weight = (-1) ** k * damping ** (k * k)
        first += weight / (np.pi * k) * np.sin(k * angle)
        second += weight / (np.pi * k) ** 2 * np.cos(k * angle)
    return first, second


def _near_one_number(mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    """The error if an increment is so narrow that the result is the number nearest to the mean, or a neighbour of it.

    Identical increments that lie halfway between two numbers are rounded to even, so the sum stays even, and all
    are rounded the same way, as `rint` rounds the increment.
    """
    away = mean - np.rint(mean)
    first, second = -away, deviation**2 + away**2
    wide = np.maximum(deviation, 1e-9)
    for side in (1, -1):
        distance = (0.5 - side * away) / wide
        chance, density = _upper_tail(distance), np.exp(-(distance**2) / 2) / np.sqrt(2 * np.pi)
        first = first + side * chance
        second = second + chance * (1 - 2 * side * away) - 2 * deviation * density
    return np.where(deviation > 0, first, -away), np.maximum(second, 0.0)


def _upper_tail(x: Floats) -> Floats:
    """The probability that a standard normal variable exceeds x >= 0, to 1e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1 / (1 + 0.3275911 / np.sqrt(2) * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(series * np.exp(-(x**2) / 2) / 2)


TANH_LEAST = -8
"""Exponent of the first binade in the table of tanh.approx.f32; below it, the result is x."""


@cache
def _tanh_table() -> F32:
    """Mean errors (binades, parts of a binade) from the instruction's results on Hopper, stored in units of 1e-10."""
    text = files("fattn_probe.verdict.truth.error_model").joinpath("tanh.json").read_text()
    return np.array(json.loads(text), np.float32) * np.float32(1e-10)


def tanh_error(x: F32) -> F32:
    """tanh.approx(x) - tanh(x), which depends on x alone, as a mean over 1/64 of a binade."""
    table = _tanh_table()
    significand, exponent = np.frexp(np.abs(x))
    binade = exponent - 1 - TANH_LEAST
    part = ((binade + 2 * significand - 1) * table.shape[1]).astype(np.intp)
    error = np.where(binade < len(table), table.take(part, mode="clip") * np.sign(x), 0)
    return np.asarray(np.where(binade < 0, x**3 / 3, error).astype(np.float32))
