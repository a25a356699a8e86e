"""Equivalent mutants, which no case can distinguish from the original. The list is equivalents.yaml."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import yaml
from pydantic import Field, model_validator

from fattn_probe.cases.scenario.spec import Spec
from fattn_probe.lab.detect.mutants import Mutant

LIST = Path(__file__).parent / "equivalents.yaml"


class Equivalent(Spec):
    """A mutant, or a family of mutants, and why nothing can detect it. Texts in slashes are regular expressions.

    The texts have three tokens of context on either side, as in reports, so they remain valid if lines move.
    """

    because: str = Field(min_length=20)
    """The argument."""
    file: str
    """The file of ggml-cuda/."""
    function: str = ""
    """The function; empty for any."""
    kind: list[str] = Field(default=[])
    """The kinds of fault; empty for all."""
    before: str = ""
    """The original text; empty for any."""
    after: str = ""
    """The mutated text; empty for any."""
    lines: list[int] = Field(default=[], min_length=2, max_length=2)
    """The first and last line, in the default release, if the same texts elsewhere are a different mutant."""

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if not (self.function or self.before or self.after):
            raise ValueError("function, before or after must say which mutants are meant")
        return self

    def means(self, mutant: Mutant) -> bool:
        """Whether the entry matches a mutant."""
        return (
            mutant.file == self.file
            and (not self.kind or mutant.operator in self.kind)
            and (not self.lines or self.lines[0] <= mutant.line <= self.lines[1])
            and matches(self.function, mutant.function)
            and matches(self.before, mutant.before)
            and matches(self.after, mutant.after)
        )


def matches(wanted: str, text: str) -> bool:
    """Whether a text is the wanted one, or has a match of the regular expression between slashes."""
    if len(wanted) > 1 and wanted.startswith("/") and wanted.endswith("/"):
        return re.search(wanted[1:-1], text) is not None
    return wanted in ("", text)


def read(path: Path = LIST) -> tuple[Equivalent, ...]:
    """The list in a file."""
    return tuple(map(Equivalent.model_validate, yaml.safe_load(path.read_text()) or ()))


def argument(mutant: Mutant, known: Sequence[Equivalent]) -> str:
    """The reason why a mutant is equivalent; empty if it is not in the list."""
    return next((item.because for item in known if item.means(mutant)), "")
