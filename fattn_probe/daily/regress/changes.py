"""Find the changes between two runs, and steps in the times of many runs; decide which are regressions."""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.daily.regress.records import Cell, Result
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.verdict.judge.support import LOST

LEAST = 0.03  # the smallest step, as a fraction of a level
SMALLEST = 3  # the fewest runs in a level, so that a single slow run does not count as a step


@dataclass(frozen=True)
class Level:
    """Runs [start, stop) at one level, `value`; `error` is their median distance from it."""

    start: int
    stop: int
    value: float
    error: float


def levels(values: Sequence[float]) -> list[Level]:
    """Find the levels of a series by dynamic programming over their starts (as asv's step detection does).

    A new level must lower the sum of all values' distances from their level's median by at least 4 log(n) times the
    typical noise. This noise is the median difference between neighbouring values.
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
        ordered: list[float] = []
        for stop, value in enumerate(y[start:].tolist(), start + 1):
            bisect.insort(ordered, value)
            half = len(ordered) // 2
            distance = sum(ordered[-half:]) - sum(ordered[:half]) if half else 0.0  # sum of |y[start:stop] - median|
            cost = best[start] + distance + penalty * noise
            if (stop - start >= SMALLEST or start == 0) and cost < best[stop]:
                best[stop], begins[stop] = cost, start
    found: list[Level] = []
    while n > 0:
        found.insert(0, _level(y, int(begins[n]), n))
        n = int(begins[n])
    return found


def _level(y: F64, start: int, stop: int) -> Level:
    part = y[start:stop]
    value = float(np.median(part))
    return Level(start, stop, value, float(np.median(np.abs(part - value))))


def last_step(values: Sequence[float]) -> tuple[Level, Level] | None:
    """The last two levels of a series; None if there is only one.

    The last two levels are merged unless they differ by more than LEAST (relative) and by more than three times their
    noise. Otherwise slow series, which are noisier, would have more levels.
    """
    y = np.asarray(values, np.float64)
    if len(y) == 0 or y.max() - y.min() <= LEAST * y.min():
        return None  # all values, and so all levels, are within LEAST of each other
    found = levels(values)
    while len(found) > 1:
        before, after = found[-2:]
        change = abs(after.value - before.value)
        if change > LEAST * before.value and change > 3 * max(before.error, after.error):
            return before, after
        found[-2:] = [_level(y, before.start, after.stop)]
    return None


class ChangeKind(StrEnum):
    """A kind of change."""

    NEW_FAILURE = "new failure"
    FIXED = "fixed"
    SUPPORT_LOST = "support lost"
    UNCOMPILED = "does not compile"
    SUPPORT_GAINED = "support gained"
    KERNEL = "another kernel"
    LAUNCH = "another launch"
    UNLIKE_BASE = "launches unlike its base"
    BITS = "bits changed"
    SLOWER = "slower"
    FASTER = "faster"
    UNJUDGED = "unjudged"
    LOST = "lost"
    NOT_RUN = "not run"
    REMOVED = "removed"
    NEW = "new case"


ALARMS = frozenset({ChangeKind.NEW_FAILURE, ChangeKind.SUPPORT_LOST, ChangeKind.UNCOMPILED, ChangeKind.SLOWER})
"""The changes that are regressions (exit 6)."""
NO_VERDICT = frozenset({ChangeKind.LOST, ChangeKind.NOT_RUN})


@dataclass(frozen=True)
class Change:
    """A change in one case; `words` describe the states before and after."""

    case: str
    kind: ChangeKind
    words: str

    @property
    def alarm(self) -> bool:
        """Whether the change is a regression."""
        return self.kind in ALARMS


def changes(before: Mapping[str, Result], after: Mapping[str, Result], *, complete: bool = False) -> tuple[Change, ...]:
    """The changes from a baseline to a later run, case by case in the order of the later run.

    A new case that fails is a regression. A baseline case without a later result is always reported; if the later run
    is `complete` (all of its cases have results), the case was removed from the suite.
    """
    found = [change for name, result in after.items() for change in _of_case(before.get(name), result)]
    kind = ChangeKind.REMOVED if complete else ChangeKind.NOT_RUN
    gone = [Change(name, kind, f"was {result.status}") for name, result in before.items() if name not in after]
    return (*found, *gone)


def _of_case(before: Result | None, after: Result) -> Iterator[Change]:
    if before is None:
        kind = {"fail": ChangeKind.NEW_FAILURE, "unjudged": ChangeKind.UNJUDGED}.get(after.status, ChangeKind.NEW)
        kind = ChangeKind.UNCOMPILED if after.uncompiled else kind
        yield Change(after.name, kind, after.explained or after.status)
        return
    if before.digest != after.digest:
        yield Change(after.name, ChangeKind.NEW, "the case itself changed: a different op, or different inputs")
        if after.status != "fail":
            return
    status = _status_change(before, after)
    if status is not None:
        yield status
    if before.output and after.output:  # a run that ended early did not launch all its kernels
        yield from _launch_changes(before, after)
        if status is None and before.output != after.output:
            words = f"the same verdict ({after.status}) with different bits"
            was, now = (result.metrics.get("equal_bits") for result in (before, after))
            if was is not None and now is not None and was != now:
                equal = f"{100 * now:.4g} % of the elements match the rounding model bit for bit"
                words += f"; {equal} (before: {100 * was:.4g} %)"
            yield Change(after.name, ChangeKind.BITS, words)


def _status_change(before: Result, after: Result) -> Change | None:
    if after.uncompiled and not before.uncompiled:
        return Change(after.name, ChangeKind.UNCOMPILED, f"was {before.status}: {after.reason}")
    if after.status == "lost":
        return Change(after.name, ChangeKind.LOST, after.failure or after.reason)
    if after.status == before.status:
        return None
    if after.status == "unjudged":
        return Change(after.name, ChangeKind.UNJUDGED, f"was {before.status}: {after.reason}")
    if before.status in ("lost", "unjudged"):
        return Change(after.name, ChangeKind.NEW_FAILURE, after.explained) if after.status == "fail" else None
    refused = after.reason.startswith(LOST) and before.status == "pass"
    kinds = {
        "fail": ChangeKind.SUPPORT_LOST if refused else ChangeKind.NEW_FAILURE,
        "unsupported": ChangeKind.SUPPORT_LOST if before.status == "pass" else ChangeKind.FIXED,
        "pass": ChangeKind.SUPPORT_GAINED if before.status == "unsupported" else ChangeKind.FIXED,
    }
    return Change(after.name, kinds[after.status], f"was {before.status}: {after.explained or after.status}")


def _launch_changes(before: Result, after: Result) -> Iterator[Change]:
    if before.launches == after.launches:  # true of most results, and saves parsing
        return
    a, b = before.kernels, after.kernels
    if a == b:
        return
    if [record.spelling for record in a] != [record.spelling for record in b]:
        yield Change(after.name, ChangeKind.KERNEL, f"{_kernels(a)} became {_kernels(b)}")
        return
    other = [(was, now) for was, now in zip(a, b, strict=True) if was != now]
    was, now = ("; ".join(map(_geometry, records)) for records in zip(*other, strict=True))
    yield Change(after.name, ChangeKind.LAUNCH, f"{was} became {now}")


def _geometry(record: LaunchRecord) -> str:
    """A kernel's launch in words, with the occupancy, on which an attention kernel's grid may depend."""
    geometry = record.origin.marked(record.geometry) if record.family else record.geometry
    return f"{record.kernel}: {geometry}"


def _kernels(records: Sequence[LaunchRecord]) -> str:
    return ", ".join(record.spelling for record in records) or "no kernel"


def base_changes(after: Mapping[str, Result]) -> Iterator[Change]:
    """The cases in which an edited or patched llama.cpp launches kernels differently from its base."""
    for name, result in after.items():
        if result.unlike_base:
            yield Change(name, ChangeKind.UNLIKE_BASE, result.unlike_base)


def time_changes(cells: Sequence[Cell], after: Mapping[str, Result]) -> Iterator[Change]:
    """The changes between the last two levels of each case's times.

    `cells` are from all runs of a line, oldest first, including the last run. Times of different ops are not compared.
    """
    times: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        if cell.time is not None:
            times.setdefault((cell.name, cell.digest), []).append(cell.time)
    for name, result in after.items():
        if result.seconds and (step := last_step(times.get((name, result.digest), ()))):
            earlier, later = step
            kind = ChangeKind.SLOWER if later.value > earlier.value else ChangeKind.FASTER
            said = f"{earlier.value * 1e6:.1f} us became {later.value * 1e6:.1f} us"
            yield Change(name, kind, f"{said}, in the last {later.stop - later.start} runs")
