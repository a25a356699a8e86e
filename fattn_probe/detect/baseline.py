"""Cache of baseline runs and survived trials, so that a later call resumes.

Both are deterministic: a baseline run has the same result again, and a mutant that survived a case survives it again.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fattn_probe.console import NOTES
from fattn_probe.detect.bench import Alone, Trial
from fattn_probe.detect.json_lines import append, read
from fattn_probe.errors import InputError
from fattn_probe.scenario import Case


@dataclass
class Kept:
    """A file of baseline runs and survived trials, by the key of their case: a hash of all that they depend on.

    Each set of mutants is stored once, by its hash.
    """

    path: Path
    sets: dict[str, frozenset[int]] = field(default_factory=dict)
    runs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    trials: dict[str, dict[int, Trial]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def read(cls, path: Path) -> "Kept":
        """What a file has; a damaged file is removed, and that is said."""
        made = cls(path)
        try:
            items = list(read(path, "run"))
        except InputError as error:
            NOTES.print(f"{error}: the runs that this file kept are made again", style="dim", markup=False)
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

    def find(self, items: Sequence[tuple[int, Case]], keys: Sequence[str]) -> Iterator[Alone]:
        """Those of some cases that are kept."""
        for (work, case), key in zip(items, keys, strict=True):
            if (item := self.runs.get(key)) is not None:
                reached, felt = self.sets[item["reached"]], self.sets[item["felt"]]
                yield Alone(work, case, **{**item, "reached": reached, "felt": felt})

    def add_survived(self, key: str, trial: Trial) -> None:
        """Append the trial of a mutant that a case did not kill."""
        self.trials[key][trial.mutant] = trial
        said = {"key": key, "mutant": trial.mutant, "seconds": round(trial.seconds, 3), "changed": trial.changed}
        append(self.path, [said])

    def add(self, key: str, run: Alone) -> None:
        """Append a run."""
        sets = {digest(numbers): numbers for numbers in (run.reached, run.felt)}
        fresh = {name: numbers for name, numbers in sets.items() if name not in self.sets}
        self.sets |= fresh
        lines: list[dict[str, Any]] = [{"set": name, "mutants": sorted(numbers)} for name, numbers in fresh.items()]
        plain = {name: getattr(run, name) for name in ("failure", "seconds", "judged", "launches", "output")}
        lines.append({"key": key, **plain, "reached": digest(run.reached), "felt": digest(run.felt)})
        append(self.path, lines)


def digest(numbers: frozenset[int]) -> str:
    """Hash of a set."""
    return hashlib.sha256(repr(sorted(numbers)).encode()).hexdigest()[:16]
