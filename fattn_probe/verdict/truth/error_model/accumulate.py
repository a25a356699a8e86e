"""The error of the sums of p*V: every rounding of each accumulator, and the loss where its ulp is too large.

A sum of n terms in precision u has an error of about sqrt(n) u, not n u, as long as roundings are independent of each
other (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019; Connolly, Higham and Mary, 43(1), 2021). Increments
below half an ulp of the accumulator break that assumption: each is rounded away, and the mean error grows with n
(stagnation; Connolly, Higham and Mary, section 2). A tensor core adds a block of products at once and rounds once
(Blanchard, Higham, Lopez, Mary and Pranesh, SIAM J. Sci. Comput. 42(3), 2020).
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fattn_probe.base.arrays import F32, F64, Bools
from fattn_probe.verdict.truth.error_model.rounding import (
    HALF,
    WIDE,
    Format,
    OwnError,
    added_error,
    correlation,
    largest_bias,
)

Arrays = TypeVar("Arrays", "Chains", "_Held")
NODES = (0.0, 0.5988, -0.5988, 1.4635, -1.4635)
"""Nodes of a quadrature for a standard normal variable: the midpoints of five equal shares."""
MUCH = 3e-3
"""If a sum loses more than this share, the loss is followed segment by segment."""
PARTS, ROUNDS = 64, 3
"""Segments into which a sum with a larger loss is cut, and fixed-point iterations for the loss within one segment."""
EVEN = 0.05
"""If the weights' relative scatter is larger than this, it spreads products with equal V over an ulp."""
SURELY = 6.0
"""An accumulator is assumed to stay within this many standard deviations."""
NEGLIGIBLE = 1e-15
"""Below this scale, an accumulator's content does not affect the output."""


@dataclass(frozen=True)
class Chains:
    """The additions into the accumulators of rows, in order; arrays (rows, accumulators, additions).

    `weight` is the sum of the addition's weights p, relative to the kernel's running maximum; `square` is the sum of
    p^2 times V's variance. `weight_variance` is the variance of `weight`, which comes from the errors in the logits.
    `top` and `top_square` are the maximum's parts of `weight` and `square`: in f16, its weight is the power of two
    exp(-3 ln 2), so its product with V is exact. `scale` makes them relative to the row's final maximum. `raised`
    (rows, accumulators, KV steps - 1) marks the steps, after the first, at whose start the running maximum rose.
    `own_error` is computed from V's own values; None if an addition has several products.
    """

    weight: F32
    square: F32
    weight_variance: F32
    top: F32
    top_square: F32
    scale: F32
    raised: Bools
    own_error: OwnError | None = None


@dataclass(frozen=True)
class Sums:
    """The errors of accumulators, arrays (rows,), relative to the row's maximum but not divided by the row sum.

    `variance` is a mean over the channels; `walk` is its part due to V's scatter, not to V's mean. `common` is the
    share of squared errors that is the same in all channels. `steps`: half the distances between subnormal numbers, as
    a sum of squares and as a plain sum: each rounding may be off by that much, however small V is. `loss` is a share of
    V's mean (negative: lost), and so is `content` (rows, accumulators), the sum in each accumulator at the end. `worst`
    is the largest possible error, as a share of the largest |V|. `stuck` is the largest loss of any row with these
    weights, as a share of V's mean, wherever its sums lie between two powers of two. `largest` is the largest possible
    value of an accumulator. `flip` is the largest change if a followed sum is rounded to the other neighbour, or 0.
    """

    variance: F64
    walk: F64
    common: F64
    steps: tuple[F64, F64]
    loss: F64
    content: F64
    worst: F64
    stuck: F64
    largest: F64
    flip: F64
    roundings: F64


@dataclass(frozen=True)
class _Held:
    """The accumulators after each addition: mean as a share of V's mean, variance, and whether anything was added."""

    weight: F32
    square: F32
    active: Bools


def accumulate(chains: Chains, number: Format, mean_square_V: float, between: float) -> Sums:
    """The expected error of sums in a format, for V with this mean square and this variance of its channels' means."""
    held = _Held(
        np.cumsum(chains.weight * chains.scale, axis=2),
        np.cumsum(chains.square * chains.scale**2, axis=2),
        (chains.weight > 0) & (chains.scale > NEGLIGIBLE),
    )
    variance, loss, flip = _roundings(chains, number, held, mean_square_V, between)
    powers = _power(held, mean_square_V)
    variance += 2 * number.relative * _rescaled(powers, chains.raised)
    power = _total(np.where(held.active, powers, 0))
    back, mean = _inverse(chains.scale), float(np.sqrt(mean_square_V))
    largest = mean * held.weight * back + SURELY * np.sqrt(held.square) * back
    scale = chains.scale.reshape(*chains.raised.shape[:2], chains.raised.shape[2] + 1, -1)[:, :, 1:, 0]
    steps = np.concatenate([np.where(held.active, chains.scale, 0), np.where(chains.raised, scale, 0)], axis=2)
    return Sums(
        variance=variance,
        walk=variance * _total(np.where(held.active, held.square, 0)) / np.where(power == 0, 1, power),
        common=_common(chains, number, held, mean_square_V, between),
        steps=(number.half_step**2 * _total(steps**2), number.half_step * _total(steps)),
        loss=loss.sum(axis=1),
        content=held.weight[:, :, -1] + loss,
        worst=_worst(chains, number, held),
        stuck=_stuck(chains, number, held, mean_square_V),
        largest=largest.max(axis=(1, 2)).astype(np.float64),
        flip=flip,
        roundings=held.active.sum(axis=(1, 2)) / np.maximum(held.active.any(axis=2).sum(axis=1), 1),
    )


