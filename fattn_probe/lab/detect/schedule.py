"""Choose the case to try a mutant on next: the one with the most kills per second so far, until one kills the mutant.

Workers take many mutants for one case at once, so that the case is set up once. A file of baseline runs and survived
trials lets a later run of the command resume. Both can be reused, because the result of a run never changes.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fattn_probe.base.console import NOTES
from fattn_probe.base.digest import short
from fattn_probe.base.documents import append, read
from fattn_probe.base.errors import InputError
from fattn_probe.base.host import cores
from fattn_probe.base.workers import Died, Workers
from fattn_probe.cases.device.target import picklable
from fattn_probe.cases.scenario import Case
from fattn_probe.lab.detect.verdicts import LOST
from fattn_probe.lab.detect.worker import BaselineRun, BuiltPart, Task, Trial, Worker, lost_run, working


@dataclass
class KnownRuns:
    """Baseline runs and survived trials by the key of their case, a hash of everything that they depend on.

    Each set of mutants is stored once, by its hash.
    """

    path: Path
    sets: dict[str, frozenset[int]] = field(default_factory=dict)
    runs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    trials: dict[str, dict[int, Trial]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def read(cls, path: Path) -> "KnownRuns":
        """The contents of a file; a damaged file is removed, with a note."""
        made = cls(path)
        try:
            items = list(read(path, "run"))
        except InputError as error:
            NOTES.print(f"{error}: the runs that this file kept will be repeated", style="dim")
            path.unlink()
            return made
        for item in items:
            if "set" in item:
                made.sets[item["set"]] = frozenset(item["mutants"])
            elif "mutant" in item:
                trial = Trial(item["mutant"], "", "", item["seconds"], item["changed"])
                made.trials[item["key"]][trial.mutant] = trial
            elif "key" in item and item["reached"] in made.sets and item["felt"] in made.sets:
                made.runs[item.pop("key")] = item
        return made

    def run(self, key: str, part: int, case: Case) -> BaselineRun | None:
        """The baseline run of a case in a part; None if it is not known."""
        if key not in self.runs:
            return None
        item = dict(self.runs[key])
        reached, infected = (self.sets[item.pop(name)] for name in ("reached", "felt"))
        return BaselineRun(part, case, reached=reached, infected=infected, **item)

    def add_run(self, key: str, run: BaselineRun) -> None:
        """Append a baseline run."""
        sets = {digest(numbers): numbers for numbers in (run.reached, run.infected)}
        fresh = {name: numbers for name, numbers in sets.items() if name not in self.sets}
        self.sets |= fresh
        lines: list[dict[str, Any]] = [{"set": name, "mutants": sorted(numbers)} for name, numbers in fresh.items()]
        plain = {name: getattr(run, name) for name in ("failure", "seconds", "judged", "launches", "output")}
        lines.append({"key": key, **plain, "reached": digest(run.reached), "felt": digest(run.infected)})
        append(self.path, lines)

    def add_survived(self, key: str, trial: Trial) -> None:
        """Append the trial of a mutant that survived a case."""
        self.trials[key][trial.mutant] = trial
        said = {"key": key, "mutant": trial.mutant, "seconds": round(trial.seconds, 3), "changed": trial.changed}
        append(self.path, [said])


def digest(numbers: frozenset[int]) -> str:
    """The hash of a set."""
    return short(repr(sorted(numbers)))


SET_UP = 0.05
"""Seconds that a run takes in addition to its kernels."""
TURN = 3.0
"""The total time, in seconds, of the runs that a worker gets at once."""
MOST_AT_ONCE = 128
"""Mutants in progress for each worker; after an interruption, these are tried again from the start."""


def workers(parts: Sequence[BuiltPart]) -> Workers[Task, Any]:
    """Worker processes for the parts of a suite."""
    return Workers(partial(working, [replace(part, target=picklable(part.target)) for part in parts]), cores())


def baseline_runs(pool: Workers[Task, Any], cases: Iterable[tuple[int, Case]]) -> Iterator[BaselineRun]:
    """Run every case without a mutant, those with the most work first; yields each result."""
    ordered = sorted(cases, key=lambda item: -item[1].op.sizes.flop)
    tasks = (partial(Worker.baseline, number=number, case=case) for number, case in ordered)
    for task, run in pool.answers(tasks):
        yield lost_run(**task.keywords, said=run.how) if isinstance(run, Died) else run


@dataclass
class Schedule:
    """Mutants by number: for each, the cases `left` to try it on; for each case, the mutants `waiting` for it.

    With `to_end`, a mutant that was killed is still tried on its remaining cases.
    """

    cases: Sequence[BaselineRun]
    to_end: bool = False
    runs: list[int] = field(init=False)
    kills: list[int] = field(init=False)
    left: dict[int, set[int]] = field(default_factory=dict)
    waiting: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.runs, self.kills = ([0] * len(self.cases) for _ in range(2))

    def worth(self, case: int) -> float:
        """A case's expected kills per second."""
        return (1 + self.kills[case]) / (2 + self.runs[case]) / (self.cases[case].seconds + SET_UP)

    def add(self, mutant: int, cases: Iterable[int]) -> None:
        """Schedule a mutant for one or more cases, the most promising first."""
        left = self.left[mutant] = set(cases)
        case = max(left, key=lambda case: (self.worth(case), -case))
        left.remove(case)
        self.waiting[case].append(mutant)

    def turn(self, processes: int) -> tuple[int, list[int]]:
        """The next case and mutants for a worker: the case for which the most mutants are waiting."""
        case = max(self.waiting, key=lambda case: len(self.waiting[case]) * self.worth(case))
        waiting = self.waiting[case]
        fair = math.ceil(sum(map(len, self.waiting.values())) / processes)
        number = max(1, min(len(waiting), fair, int(TURN / (self.cases[case].seconds + SET_UP))))
        taken, self.waiting[case] = waiting[:number], waiting[number:]
        if not self.waiting[case]:
            del self.waiting[case]
        return case, taken

    def tell(self, case: int, trial: Trial) -> bool:
        """Record a trial; returns whether it is the mutant's last. A lost trial kills nothing."""
        killed = trial.by not in ("", LOST)
        self.runs[case] += 1
        self.kills[case] += killed
        left = self.left.pop(trial.mutant)
        if (killed and not self.to_end) or not left:
            return True
        self.add(trial.mutant, left)
        return False

    def trials(
        self, pool: Workers[Task, Any], mutants: Iterable[tuple[int, Sequence[int]]], until: float = math.inf
    ) -> Iterator[tuple[int, Trial, bool]]:
        """Yield each trial as (case, trial, whether it was the mutant's last); none starts after `until`."""
        fresh, processes, running = iter(mutants), cores(), dict[Task, int]()

        def tasks() -> Iterator[Task | None]:
            while time.monotonic() <= until:
                while len(self.left) < MOST_AT_ONCE * processes and (item := next(fresh, None)) is not None:
                    self.add(*item)
                if not self.left:
                    return
                if not self.waiting:
                    yield None
                    continue
                case, taken = self.turn(processes)
                task = partial(Worker.trials, number=self.cases[case].part, case=self.cases[case].case, mutants=taken)
                running[task] = case
                yield task

        for task, answer in pool.answers(tasks()):
            case = running.pop(task)
            if isinstance(answer, Died):
                found = [Trial(mutant, LOST, answer.how, 0.0) for mutant in task.keywords["mutants"]]
            else:
                found = answer
            for trial in found:
                yield case, trial, self.tell(case, trial)
