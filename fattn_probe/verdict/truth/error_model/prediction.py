"""The predicted error of a case's output."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, F64
from fattn_probe.cases.op import Op
from fattn_probe.verdict.truth.error_model.block import RowErrors
from fattn_probe.verdict.truth.error_model.kernel import Kernel
from fattn_probe.verdict.truth.error_model.rounding import HALF

ODDS = 1e-7
"""The probability that any element of a correct output exceeds its bound, if errors are independent as assumed."""
RMSE_LIMIT = 2.0
"""Limit of measured / predicted RMSE over the output; correct kernels have 0.5 to 1.5."""
WALK = np.pi / (2 * np.sqrt(2))
UNSEEN = 1.5
"""The factor for the noise of an unsampled query, whose seams may differ from those of the sampled queries."""
CAUSES = {
    "logits": "errors in the logits from Q and K",
    "weights": "P rounded to f16",
    "sums": "rounding of the accumulators",
    "values": "V converted to f16",
    "loss": "increments lost below half an ulp",
}


@dataclass(frozen=True)
class Heads:
    """Moments of V.

    Per head, (n_seq, 1, n_head): `mean`, `mean_square` of the channel means, `mean_error` of the conversion to f16. Per
    channel, (n_seq, 1, n_head, hsv): `size` (root mean square relative to that of the head), `mean_V`, `largest` |V|.
    """

    mean: F64
    mean_square: F64
    mean_error: F64
    size: F64
    mean_V: F64
    largest: F64


@dataclass(frozen=True, eq=False)
class Prediction:
    """The expected error of a correct kernel: absolute errors against the exact reference.

    `rows` are the expected errors per row, (n_seq, n_q, n_head); an unsampled row has those of the nearest sampled one,
    and a row without a prediction has NaN. `sampled` (n_seq, n_q, n_head) marks the rows that the model evaluated.
    `half_ulp` is the accumulators' unit roundoff. `unsampled_loss` (n_seq, 1, n_head) bounds the loss of an unsampled
    row, as a share of V's mean. `explain` puts the kernel and the largest of the `causes` into words; `assumed` names
    the assumed parts of the kernel's arithmetic. Weights whose logits are at least `zero_below` below the maximum
    are zero in f16. `shift` (n_seq, n_q, n_head, hsv): the output's change due to known changes of weights, or NaN.
    """

    rows: RowErrors
    heads: Heads
    half_ulp: float
    sampled: npt.NDArray[np.bool_]
    may_overflow: npt.NDArray[np.bool_]
    unsampled_loss: F64
    explain: Callable[[dict[str, float]], str]
    assumed: str = ""
    zero_below: float = 15.2
    shift: F64 | float = np.nan

    @cached_property
    def row_rmse(self) -> F64:
        """Expected root mean square error over the hsv elements of a row, (n_seq, n_q, n_head)."""
        return np.hypot(np.sqrt(self._mean_square), self.rows.floor)

    @property
    def row_uncertainty(self) -> F64:
        """`row_rmse` without the error of answers too small for the kernel's number format, which are 0 by design.

        That a prediction allows zeros there does not mean that it allows any output.
        """
        return np.sqrt(np.maximum(self._mean_square - self.rows.sunk, 0.0))

    def follow(self, dst: F32, reference: F64, rows: npt.NDArray[np.bool_]) -> bool:
        """Whether these rows match the kernel's own weights so closely that an output of zeros would not."""
        expected = reference + self.shift
        off, size = (np.sqrt(np.square(part).mean(axis=3))[rows] for part in (dst - expected, expected))
        limit = RMSE_LIMIT * np.sqrt(self.rows.rest[rows])
        return bool((off <= limit).all() and (limit < size).all())

    @property
    def row_common(self) -> F64:
        """The part of the squared `row_rmse` that is one random draw, shared by all elements of a row; 0 if unknown."""
        common = self.rows.common
        return np.where((common >= 0) & (common <= self._mean_square), common, 0.0)

    @property
    def row_flips(self) -> F64:
        """The largest error of a row from rare sums that are rounded to the other neighbour, (n_seq, n_q, n_head)."""
        rows = self.rows
        return rows.flip * _most(rows.sums / np.where(rows.flip > 0, rows.flip, np.inf) ** 2, self._odds)

    @property
    def _odds(self) -> float:
        return float(np.log(2 / ODDS * self.rows.single.size * self.heads.size.shape[-1]))

    @property
    def _mean_square(self) -> F64:
        return self.rows.variance + self.rows.loss**2 * self.heads.mean_square

    @cached_property
    def known(self) -> npt.NDArray[np.bool_]:
        """The rows with a prediction, (n_seq, n_q, n_head): finite errors, bounds that are not NaN, at least one limit.

        An unsampled row has no limits except its bounds, so these must be finite. The means below skip all other rows.
        """
        row_rmse, bound = self.row_rmse, self.bound
        numbers = (row_rmse >= 0) & (row_rmse <= np.finfo(np.float32).max) & (bound >= 0).all(axis=3)
        numbers &= np.isfinite(self.row_mean_error)
        return np.asarray(numbers & (self.sampled | np.isfinite(bound).all(axis=3)))

    @property
    def why(self) -> str:
        """One sentence about the kernel and the largest cause; empty if no row has a prediction."""
        return self.explain(self.causes) if self.known.any() else ""

    @property
    def lost(self) -> str:
        """The cause of the expected mean error: the one with the largest loss; empty if no row has a prediction."""
        if not self.known.any():
            return ""
        rows = self.rows
        losses = {
            "increments below half an ulp of the f16 accumulator are lost": rows.loss_sums,
            f"weights {self.zero_below:.1f} and more below the maximum are zero in f16": rows.loss_weights,
            "sums far below a sink are too small for the kernel's numbers": rows.loss_sink,
        }
        return max(losses, key=lambda words: float(np.nanmean(np.abs(losses[words]))))

    @property
    def rmse(self) -> float:
        """Expected root mean square error over the output; NaN if no row has a prediction."""
        return float(np.sqrt(self._mean(np.square(self.row_rmse))))

    def _mean(self, rows: F64) -> float:
        """The mean over the rows with a prediction."""
        return float(rows[self.known].mean()) if self.known.any() else float("nan")

    @cached_property
    def row_mean_error(self) -> F64:
        """Expected signed mean error of a row, (n_seq, n_q, n_head)."""
        return self.rows.loss * self.heads.mean + self.heads.mean_error

    @property
    def mean_error(self) -> float:
        """Expected signed mean error of the output."""
        return self._mean(self.row_mean_error)

    @property
    def causes(self) -> dict[str, float]:
        """The expected mean square error by cause: logits, weights, sums, values, and loss."""
        rows = self.rows
        rounded = rows.loss_rounding**2 * self.heads.mean_square
        lost = (rows.loss - rows.loss_rounding) ** 2 * self.heads.mean_square
        parts = {"logits": rows.logits, "weights": rows.weights + rounded, "sums": rows.sums, "values": rows.values}
        return {name: self._mean(part) for name, part in (parts | {"loss": lost}).items()}

    @cached_property
    def bound(self) -> F64:
        """The largest |error| a correct element may have, (n_seq, n_q, n_head, hsv); infinite where f16 may overflow.

        It is the smaller of two bounds. The worst case: every rounding at its largest, all of one sign. The likely
        bound, which a correct output exceeds somewhere with probability `ODDS`: the loss (`_largest_loss`), plus
        Bernstein's inequality for independent errors of known variance, none larger than `single` (in rounding error
        analysis: Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019; Ipsen and Zhou, SIAM J. Matrix Anal. Appl. 41(4),
        2020). An accumulator of values of both signs is a random walk W, and its rounding errors are proportional to W.
        Their variance is the integral of W^2, with E exp(-x integral W^2) = 1/sqrt(cosh(sqrt(2 x))) (Cameron and
        Martin, 1944). The tail is therefore exponential: exp(-pi/(2 sqrt 2) k) at k standard deviations. One outlier of
        V may stay in the accumulator for all of its roundings.
        """
        rows, heads, odds = self.rows, self.heads, self._odds
        outlier = np.sqrt(2 * odds * rows.roundings / 3) * self.half_ulp * rows.peak
        others = np.maximum(rows.variance - rows.walk, 0.0) + rows.guess  # rounding may make `walk` larger
        noise = np.sqrt(2 * odds * others) + odds / WALK * np.sqrt(rows.walk)
        bound = noise[..., None] * heads.size + (2 / 3 * odds * rows.single + outlier)[..., None] * heads.largest
        # A neighbouring row is no guide: with wide logits, one row has one dominant weight and the next row has two
        bound = self._from_sampled(bound)
        worst = np.where(self.sampled, rows.worst, np.fmax.reduce(rows.worst, axis=1, keepdims=True))
        bound += self._largest_loss()[..., None] * np.abs(heads.mean_V)
        np.minimum(bound, worst[..., None] * heads.largest, out=bound)
        steps = np.minimum(np.sqrt(2 * odds * rows.steps), rows.steps_worst)  # Hoeffding's inequality
        bound += np.minimum(self._from_sampled(steps[..., None]), 2 * heads.largest)  # at most the rounded value
        bound += self._from_sampled(self.row_flips[..., None])
        bound += rows.floor[..., None]
        bound[self.may_overflow] = np.inf
        return np.asarray(bound)

    def _from_sampled(self, values: F64) -> F64:
        """Values per row, (n_seq, n_q, n_head, ...); unsampled rows get `UNSEEN` times the head's largest."""
        return np.where(self.sampled[..., None], values, UNSEEN * np.fmax.reduce(values, axis=1, keepdims=True))

    @property
    def unsampled_bound(self) -> F64:
        """The `bound` that unsampled rows would have, with the same shape."""
        return replace(self, sampled=np.zeros_like(self.sampled)).bound

    def _largest_loss(self) -> F64:
        """Bound on a row's loss: for a sampled row, twice the expected loss, but at most the possible loss."""
        sums, others, possible = _losses(self.rows)
        return np.where(self.sampled, np.minimum(2 * sums, possible) + 2 * others, self.unsampled_loss)


