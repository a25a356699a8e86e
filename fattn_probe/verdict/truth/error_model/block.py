"""The expected error of rows of one K/V head, from one pass over their logits."""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, F64, Bools, Floats, Indices
from fattn_probe.verdict.truth.error_model.accumulate import Chains, Sums, accumulate
from fattn_probe.verdict.truth.error_model.kernel import EXP_ERROR, Kernel
from fattn_probe.verdict.truth.error_model.operands import KVMoments, QRows
from fattn_probe.verdict.truth.error_model.rounding import HALF, SINGLE, OwnError
from fattn_probe.verdict.truth.error_model.sink import FAR, Contribution, Sunk, sunk

Number = TypeVar("Number", np.float32, np.bool_)

TANH_ERROR = np.float32(5e-7)
"""Relative error of tanh.approx around the measured mean in `tanh.json`."""
LOWEST = np.finfo(np.float32).min
"""The initial maximum, before a row's first logit; it is finite, as in the kernels."""
ALL = tuple(range(1, 8))
ADDED = (2, 4, 6, 7)
"""The axes along which an accumulator adds."""
ROWS = (slice(None), *[None] * 7)


EQUAL = 2.0**-20
"""Row sums of blocks count as equal up to this relative difference, which rounding in f32 can cause."""


@dataclass(frozen=True)
class RowLogits:
    """Logits of rows, float32 (rows, n_kv).

    `values`: the softmax's input, -inf where masked. `raw`: before softcap and mask. `off`: the known error of `values`
    from the kernel's Q, K and tanh, or None. `slope`: the softcap's derivative, None without a softcap.
    """

    values: F32
    raw: F32
    off: F32 | None = None
    slope: F32 | None = None

    def some(self, rows: Indices) -> "RowLogits":
        """The logits of some of the KV rows."""
        off, slope = (None if part is None else part[:, rows] for part in (self.off, self.slope))
        return RowLogits(self.values[:, rows], self.raw[:, rows], off, slope)


@dataclass(frozen=True)
class RowErrors:
    """The expected errors of rows, arrays (rows,).

    The fields before the losses are mean squares of the error, by cause. Losses are signed shares of V's mean.
    """

    logits: F64  # rounding of KQ
    weights: F64  # the random part of the rounding of P
    guess: F64  # the average of the square of `loss_rounding`
    sums: F64  # rounding of the sums of P*V
    values: F64  # conversion of V
    loss_logits: F64  # weight that moves to the sink
    loss_rounding: F64  # known roundings of P
    loss_weights: F64  # weights flushed to zero
    loss_sums: F64  # increments below half an ulp of the sums
    loss_sink: F64  # sums that become too small when rescaled to a larger sink
    walk: F64  # the part of `sums` that V's scatter causes
    common: F64  # the part of the mean square error from one random draw, the same in all channels
    peak: F64  # largest weight
    single: F64  # largest error of one addend, as a share of the largest |V|
    worst: F64  # largest possible error, as a share of the largest |V|
    stuck: F64  # largest loss of sums with such weights, as a share of V's mean
    sunk: F64  # the part of the mean square error, including the loss, from rescaling sums to a larger sink
    floor: F64  # largest error of numbers too small for float32
    rest: F64  # mean square of the error not caused by known changes of the weights
    steps: F64  # sum of squares of the largest errors of roundings to subnormal f16, which do not depend on V
    steps_worst: F64  # the sum of these errors
    largest: F64  # largest value of an accumulator, apart from one outlier of V
    flip: F64  # largest change of the output if a followed sum is rounded to its other f16 neighbour, or 0
    roundings: F64  # roundings of an accumulator

    @property
    def variance(self) -> F64:
        """The mean square error from all causes except the loss."""
        return self.logits + self.weights + self.sums + self.values

    @property
    def loss(self) -> F64:
        """The systematic error, as a share of V's mean."""
        return self.loss_logits + self.loss_rounding + self.loss_weights + self.loss_sums + self.loss_sink