def _worst(chains: Chains, number: Format, held: _Held) -> F64:
    """The worst case of all roundings of all additions and rescalings.

    An addition is off by at most half an ulp of the sum, and by no more than the increment, because the old accumulator
    is one of the candidates for rounding. So no error exceeds the exact sum, and no accumulator exceeds twice that sum.
    """
    added, ulp = chains.weight * chains.scale, 2 * number.half_ulp * held.weight
    rescaled = 4 * number.half_ulp * _rescaled(held.weight, chains.raised)
    return _total(np.where(held.active, np.minimum(added, ulp), 0)) + rescaled


def _common(chains: Chains, number: Format, held: _Held, mean_square: float, between: float) -> F64:
    """The share of the roundings' mean square that is the same in all channels, as the errors of weights are."""
    ulp = number.ulp(np.sqrt(_power(held, mean_square)) * _inverse(chains.scale)).astype(np.float64)
    of_weight, weight = mean_square * chains.weight_variance, np.where(held.active, (ulp * chains.scale) ** 2, 0)
    part = np.divide(of_weight, of_weight + chains.square, out=np.ones_like(ulp), where=chains.square > 0)
    same = part * correlation(np.sqrt(chains.square + between * chains.weight**2) / ulp)
    return _total(weight * same) / np.maximum(_total(weight), np.finfo(np.float64).tiny)


def _rescaled(held: F32, raised: Bools) -> F64:
    """The sum of each accumulator's contents at the steps where its maximum rises.

    When the maximum rises, the accumulator is multiplied by a factor in its own format, which rounds its content twice.
    """
    rows, accumulators, steps = raised.shape
    return _total(np.where(raised, held.reshape(rows, accumulators, steps + 1, -1)[:, :, :-1, -1], 0))


def _stuck(chains: Chains, number: Format, held: _Held, mean_square: float) -> F64:
    """The largest loss of any row with these weights, from roundings that the increments' spread does not decorrelate.

    Half an ulp is at most `half_ulp` times the sum. Scatter in the weights dithers the sum as scatter in V does.
    """
    if number is not HALF or mean_square == 0.0:
        return np.zeros(len(held.weight))
    added = np.where(held.active, chains.weight * chains.scale, 0)
    counted = np.maximum(held.active.sum(axis=2, keepdims=True), 1)
    mean = added.sum(axis=2, keepdims=True) / counted
    scatter = np.where(held.active, (added - mean) ** 2, 0).sum(axis=2, keepdims=True) / counted
    ulp = 2 * number.half_ulp * np.sqrt(_power(held, mean_square))
    spread = np.sqrt(chains.square * chains.scale**2 + mean_square * scatter)
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = largest_bias(np.where(ulp > 0, spread / ulp, np.inf)) * ulp / np.sqrt(mean_square)
    return _total(np.where(held.active, np.minimum(added, lost), 0))


def _roundings(chains: Chains, number: Format, held: _Held, mean_square: float, between: float) -> tuple[F64, F64, F64]:
    """Variance, loss and `flip` of all additions.

    A loss makes the sum smaller, its ulp finer and later losses fewer.
    """
    none = np.zeros(len(held.weight))
    if number is not HALF:
        power = np.where(held.active, _power(held, mean_square), 0)
        return number.relative * _total(power), np.zeros(held.weight.shape[:2]), none
    mean = float(np.sqrt(mean_square))
    if mean and not between and not chains.square.any():
        variance, loss, flip = _followed(chains, held, mean)
        if np.isfinite(loss).all():  # otherwise a sum overflows
            return variance, loss, flip
    variance, ends, furthest = _pass(chains, held, mean, np.zeros((len(NODES), 1, 1, 1), np.float32))
    much = furthest.max(axis=1) > MUCH * held.weight.max(axis=(1, 2))
    if much.any():
        variance[much], ends[:, much] = _march(_some(chains, much), _some(held, much), mean)
    # channels whose sums lie on different sides of a power of two have different errors, which accumulate
    return (variance + ends.var(axis=0)).sum(axis=1), ends.mean(axis=0) / (mean or 1.0), none


