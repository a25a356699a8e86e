"""The sums of a tensor core: exact products, aligned to the largest exponent, truncated, and added as integers.

Sources: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores" (PeerJ CS 7:e330, 2021); Khattak
and Mikaitis (arXiv 2512.07004). Every bit matches an H200's results for 46 measured matrices of each kind. Assumed:
Turing is like Volta, Ada like Ampere, Blackwell like Hopper.

Sums of e4m3 products follow two published models that agree on Hopper: groups of 32, 13 bits after the leading one
instead of 25, and a result of 13 bits (Khattak and Mikaitis; Xie et al., MMA-Sim, arXiv 2511.10909). Every bit matches
the 5,000 H100 results that Khattak and Mikaitis publish, all with accumulators of 0.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fattn_probe.base.arrays import F32, F64, I8
from fattn_probe.llama.launch.architecture import Generation
from fattn_probe.verdict.truth.rounding_model import compiled
from fattn_probe.verdict.truth.rounding_model.functions import SIGNIFICAND, half_of, truncated

NONE = -64
"""The exponent assigned to zeros: its sum with any other is below -28, the smallest exponent of a product."""
LOWEST = -100
"""A lower limit on the exponents of sums, so that every power of two in this module is a float32."""

F16_LEAST, E4M3_LEAST = -14, -6
"""The exponents of the smallest normal numbers."""


@dataclass(frozen=True)
class Fp8Rule:
    """How FP8 products are added: `group` at once, with 24 + `extra` bits; a negative `extra` also shortens results."""

    group: int
    extra: int


Rule = Generation | Fp8Rule
HOPPER_FP8 = Fp8Rule(32, -10)


@dataclass(frozen=True)
class Factors:
    """f16 or e4m3 numbers, stored as float32, and the exponents that align their products.

    `least` is the exponent of the smallest normal number.
    """

    value: F32
    least: int = F16_LEAST

    @cached_property
    def finite(self) -> bool:
        """Whether no value is an infinity or a NaN."""
        return bool(np.isfinite(self.value).all())

    @cached_property
    def number(self) -> F32:
        """The values, with 0 in place of infinities and NaNs."""
        return self.value if self.finite else np.where(np.isfinite(self.value), self.value, np.float32(0))

    @cached_property
    def exponent(self) -> I8:
        """The exponent in the format: subnormal numbers have that of the smallest normal number, zeros `NONE`."""
        value = np.ascontiguousarray(self.number)
        field = (value.view(np.int32) >> 23 & 255).astype(np.int16) - 127
        return np.where(value == 0, NONE, np.maximum(field, self.least)).astype(np.int8)


def matrix_sum(a: Factors, b: Factors, c: F32, rule: Rule, k_half: int = 0) -> F32:
    """c + a @ b: a is (..., M, K), b (..., K, N).

    Accumulators are f32 or, if `k_half` is not 0, f16, which c holds as float32: rounded after every `k_half` products.
    """
    bits, fraction, number = SIGNIFICAND + rule.extra, SIGNIFICAND + min(rule.extra, 0), a.value.shape[-1]
    how = (rule.group, bits, fraction, k_half, a.least, b.least)
    if a.finite and b.finite and (found := compiled.matrix_sum(a.value, b.value, c, *how)) is not None:
        return found
    for first in range(0, number, rule.group):
        part = slice(first, end := min(first + rule.group, number))
        exact = _exact_sum(a, b, part, c, bits)
        to_half = k_half and (end % k_half == 0 or end == number)
        c = _with_specials(a, b, part, c, half_of(exact) if to_half else truncated(exact, fraction))
    return c


def _exact_sum(a: Factors, b: Factors, part: slice, c: F32, bits: int) -> F64:
    """The sum of one group, aligned to its largest exponent, before it is rounded; for finite numbers only."""
    exponent = (np.ascontiguousarray(c).view(np.int32) >> SIGNIFICAND & 255) - 127
    exponent = np.maximum(LOWEST, np.where(exponent == 128, LOWEST, exponent))
    for k in range(part.start, part.stop):
        np.maximum(exponent, a.exponent[..., k, None] + b.exponent[..., k, None, :], out=exponent)
    scale = ((127 + bits - exponent) << SIGNIFICAND).view(np.float32)
    total = np.trunc(c * scale) + np.float64(0)  # a sum of integers has no negative zero
    for k in range(part.start, part.stop):
        total += np.trunc(a.number[..., k, None] * b.number[..., k, None, :] * scale)
    return np.asarray(total * ((exponent + (127 - bits)) << SIGNIFICAND).view(np.float32))


def _with_specials(a: Factors, b: Factors, part: slice, c: F32, result: F32) -> F32:
    """The result with infinities and NaNs propagated as in an ordinary sum of products."""
    if a.finite and b.finite:
        return np.where(np.isfinite(c), result, c)
    with np.errstate(invalid="ignore", over="ignore"):
        plain = c + np.matmul(a.value[..., part], b.value[..., part, :])
    return np.where(np.isfinite(plain), result, plain)
