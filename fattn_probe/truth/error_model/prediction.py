"""What is expected of a case's output, before it is looked at."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F64
from fattn_probe.truth.error_model.block import Rows

ODDS = 1e-7
"""The chance that any element of a correct output is beyond its bound, if errors are as independent as assumed."""
WALK = np.pi / (2 * np.sqrt(2))
UNSEEN = 1.5
"""Factor on the noise of a query that another one stands for, which may be cut at other seams."""


@dataclass(frozen=True)
class Heads:
    """What is known of V by head: `mean`, `mean_square` of the channels' means, and the mean of what conversion to f16
    changes, (n_seq, 1, n_head); by channel `size` (relative to the head's), `mean_V` and `largest`, (n_seq, 1, n_head,
    hsv)."""

    mean: F64
    mean_square: F64
    mean_error: F64
    size: F64
    mean_V: F64
    largest: F64


@dataclass(frozen=True, eq=False)
class Prediction:
    """The error that a correct kernel makes, as absolute errors against the exact answer.

    `rows` are the expectations by row, (n_seq, n_q, n_head), those of rows that were not `looked_at` taken from the
    nearest one; `half_ulp` is the accumulators' unit roundoff; `elsewhere` (n_seq, 1, n_head) is the most, as a share
    of V's mean, that a row which was not looked at loses; `why` says what makes the error, in words.
    """

    rows: Rows
    heads: Heads
    half_ulp: float
    looked_at: npt.NDArray[np.bool_]
    may_overflow: npt.NDArray[np.bool_]
    elsewhere: F64
    why: str

    def at(self, rows: npt.NDArray[np.int64]) -> "Prediction":
        """The prediction of some rows (sequence, query, head), as if they were the queries of one head."""
        seq, query, head = rows.T

        def chosen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            picked: npt.NDArray[Any] = values[seq, query if values.shape[1] > 1 else 0, head]
            return picked[None, :, None]

        return replace(
            self,
            rows=Rows(**{name: chosen(value) for name, value in vars(self.rows).items()}),
            heads=Heads(**{name: chosen(value) for name, value in vars(self.heads).items()}),
            looked_at=chosen(self.looked_at),
            may_overflow=chosen(self.may_overflow),
            elsewhere=chosen(self.elsewhere),
        )

    @cached_property
    def row_rmse(self) -> F64:
        """Expected root mean square error over the hsv elements of a row, (n_seq, n_q, n_head)."""
        return np.asarray(np.sqrt(self.rows.variance + self.rows.loss**2 * self.heads.mean_square))

    @property
    def rmse(self) -> float:
        """Expected root mean square error over the output."""
        return float(np.sqrt(np.square(self.row_rmse).mean()))

    @property
    def unsure(self) -> float:
        """The relative standard error of the mean square error, as far as rows that were not looked at go into it."""
        squares = np.square(self.row_rmse[self.looked_at])
        if self.looked_at.all() or not squares.any():
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
        """What is lost for want of precision, as a share of the output's size; negative: outputs are too small."""
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

        The smaller of what is possible at all (every rounding at its worst and all of one sign) and of what is likely
        at odds of `ODDS` for the whole output: what is lost (`_most_lost`), and for independent errors of known
        variance, none larger than `single`, Bernstein's inequality (in rounding error analysis: Higham and Mary, SIAM
        J. Sci. Comput. 41(5), 2019; Ipsen and Zhou, SIAM J. Matrix Anal. Appl. 41(4), 2020). An accumulator of values
        of either sign is a random walk W, and its roundings are as large as it happens to be: their variance is the
        integral of W^2, E exp(-x integral W^2) = 1/sqrt(cosh(sqrt(2 x))) (Cameron and Martin, 1944), which makes the
        tail exponential, exp(-pi/(2 sqrt 2) k) at k deviations. One outlier of V may stay in the accumulator for all of
        its roundings.
        """
        rows, heads = self.rows, self.heads
        odds = np.log(2 / ODDS * rows.single.size * heads.size.shape[-1])
        outlier = np.sqrt(2 * odds * rows.roundings / 3) * self.half_ulp * rows.peak
        noise = np.sqrt(2 * odds * (rows.variance - rows.walk)) + odds / WALK * np.sqrt(rows.walk)
        bound = noise[..., None] * heads.size + (2 / 3 * odds * rows.single + outlier)[..., None] * heads.largest
        # A neighbour is no guide: of wide logits one row has one weight and the next one two, which errors tip
        bound = np.where(self.looked_at[..., None], bound, UNSEEN * bound.max(axis=1, keepdims=True))
        worst = np.where(self.looked_at, rows.worst, rows.worst.max(axis=1, keepdims=True))
        bound += self._most_lost()[..., None] * np.abs(heads.mean_V)
        np.minimum(bound, worst[..., None] * heads.largest, out=bound)
        bound[self.may_overflow] = np.inf
        return np.asarray(bound)

    @property
    def bound_elsewhere(self) -> F64:
        """The bound of rows like these that nobody looked at, of the same shape."""
        return replace(self, looked_at=np.zeros_like(self.looked_at)).bound

    def _most_lost(self) -> F64:
        """The most that a row loses: of one that was looked at, twice what is expected, within what is possible."""
        sums, others, possible = _losses(self.rows)
        return np.where(self.looked_at, np.minimum(2 * sums, possible) + 2 * others, self.elsewhere)


def elsewhere_lost(rows: Rows) -> F64:
    """The most that rows lose which were not looked at, (n_seq, 1, n_head), from those that were.

    A neighbour's loss is no guide: it hangs on where the sums lie between two powers of two, by which rows of one head
    differ as by chance. This is the most that any row of the head loses whose weights are like those of one of them.
    """
    _, others, possible = _losses(rows)
    return np.asarray((possible + 2 * UNSEEN * others).max(axis=1, keepdims=True))


def _losses(rows: Rows) -> tuple[F64, F64, F64]:
    """The expected loss of the sums, that of other causes, and the largest possible one of the sums."""
    sums = np.abs(rows.loss_sums)
    return sums, np.abs(rows.loss - rows.loss_sums), np.maximum(rows.stuck, sums)