def _followed(chains: Chains, held: _Held, mean: float) -> tuple[F64, F64, F64]:
    """Variance, loss and `flip` if V is constant: each rounding is known where the weights are known."""
    rows, accumulators, additions = chains.weight.shape
    steps = chains.raised.shape[2] + 1
    sums = np.zeros((rows, accumulators), np.float16)
    for at in range(additions):
        step, within = divmod(at, additions // steps)
        if step and not within:
            before, now = chains.scale[:, :, at - 1], chains.scale[:, :, at]
            factor = np.where(chains.raised[:, :, step - 1], before * _inverse(now), np.float32(1)).astype(np.float16)
            sums = sums * factor
        sums = (sums + np.float64(mean) * chains.weight[:, :, at]).astype(np.float16)
    ulp = HALF.ulp(mean * held.weight * _inverse(chains.scale))
    flips = np.where(held.active, np.sqrt(2 / np.pi * chains.weight_variance) * mean * ulp * chains.scale**2, 0)
    loss = sums * np.float64(1 / mean) * chains.scale[:, :, -1] - held.weight[:, :, -1]
    return _total(flips), loss, np.where(flips > 0, ulp * chains.scale, 0).max(axis=(1, 2)).astype(np.float64)


def _pass(chains: Chains, held: _Held, mean: float, lost: F32) -> tuple[F64, F64, F64]:
    """The errors of accumulators that are off by `lost`: variance, mean error by node, largest intermediate loss.

    The variance and the loss, a share of V's mean, are (rows, accumulators). The mean error at the end (nodes, rows,
    accumulators) is that of a channel whose sum stays a node's number of standard deviations from the mean. `lost`
    (nodes, rows, accumulators, additions) is a share of V's mean.

    Where the maximum rose and its product is a multiple of the ulp, only the other terms, old and new, are rounded.
    """
    back = _inverse(chains.scale)
    scatter, scale = held.square * back**2, np.where(held.active, chains.scale, 0)
    top_ulp = HALF.ulp(np.sqrt(mean**2 * chains.top**2 + chains.top_square))
    spread = np.maximum(np.where(chains.top > 0, scatter - chains.top_square, chains.square), 0)
    own_error, even = chains.own_error, held.active
    if own_error is not None:
        weight = np.where(even, chains.weight, 0)
        squares = even.sum(axis=2, keepdims=True) * (weight**2).sum(axis=2, keepdims=True)
        even = even & (squares <= (1 + EVEN**2) * weight.sum(axis=2, keepdims=True) ** 2)
    change, square = np.zeros_like(back), np.zeros_like(back)
    ends = np.zeros((len(NODES), *back.shape[:2]))
    for end, place, off in zip(ends, NODES, lost, strict=True):
        sums = np.maximum(held.weight + off, 0) * back
        ulp = HALF.ulp(mean * sums + place * np.sqrt(scatter))
        fits = ulp <= top_ulp
        step = mean * np.where(fits & (chains.top > 0), sums - chains.top, chains.weight) / ulp
        deviation = np.sqrt(np.where(fits, spread, chains.square) + mean**2 * chains.weight_variance) / ulp
        bias, noise = added_error(step, deviation)
        if own_error is not None and even.any():
            own = even & (deviation >= WIDE) & ~(fits & (chains.top > 0))
            bias[own], noise[own] = own_error((chains.weight / ulp)[own])
        ulp *= scale
        change += ulp * bias / len(NODES)
        end[...] = (ulp * bias).sum(axis=2, dtype=np.float64)
        square += ulp**2 * (noise - bias**2) / len(NODES)
    loss = np.cumsum(change, axis=2, dtype=np.float64) / (mean or 1.0)
    return square.sum(axis=2, dtype=np.float64), ends, np.abs(loss).max(axis=2)


def _march(chains: Chains, held: _Held, mean: float) -> tuple[F64, F64]:
    """Variance and mean error by node, segment by segment; each starts from the sum that earlier losses left."""
    variance, ends = np.zeros(held.weight.shape[:2]), np.zeros((len(NODES), *held.weight.shape[:2]))
    length = held.weight.shape[2]
    for start in range(0, length, max(8, length // PARTS)):
        part = slice(start, start + max(8, length // PARTS))
        some, now = _some(chains, np.s_[:, :, part]), _some(held, np.s_[:, :, part])
        more, further = np.zeros_like(variance), np.zeros_like(ends)
        for _ in range(ROUNDS):
            lost = (ends[..., None] + further[..., None] * np.linspace(0, 1, now.weight.shape[2])) / mean
            more, further, _ = _pass(some, now, mean, lost.astype(np.float32))
        variance, ends = variance + more, ends + further
    return variance, ends


def _some(arrays: Arrays, index: Bools | tuple[slice, ...]) -> Arrays:
    """A subset of the rows or additions; its `raised` is meaningless."""
    parts: Any = {name: own[index] if isinstance(own, np.ndarray) else own for name, own in vars(arrays).items()}
    return type(arrays)(**parts)


def _power(held: _Held, mean_square: float) -> F32:
    return np.asarray(mean_square * held.weight**2 + held.square)


def _inverse(scale: F32) -> F32:
    """1/scale, 0 where the scale is negligible."""
    return np.asarray(1 / np.where(scale > NEGLIGIBLE, scale, np.float32(np.inf)))


def _total(values: F32) -> F64:
    return np.asarray(values.sum(axis=(1, 2), dtype=np.float64))
