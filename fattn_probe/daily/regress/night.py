"""The data of a page's section on one line and suite, from the database: the last run and earlier ones."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fattn_probe.daily.regress.changes import Change, ChangeKind, base_changes, changes, time_changes
from fattn_probe.daily.regress.history import History
from fattn_probe.daily.regress.records import ORDER, Cell, PackedMap, Result, Run, StoredCase
from fattn_probe.daily.regress.selection import matching

MANY = 100
"""A scenario with more cases than this gets one plot per head size."""


@dataclass(frozen=True)
class Night:
    """The last run of a line and suite, the accepted run (`baseline`; results `before`), and earlier runs' cells."""

    run: Run
    baseline: Run | None
    accepted: str
    results: Mapping[str, Result]
    before: Mapping[str, Result]
    changes: tuple[Change, ...]
    runs: tuple[Run, ...]
    cells: Mapping[str, Mapping[int, Cell]]
    cases: Mapping[str, StoredCase]
    error_maps: Mapping[str, PackedMap]
    unfinished: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The number of cases by status, including `not run`."""
        counted = Counter(result.status for result in self.results.values())
        found = {status: counted[status] for status in ORDER if counted[status]}
        return found | ({"not run": self.not_run} if self.not_run else {})

    @property
    def not_run(self) -> int:
        """The number of cases without a result that were planned or that the accepted run has."""
        gone = sum(change.kind is ChangeKind.NOT_RUN for change in self.changes)
        return max(gone, self.run.planned - len(self.results))

    @property
    def alarms(self) -> list[Change]:
        """The changes that are regressions."""
        return [change for change in self.changes if change.alarm]

    @property
    def failures(self) -> list[Result]:
        """The failed cases, regressions first."""
        new = {change.case for change in self.alarms}
        found = [result for result in self.results.values() if result.status == "fail"]
        return sorted(found, key=lambda result: result.name not in new)

    @property
    def scenarios(self) -> dict[str, list[str]]:
        """The names of each scenario's cases; a scenario with many cases is split by head size.

        A case without a known scenario forms its own group; if there are many such cases, they share one group.
        """
        found: dict[str, list[str]] = {}
        for name in self.results:
            found.setdefault(self.cases[name].scenario if name in self.cases else "", []).append(name)
        parts: dict[str, list[str]] = {}
        for scenario, names in found.items():
            many = len(names) > MANY
            for name in names:
                part = f"{scenario}, hsk={self.cases[name].op.sizes.hsk}" if scenario and many else scenario
                parts.setdefault(part or ("others" if many else name), []).append(name)
        return parts

    def worth_a_look(self, most: int) -> list[str]:
        """At most `most` cases to draw one by one: changed, failed or lost ones, then those whose status has varied."""
        changed = {change.case for change in self.changes}

        def rank(name: str) -> int:
            if name in changed or self.results[name].status in ("fail", "unjudged", "lost"):
                return 0
            return 1 if len({cell.status for cell in self.cells.get(name, {}).values()}) > 1 else 2

        return sorted(self.results, key=rank)[:most]


def shown(history: History, suite: str = "") -> Iterator[Night]:
    """Yield the runs of each line and suite that a page shows, oldest first.

    These are the last complete run and, for each filter, the last run after it.
    """
    by_line: dict[tuple[str, str], list[Run]] = {}
    for run in history.runs(suite=suite):
        if not run.only_baseline:
            by_line.setdefault((run.identity.line, run.suite), []).append(run)
    for runs in by_line.values():
        found: dict[str | None, Run] = {}
        for run in reversed(runs):
            found.setdefault(None if run.whole else run.settings.only, run)
            if run.whole:
                break
        yield from (night_of(history, run) for run in reversed(found.values()))


def night_of(history: History, run: Run) -> Night:
    """A run with its baseline and the runs before it."""
    results = history.results(run)
    baseline = history.baseline(run.identity.line, run.suite)
    before = matching(history.results(baseline), run.settings.only) if baseline else {}
    complete = 0 < run.planned <= len(results)
    found = changes(before, results, complete=complete) if baseline else ()
    runs = history.nights(run)
    known = history.cells(runs)
    cells: dict[str, dict[int, Cell]] = {}
    for cell in known:
        cells.setdefault(cell.name, {})[cell.run] = cell
    return Night(
        run=run,
        baseline=baseline,
        accepted=history.accepted(baseline) if baseline else "",
        results=results,
        before=before,
        changes=(*found, *base_changes(results), *time_changes(known, results)),
        runs=tuple(runs),
        cells=cells,
        cases=history.cases(run),
        error_maps=history.error_maps(run),
        unfinished=tuple(history.unfinished(run)),
    )


def worst(statuses: Sequence[str]) -> str:
    """The worst of several statuses, in the order that tables use."""
    order = ("fail", "unjudged", "lost", "unsupported", "pass")
    return min(statuses, key=lambda status: order.index(status) if status in order else 1)
