"""Compare two llama.cpp versions on the same inputs, and find the first bad one among many."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.errors import FattnProbeError, InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.check import nearest
from fattn_probe.daily.regress.changes import Change, changes
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.results import OnResult, result_of
from fattn_probe.machine.run.session import Session

SessionOf = Callable[[str], Session]
"""A function that returns the session for a source."""


@dataclass(frozen=True)
class Versions:
    """The results with two sources on one target, by case, and the changes from one to the other."""

    on: str
    sources: tuple[str, str]
    a: Mapping[str, Result]
    b: Mapping[str, Result]

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes from `a` to `b`, found as between two nightly runs."""
        return changes(self.a, self.b)


def diff(
    session_of: SessionOf, sources: tuple[str, str], cases: Sequence[Case], target: Target, on_result: OnResult
) -> Versions:
    """Run all cases with both sources, and compare the results."""
    found: list[dict[str, Result]] = []
    for source in sources:
        found.append({})
        for case in cases:
            found[-1][case.name] = result_of(session_of(source), case, target)
            on_result(found[-1][case.name], sum(map(len, found)), 2 * len(cases))
    return Versions(str(target), sources, *found)


@dataclass(frozen=True)
class Bisection:
    """The sources that were tried, in order; the first bad one is among the `suspects`, and the last suspect is bad.

    The other suspects were skipped: a run without a verdict is neither good nor bad. `result` is from the last suspect.
    """

    tried: tuple[tuple[str, Result], ...]
    suspects: tuple[str, ...]
    result: Result

    @property
    def bad(self) -> str:
        """The first source that is known to be bad."""
        return self.suspects[-1]


VERDICTS = ("pass", "fail")
"""The statuses that make a source good or bad; sources with others are skipped, as with `git bisect skip`."""


def ended(result: Result) -> str:
    """A status with its reason: `lost: the kernels of this release are too old`."""
    return f"{result.status}: {result.reason}" if result.reason else result.status


def bisect(session_of: SessionOf, sources: Sequence[str], case: Case, target: Target, step: Step = quiet) -> Bisection:
    """Bisect for the first source that fails the case.

    `sources` are ordered from good to bad. Raises InputError unless the first is good and the last is bad.
    """
    tried: dict[str, Result] = {}

    def status(source: str) -> str:
        """The case's status with a source; lost if the source cannot be fetched or built."""
        if source not in tried:
            step(f"{case.name} on {target} with {source}")
            try:
                tried[source] = result_of(session_of(source), case, target)
            except FattnProbeError as error:
                tried[source] = Result.lost(case, str(error))
        return tried[source].status

    if status(sources[0]) != "pass":
        raise InputError(f"the good source {sources[0]} does not pass {case.name}: {ended(tried[sources[0]])}")
    if status(sources[-1]) != "fail":
        raise InputError(f"the bad source {sources[-1]} does not fail {case.name}: {ended(tried[sources[-1]])}")
    low, high = 0, len(sources) - 1
    while left := [number for number in range(low + 1, high) if sources[number] not in tried]:
        middle = min(left, key=lambda number: abs(2 * number - low - high))
        match status(sources[middle]):
            case "pass":
                low = middle
            case "fail":
                high = middle
    return Bisection(tuple(tried.items()), tuple(sources[low + 1 : high + 1]), tried[sources[high]])


def runs_of(number: int) -> int:
    """The largest number of runs that `bisect` makes with this number of sources, if each run has a verdict."""
    return 2 + (number - 2).bit_length()


def between(releases: Sequence[str], good: str, bad: str) -> list[str]:
    """The releases from the good one to the bad one; raises InputError if one is unknown or the order is wrong."""
    for source in (good, bad):
        if source not in releases:
            known = f"a release from {releases[0]} to {releases[-1]}" if releases else "a known release"
            raise InputError(f"{source} is not {known}{nearest(source, list(releases))}")
    first, last = releases.index(good), releases.index(bad)
    if first >= last:
        raise InputError(f"{good} does not come before {bad}")
    return list(releases[first : last + 1])