def largest_unsampled_loss(rows: RowErrors) -> F64:
    """Upper bound on the loss of unsampled rows, (n_seq, 1, n_head), from the sampled ones.

    A neighbouring row's loss shows nothing: it depends on where that row's sums lie between two powers of two.
    The bound is the largest loss of any row whose weights are like those of a sampled row of the head.
    """
    _, others, possible = _losses(rows)
    return np.asarray(np.fmax.reduce(possible + 2 * UNSEEN * others, axis=1, keepdims=True))


def _most(mean: F64, odds: float) -> F64:
    """The number of rare events (on average `mean`) that is exceeded with probability e^-odds (Chernoff; Bernstein)."""
    number = np.arange(1, 40)
    with np.errstate(divide="ignore"):
        rare = number * (np.log(number) - 1 - np.log(mean)[..., None]) >= odds
    many = mean + np.sqrt(2 * odds * mean) + 2 / 3 * odds
    return np.where(rare.any(axis=-1), np.minimum(rare.argmax(axis=-1), many), many)


def _losses(rows: RowErrors) -> tuple[F64, F64, F64]:
    """The expected loss of the sums, the expected loss from other causes, and the largest possible loss of the sums."""
    sums = np.abs(rows.loss_sums)
    return sums, np.abs(rows.loss - rows.loss_sums - rows.loss_rounding), np.maximum(rows.stuck, sums)


