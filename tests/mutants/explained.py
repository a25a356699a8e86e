"""The mutants that no test can notice, each with the reason: `equivalent.yaml`.

A list of entries: `in` (a module), `why`, and `mutants`, each as `was` and `now`, the changed line before and after.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.mutants.mutants import Mutant

Change = tuple[str, str, str]
"""Module, line before, line after."""


def change_of(mutant: Mutant) -> Change:
    """How an entry names a mutant."""
    return mutant.module, mutant.was, mutant.now


@dataclass(frozen=True)
class Explained:
    """The reasons by change."""

    reasons: dict[Change, str]

    def left(self, survivors: Iterable[Mutant]) -> list[Mutant]:
        """The mutants without a reason."""
        return [mutant for mutant in survivors if change_of(mutant) not in self.reasons]

    def gone(self, mutants: Iterable[Mutant], modules: Sequence[str]) -> list[Change]:
        """The entries of modules whose mutant there is no more."""
        there = set(map(change_of, mutants))
        return [change for change in self.reasons if change[0] in modules and change not in there]


def read(path: Path) -> Explained:
    """The entries of a file; ValueError for one without a reason, or that is there twice."""
    reasons: dict[Change, str] = {}
    entries: Sequence[dict[str, Any]] = yaml.safe_load(path.read_text())
    for entry in entries or ():
        for mutant in entry["mutants"]:
            change = entry["in"], mutant["was"], mutant["now"]
            if change in reasons or not entry["why"].strip():
                raise ValueError(f"{path.name}: no reason, or two: {change}")
            reasons[change] = entry["why"]
    return Explained(reasons)
