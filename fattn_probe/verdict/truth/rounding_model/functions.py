"""Float32 arithmetic of NVIDIA's device code in NumPy: the hardware's approximate functions, and fused multiply-adds.

The tables were measured on an H200, and are assumed for all GPUs; native/sim/data/README.md explains their rules.
"""

import gzip
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, F64, I32
from fattn_probe.verdict.truth.rounding_model import compiled

MEASURED_ARCHS = frozenset({90})
"""Architectures of the real GPUs on which the tables were measured; every simulated GPU uses these tables."""
SIGNIFICAND = 23
FRACTION = (1 << SIGNIFICAND) - 1
LOG2_E = np.float32(1.4426950408889634)
TANH_BITS = (17, 17, 17, 18, 18, 19, 19, 19, 20, 21, 20)
"""Leading fraction bits that tanh reads, for each binade from 2^-8 on."""


@cache
def _table(name: str, dtype: str) -> npt.NDArray[Any]:
    """A table of the hardware's results; a table of first differences (`.diff32.`) is summed up."""
    values = np.frombuffer(gzip.decompress((files("fattn_probe") / "native/sim/data" / name).read_bytes()), dtype)
    return np.cumsum(values, dtype=np.int32) if ".diff32." in name else values


def _bits(x: F32) -> I32:
    return np.ascontiguousarray(x).view(np.int32)


def ex2(x: F32) -> F32:
    """`ex2.approx.ftz.f32`: truncates x toward zero to 2^-23, and complements the fraction of a negative x."""
    table = _table("ex2.gz", "i1")
    if (found := compiled.ex2(x, table)) is not None:
        return found
    fixed = np.clip(np.nan_to_num(x, nan=0.0), -127, 128).astype(np.float64)
    fixed *= 1 << SIGNIFICAND
    whole = fixed.astype(np.int64)
    fraction = whole & FRACTION
    exponent = whole >> SIGNIFICAND
    fraction -= (whole < 0) & (fraction > 0)
    power = np.exp2(fraction * (1.0 / (1 << SIGNIFICAND))).astype(np.float32)
    bits = power.view(np.int32) + np.take(table, fraction)
    result = (bits + (exponent.astype(np.int32) << SIGNIFICAND)).view(np.float32)
    return np.where(x < -126, np.float32(0), np.where(x < 128, result, np.maximum(x, np.float32(np.inf))))


def rcp(x: F32) -> F32:
    """`rcp.approx.ftz.f32`: a table of one binade, scaled exactly by powers of two."""
    bits = _bits(x)
    sign, field, fraction = bits & np.int32(-(2**31)), bits >> SIGNIFICAND & 255, bits & FRACTION
    near = (1.0 / (1.0 + fraction / (1 << SIGNIFICAND))).astype(np.float32).view(np.int32)
    near = near + np.take(_table("rcp.gz", "i1"), fraction)
    exponent = (near >> SIGNIFICAND) - (field - 127)
    normal = np.where(exponent > 0, exponent << SIGNIFICAND | near & FRACTION, 0)
    result = np.where(field == 0, np.int32(0x7F800000), np.where(field == 255, 0, normal)) | sign
    return np.where(np.isnan(x), x, result.astype(np.int32).view(np.float32))


def lg2(x: F32) -> F32:
    """`lg2.approx.ftz.f32` of a positive normal number: a table for 0.5 to 1, plus the exponent, truncated."""
    bits = _bits(x)
    exponent = (bits >> SIGNIFICAND) - 126
    mantissa = np.take(_table("lg2.diff32.gz", "<i4"), bits & FRACTION).view(np.float32)
    total = exponent.astype(np.float64) + mantissa
    return np.where(exponent == 0, mantissa, truncated(total))


def tanh(x: F32) -> F32:
    """`tanh.approx.f32`: x below 2^-8, 1 from 2^3 on, else a table indexed by the leading bits of x."""
    bits = _bits(x)
    binade = (bits >> SIGNIFICAND & 255) - 127 + 8
    inside = np.clip(binade, 0, len(TANH_BITS) - 1)
    sizes = np.array(TANH_BITS)
    starts = np.concatenate([[0], np.cumsum(1 << sizes)])[:-1]
    place = starts[inside] + ((bits & FRACTION) >> (SIGNIFICAND - sizes[inside]))
    found = np.take(_table("tanh.diff32.gz", "<i4"), place)
    result = np.where(binade >= len(TANH_BITS), np.int32(0x3F800000), found) | bits & np.int32(-(2**31))
    return np.where((binade < 0) | np.isnan(x), x, result.astype(np.int32).view(np.float32))


def power(x: F32, y: F32) -> F32:
    """`powf` under -use_fast_math."""
    return ex2(y * lg2(x))


def truncated(exact: F64, fraction: int = SIGNIFICAND) -> F32:
    """Round toward zero to float32's 24 bits, or to fewer: `fraction` bits after the leading one."""
    cut = np.ascontiguousarray(exact).view(np.int64) & ~np.int64((1 << (52 - fraction)) - 1)
    return cut.view(np.float64).astype(np.float32)


def flushed(x: F32) -> F32:
    """x with zeros in place of subnormal numbers: -use_fast_math sets -ftz=true."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def half_of(x: F32 | F64) -> F32:
    """x rounded to f16, ties to even; held as float32."""
    if (found := compiled.half_of(x)) is not None:
        return found
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def fma(a: F32 | np.float32, b: F32, c: F32) -> F32:
    """a*b + c, rounded once."""
    return fused_sum(np.asarray(a)[None], np.asarray(b)[None], c)


def fused_sum(a: F32, b: F32, c: F32, *, half: bool = False) -> F32:
    """c plus the products of a and b along their first axis, in order; each sum is rounded once (if `half`, to f16)."""
    a, b, c = (np.asarray(x, np.float32) for x in (a, b, c))
    if (found := compiled.fused_sum(a, b, c, half=half)) is not None:
        return found
    with np.errstate(invalid="ignore", over="ignore"):
        for x, y in zip(a, b, strict=True):
            product = np.multiply(x, y, dtype=np.float64)
            c = half_of(product + c) if half else _rounded_sum(product, c)
    return c


def _rounded_sum(product: F64, c: F32) -> F32:
    """product + c, rounded once.

    Rounding the float64 sum to float32 is wrong only where that sum is inexact and lies halfway between two float32
    numbers; for subnormal numbers, halfway can be at any bit. In these cases, a float64 sum whose last bit is 0 is
    first moved toward the exact sum, so that it is no longer halfway. Knuth's two-sum gives its error.
    """
    total = np.asarray(product + c)
    halfway = (total.view(np.int64) & 0x1FFFFFFF == 0x10000000) | (np.abs(total) < np.finfo(np.float32).tiny)
    if halfway.any():
        near = total[halfway]
        exact, added = (np.broadcast_to(each, total.shape)[halfway] for each in (product, c))
        part = near - exact
        error = (exact - (near - part)) + (added - part)
        bits = near.view(np.int64)
        bits += np.where((error != 0) & (bits & 1 == 0), np.where((error > 0) == (near > 0), 1, -1), 0)
        total[halfway] = near
    return total.astype(np.float32)


def divided(x: F32, y: F32) -> F32:
    """x / y under -use_fast_math; NaN (0 times infinity) for a sum of 0 over a row sum of 0."""
    with np.errstate(invalid="ignore"):
        return flushed(x * rcp(y))


def exp(x: F32) -> F32:
    """`expf` under -use_fast_math: ex2 of the float32 product x * log2(e)."""
    return ex2(x * LOG2_E)
