"""Choose the cases of a suite that kill most mutants within a time budget."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fattn_probe.detect.kills import Killers, Matrix
from fattn_probe.tables import Table


@dataclass(frozen=True)
class Choice:
    """The chosen cases, best first, and the seconds that they take together."""

    cases: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Share:
    """Of a half of the faults: how many there are, how many any case of the pool kills, and how many the choice."""

    of: int
    pool: int
    chosen: int


def choose(matrix: Matrix, budget: float) -> Choice:
    """The cases that kill most of the learned half of the faults within a budget of seconds.

    Greedily: next comes the case with most faults that no earlier one kills, for its seconds.
    """
    left: dict[str, set[str]] = defaultdict(set)
    for fault in matrix.faults.values():
        for case in fault.cases if fault.learned else ():
            left[case].add(fault.digest)
    cases, spent = list[str](), 0.0
    while True:
        within = [case for case in left if left[case] and spent + matrix.seconds[case] <= budget]
        if not within:
            return Choice(tuple(cases), spent)
        best = max(within, key=lambda case: (len(left[case]) / max(matrix.seconds[case], 0.001), case))
        cases.append(best)
        spent += matrix.seconds[best]
        killed = left.pop(best)
        for case in left:
            left[case] -= killed


def share(faults: Iterable[Killers], cases: Iterable[str]) -> Share:
    """How many of some faults any case kills, and how many the chosen ones."""
    chosen, found = frozenset(cases), list(faults)
    return Share(len(found), sum(bool(item.cases) for item in found), sum(bool(item.cases & chosen) for item in found))


def table(matrix: Matrix, choice: Choice) -> Table:
    """What a choice kills of the half that it was learned on, and of the other half."""
    rows = []
    for words, learned in (("chosen by", True), ("held out", False)):
        found = share([fault for fault in matrix.faults.values() if fault.learned is learned], choice.cases)
        part = f"{100 * found.chosen / found.pool:.1f} %" if found.pool else "-"
        rows.append((words, str(found.of), str(found.pool), str(found.chosen), part))
    return Table(("half", "faults", "killed by the pool", "by the choice", "of the pool's"), tuple(rows))


def entries(choice: Choice) -> dict[str, list[str]]:
    """The chosen cases by entry and target, for `cases` of a suite's entries; best first."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in choice.cases:
        on, _, case = name.partition(": ")
        found[on].append(case)
    return dict(found)


def with_corpus(matrix: Matrix, caught: Sequence[Mapping[str, Any]]) -> Matrix:
    """The matrix with faults of the corpus too, each with the one case that is known to catch it.

    `caught` are lines of the results of `scripts/detection faults`. A case that the pool does not have catches nothing.
    """
    faults = dict(matrix.faults)
    for item in caught:
        by = item["caught"]
        name = "" if by is None else f"{by['on']}: {by['case']}"
        cases = frozenset({name} & matrix.seconds.keys())
        faults[item["digest"]] = Killers(item["digest"], item["fault"], cases, item["cases"])
    return Matrix(matrix.seconds, faults)
