"""Everything that a page says of one line and suite, as the database has it: its last run, and the nights before."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fattn_probe.regress.changes import Change, Kind, changes, time_changes
from fattn_probe.regress.history import History
from fattn_probe.regress.packed_map import PackedMap
from fattn_probe.regress.records import Cell, Result, Run, StoredCase
from fattn_probe.regress.selection import matching

ORDER = ("pass", "fail", "unsupported", "lost")
MANY = 100
"""Cases of one scenario from which a plot of all of them says little."""


@dataclass(frozen=True)
class Night:
    """The last run of a line and suite, beside the accepted one (`before`), with the cells of the runs before it."""

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
    missing_shards: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many cases ended in each status, with those that were not run."""
        counted = Counter(result.status for result in self.results.values())
        found = {status: counted[status] for status in ORDER if counted[status]}
        return found | ({"not run": self.not_run} if self.not_run else {})

    @property
    def not_run(self) -> int:
        """Cases that were planned, or that the accepted run has, and of which there is no result."""
        gone = sum(change.kind is Kind.NOT_RUN for change in self.changes)
        return max(gone, self.run.planned - len(self.results))

    @property
    def alarms(self) -> list[Change]:
        """The changes that are regressions."""
        return [change for change in self.changes if change.alarm]

    @property
    def failures(self) -> list[Result]:
        """The cases that are wrong, new ones first."""
        new = {change.case for change in self.alarms}
        found = [result for result in self.results.values() if result.status == "fail"]
        return sorted(found, key=lambda result: result.name not in new)

    @property
    def scenarios(self) -> dict[str, list[str]]:
        """The names of the cases of each scenario, of one with very many by head size too.

        A case that is not known is one of its own, or, where there are very many, of all those that are not.
        """
        found: dict[str, list[str]] = {}
        for name in self.results:
            found.setdefault(self.cases[name].scenario if name in self.cases else "", []).append(name)
        parts: dict[str, list[str]] = {}
        for scenario, names in found.items():
            for name in names:
                parts.setdefault(self._part(scenario, name, len(names) > MANY), []).append(name)
        return parts

    def _part(self, scenario: str, name: str, many: bool) -> str:
        if not scenario:
            return "others" if many else name
        return f"{scenario}, hsk={self.cases[name].op.sizes.hsk}" if many else scenario

    def worth_a_look(self, most: int) -> list[str]:
        """The cases that are drawn one by one: what changed or is not passed first, then what was not always so."""
        changed = {change.case for change in self.changes}

        def rank(name: str) -> int:
            if name in changed or self.results[name].status in ("fail", "lost"):
                return 0
            return 1 if len({cell.status for cell in self.cells.get(name, {}).values()}) > 1 else 2

        return sorted(self.results, key=rank)[:most]


def nights(history: History, suite: str = "") -> Iterator[Night]:
    """The last run of each line and suite; of one suite if it is named."""
    return (night_of(history, run) for run in history.last_runs(suite))


def night_of(history: History, run: Run) -> Night:
    """A run with what was before it."""
    results = history.results(run)
    baseline = history.baseline(run.identity.line, run.suite)
    before = matching(history.results(baseline), run.settings.only) if baseline else {}
    found = changes(before, results) if baseline else ()
    runs = history.nights(run.identity.line, run.suite)
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
        changes=(*found, *time_changes(known, results)),
        runs=tuple(runs),
        cells=cells,
        cases=history.cases(run),
        error_maps=history.error_maps(run),
        missing_shards=tuple(history.missing_shards(run)),
    )


def worst(statuses: Sequence[str]) -> str:
    """The status that stands for several."""
    order = ("fail", "lost", "unsupported", "pass")
    return min(statuses, key=lambda status: order.index(status) if status in order else 1)
