"""How long kernels take: the median of some runs, and an interval for it."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fattn_probe.op import Op
from fattn_probe.op.ggml_types import row_size
from fattn_probe.profile.roofline import Roof

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Speed:
    """The timed runs of a kernel on an op.

    `flop` counts the two matrix products without regard to the mask, as test-backend-ops does; `nbytes` counts each
    operand and the output once.
    """

    seconds: tuple[float, ...]
    flop: float
    nbytes: float

    @classmethod
    def of(cls, op: Op, seconds: Sequence[float]) -> "Speed":
        """Of the timed runs of an op."""
        operands = sum(math.prod(view.ne[1:]) * row_size(view.type, view.ne[0]) for view in op.operands.values())
        return cls(tuple(seconds), op.sizes.flop, operands + 4 * math.prod(op.sizes.dst))

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """An interval that holds the true median with 95 %, by order statistics; the extremes of too few runs."""
        ordered, n = sorted(self.seconds), len(self.seconds)
        rank = max((r for r in range(n // 2 + 1) if below(r, n) <= (1 - CONFIDENCE) / 2), default=0)
        return ordered[max(0, rank - 1)], ordered[min(n - 1, n - rank)]

    @property
    def flops(self) -> float:
        """Operations a second."""
        return self.flop / self.median

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.median

    def share(self, roof: Roof) -> float:
        """How much of what a GPU could do with this op at most, by its tensor cores and its memory."""
        return self.flops / roof.attainable(self.flop / self.nbytes)


def below(rank: int, n: int) -> float:
    """The probability that fewer than `rank` of n runs are below the median."""
    return float(sum(math.comb(n, k) for k in range(rank)) / 2**n)
