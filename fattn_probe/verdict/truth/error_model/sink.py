"""The error of scaling sums to an attention sink above all logits of a CUDA block, or to another warp's maximum.

With the sink as the new maximum, a kernel multiplies its sums by exp(maximum - sink); the argument is rounded to f32.
For f16 sums, the factor and the product are rounded to f16: below 2^-14 they have few bits, or none. mma-f16 also
flushes factors below exp(-20) to 0.
"""

from dataclasses import dataclass

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.verdict.truth.error_model.kernel import EXP_ERROR, Sinking
from fattn_probe.verdict.truth.error_model.operands import KVMoments
from fattn_probe.verdict.truth.error_model.rounding import HALF, SINGLE, added_error
from fattn_probe.verdict.truth.rounding_model.softmax import FLUSH

FAR = 6.0
"""The number of standard deviations of a logit's or a factor's error that a bound includes."""


@dataclass(frozen=True)
class Contribution:
    """The contribution of each accumulator to rows, arrays (rows, blocks, outer, warps).

    `maximum`: its running maximum with the kernel's offset. `share`: the sum of its weights, divided by the row sum.
    `largest`: its largest weight. `spread`: the variance of its part of the output about V's means.
    """

    maximum: F64
    share: F64
    largest: F64
    spread: F64


@dataclass(frozen=True)
class Sunk:
    """The error of the scaling in the units of `RowErrors`, arrays (rows,).

    The mean square, the part of it lost in f16, the signed loss, and the largest errors: of one addend, and in total.
    """

    variance: F64
    lost: F64
    loss: F64
    single: F64
    worst: F64


def sunk(held: Contribution, sinking: Sinking | None, sink: F64, share: F64, kv: KVMoments) -> Sunk:
    """The error for rows whose sink has this logit and this share of the row sum, (rows,) or (rows, blocks).

    A scaled sum is stored in f16 relative to the sink's share: 1 in f16 is `share` in the output.
    """
    mean, one = np.sqrt(kv.mean_square_V), _of_rows(share)
    below = np.minimum(held.maximum - _of_rows(sink), 0.0)
    own = np.zeros(below.shape, np.bool_)
    if sinking is not None:
        own[:, slice(None) if sinking.to_maximum else sinking.block, :, sinking.warps] = True
    exact = np.exp(below)
    in_f16 = own if sinking is not None and sinking.factor is HALF else np.zeros_like(own)
    factor = np.where(in_f16, exact.astype(np.float16).astype(np.float64), exact)
    if sinking is not None and sinking.flushes:
        elsewhere = np.ones((below.shape[1], 1, 1), np.bool_)
        elsewhere[sinking.block] = False
        factor = np.where(own & (below < FLUSH), 0.0, factor)  # in f16 it is 0 anyway
        factor = np.where(elsewhere & (below.max(axis=(2, 3), keepdims=True) < FLUSH), 0.0, factor)
    off = np.divide(factor, exact, out=np.zeros_like(exact), where=exact > 0) - 1  # each factor's relative error
    exp = np.where(below < 0, np.sqrt(EXP_ERROR + SINGLE.relative * below**2), 0.0)
    common = (exp * mean * held.share).sum(axis=(2, 3)) ** 2 + (exp**2 * held.spread).sum(axis=(2, 3))
    own &= (below < 0) & (off > -1) & (one > 0)
    content, deviation, unit = (
        (mean * held.share * (1 + off))[own],
        np.sqrt(held.spread)[own],
        np.broadcast_to(one, own.shape)[own],
    )
    ulp = HALF.ulp(np.hypot(content, deviation) / unit) * unit
    first, second = added_error(content / ulp, deviation / ulp)
    bias, noise = np.zeros(below.shape), np.zeros(below.shape)
    bias[own], noise[own] = ulp * first, ulp**2 * (second - first**2)
    least_V = kv.channel_largest[kv.channel_largest > 0].min(initial=np.inf)
    rounded = np.where(own, np.maximum(held.share * HALF.half_ulp, HALF.half_step * one / least_V), 0.0)
    lost = _total(noise + off**2 * held.spread)
    return Sunk(
        variance=lost + common.sum(axis=1),
        lost=lost,
        loss=_total(off * held.share + bias / (mean or 1.0)),
        single=np.asarray((np.abs(off) * held.largest + FAR * exp * held.share + rounded).max(axis=(1, 2, 3))),
        worst=_total((np.abs(off) + FAR * exp) * held.share + rounded),
    )


def _of_rows(values: F64) -> F64:
    return values.reshape(len(values), -1, 1, 1)


def _total(values: F64) -> F64:
    return np.asarray(values.sum(axis=(1, 2, 3)))
