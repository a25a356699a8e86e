"""Find the labels of a property that go together with the errors: the cheapest set of each shape."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import Indices, Numbers

FEW = 24
"""Fewest labels for which `all but one` or `all but some` is a useful description."""
MOST_RUNS = 6
"""Most runs of neighbouring labels in a set; people cannot take in more."""


@dataclass(frozen=True, eq=False)
class Counts:
    """The number of elements and of wrong elements by label; `outside` is (wrong, size) of all other elements."""

    wrong: Numbers
    size: Numbers
    outside: tuple[int, int]

    @property
    def labels(self) -> int:
        """The number of labels."""
        return len(self.size)

    def cost(self, member: npt.NDArray[np.bool_]) -> Numbers:
        """Code length of the wrong elements in bits, given the chosen labels."""
        return self.cost_of(np.asarray(self.wrong[member].sum()), np.asarray(self.size[member].sum()))

    def cost_of(self, wrong: Numbers, size: Numbers) -> Numbers:
        """The cost of sets with `wrong` of `size` elements; infinite for a set that is less dense than the rest."""
        other_wrong = self.wrong.sum() + self.outside[0] - wrong
        other_size = self.size.sum() + self.outside[1] - size
        bits = code_length(wrong, size) + code_length(other_wrong, other_size)
        denser = wrong * other_size > other_wrong * size
        return np.where(denser, bits, np.inf)


@dataclass(frozen=True, eq=False)
class Subset:
    """Some labels, and the bits to name them."""

    labels: Indices
    bits: float


def code_length(wrong: Numbers, size: Numbers) -> Numbers:
    """Bits to say which elements of a set are wrong: their entropy, plus half a logarithm for their number."""
    wrong, size = np.asarray(wrong, np.float64), np.asarray(size, np.float64)
    share = wrong / np.maximum(size, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share))
    return np.asarray(size * np.nan_to_num(entropy) + 0.5 * np.log2(size + 1))


def subsets(counts: Counts, ordered: bool) -> Iterator[Subset]:
    """The best single label, all but one, and any set; if `ordered`, also the best beginning, end and range."""
    if counts.labels < 2:
        return
    choice = math.log2(counts.labels)
    yield from _one(counts, choice)
    if ordered and counts.labels > 2:
        yield from _ends(counts, choice + 1)
        yield from _range(counts, 2 * choice + 1)
    if counts.labels > 2:
        yield from _any(counts, choice + 2)


def _one(counts: Counts, bits: float) -> Iterator[Subset]:
    costs = counts.cost_of(counts.wrong, counts.size)
    if np.isfinite(costs.min()):
        yield Subset(np.array([costs.argmin()]), bits)
    if 3 < counts.labels <= FEW:
        costs = counts.cost_of(counts.wrong.sum() - counts.wrong, counts.size.sum() - counts.size)
        if np.isfinite(costs.min()):
            yield Subset(np.delete(np.arange(counts.labels), costs.argmin()), bits + 1)


def _ends(counts: Counts, bits: float) -> Iterator[Subset]:
    """The best set of labels below a limit, and the best from a limit on."""
    wrong, size = np.cumsum(counts.wrong)[:-1], np.cumsum(counts.size)[:-1]
    below = counts.cost_of(wrong, size)
    above = counts.cost_of(counts.wrong.sum() - wrong, counts.size.sum() - size)
    if np.isfinite(below.min()):
        yield Subset(np.arange(below.argmin() + 1), bits)
    if np.isfinite(above.min()):
        yield Subset(np.arange(above.argmin() + 1, counts.labels), bits)


def _range(counts: Counts, bits: float) -> Iterator[Subset]:
    """The range with the largest surplus over half the density of the densest label (Kadane's algorithm)."""
    rates = counts.wrong / np.maximum(counts.size, 1)
    limit = (rates.max() + counts.wrong.sum() / max(counts.size.sum(), 1)) / 2
    surplus = np.concatenate([[0], np.cumsum(counts.wrong - limit * counts.size)])
    gain = surplus - np.minimum.accumulate(surplus)
    stop = int(gain.argmax())
    if stop > 0 and gain[stop] > 0:
        start = int(surplus[:stop].argmin())
        if start > 0 and stop < counts.labels:
            yield Subset(np.arange(start, stop), bits)


def _any(counts: Counts, bits: float) -> Iterator[Subset]:
    """The labels with the most errors, as many as lower the cost."""
    order = np.argsort(-(counts.wrong / np.maximum(counts.size, 1)), kind="stable")[:-1]
    costs = counts.cost_of(np.cumsum(counts.wrong[order]), np.cumsum(counts.size[order]))
    costs = costs + bits + np.array([_log2_choices(counts.labels, k) for k in range(1, len(order) + 1)])
    best = int(costs.argmin())
    chosen = np.sort(order[: best + 1])
    runs = 1 + int((np.diff(chosen) > 1).sum())
    most_runs = MOST_RUNS if counts.labels <= FEW or 2 * len(chosen) <= counts.labels else 1
    if best > 0 and np.isfinite(costs[best]) and runs <= most_runs:
        yield Subset(chosen, bits + _log2_choices(counts.labels, best + 1))


def _log2_choices(n: int, k: int) -> float:
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)
