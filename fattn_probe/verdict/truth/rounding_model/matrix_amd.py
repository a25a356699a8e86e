"""The sums of AMD's v_dot2_f32_f16, WMMA and MFMA, by the rules of cases/device/amd_arithmetic.csv.

RDNA3 and RDNA4: AMD's emulator rocjitsu (ROCm/rocm-systems), based on a gfx1100 and a gfx1201. MFMA: Xie, Wang, Yang,
Yang, MMA-Sim, arXiv 2511.10909. Assumed: gfx1200 is like gfx1201, and v_dot2_f32_f16 rounds each sum before RDNA3.
"""

import numpy as np

from fattn_probe.base.arrays import F32, F64, I32
from fattn_probe.llama.launch.architecture import CDNA2, CDNA3, RDNA3, RDNA4, generation_of
from fattn_probe.verdict.truth.rounding_model.functions import fma, half_of
from fattn_probe.verdict.truth.rounding_model.tensor_core import F16_LEAST

NOTHING = -1000
"""The exponent assigned to a zero: no other number is aligned to it."""
F32_LEAST = -126
"""The exponent of the smallest normal float32; on CDNA3, also that of a zero."""


def dot2(a: F32, b: F32, c: F32, arch: int) -> F32:
    """v_dot2_f32_f16: c plus two products of f16 numbers, from a and b (2, ...)."""
    if arch < RDNA3:
        return _normal(fma(a[1], b[1], fma(a[0], b[0], _normal(c))))
    return _rdna_step(a, b, c, arch, half=False)


def matrix_sum(a: F32, b: F32, c: F32, arch: int, *, half: bool) -> F32:
    """c + a @ b with accumulators in f32 or (`half`) f16: a is (..., M, K), b (..., K, N), in f16.

    MFMA has no f16 accumulators: a kernel rounds the result of each instruction.
    """
    group, of_instruction = generation_of(arch).group, generation_of(arch).k_half
    if arch == CDNA2:
        a, b, c = _normal(a, F16_LEAST), _normal(b, F16_LEAST), _normal(c)
    for first in range(0, a.shape[-1], group):
        of = range(first, first + group)
        x, y = np.stack([a[..., k, None] for k in of]), np.stack([b[..., k, None, :] for k in of])
        if arch >= RDNA3:
            c = _rdna_step(x, y, c, arch, half=half)
        else:
            c = _fused(x, y, c) if arch == CDNA3 else _in_pairs(x, y, c, flushes=arch == CDNA2)
            if half and of.stop % of_instruction == 0:
                c = half_of(c)
    return c


def _rdna_step(a: F32, b: F32, c: F32, arch: int, *, half: bool) -> F32:
    """c plus the products of a and b (2 or 4, ...): aligned to a common grid, added exactly, rounded once."""
    least = F16_LEAST if half else F32_LEAST
    products = a * b
    exponents = np.where(products == 0, NOTHING, _exponent(a, F16_LEAST) + _exponent(b, F16_LEAST))
    if arch < RDNA4:
        start = c if half else _normal(c, signed=True)
        own = np.where(start == 0, least if half else NOTHING, _exponent(start, least))
        grid = np.maximum(exponents.max(axis=0) - 24, own - 26)
        total = np.trunc(_scaled(np.abs(start), -grid))
        for product in products:  # a term of the opposite sign is negated by inverting its bits: one unit too far
            units = np.trunc(_scaled(np.abs(product), -grid))
            total += np.where(np.signbit(product) != np.signbit(start), -units - 1, units)
    else:
        start = c
        grid = np.maximum(exponents.max(axis=0) - 24, _exponent(start, least) - 26)
        aligned = _scaled(start, -grid)
        total = np.where((np.abs(aligned) < 1) & (grid > least), 0.0, np.floor(aligned))
        for i in range(0, len(products), 2):
            pair = exponents[i : i + 2].max(axis=0)
            unit = np.where(pair == NOTHING, grid, pair - 24)
            both = np.floor(_scaled(products[i], -unit)) + np.floor(_scaled(products[i + 1], -unit))
            total += np.floor(_scaled(both, unit - grid))
    result = half_of(_scaled(total, grid)) if half else _scaled(total.astype(np.float32), grid).astype(np.float32)
    if arch < RDNA4:
        result = result if half else _normal(result)
        result = np.where((total != 0) & np.signbit(start), -result, result)
    result = np.where((exponents == NOTHING).all(axis=0), start + np.float32(0), result)
    return _spread(products, c, result)


def _in_pairs(a: F32, b: F32, c: F32, *, flushes: bool) -> F32:
    """CDNA1 and 2: (p0 + p1) + (p2 + p3) is added to c; each operation rounds."""
    kept = (lambda x: _normal(x, signed=True)) if flushes else np.asarray
    p = kept(a * b + np.float32(0))
    return kept(c + kept(kept(p[0] + p[1]) + kept(p[2] + p[3])))


def _fused(a: F32, b: F32, c: F32) -> F32:
    """CDNA3: products are truncated 24 bits below their largest exponent; their sum and c are rounded down."""
    products = a * b
    of_a, of_b = (np.where(x == 0, F32_LEAST, _exponent(x, F16_LEAST)) for x in (a, b))
    exponent, own = (of_a + of_b).max(axis=0), _exponent(c, F32_LEAST)
    total = np.trunc(_scaled(products, 24 - exponent)).sum(axis=0)
    most = np.maximum(exponent, own)
    total = np.floor(_scaled(total, exponent - most + 7)) + 128 * np.floor(_scaled(c, 24 - most))
    return _spread(products, c, _scaled(total, most - 31).astype(np.float32))


def _spread(products: F32, c: F32, result: F32) -> F32:
    """The result with infinities and NaNs propagated as in any sum."""
    if np.isfinite(products).all() and np.isfinite(c).all():
        return result
    plain = products.sum(axis=0, dtype=np.float64) + c
    return np.where(np.isfinite(plain), result, plain.astype(np.float32))


def _exponent(x: F32, least: int) -> I32:
    """The exponent of a number; `least` for subnormal numbers and 0."""
    bits = np.ascontiguousarray(x).view(np.int32)
    return np.asarray(np.maximum((bits >> 23 & 255) - 127, least))


def _normal(x: F32, least: int = F32_LEAST, *, signed: bool = False) -> F32:
    """x with 0 in place of subnormal numbers, of the same sign if `signed`."""
    zero = np.copysign(np.float32(0), x) if signed else np.float32(0)
    return np.where(np.abs(x) < np.float32(2.0**least), zero, x)


def _scaled(x: F32 | F64, exponent: I32) -> F64:
    """x times a power of two, in float64."""
    return np.ldexp(x.astype(np.float64), exponent)
