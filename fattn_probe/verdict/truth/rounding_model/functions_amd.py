"""Float32 functions of device code as clang compiles them for AMD GPUs, without -ffast-math.

Sources: LLVM's expansion of expf, and AMD's device library. Assumed: correct rounding; subnormals are kept.
"""

import numpy as np

from fattn_probe.base.arrays import F32
from fattn_probe.verdict.truth.rounding_model.functions import fma

LOG2_E_HIGH, LOG2_E_LOW, EXP_LEAST, EXP_MOST = np.array([0x3FB8AA3B, 0x32A5705F, 0xC2CE8ED0, 0x42B17218], "<u4").view(
    np.float32
)
TANH = np.array([0xBBBAC73D, 0x3CA908C9, 0xBD5C1C4E, 0x3E088382, 0xBEAAAA99], "<u4").view(np.float32)
"""The coefficients of tanh's polynomial below 0.625, the highest power first."""


def exp(x: F32) -> F32:
    """`expf`: 2 to the power of x*log2(e), as an exact integer part and a fraction; 0 or infinity out of range."""
    inside = np.clip(np.nan_to_num(x, nan=0.0), EXP_LEAST, EXP_MOST)
    turns = inside * LOG2_E_HIGH
    whole = np.rint(turns)
    rest = (turns - whole) + fma(inside, LOG2_E_LOW, fma(inside, LOG2_E_HIGH, -turns))
    power = np.exp2(rest.astype(np.float64)).astype(np.float32)
    with np.errstate(over="ignore"):
        result = np.ldexp(power, whole.astype(np.int32))
    return np.where(x < EXP_LEAST, np.float32(0), np.where(x <= EXP_MOST, result, np.maximum(x, np.float32(np.inf))))


def tanh(x: F32) -> F32:
    """`tanhf`: a polynomial below 0.625, else 1 - 2 / (1 + exp(2x))."""
    size = np.abs(x)
    square = size * size
    series = np.full(size.shape, TANH[0])
    for coefficient in TANH[1:]:
        series = fma(series, square, np.full(size.shape, coefficient))
    small = fma(square, size * series, size)
    with np.errstate(over="ignore"):
        reciprocal = np.float32(1) / (np.float32(1) + exp(size + size))
    large = fma(reciprocal, np.full(size.shape, np.float32(-2)), np.ones(size.shape, np.float32))
    return np.copysign(np.where(size < 0.625, small, large), x)


def power(x: F32, y: F32) -> F32:
    """`powf`."""
    return np.asarray(np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32))


def divided(x: F32, y: F32) -> F32:
    """x / y, rounded correctly."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.divide(x, y, dtype=np.float32))


def unchanged(x: F32) -> F32:
    """x: subnormal numbers are kept."""
    return x
