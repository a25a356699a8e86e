"""The predicted error of a case's output."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F64
from fattn_probe.truth.error_model.block import Rows
from fattn_probe.truth.error_model.rounding import FLUSHED

ODDS = 1e-7
"""The probability that any element of a correct output exceeds its bound, if errors are as independent as assumed."""
WALK = np.pi / (2 * np.sqrt(2))
UNSEEN = 1.5
"""Factor on the noise of an unsampled query: its seams may differ from those of the sampled one."""


@dataclass(frozen=True)
class Heads:
    """Moments of V.

    By head, (n_seq, 1, n_head): `mean`, `mean_square` of the channel means, `mean_error` of the conversion to f16. By
    channel, (n_seq, 1, n_head, hsv): `size` (root mean square relative to the head's), `mean_V`, `largest` |V|.
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

    `rows` are the expected errors by row, (n_seq, n_q, n_head); an unsampled row has those of the nearest sampled one.
    `sampled` (n_seq, n_q, n_head) marks the rows that the model evaluated. `half_ulp` is the accumulators' unit
    roundoff. `unsampled_loss` (n_seq, 1, n_head) bounds the loss of an unsampled row, as a share of V's mean. `why`
    names the largest cause in words.
    """

    rows: Rows
    heads: Heads
    half_ulp: float
    sampled: npt.NDArray[np.bool_]
    may_overflow: npt.NDArray[np.bool_]
    unsampled_loss: F64
    why: str

    @cached_property
    def row_rmse(self) -> F64:
        """Expected root mean square error over the hsv elements of a row, (n_seq, n_q, n_head)."""
        return np.asarray(np.sqrt(self.rows.variance + self.rows.loss**2 * self.heads.mean_square + FLUSHED**2))

    @property
    def rmse(self) -> float:
        """Expected root mean square error over the output."""
        return float(np.sqrt(np.square(self.row_rmse).mean()))

    @property
    def relative_standard_error(self) -> float:
        """The relative standard error of the mean square error that comes from sampling rows; 0 if all are sampled."""
        squares = np.square(self.row_rmse[self.sampled])
        if self.sampled.all() or not squares.any():
            return 0.0
        return float(squares.std() / squares.mean() / np.sqrt(squares.size))

    @cached_property
    def row_mean_error(self) -> F64:
        """Expected signed mean error of a row, (n_seq, n_q, n_head)."""
        return self.rows.loss * self.heads.mean + self.heads.mean_error

    @property
    def mean_error(self) -> float:
        """Expected signed mean error of the output."""
        return float(self.row_mean_error.mean())

    @property
    def bias(self) -> float:
        """The loss in P and in the sums, as a share of the output's size; negative: outputs are too small."""
        lost = (self.rows.loss_sums + self.rows.loss_weights) * np.sqrt(self.heads.mean_square)
        return float(lost.mean() / (self.rows.size.mean() or 1.0))

    @property
    def causes(self) -> dict[str, float]:
        """The expected mean square error by cause: logits, weights, sums, values, and loss."""
        rows = self.rows
        parts = {"logits": rows.logits, "weights": rows.weights, "sums": rows.sums, "values": rows.values}
        return {name: float(part.mean()) for name, part in parts.items()} | {
            "loss": float((rows.loss**2 * self.heads.mean_square).mean())
        }

    @cached_property
    def bound(self) -> F64:
        """The largest |error| a correct element may have, (n_seq, n_q, n_head, hsv); infinite where f16 may overflow.

        It is the smaller of two bounds. The possible one: every rounding at its worst, all of one sign. The likely one,
        which a correct output exceeds anywhere with probability `ODDS`: the loss (`_largest_loss`), plus Bernstein's
        inequality for independent errors of known variance, none larger than `single` (in rounding error analysis:
        Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019; Ipsen and Zhou, SIAM J. Matrix Anal. Appl. 41(4), 2020).
        An accumulator of values of both signs is a random walk W, and its roundings are as large as W happens to be.
        Their variance is the integral of W^2, with E exp(-x integral W^2) = 1/sqrt(cosh(sqrt(2 x))) (Cameron and
        Martin, 1944). The tail is therefore exponential: exp(-pi/(2 sqrt 2) k) at k standard deviations. One outlier of
        V may stay in the accumulator for all of its roundings.
        """
        rows, heads = self.rows, self.heads
        odds = np.log(2 / ODDS * rows.single.size * heads.size.shape[-1])
        outlier = np.sqrt(2 * odds * rows.roundings / 3) * self.half_ulp * rows.peak
        others = np.maximum(rows.variance - rows.walk, 0.0)  # `walk` may be all of it, but for a rounding
        noise = np.sqrt(2 * odds * others) + odds / WALK * np.sqrt(rows.walk)
        bound = noise[..., None] * heads.size + (2 / 3 * odds * rows.single + outlier)[..., None] * heads.largest
        # A neighbour is no guide: with wide logits, one row has one dominant weight and the next row has two
        bound = np.where(self.sampled[..., None], bound, UNSEEN * bound.max(axis=1, keepdims=True))
        worst = np.where(self.sampled, rows.worst, rows.worst.max(axis=1, keepdims=True))
        bound += self._largest_loss()[..., None] * np.abs(heads.mean_V)
        np.minimum(bound, worst[..., None] * heads.largest, out=bound)
        bound += FLUSHED
        bound[self.may_overflow] = np.inf
        return np.asarray(bound)

    @property
    def unsampled_bound(self) -> F64:
        """The bound for unsampled rows, same shape."""
        return replace(self, sampled=np.zeros_like(self.sampled)).bound

    def _largest_loss(self) -> F64:
        """Bound on a row's loss: for a sampled row, twice the expected loss, at most the possible one."""
        sums, others, possible = _losses(self.rows)
        return np.where(self.sampled, np.minimum(2 * sums, possible) + 2 * others, self.unsampled_loss)


def largest_unsampled_loss(rows: Rows) -> F64:
    """Upper bound on the loss of unsampled rows, (n_seq, 1, n_head), from the sampled ones.

    A neighbour's loss is no guide: it depends on where the sums lie between two powers of two, which varies from row to
    row. This is the largest loss of any row whose weights are like those of a sampled row of the head.
    """
    _, others, possible = _losses(rows)
    return np.asarray((possible + 2 * UNSEEN * others).max(axis=1, keepdims=True))


def _losses(rows: Rows) -> tuple[F64, F64, F64]:
    """The expected loss of the sums, the expected loss of other causes, and the largest possible loss of the sums."""
    sums = np.abs(rows.loss_sums)
    return sums, np.abs(rows.loss - rows.loss_sums), np.maximum(rows.stuck, sums)