def why(op: Op, kernel: Kernel, rows: RowErrors, causes: dict[str, float]) -> str:
    """One sentence: kernel, accumulator, roundings, independent sums, and the largest cause."""
    names = {"K": (kernel.converts_K, op.type_K), "V": (kernel.converts_V, op.type_V)}
    done = [f"{name} ({type_})" for name, (converts, type_) in names.items() if converts and type_ != "f16"]
    converted = f", {' and '.join(done)} converted to f16" if done else ""
    number = "f16" if kernel.accumulator is HALF else "f32"
    most = max(causes, key=lambda name: causes[name])
    cause = CAUSES[most]
    if most == "loss" and np.nanmean(np.abs(rows.loss_weights)) > np.nanmean(np.abs(rows.loss_sums)):
        cause = "small weights that are zero in f16"
    share = 100 * causes[most] / (sum(causes.values()) or 1.0)
    return (
        f"{kernel.name} sums P.V in {number}, {kernel.split.group} product{'s' * (kernel.split.group > 1)} per "
        f"rounding: {np.nanmean(rows.roundings):.0f} roundings in each of {kernel.split.accumulators} accumulators per "
        f"block; Q in {kernel.q}, P in {'f16' if kernel.weights is HALF else 'f32'}"
        f"{converted}; {share:.0f} % of the expected square error is {cause}"
    )
