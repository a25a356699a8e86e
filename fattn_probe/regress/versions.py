"""Compare two llama.cpp versions on the same inputs, and find the first bad one among many."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fattn_probe.activity import Step, quiet
from fattn_probe.device import Target
from fattn_probe.errors import InputError
from fattn_probe.regress.changes import Change, changes
from fattn_probe.regress.records import Result
from fattn_probe.regress.results import OnResult, result_of, unseen
from fattn_probe.run.session import Session
from fattn_probe.scenario import Case

SessionOf = Callable[[str], Session]
"""Gives the session that runs a source."""


@dataclass(frozen=True)
class Versions:
    """The results of two sources on one target, by case, and the changes from one to the other."""

    on: str
    sources: tuple[str, str]
    a: Mapping[str, Result]
    b: Mapping[str, Result]

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes, as between two nightly runs."""
        return changes(self.a, self.b)


def diff(
    session_of: SessionOf, sources: tuple[str, str], cases: Sequence[Case], target: Target, on_result: OnResult = unseen
) -> Versions:
    """Run all cases with both sources and compare."""
    found: list[dict[str, Result]] = []
    for source in sources:
        found.append({})
        for case in cases:
            found[-1][case.name] = result_of(session_of(source), case, target)
            on_result(found[-1][case.name], sum(map(len, found)), 2 * len(cases))
    return Versions(str(target), sources, *found)


@dataclass(frozen=True)
class Bisection:
    """The sources that were tried, in order, and the first bad one with how it fails."""

    tried: tuple[tuple[str, Result], ...]
    bad: str
    result: Result


def bisect(session_of: SessionOf, sources: Sequence[str], case: Case, target: Target, step: Step = quiet) -> Bisection:
    """Bisect for the first source that fails the case.

    `sources` go from the good one to the bad one. InputError if the ends are not good and bad.
    """
    tried: dict[str, Result] = {}

    def good(source: str) -> bool:
        if source not in tried:
            session = session_of(source)
            step(f"{case.name} on {target} with {source}")
            tried[source] = result_of(session, case, target)
        return tried[source].status == "pass"

    if not good(sources[0]):
        raise InputError(f"the good end {sources[0]} does not pass: {case.name} is {tried[sources[0]].status}")
    if good(sources[-1]):
        raise InputError(f"the bad end {sources[-1]} does not fail: {case.name} passes")
    low, high = 0, len(sources) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(sources[middle]) else (low, middle)
    return Bisection(tuple(tried.items()), sources[high], tried[sources[high]])


def between(releases: Sequence[str], good: str, bad: str) -> list[str]:
    """The releases from the good one to the bad one; InputError if either is unknown or the order is wrong."""
    for source in (good, bad):
        if source not in releases:
            raise InputError(f"{source} is not a known release: {', '.join(releases)}")
    first, last = releases.index(good), releases.index(bad)
    if first >= last:
        raise InputError(f"{good} does not come before {bad}")
    return list(releases[first : last + 1])
