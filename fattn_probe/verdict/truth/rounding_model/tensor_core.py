"""The sums of a tensor core: exact products, aligned to the largest exponent, truncated, and added as integers.

Sources: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores" (PeerJ CS 7:e330, 2021); Khattak
and Mikaitis (arXiv 2512.07004). Every bit is equal to the results of an H200 on 46 measured matrices of each kind.
Assumed: Turing is like Volta, Ada like Ampere, Blackwell like Hopper.

Sums of e4m3 products follow two published models that agree on Hopper: groups of 32, 13 bits after the leading one
instead of 25, and a result of 13 bits (Khattak and Mikaitis; Xie et al., MMA-Sim, arXiv 2511.10909). Every bit equals
the 5,000 results of an H100 that Khattak and Mikaitis publish, whose accumulators are 0.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fattn_probe.base.arrays import F32, F64, I8, I32
from fattn_probe.llama.launch.architecture import Generation
from fattn_probe.verdict.truth.rounding_model.functions import SIGNIFICAND, truncated

NONE = -64
"""The exponent given to zeros: with any other factor it stays below -28, the smallest exponent of a product."""
LOWEST = -100
"""A lower limit on the exponents of sums, so that every power of two here is a float32."""
OVERFLOW = 65520.0
"""The smallest number that f16 rounds to infinity."""


F16_LEAST, E4M3_LEAST = -14, -6
"""The exponents of the smallest normal numbers."""


@dataclass(frozen=True)
class Fp8Rule:
    """How FP8 products are added: `group` at once, with `extra` bits beyond 24; if negative, in the result too."""

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
        """The values, with 0 for infinities and NaNs."""
        return self.value if self.finite else np.where(np.isfinite(self.value), self.value, np.float32(0))

    @cached_property
    def exponent(self) -> I8:
        """The exponent in the format: subnormal numbers have that of the smallest normal number, zeros `NONE`."""
        value = np.ascontiguousarray(self.number)
        field = (value.view(np.int32) >> 23 & 255).astype(np.int16) - 127
        return np.where(value == 0, NONE, np.maximum(field, self.least)).astype(np.int8)


def matrix_sum(a: Factors, b: Factors, c: F32, rule: Rule) -> F32:
    """c + a @ b with f32 accumulators: a is (..., M, K), b (..., K, N)."""
    fraction = SIGNIFICAND + min(rule.extra, 0)
    for first in range(0, a.value.shape[-1], rule.group):
        part = slice(first, first + rule.group)
        c = _with_specials(a, b, part, c, truncated(_exact_sum(a, b, part, c, rule), fraction))
    return c


def matrix_sum_half(a: Factors, b: Factors, c: F32, rule: Generation) -> F32:
    """`matrix_sum` with f16 accumulators, which c holds as float32."""
    for first in range(0, a.value.shape[-1], rule.group):
        part = slice(first, first + rule.group)
        exact = _exact_sum(a, b, part, c, rule)
        last = (first + rule.group) % rule.k_half == 0 or first + rule.group >= a.value.shape[-1]
        c = _with_specials(a, b, part, c, half_of(exact) if last else truncated(exact))
    return c


def half_of(exact: F32 | F64) -> F32:
    """Round to f16, ties to even, held as float32: adding 1.5 times a number's binade leaves 11 of its bits.

    The binade is that of the number of `exact`'s type whose last bit is the eleventh.
    """
    double = exact.dtype == np.float64
    magic = np.empty(exact.shape, exact.dtype)
    whole = magic.view(np.int64 if double else np.int32)
    np.bitwise_and(np.ascontiguousarray(exact).view(whole.dtype), 0x7FF << 52 if double else 0xFF << 23, out=whole)
    np.maximum(magic, 2.0**F16_LEAST, out=magic)
    with np.errstate(invalid="ignore", over="ignore"):  # of what becomes infinity
        magic *= 1.5 * 2.0 ** (42 if double else 13)
        rounded = exact + magic
        rounded -= magic
    result = rounded.astype(np.float32, copy=False)
    least, most = (function.reduce(result, axis=None, initial=0) for function in (np.fmin, np.fmax))
    if least > -OVERFLOW and most < OVERFLOW:
        return result
    return np.where(np.abs(exact) >= OVERFLOW, np.copysign(np.float32(np.inf), exact), result).astype(np.float32)


def _exact_sum(a: Factors, b: Factors, part: slice, c: F32, rule: Rule) -> F64:
    """The sum of one group before it is rounded; for finite numbers only."""
    bits = SIGNIFICAND + rule.extra
    exponent = _largest(a, b, part, c)
    scale = ((127 + bits - exponent) << 23).view(np.float32)
    total = np.zeros(c.shape, np.int32)
    product, term = np.empty(c.shape, np.float32), np.empty(c.shape, np.int32)
    x, y = a.number, b.number
    for k in range(part.start, min(part.stop, x.shape[-1])):
        np.multiply(x[..., k, None], y[..., k, None, :], out=product)
        product *= scale
        np.copyto(term, product, casting="unsafe")  # truncates toward zero
        total += term
    exact = total.astype(np.float64)
    exact += np.trunc(np.multiply(c, scale, out=product), out=product)
    exact *= ((exponent + (127 - bits)) << 23).view(np.float32)
    return exact


def _largest(a: Factors, b: Factors, part: slice, c: F32) -> I32:
    """The exponent that a group is aligned to: the largest among its products and the accumulator."""
    x, y = a.exponent, b.exponent
    most, this = np.full(c.shape, -128, np.int8), np.empty(c.shape, np.int8)
    for k in range(part.start, min(part.stop, x.shape[-1])):
        np.add(x[..., k, None], y[..., k, None, :], out=this)
        np.maximum(most, this, out=most)
    exponent = (np.ascontiguousarray(c).view(np.int32) >> 23 & 255) - 127
    exponent[exponent == 128] = LOWEST
    np.maximum(exponent, most, out=exponent)
    return np.asarray(np.maximum(exponent, LOWEST, out=exponent))


def _with_specials(a: Factors, b: Factors, part: slice, c: F32, result: F32) -> F32:
    """The result with infinities and NaNs propagated as in an ordinary sum of products."""
    if a.finite and b.finite and np.isfinite(c).all():
        return result
    with np.errstate(invalid="ignore", over="ignore"):
        plain = c + np.matmul(a.value[..., part], b.value[..., part, :])
    return np.where(np.isfinite(plain), result, plain)
