"""A softmax-weighted mean that takes its rows block by block."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


@dataclass
class RunningSoftmax:
    """Maximum, sum and weighted values of the KV rows seen so far, for each query row.

    Source: Milakov and Gimelshein, arXiv 1805.02867; Rabe and Staats, arXiv 2112.05682.
    """

    maximum: F64
    total: F64
    weighted: F64

    @classmethod
    def empty(cls, rows: int, hsv: int) -> "RunningSoftmax":
        """No KV row seen: maximum -inf, sums 0."""
        return cls(np.full(rows, -np.inf), np.zeros(rows), np.zeros((rows, hsv)))

    def raise_maximum(self, candidate: F64) -> F64:
        """Make the maximum at least `candidate`, rescale the sums, and return what to subtract from logits (finite)."""
        new = np.maximum(self.maximum, candidate)
        shift = np.where(np.isneginf(new), 0.0, new)
        rescale = np.exp(self.maximum - shift)
        self.maximum = new
        self.total *= rescale
        self.weighted *= rescale[:, None]
        return shift

    def add(self, logits: F64, values: F64) -> None:
        """Take in a block: logits (rows, kv), which are overwritten, and values (kv, hsv)."""
        shift = self.raise_maximum(logits.max(axis=1))
        np.subtract(logits, shift[:, None], out=logits)
        np.exp(logits, out=logits)
        self.total += logits.sum(axis=1)
        self.weighted += logits @ values

    def add_sink(self, sink: F64) -> None:
        """Take in one logit a row whose value is 0: it joins the sum only."""
        shift = self.raise_maximum(sink)
        self.total += np.exp(sink - shift)

    def mean(self) -> F64:
        """The weighted mean (rows, hsv), and 0 for a row that saw nothing."""
        return self.weighted / np.where(self.total == 0.0, 1.0, self.total)[:, None]
