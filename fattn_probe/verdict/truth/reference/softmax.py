"""A softmax-weighted mean, computed block by block."""

from dataclasses import dataclass

import numpy as np

from fattn_probe.base.arrays import F64

SAFE = 300.0
"""Logits up to this size need no maximum subtracted: e^300 is far from the limits of float64 (e^-708, e^709)."""


@dataclass
class RunningSoftmax:
    """Maximum, sum and weighted values of the KV rows seen so far, for each query row.

    While all logits are known to be SAFE, the sums are of exp(logit) itself (`plain`), and nothing is rescaled. From
    the first block without that guarantee on, the sums are of exp(logit - maximum).

    Source: Milakov and Gimelshein, arXiv 1805.02867; Rabe and Staats, arXiv 2112.05682.
    """

    maximum: F64
    total: F64
    weighted: F64
    plain: bool = True

    @classmethod
    def empty(cls, rows: int, hsv: int) -> "RunningSoftmax":
        """The state before the first KV row: maximum -inf, sums 0."""
        return cls(np.full(rows, -np.inf), np.zeros(rows), by_columns(rows, hsv))

    def raise_maximum(self, candidate: F64) -> F64:
        """Raise the maximum to at least `candidate`, and rescale the sums; returns the numbers to subtract."""
        if self.plain:
            self.maximum, self.plain = np.where(self.total > 0.0, 0.0, -np.inf), False
        new = np.maximum(self.maximum, candidate)
        shift = np.where(np.isneginf(new), 0.0, new)
        rescale = np.exp(self.maximum - shift)
        self.maximum = new
        self.total *= rescale
        self.weighted *= rescale[:, None]
        return shift

    def add(self, logits: F64, values: F64, *, bound: float = np.inf, room: F64 | None = None) -> None:
        """Add a block: logits (rows, kv), which are overwritten, and values (kv, hsv).

        Every logit is -inf or at most `bound` in absolute value. `room` (rows, hsv), if given, is overwritten.
        """
        if not (self.plain and bound <= SAFE):
            np.subtract(logits, self.raise_maximum(logits.max(axis=1))[:, None], out=logits)
        np.exp(logits, out=logits)
        self.total += logits @ np.ones(logits.shape[1])
        self.weighted += np.matmul(logits, values, out=room)

    def add_sink(self, sink: F64) -> None:
        """Add one logit per row with the value 0, which counts only in the sum."""
        shift = self.raise_maximum(sink)
        self.total += np.exp(sink - shift)

    def mean(self) -> F64:
        """The weighted mean (rows, hsv); 0 for a row that saw no KV row."""
        return self.weighted / np.where(self.total == 0.0, 1.0, self.total)[:, None]

    def log_sum_exp(self) -> F64:
        """The logarithm of the sum of exp(logit); -inf for a row that saw no KV row."""
        with np.errstate(divide="ignore"):
            return np.log(self.total) + (0.0 if self.plain else self.maximum)


def by_columns(rows: int, columns: int) -> F64:
    """Zeros (rows, columns) in column-major order, in which BLAS writes a product of few rows fastest."""
    return np.zeros((columns, rows)).T
