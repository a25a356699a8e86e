"""Select a suite's cases for a target from its scenarios and from upstream's own list."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fattn_probe.base.digest import short
from fattn_probe.base.errors import InputError
from fattn_probe.base.regex import bounded, compiled
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.daily.ops.parse import OpResult
from fattn_probe.daily.ops.rounds import Timeouts, run_ops_on, separate_V_of
from fattn_probe.daily.regress.records import Result, Shard, case_fingerprint
from fattn_probe.daily.regress.suite import Entry, cases_of, only_of
from fattn_probe.machine.run.session import Session

FILTER = "--filter"
LIST_SECONDS = 300.0
UNSUPPORTED = "this source's test-backend-ops reports that the backend does not support the op"


@dataclass(frozen=True)
class CaseSelection:
    """The cases to run, and the results of cases that need no run; for a shard, `whole` is the digest of all cases."""

    cases: tuple[Case, ...]
    settled: tuple[Result, ...] = ()
    whole: str = ""

    def some(self, pattern: str, given: str = FILTER) -> "CaseSelection":
        """Keep the cases and results whose names match a regular expression, the value of the flag or key `given`."""
        search = compiled(pattern, given).search
        with bounded(pattern, given):
            cases = tuple(case for case in self.cases if search(case.name))
            return CaseSelection(cases, tuple(result for result in self.settled if search(result.name)))

    def of(self, shard: Shard) -> "CaseSelection":
        """Keep the cases and results in a shard."""
        cases = tuple(case for case in self.cases if shard.has(case.digest))
        return CaseSelection(cases, tuple(result for result in self.settled if shard.has(result.digest)), self.digest)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the cases and their tolerances, by name: results depend only on these and on the run."""
        cases = {case.name: case_fingerprint(case) for case in self.cases}
        return cases | {result.name: result.digest for result in self.settled}

    @property
    def digest(self) -> str:
        """A digest of all cases, which is the same for all shards."""
        return self.whole or short(json.dumps(self.fingerprints, sort_keys=True))

    @property
    def names(self) -> list[str]:
        """The names of all cases and results."""
        return [*(case.name for case in self.cases), *(result.name for result in self.settled)]


def select(entry: Entry, folder: Path, session: Session, target: Target, *, only: str = "") -> CaseSelection:
    """Select an entry's cases for a target from its scenarios and upstream's list, with the results that need no run.

    Raises InputError if the entry's own filter leaves no case; `only` may leave none.
    """
    cases, settled = cases_of(entry, folder), list[Result]()
    if entry.upstream:
        listed = upstream_list(session, target)
        tree = session.options.tree
        separate_V = tree is not None and separate_V_of(tree.root)
        more, settled = upstream_cases(listed, separate_V=separate_V)
        cases += more
    found = CaseSelection(tuple(cases), tuple(settled)).some(entry.only, only_of(entry))
    if not found.names:
        raise InputError(f"no case name matches {only_of(entry)} {entry.only!r}")
    return found.some(only)


def matching(results: Mapping[str, Result], only: str) -> dict[str, Result]:
    """Keep the results that a run with the filter `only` would have; all of them without a filter."""
    search = compiled(only, FILTER).search
    with bounded(only, FILTER):
        return {name: result for name, result in results.items() if search(name)}


def upstream_list(session: Session, target: Target) -> Sequence[OpResult]:
    """List every case in the source's test-backend-ops: `ok` if the device supports it, else `not-supported`."""
    limits = Timeouts(LIST_SECONDS, LIST_SECONDS)
    report = run_ops_on(session, target, "support", timeouts=limits, on_result=lambda result, total: None)
    if problem := report.problem():
        raise problem
    return report.results


def upstream_cases(listed: Iterable[OpResult], *, separate_V: bool) -> tuple[list[Case], list[Result]]:
    """The cases to run, with fattn-probe's inputs, and the results of those that need no run.

    A case's name is upstream's own text, with a number appended if it is repeated. A case that the device does
    not support needs no run. A supported case that no scenario can express is lost, with the reason.
    """
    cases: list[Case] = []
    settled: list[Result] = []
    for name, item in _named(listed):
        try:
            case = resolve(from_ops(item.case, separate_V=separate_V), name, "upstream")
        except InputError as error:
            settled.append(_settled(name, short(item.case), item, f"cannot be replayed: {error}"))
            continue
        if item.status == "ok":
            cases.append(case)
        else:
            settled.append(_settled(name, case.digest, item, ""))
    return cases, settled


def _named(listed: Iterable[OpResult]) -> Iterable[tuple[str, OpResult]]:
    seen: Counter[str] = Counter()
    for item in listed:
        seen[item.case] += 1
        yield item.case if seen[item.case] == 1 else f"{item.case} #{seen[item.case]}", item


def _settled(name: str, digest: str, item: OpResult, problem: str) -> Result:
    if item.status != "ok":
        reason = f"{UNSUPPORTED}: {item.message}" if item.message else UNSUPPORTED
        return Result(name, digest, "unsupported", reason, failure=reason)
    return Result(name, digest, "lost", problem.splitlines()[0], failure=problem)
