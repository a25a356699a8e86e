"""Find out which cases of a pool kill which faults, and choose those that kill most within a time budget.

Each mutant is run by the cases in which it changes a value; of cases that launch alike, only by the fastest few.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fattn_probe.base.activity import Step
from fattn_probe.base.json_lines import append, read
from fattn_probe.base.tables import Table
from fattn_probe.base.workers import Workers
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.lab.detect.mutate import Baseline, MutantBuild, run_baseline
from fattn_probe.lab.detect.schedule import Schedule, workers
from fattn_probe.lab.detect.verdicts import LOST, MISSING
from fattn_probe.lab.detect.worker import Task
from maintain.mutants_table import held_out


@dataclass(frozen=True)
class Killers:
    """The cases that kill a fault, of those that it was `tried` by; `digest` says which half of the faults it is in."""

    digest: str
    name: str
    cases: frozenset[str]
    tried: int

    @property
    def learned(self) -> bool:
        """Whether cases are chosen by it; the other half of the faults only counts what the choice kills."""
        return not held_out(self.digest)


@dataclass
class Kills:
    """The cases of a pool with the processor seconds of their judgement, and the killers of each fault."""

    seconds: dict[str, float] = field(default_factory=dict)
    faults: dict[str, Killers] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Kills":
        """The kills in a file; a fault that is there twice counts as its last line says."""
        made = cls()
        for item in read(path, "kill"):
            if "seconds" in item:
                made.seconds |= item["seconds"]
            else:
                killers = Killers(item["digest"], item["name"], frozenset(item["kills"]), item["tried"])
                made.faults[killers.digest] = killers
        return made


def find(built: MutantBuild, results: Path, say: Step) -> int:
    """Add to a results file what kills each mutant of a plan that is not in it; returns how many are left."""
    known = Kills.read(results).faults
    fresh = [mutant for mutant in built.plan.chosen(built.schema.mutants) if mutant.digest not in known]
    with workers(built.parts) as pool:
        baseline = run_baseline(built, pool)
        names = [f"{built.parts[run.part].name}: {run.case.name}" for run in baseline.runs]
        judged = [round(run.judged, 3) for run in baseline.runs]
        append(results, [{"seconds": dict(zip(names, judged, strict=True))}])
        done = 0
        for mutant, cases, kills in killers(built, baseline, fresh, pool):
            done += 1
            line = {"digest": mutant.digest, "name": str(mutant), "mutant": asdict(mutant), "tried": len(cases)}
            append(results, [line | {"kills": {names[case]: by for case, by in kills.items()}}])
            say(f"{done} {'killed' if kills else 'survived'}")
    return len(fresh) - done


def killers(
    built: MutantBuild, baseline: Baseline, mutants: Sequence[Mutant], pool: Workers[Task, Any]
) -> Iterator[tuple[Mutant, Sequence[int], Mapping[int, str]]]:
    """Each mutant with the cases that it was tried by, and those that killed it by what; none with a lost trial."""
    cases = baseline.cases_by_mutant(built.plan.most)
    known = {mutant.id: mutant for mutant in mutants}
    for mutant in mutants:
        if not cases.get(mutant.id):
            yield mutant, (), {}
    kills: dict[int, dict[int, str]] = defaultdict(dict)
    lost: set[int] = set()
    left = ((number, cases[number]) for number in known if cases.get(number))
    for case, trial, over in Schedule(baseline.runs, to_end=True).trials(pool, left, built.until):
        if trial.by == LOST:
            lost.add(trial.mutant)
        elif trial.by and trial.by != MISSING:
            kills[trial.mutant][case] = trial.by
        if over and trial.mutant not in lost:
            yield known[trial.mutant], cases[trial.mutant], kills.pop(trial.mutant, {})


def with_corpus(found: Kills, caught: Iterable[Mapping[str, Any]]) -> Kills:
    """The kills with faults of the corpus too, each with the one case that is known to catch it.

    `caught` are lines of the results of `scripts/detection faults`. A case that the pool does not have catches nothing.
    """
    faults = dict(found.faults)
    for item in caught:
        by = item["caught"]
        name = "" if by is None else f"{by['on']}: {by['case']}"
        cases = frozenset({name} & found.seconds.keys())
        faults[item["digest"]] = Killers(item["digest"], item["fault"], cases, item["cases"])
    return Kills(found.seconds, faults)


def choose(kills: Kills, budget: float) -> list[str]:
    """The cases that kill most of the learned half of the faults within a budget of seconds, best first.

    Greedily: next comes the case with most faults that no earlier one kills, for its seconds.
    """
    left: dict[str, set[str]] = defaultdict(set)
    for fault in kills.faults.values():
        for case in fault.cases if fault.learned else ():
            left[case].add(fault.digest)
    chosen = list[str]()
    spent = 0.0
    while within := [case for case in left if left[case] and spent + kills.seconds[case] <= budget]:
        best = max(within, key=lambda case: (len(left[case]) / max(kills.seconds[case], 0.001), case))
        chosen.append(best)
        spent += kills.seconds[best]
        killed = left.pop(best)
        for case in left:
            left[case] -= killed
    return chosen


def table(kills: Kills, chosen: Iterable[str]) -> Table:
    """What chosen cases kill of the half that they were learned on, and of the other half."""
    rows, cases = [], frozenset(chosen)
    for words, learned in (("chosen by", True), ("held out", False)):
        half = [fault for fault in kills.faults.values() if fault.learned is learned]
        by_pool, by_choice = sum(bool(item.cases) for item in half), sum(bool(item.cases & cases) for item in half)
        part = f"{100 * by_choice / by_pool:.1f} %" if by_pool else "-"
        rows.append((words, str(len(half)), str(by_pool), str(by_choice), part))
    return Table(("half", "faults", "killed by the pool", "by the choice", "of the pool's"), tuple(rows))


def entries(chosen: Iterable[str]) -> dict[str, list[str]]:
    """Chosen cases by entry and target, for `cases` of a suite's entries; best first."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in chosen:
        on, _, case = name.partition(": ")
        found[on].append(case)
    return dict(found)
