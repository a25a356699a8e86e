"""Runs without a mutant, kept in a file: they take most of the time of a suite's first mutants, and do not change."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fattn_probe.detect.bench import Alone
from fattn_probe.scenario import Case


@dataclass
class Kept:
    """A file of runs by key, which names all that a run depends on. Sets of mutants are there once, by their hash."""

    path: Path
    sets: dict[str, frozenset[int]] = field(default_factory=dict)
    runs: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Kept":
        """A file's runs. A line that was not written to its end is left out."""
        made = cls(path)
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                item = json.loads(line)
            except ValueError:
                continue
            if "set" in item:
                made.sets[item["set"]] = frozenset(item["mutants"])
            elif "key" in item and item["reached"] in made.sets and item["felt"] in made.sets:
                made.runs[item.pop("key")] = item
        return made

    def find(self, items: Sequence[tuple[int, Case]], keys: Sequence[str]) -> Iterator[Alone]:
        """Those of some cases that are kept."""
        for (work, case), key in zip(items, keys, strict=True):
            if (item := self.runs.get(key)) is not None:
                reached, felt = self.sets[item["reached"]], self.sets[item["felt"]]
                yield Alone(work, case, **{**item, "reached": reached, "felt": felt})

    def add(self, key: str, run: Alone) -> None:
        """Append a run."""
        sets = {digest(numbers): numbers for numbers in (run.reached, run.felt)}
        fresh = {name: numbers for name, numbers in sets.items() if name not in self.sets}
        self.sets |= fresh
        lines: list[dict[str, Any]] = [{"set": name, "mutants": sorted(numbers)} for name, numbers in fresh.items()]
        plain = {name: getattr(run, name) for name in ("failure", "seconds", "judged", "launches", "output")}
        lines.append({"key": key, **plain, "reached": digest(run.reached), "felt": digest(run.felt)})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(f"\n{json.dumps(line)}" for line in lines) + "\n")


def digest(numbers: frozenset[int]) -> str:
    """The hash of a set."""
    return hashlib.sha256(repr(sorted(numbers)).encode()).hexdigest()[:16]
