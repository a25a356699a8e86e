"""Determine which cases of a pool kill which faults, and choose those that kill the most within a time budget.

A mutant is run on the cases in which it changes a value; among cases with the same launches, on the fastest few. The
cost of a case includes the time to compile those of its kernels that no chosen case has, after a change to their files.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fattn_probe.base.activity import Step
from fattn_probe.base.documents import append, read
from fattn_probe.base.tables import Table
from fattn_probe.base.workers import Workers
from fattn_probe.daily.regress.entries import session_for
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.lab.detect.mutate import Baseline, MutantBuild, run_baseline
from fattn_probe.lab.detect.schedule import Schedule, workers
from fattn_probe.lab.detect.verdicts import LOST, MISSING
from fattn_probe.lab.detect.worker import Task
from fattn_probe.llama.build.ninja import step_seconds
from fattn_probe.llama.build.plan import CASE_PREFIX, case_file
from fattn_probe.machine.run.prepare import KernelsByOp
from fattn_probe.machine.run.session import arch_of
from maintain.mutants_table import held_out


@dataclass(frozen=True)
class Killers:
    """The cases that kill a fault, among the cases `tried`; `digest` decides to which half of the faults it belongs."""

    digest: str
    name: str
    cases: frozenset[str]
    tried: int

    @property
    def learned(self) -> bool:
        """Whether the fault is used to choose cases; the other half of the faults only measures the choice."""
        return not held_out(self.digest)


@dataclass
class Kills:
    """The cases of a pool with the CPU seconds to judge each, and the killers of each fault.

    `kernels` are the kernels of each case (`90 release mma 64,64,8,8,false,false,false`), `compiling` the seconds to
    compile each kernel.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    faults: dict[str, Killers] = field(default_factory=dict)
    kernels: dict[str, list[str]] = field(default_factory=dict)
    compiling: dict[str, float] = field(default_factory=dict)

    def cost(self, case: str, compiled: AbstractSet[str] = frozenset()) -> float:
        """The seconds to run a case, and to compile those of its kernels that are not yet in `compiled`."""
        return self.seconds[case] + sum(self.compiling[name] for name in {*self.kernels.get(case, ())} - compiled)

    @classmethod
    def read(cls, path: Path) -> "Kills":
        """The kills in a file; if a fault appears twice, its last line counts."""
        made = cls()
        for item in read(path, "kill"):
            if "seconds" in item:
                made.seconds |= item["seconds"]
                made.kernels |= item.get("kernels", {})
                made.compiling |= item.get("compiling", {})
            else:
                killers = Killers(item["digest"], item["name"], frozenset(item["kills"]), item["tried"])
                made.faults[killers.digest] = killers
        return made


def find(built: MutantBuild, results: Path, say: Step) -> int:
    """Add the kills of each mutant of a plan that is not yet in a results file; returns the number of mutants left."""
    known = Kills.read(results).faults
    fresh = [mutant for mutant in built.plan.chosen(built.schema.mutants) if mutant.digest not in known]
    with workers(built.parts) as pool:
        baseline = run_baseline(built, pool)
        names = [f"{built.parts[run.part].name}: {run.case.name}" for run in baseline.runs]
        judged = [round(run.judged, 3) for run in baseline.runs]
        kernels, compiling = kernels_of(built, baseline, names)
        append(
            results, [{"seconds": dict(zip(names, judged, strict=True)), "kernels": kernels, "compiling": compiling}]
        )
        done = 0
        for mutant, cases, kills in killers(built, baseline, fresh, pool):
            done += 1
            line = {"digest": mutant.digest, "name": str(mutant), "mutant": asdict(mutant), "tried": len(cases)}
            append(results, [line | {"kills": {names[case]: by for case, by in kills.items()}}])
            say(f"{done} {'killed' if kills else 'survived'}")
    return len(fresh) - done