@dataclass(frozen=True)
class _Weights:
    """The error of rounding P to f16, arrays (rows,), not divided by the row sum.

    `square` is the mean square in all channels; `random` is its unknown part, and `common` the unknown part that all
    channels share. `known` is the sum of the known errors, `guess` the average of its square. `lost` is the loss from
    weights that are always known (`_rounded`). `worst` is the largest possible error.
    """

    square: F64
    random: F64
    common: F64
    guess: F64
    known: F64
    lost: F64
    worst: F64


@dataclass(frozen=True)
class Block:
    """Rows of one K/V head, cut as the kernel cuts them.

    Arrays have the axes (rows, blocks, KV steps, outer, steps, warps, inner, group), see `Split`. `steps` (blocks, KV
    steps) holds the numbers of the KV steps, one past the last for padding. `sink` is (rows,) or None.
    """

    kernel: Kernel
    steps: Indices
    logits: RowLogits
    q: QRows
    kv: KVMoments
    sink: F64 | None = None
    own_error: OwnError | None = None

    def rows(self) -> RowErrors:
        """The expected errors."""
        weights = self._weights()
        logits, random, shifted, changes = self._logit_errors()
        sums, total, sunk = self._sums, self.total, self._sunk()
        joined, once, always = self._joined()
        seen = self.seen
        mean, spread, step = self.kv.mean_square_V * seen**2, self.spread_left, SINGLE.relative
        if self.kv.V_in_K:  # the largest weights belong to rows of K, and so of V, that point along Q
            output = self._of_rows(self.share) @ self.kv.k[:, : self.kv.V_in_K]
            mean = np.maximum(mean, np.square(output, dtype=np.float64).mean(axis=1) * seen**2 - spread)
        # in f32: adding the accumulators of each block, then the blocks; the factors, and the division
        blocks = len(self.steps)
        combined = step * ((blocks + self.kernel.split.accumulators / blocks) / 3 + 1) * mean
        combined = combined + (step * (self._parts / 2 + 6) + EXP_ERROR) * spread
        # The row sum of all lanes and blocks, and its reciprocal: all channels share this error. When n equal sums are
        # added, all are rounded the same way until the exponent changes, with the variance of n**2 / 8 roundings.
        parts = self.share.sum(axis=ALL[1:], dtype=np.float64)
        equal = (parts >= (1 - EQUAL) * parts.max(axis=1, keepdims=True)).sum(axis=1)
        row_sum = step * (np.maximum(blocks / 3, equal**2 / 8) + 3) * (mean + spread)
        converts = self.kv.error_V.any() or self.kv.mean_square_error_V > 0
        converted, coarse = HALF.half_ulp * converts, max(HALF.half_step, self.kernel.least_factor) * converts
        part = self.share * seen.astype(np.float32)[ROWS]
        single = (part * (converted + self.kernel.weights.half_ulp) + FAR * changes).max(axis=ALL)
        # each sum is rounded once, relative to a maximum raised by the offset
        once_each = (self.kernel.joining == "f32 from f16") * (self._held.share > 0).sum(axis=(1, 2, 3))
        step_of_sum = HALF.half_step * np.exp(np.float64(self.kernel.max_offset))
        rounded = sums.variance / total**2 + combined + sunk.variance + joined
        values = seen**2 * (_total(self.share**2 * self._by_row(self.kv.error_V)) + self.kv.mean_square_error_V)
        lost = (sums.loss / total + sunk.loss) ** 2 * self.kv.mean_square_V
        return RowErrors(
            logits=logits,
            weights=weights.square / total**2,
            guess=weights.guess / total**2,
            sums=rounded + row_sum,
            values=values,
            loss_logits=shifted,
            loss_rounding=weights.known / total,
            loss_weights=weights.lost / total,
            loss_sums=sums.loss / total,
            loss_sink=sunk.loss,
            walk=sums.walk / total**2,
            common=weights.common / total**2 + sums.common * rounded + row_sum,
            peak=seen * self.share.max(axis=ALL),
            single=np.maximum(single, np.maximum(sunk.single, once)),
            worst=(weights.worst + sums.worst) / total
            + (self._parts + 8) * 2 * SINGLE.half_ulp
            + _total(part * converted + 2 * FAR * changes)
            + sunk.worst
            + always,
            stuck=sums.stuck / total,
            sunk=sunk.lost + sunk.loss**2 * self.kv.mean_square_V,
            floor=self._floor(),
            rest=random + weights.random / total**2 + rounded + row_sum + values + lost,
            steps=(sums.steps[0] + step_of_sum**2 * once_each) / total**2 + coarse**2 * _total(part**2),
            steps_worst=(sums.steps[1] + step_of_sum * once_each) / total + coarse * seen,
            largest=sums.largest,
            flip=sums.flip / total,
            roundings=sums.roundings,
        )

    @property
    def _parts(self) -> int:
        """Number of sums added up at the end: accumulators of a block, and blocks."""
        return self.kernel.split.accumulators + len(self.steps)

    @cached_property
    def x(self) -> F32:
        """The kernel's own logits, by block, KV step and accumulator; they determine which way the kernel rounds."""
        values, off = self.logits.values, self.logits.off
        return self._cut(values if off is None else values + off, -np.inf)

    @cached_property
    def maximum(self) -> F32:
        """The running maximum at each KV step, size 1 along the axes that share it."""
        largest = self.x.max(axis=self.kernel.shares_maximum, keepdims=True, initial=LOWEST)
        return np.asarray(np.maximum.accumulate(largest, axis=2))

    @cached_property
    def p(self) -> F32:
        """The weights relative to the running maximum, before rounding."""
        return np.asarray(np.exp(self.x - (self.maximum + self.kernel.max_offset)))

    @cached_property
    def scale(self) -> F32:
        """The factor that makes the weights relative to the row's final maximum."""
        return np.asarray(np.exp(self.maximum + self.kernel.max_offset - self.maximum.max(axis=ALL, keepdims=True)))

    @cached_property
    def weight(self) -> F64:
        """The sum of the weights, relative to the final maximum."""
        return _total(self.p * self.scale)

    @cached_property
    def total(self) -> F64:
        """The row sum, relative to the final maximum; 1 for a row that is masked everywhere."""
        total = self.weight + self._sink_over(self.maximum.max(axis=ALL))
        return np.where(total == 0.0, 1.0, total)

    @property
    def seen(self) -> F64:
        """The share of the weights, without the sink, in the row sum; it may be below the smallest float32."""
        return self.weight / self.total

    def _sink_over(self, maximum: F32) -> F64:
        """The sink's weight relative to these logits."""
        if self.sink is None:
            return np.zeros(len(maximum))
        return np.asarray(np.exp(np.minimum(self.sink - maximum, 300.0)))

    @cached_property
    def share(self) -> F32:
        """The weights, divided by their sum."""
        visible = np.where(self.weight == 0.0, 1.0, self.weight)
        return self.p * (self.scale / visible[ROWS]).astype(np.float32)

    @cached_property
    def spread_left(self) -> F64:
        """The variance of the output's channels about V's channel means: the sum of p^2 times V's variance."""
        return self.seen**2 * _total(self.share**2 * self._by_row(self.kv.spread_V))

    def _floor(self) -> F64:
        """The largest error of numbers that are too small for float32: each accumulator's factor, and its product.

        An accumulator is scaled to a sink or to another accumulator's maximum, and divided by the row sum.
        """
        held = _total(self.p * np.exp(self.maximum - self.maximum.max(axis=ADDED, keepdims=True)))
        highest = self.maximum.max(axis=ALL).astype(np.float64)
        sink = np.full(len(highest), -np.inf) if self.sink is None else self.sink
        top = np.maximum(highest + self.kernel.max_offset, sink)
        row_sum = self.weight * np.exp(highest - top) + np.exp(sink - top)
        row_sum[row_sum == 0.0] = 1.0
        return np.asarray(self.kernel.least_float * (held * self.kv.channel_largest.max() + self._parts) / row_sum)

    def _cut(self, values: F32, fill: float) -> F32:
        split = self.kernel.split
        n_steps = -(-values.shape[1] // split.rows)
        padded = np.full((len(values), n_steps + 1, split.rows), fill, np.float32)
        padded.reshape(len(values), -1)[:, : values.shape[1]] = values
        shape = (split.outer, split.steps, split.warps, split.inner, split.group)
        return padded[:, self.steps].reshape(len(values), *self.steps.shape, *shape)

    def _by_row(self, values: F64) -> F32:
        return self._cut(values.astype(np.float32)[None], 0.0)

    @cached_property
    def _sums(self) -> Sums:
        spread, highest, p = self._by_row(self.kv.spread_V), self.x == self.maximum, self.p
        weight_variance = p**2 * self._random
        if self.kernel.weights is HALF:
            p, noise, _ = self._rounded
            weight_variance += noise
        # with logits in the thousands, the maximum plus the offset is rounded, so its weight is not a power of two
        top = np.where(highest & (p == HALF.ulp(p) * np.float32(2.0**HALF.fraction)), p, np.float32(0))
        weight, square = p.sum(axis=7), (p**2 * spread).sum(axis=7)
        raised = self.maximum[:, :, 1:] > self.maximum[:, :, :-1]
        shape = (*weight.shape[:2], raised.shape[2], weight.shape[3], 1, weight.shape[5], 1)
        chains = Chains(
            weight=_chains(weight),
            square=_chains(square),
            weight_variance=_chains(np.where(highest, 0, weight_variance).sum(axis=7)),
            top=_chains(top.sum(axis=7)),
            top_square=_chains((top**2 * spread).sum(axis=7)),
            scale=_chains(np.broadcast_to(self.scale[..., 0], weight.shape)),
            raised=_chains(np.broadcast_to(raised[..., 0], shape)),
            own_error=self.own_error,
        )
        return accumulate(chains, self.kernel.accumulator, self.kv.mean_square_V, self.kv.channel_mean.var())

    @cached_property
    def _held(self) -> Contribution:
        """The content of each accumulator at the end."""
        seen = self.seen.reshape(-1, 1, 1, 1)
        spread = (np.square(self.share, dtype=np.float64) * self._by_row(self.kv.spread_V)).sum(axis=ADDED)
        maximum = (self.maximum.max(axis=ADDED) + self.kernel.max_offset).astype(np.float64)
        return Contribution(
            maximum=np.broadcast_to(maximum, spread.shape),
            share=(self._sums.content / self.total[:, None]).reshape(spread.shape),
            largest=seen * self.share.max(axis=ADDED),
            spread=seen**2 * spread,
        )

    def _sunk(self) -> Sunk:
        """The error of rescaling the sums to a larger sink, or to the maximum of the block."""
        sinking = self.kernel.sinking
        if sinking is not None and sinking.to_maximum:
            to = self._held.maximum.max(axis=(2, 3))
            if self.sink is not None:
                to[:, sinking.block] = np.maximum(to[:, sinking.block], self.sink)
            unit = np.exp(to - self.maximum.max(axis=ALL)[:, None]) / self.total[:, None]
            return sunk(self._held, sinking, to, unit, self.kv)
        if self.sink is None:
            return Sunk(*[np.zeros(len(self.p))] * 5)
        return sunk(self._held, sinking, self.sink, self._sink_over(self.maximum.max(axis=ALL)) / self.total, self.kv)

    def _joined(self) -> tuple[F64, F64, F64]:
        """The error of adding a block's sums in f16: mean square, largest of one rounding, largest possible.

        Either the sums are added in turn to the first, in f16 (adding 0 is exact), or each is rounded and added in f32.
        """
        if self.kernel.joining == "f32":
            return (np.zeros(len(self.p)),) * 3
        share, spread, rounds = self._held.share, self._held.spread, self._held.share > 0
        if self.kernel.joining == "f16":
            share, spread = (np.cumsum(part, axis=3) for part in (share, spread))
            rounds[..., 1:] &= share[..., :-1] > 0
            rounds[..., 0] = False
        power, off = rounds * (self.kv.mean_square_V * share**2 + spread), HALF.half_ulp * rounds * share
        return HALF.relative * power.sum(axis=(1, 2, 3)), off.max(axis=(1, 2, 3)), off.sum(axis=(1, 2, 3))

    @cached_property
    def _rounded(self) -> tuple[F32, F32, Bools]:
        """The weights in f16 where known, the mean square of their unknown rounding, and which weights are lost.

        A weight with a random error d is rounded to the other neighbour with probability E|d|/ulp. If d varies widely,
        nothing is known about its rounding. Some weights are always known: a row's largest, which is always the same
        number; weights below 2^-22, where P has at most one bit left; and flushed weights.
        """
        p, ulp = self.p, HALF.ulp(self.p)
        rounded = p.astype(np.float16).astype(np.float32)
        lost = (self.x == self.maximum) | (rounded < max(2.0**-22, self.kernel.least_factor))
        rounded[rounded < self.kernel.least_factor] = 0
        likely = np.float32(np.sqrt(2 / np.pi)) * p * np.sqrt(self._random) * ulp
        noise = np.where(lost, 0, np.minimum(likely, ulp**2 / 12))
        return np.where(noise < ulp**2 / 12, rounded, p), noise, lost

    def _weights(self) -> _Weights:
        """The error of rounding P to f16, not divided by the row sum."""
        if self.kernel.weights is not HALF:
            return _Weights(*np.zeros((7, len(self.p))))
        p, ulp = self.p, HALF.ulp(self.p)
        ulp[p == 0] = 0
        rounded, noise, lost = self._rounded
        error, random, mean_square = (rounded - p) * self.scale, noise * self.scale**2, self.kv.mean_square_V
        guess = np.where(lost | (error == 0), np.float32(0), ulp * self.scale) ** 2 / 12
        spread, common = self._by_row(self.kv.spread_V), mean_square * _total(random)
        return _Weights(
            square=_total((random + error**2) * spread) + common,
            random=_total(random * spread) + common,
            common=common,
            guess=mean_square * _total(guess),
            known=_total(np.where(lost, 0, error)),
            lost=_total(np.where(lost, error, 0)),
            worst=_total(np.maximum(ulp / 2, np.abs(rounded - p)) * self.scale),
        )

    def shift(self, v: Floats) -> F64:
        """The change of the output (rows, hsv) from known changes of the weights: logit errors and roundings to f16."""
        changed = np.zeros(self.logits.values.shape)
        if self.kernel.weights is HALF:
            changed += self._of_rows((self._rounded[0] - self.p) * self.scale / self.total[ROWS])
        return np.asarray((changed if self.logits.off is None else changed + self._moved[0]) @ v.astype(np.float64))

    def _of_rows(self, cut: Floats) -> Floats:
        """Values per KV row, (rows, n_kv), of an array with the axes of the class."""
        n_kv, rows = self.logits.values.shape[1], self.kernel.split.rows
        whole = np.zeros((len(cut), -(-n_kv // rows) + 1, rows), cut.dtype)
        whole[:, self.steps] = cut.reshape(len(cut), *self.steps.shape, -1)
        return whole.reshape(len(cut), -1)[:, :n_kv]

    @cached_property
    def _moved(self) -> tuple[F32, F64]:
        """The change of each weight by the known errors in the logits, as a share of the row sum.

        The changes are exact, not linearised: if two logits nearly tie, an error of 1 or more decides which one has the
        larger weight. Also returns the sum of all changes, which the sink loses.
        """
        off = np.float32(0) if self.logits.off is None else self.logits.off
        exact = self.logits.values.max(axis=1, initial=LOWEST)
        below = self.logits.values - exact[:, None]
        highest = (below + off).max(axis=1, initial=LOWEST)
        highest[highest == LOWEST] = 0.0  # every weight is 0
        now, then = np.exp(below), np.exp(below + off - highest[:, None])
        sink = self._sink_over(exact)
        before, total = (part.sum(axis=1, dtype=np.float64) for part in (now, then))
        before, total = before + sink, total + sink * np.exp(-highest.astype(np.float64))
        before[before == 0.0] = total[total == 0.0] = 1.0
        common = highest + np.log(total / before)  # an error shared by all weights and the sink changes nothing
        relative = off - common.astype(np.float32)[:, None]
        now /= before[:, None].astype(np.float32)
        then *= (1 / total).astype(np.float32)[:, None]
        moved = np.copysign(np.where(relative > 0, then, now) * np.expm1(-np.abs(relative)), relative)
        gain = moved.sum(axis=1, dtype=np.float64)
        surplus = gain + sink / before * np.expm1(-common)  # with the sink's gain: 0 except for rounding of `common`
        gain -= surplus * then.sum(axis=1, dtype=np.float64)
        return moved - surplus.astype(np.float32)[:, None] * then, gain

    def _logit_errors(self) -> tuple[F64, F64, F64, F32]:
        """The effect of the logits' errors: mean square, its random part, loss, and each weight's RMS change.

        The errors in Q and K are known, and so are the changes that they cause (`_moved`); these contribute the sum of
        their squares times V's variance c. The sum of all changes moves between the sink and the other keys. The other
        errors are independent: they change an output by the sum of p (V - out) times the errors, and contribute sum p^2
        error^2 (V - out)^2, where E (V_i - out)^2 = c_i (1 - 2 p_i) + sum p^2 c.
        """
        spread, left = self._by_row(self.kv.spread_V), self.spread_left.astype(np.float32)[ROWS]
        share = self.seen.astype(np.float32)[ROWS] * self.share
        changes = share**2 * self._random
        square, off = _total(changes * np.maximum(spread * (1 - 2 * share) + left, 0)), self.logits.off
        if off is None:
            return square, square, np.zeros(len(square)), np.sqrt(changes)
        moved, loss = self._moved
        known = self._cut(moved, 0.0) ** 2
        if self.kv.V_in_K:
            # An error in Q raises the weights of the rows of K that point along it. V is K, so the output moves the
            # same way: the errors are correlated, and are computed instead of treated as random.
            return (
                square + np.square(moved @ self.kv.k[:, : self.kv.V_in_K], dtype=np.float64).mean(axis=1),
                square,
                loss,
                np.sqrt(changes + known),
            )
        return square + _total(known * spread), square, loss, np.sqrt(changes + known)

    @cached_property
    def _random(self) -> F32:
        """Mean square errors of the logits from sums, softcap, mask and exp in f32, and from products in f16."""
        raw, square = self._cut(self.logits.raw, 0.0), self.q.square.astype(np.float32)[ROWS]
        likely = square * self._by_row(self.kv.square_K)
        along, scatter = self.kernel.chain
        error = np.float32(SINGLE.relative) * (along * raw**2 + scatter * likely)
        if self.kernel.products_f16:
            error += np.float32(HALF.relative) * likely
        seen = self.share > 0
        x = np.where(seen, self._cut(self.logits.values, 0.0), raw)
        below = np.where(seen, self.x - (self.maximum + self.kernel.max_offset), np.float32(0))
        if self.logits.slope is not None:
            slope = self._cut(self.logits.slope, 0.0)
            error = error * slope**2 + (TANH_ERROR * x) ** 2
        added = np.where(x == raw, np.float32(0), x)
        return np.asarray(error + np.float32(EXP_ERROR) + np.float32(SINGLE.relative) * (2 * below**2 + added**2))


def _total(values: F32 | F64) -> F64:
    return np.asarray(values.sum(axis=ALL, dtype=np.float64))


def _chains(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """(rows, blocks, KV steps, outer, steps, warps, inner) to (rows, accumulators, additions in order)."""
    moved = values.transpose(0, 1, 3, 5, 2, 4, 6)
    return np.ascontiguousarray(moved).reshape(moved.shape[0], moved.shape[1] * moved.shape[2] * moved.shape[3], -1)
