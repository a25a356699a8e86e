"""Select the cases of a suite for a target."""

import contextlib
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.device import Target
from fattn_probe.errors import InputError
from fattn_probe.ops.cases import separate_V_of
from fattn_probe.regress.records import Result, Shard
from fattn_probe.regress.suite import Entry, cases_of
from fattn_probe.regress.upstream import upstream_cases, upstream_list
from fattn_probe.run.session import Session
from fattn_probe.scenario import Case

SEARCH_SECONDS = 1.0
"""Limit of the processor time for a search of all names, in seconds."""


@dataclass(frozen=True)
class Selection:
    """The cases to run, and the results of cases that need no run."""

    cases: tuple[Case, ...]
    settled: tuple[Result, ...] = ()

    def some(self, pattern: str) -> "Selection":
        """The cases and results whose name matches a regular expression."""
        search = compiled(pattern).search
        with bounded(pattern):
            cases = tuple(case for case in self.cases if search(case.name))
            return Selection(cases, tuple(result for result in self.settled if search(result.name)))

    def of(self, shard: Shard) -> "Selection":
        """The cases and results of a shard."""
        cases = tuple(case for case in self.cases if shard.has(case.digest))
        return Selection(cases, tuple(result for result in self.settled if shard.has(result.digest)))

    @property
    def names(self) -> list[str]:
        """The names of all cases and results."""
        return [*(case.name for case in self.cases), *(result.name for result in self.settled)]


def select(
    entry: Entry, folder: Path, session: Session, target: Target, *, only: str = ""
) -> tuple[tuple[Case, ...], tuple[Result, ...]]:
    """An entry's cases on a target, from its scenarios and upstream's list, and the results that need no run.

    InputError if the entry's own filter leaves none; `only` may.
    """
    cases, settled = cases_of(entry, folder), list[Result]()
    if entry.upstream:
        listed = upstream_list(session, target)
        tree = session.options.tree
        separate_V = tree is not None and separate_V_of(tree.root)
        more, settled = upstream_cases(listed, separate_V=separate_V)
        cases += more
    found = Selection(tuple(cases), tuple(settled)).some(entry.only)
    if not found.names:
        raise InputError(f"no case name matches {entry.only!r}")
    found = found.some(only)
    return found.cases, found.settled


def matching(results: Mapping[str, Result], only: str) -> dict[str, Result]:
    """The results that a run with the filter `only` would have; all of them without a filter."""
    search = compiled(only).search
    return {name: result for name, result in results.items() if search(name)}


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression; InputError if it is not one."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"--filter {pattern!r}: {error}") from error


@contextlib.contextmanager
def bounded(pattern: str) -> Iterator[None]:
    """Turn an endless backtracking search into an InputError; `re` checks for signals while it searches."""

    def stop(number: int, frame: object) -> None:
        raise InputError(f"--filter {pattern!r} takes too long on these names: it backtracks, as (a+)+ does")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