def kernels_of(
    built: MutantBuild, baseline: Baseline, names: Sequence[str]
) -> tuple[dict[str, list[str]], dict[str, float]]:
    """The kernels of each run, by the run's name, and the seconds to compile each kernel with its mutants.

    A kernel that came from ccache counts with the average of the other kernels.
    """
    found, compiling = dict[str, list[str]](), dict[str, float]()
    parts = list(zip(built.plan.parts, built.sessions, strict=True))
    by_part = [KernelsByOp.of(session_for(part.entry, built.session).options, part.target).read() for part, _ in parts]
    took = [step_seconds([session.build_for(part.target).folder]) for part, session in parts]
    every = [seconds for one in took for label, seconds in one.items() if label.startswith(CASE_PREFIX)]
    average = sum(every) / max(len(every), 1)
    for name, run in zip(names, baseline.runs, strict=True):
        part, _ = parts[run.part]
        for kernel in by_part[run.part].get(run.case.op.digest, ()):
            key = f"{arch_of(part.target)} {part.entry.flavour} {kernel}"
            found.setdefault(name, []).append(key)
            compiling[key] = took[run.part].get(case_file(kernel), average)
    return found, compiling


def killers(
    built: MutantBuild, baseline: Baseline, mutants: Sequence[Mutant], pool: Workers[Task, Any]
) -> Iterator[tuple[Mutant, Sequence[int], Mapping[int, str]]]:
    """Each mutant without a lost trial, the cases that tried it, and the kind of kill for each case that killed it."""
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
    """The kills, including faults in the corpus, each of which has the one case that is known to catch it.

    `caught` are lines from the results of `scripts/detection faults`. A case outside the pool catches nothing.
    """
    faults = dict(found.faults)
    for item in caught:
        by = item["caught"]
        name = "" if by is None else f"{by['on']}: {by['case']}"
        cases = frozenset({name} & found.seconds.keys())
        faults[item["digest"]] = Killers(item["digest"], item["fault"], cases, item["cases"])
    return replace(found, faults=faults)


def choose(kills: Kills, budget: float) -> list[str]:
    """The cases that kill the most faults of the learned half within a budget of seconds, best first.

    Greedily: the next case kills the most faults that no earlier case kills, per second that it and its new kernels
    take.
    """
    left: dict[str, set[str]] = defaultdict(set)
    for fault in kills.faults.values():
        for case in fault.cases if fault.learned else ():
            left[case].add(fault.digest)
    chosen, compiled, spent = list[str](), set[str](), 0.0
    while True:
        costs = {case: kills.cost(case, compiled) for case in left if left[case]}
        within = [case for case in costs if spent + costs[case] <= budget]
        if not within:
            return chosen
        best = max(within, key=lambda case: (len(left[case]) / max(costs[case], 0.001), case))
        chosen.append(best)
        spent += costs[best]
        compiled.update(kills.kernels.get(best, ()))
        killed = left.pop(best)
        for case in left:
            left[case] -= killed


def table(kills: Kills, chosen: Iterable[str]) -> Table:
    """The kills of the chosen cases in the half of the faults that was used to choose them, and in the other half."""
    rows, cases = [], frozenset(chosen)
    for words, learned in (("chosen by", True), ("held out", False)):
        half = [fault for fault in kills.faults.values() if fault.learned is learned]
        by_pool, by_choice = sum(bool(item.cases) for item in half), sum(bool(item.cases & cases) for item in half)
        part = f"{100 * by_choice / by_pool:.1f} %" if by_pool else "-"
        rows.append((words, str(len(half)), str(by_pool), str(by_choice), part))
    return Table(("half", "faults", "killed by the pool", "by the choice", "of the pool's kills"), tuple(rows))


def entries(chosen: Iterable[str]) -> dict[str, list[str]]:
    """Chosen cases by entry and target, for `cases` in a suite's entries; best first."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in chosen:
        on, _, case = name.partition(": ")
        found[on].append(case)
    return dict(found)
