"""A file of baseline runs and survived trials, so that a later call resumes.

Both are deterministic: a baseline run always has the same result, and a mutant that survived a case always does so.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fattn_probe.base.console import NOTES
from fattn_probe.base.digest import short
from fattn_probe.base.errors import InputError
from fattn_probe.base.json_lines import append, read
from fattn_probe.cases.scenario import Case
from fattn_probe.lab.detect.worker import BaselineRun, Trial


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
            NOTES.print(f"{error}: the runs that this file kept are made again", style="dim")
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
        """The baseline run of a case of a part; None if it is not known."""
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
    """Hash of a set."""
    return short(repr(sorted(numbers)))
