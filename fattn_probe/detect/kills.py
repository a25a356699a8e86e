"""Find out which cases of a pool kill which mutants, and keep that in a file.

Each mutant is run by the cases that reach it; of cases that launch alike, only by the fastest few.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fattn_probe.detect.json_lines import append, read
from fattn_probe.detect.killed_by import LOST, MISSING
from fattn_probe.detect.killing import Hunt, workers
from fattn_probe.detect.mutants import Mutant, held_out
from fattn_probe.detect.mutate import Laboratory


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
class Matrix:
    """The cases of a pool with the processor seconds of their judgement, and the killers of each fault."""

    seconds: dict[str, float] = field(default_factory=dict)
    faults: dict[str, Killers] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Matrix":
        """The matrix in a file; a fault that is there twice counts as its last line says."""
        made = cls()
        for item in read(path, "kill"):
            if "seconds" in item:
                made.seconds |= item["seconds"]
            else:
                killers = Killers(item["digest"], item["name"], frozenset(item["kills"]), item["tried"])
                made.faults[killers.digest] = killers
        return made


def find(laboratory: Laboratory, results: Path, on_fault: Callable[[str, int], None]) -> int:
    """Add to a results file what kills each mutant of a plan that is not in it; returns how many are left."""
    mutants = laboratory.plan.chosen(laboratory.schemata.mutants)
    known = Matrix.read(results).faults
    fresh = [mutant for mutant in mutants if mutant.digest not in known]
    with workers(laboratory.works) as pool:
        laboratory.run_baseline(pool)
        names = [f"{laboratory.plan.parts[item.work].name}: {item.case.name}" for item in laboratory.baseline]
        judged = [round(item.judged, 3) for item in laboratory.baseline]
        append(results, [{"seconds": dict(zip(names, judged, strict=True))}])
        done = 0
        for mutant, cases, kills in rows(laboratory, fresh, pool):
            done += 1
            line = {"digest": mutant.digest, "name": str(mutant), "mutant": asdict(mutant), "tried": len(cases)}
            append(results, [line | {"kills": {names[case]: by for case, by in kills.items()}}])
            on_fault("killed" if kills else "survived", done)
    return len(fresh) - done


def rows(
    laboratory: Laboratory, mutants: Sequence[Mutant], pool: ProcessPoolExecutor
) -> Iterator[tuple[Mutant, Sequence[int], Mapping[int, str]]]:
    """Each mutant with the cases that it was tried by, and those that killed it by what; none with a lost trial."""
    trying = laboratory.trying()
    known = {mutant.id: mutant for mutant in mutants}
    for mutant in mutants:
        if not trying.get(mutant.id):
            yield mutant, (), {}
    kills: dict[int, dict[int, str]] = defaultdict(dict)
    lost: set[int] = set()
    hunt, left = Hunt(laboratory.baseline, to_end=True), [number for number in known if trying.get(number)]
    for case, trial, over in hunt.trials(pool, ((number, trying[number]) for number in left), laboratory.until):
        if trial.by == LOST:
            lost.add(trial.mutant)
        elif trial.by and trial.by != MISSING:
            kills[trial.mutant][case] = trial.by
        if over and trial.mutant not in lost:
            yield known[trial.mutant], trying[trial.mutant], kills.pop(trial.mutant, {})
