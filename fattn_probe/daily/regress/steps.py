"""Find steps in a series of times: fit a piecewise constant function with few pieces."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fattn_probe.base.arrays import F64

LEAST = 0.03  # of a level, that a step changes
SMALLEST = 3  # runs that a level must last, so that a single slow run is not a step


@dataclass(frozen=True)
class Level:
    """Runs [start, stop) at one level; `error` is their median distance from it."""

    start: int
    stop: int
    value: float
    error: float


def levels(values: Sequence[float]) -> list[Level]:
    """The levels of a series, found by dynamic programming over their starts (as in asv's step detection).

    A new level must lower the sum of distances from the levels' medians by at least 4 log(n) times the typical noise,
    which is the median difference of neighbours.
    """
    y = np.asarray(values, np.float64)
    n = len(y)
    if n == 0:
        return []
    penalty = 4 * np.log(n + 1)
    noise = max(float(np.median(np.abs(np.diff(y)))) if n > 1 else 0.0, 1e-9 * float(np.abs(y).max()), 1e-300)
    best, begins = np.full(n + 1, np.inf), np.zeros(n + 1, int)
    best[0] = -penalty * noise
    for start in range(n):
        for stop, distance in _distances(y, start):
            cost = best[start] + distance + penalty * noise
            if (stop - start >= SMALLEST or start == 0) and cost < best[stop]:
                best[stop], begins[stop] = cost, start
    found: list[Level] = []
    while n > 0:
        found.insert(0, _level(y, int(begins[n]), n))
        n = int(begins[n])
    return found


def _distances(y: F64, start: int) -> Iterator[tuple[int, float]]:
    """For each `stop`, the sum of the distances of y[start:stop] from their median."""
    ordered: list[float] = []
    for stop, value in enumerate(y[start:].tolist(), start + 1):
        bisect.insort(ordered, value)
        half = len(ordered) // 2
        yield stop, sum(ordered[-half:]) - sum(ordered[:half]) if half else 0.0


def _level(y: F64, start: int, stop: int) -> Level:
    part = y[start:stop]
    value = float(np.median(part))
    return Level(start, stop, value, float(np.median(np.abs(part - value))))


def last_step(values: Sequence[float]) -> tuple[Level, Level] | None:
    """The last level and the one before it.

    Levels count as one unless they differ by more than LEAST (relative) and three times the noise: slow series are
    noisier and would have more levels.
    """
    y = np.asarray(values, np.float64)
    if len(y) == 0 or y.max() - y.min() <= LEAST * y.min():
        return None  # all values, and so all levels, are within LEAST
    found = levels(values)
    while len(found) > 1:
        before, after = found[-2:]
        change = abs(after.value - before.value)
        if change > LEAST * before.value and change > 3 * max(before.error, after.error):
            return before, after
        found[-2:] = [_level(y, before.start, after.stop)]
    return None
