"""Arguments about the attention sources, in two lists.

equivalents.yaml: mutants that no case can distinguish from the original. unreachable.yaml: lines, or outcomes in them,
that no op reaches.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import yaml
from pydantic import Field, model_validator

from fattn_probe.cases.scenario.spec import Spec
from fattn_probe.lab.detect.counts import LineCoverage, Place
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA

HERE = Path(__file__).parent


class Argued(Spec):
    """Code of one file, and the reason. Texts in slashes are regular expressions."""

    because: str = Field(min_length=20)
    """The argument."""
    file: str
    """The file of ggml-cuda/."""


class Equivalent(Argued):
    """A mutant, or a family of mutants, that nothing can detect.

    The texts have three tokens of context on either side, as in reports, so they remain valid if lines move.
    """

    function: str = ""
    """The function; empty for any."""
    kind: list[str] = Field(default=[])
    """The kinds of fault; empty for all."""
    before: str = ""
    """The original text; empty for any."""
    after: str = ""
    """The mutated text; empty for any."""
    nvidia: bool = False
    """Whether the argument holds on NVIDIA GPUs only."""
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


class Unreachable(Argued):
    """Lines with something that is never executed."""

    lines: list[str] = Field(min_length=1)
    """The lines, as in the source except for indentation."""
    after: str = ""
    """Only after the first line equal to this."""
    until: str = ""
    """Only before the next line equal to this."""
    amd: bool = False
    """Whether an op on an AMD GPU reaches them."""


def matches(wanted: str, text: str) -> bool:
    """Whether a text equals the given one, or matches it if it is a regular expression between slashes."""
    if len(wanted) > 1 and wanted.startswith("/") and wanted.endswith("/"):
        return re.search(wanted[1:-1], text) is not None
    return wanted in ("", text)


def equivalents(path: Path = HERE / "equivalents.yaml", *, amd: bool = False) -> tuple[Equivalent, ...]:
    """The equivalent mutants of a file; with `amd`, only those that are equivalent on AMD GPUs too."""
    every = map(Equivalent.model_validate, yaml.safe_load(path.read_text()) or ())
    return tuple(item for item in every if not (amd and item.nvidia))


def unreachable(*, amd: bool = False) -> tuple[Unreachable, ...]:
    """The lines that NVIDIA GPUs do not reach; with `amd`, those that AMD GPUs do not reach either."""
    every = map(Unreachable.model_validate, yaml.safe_load((HERE / "unreachable.yaml").read_text()))
    return tuple(item for item in every if not (amd and item.amd))


def argument(mutant: Mutant, known: Sequence[Equivalent]) -> str:
    """The reason why a mutant is equivalent; empty if it is not in the list."""
    return next((item.because for item in known if item.means(mutant)), "")


def places(tree: Tree, known: Sequence[Unreachable]) -> dict[Place, str]:
    """The reasons why lines of a release are not reached; none for files that it lacks."""
    found: dict[Place, str] = {}
    for item in known:
        path = tree.root / CUDA / item.file
        text = path.read_text(errors="replace") if path.is_file() else ""
        lines = [line.strip() for line in text.splitlines()]
        first = place(item.after, lines, 0) + 1 if item.after else 0
        inside = lines[first : place(item.until, lines, first) if item.until else len(lines)]
        for number, line in enumerate(inside, first + 1):
            if any(matches(wanted, line) for wanted in item.lines):
                found[item.file, number] = item.because
    return found


def place(wanted: str, texts: Sequence[str], first: int) -> int:
    """The index of the next line that matches; past the end if there is none."""
    return next((at for at in range(first, len(texts)) if matches(wanted, texts[at])), len(texts))


def refuted(coverage: LineCoverage) -> list[Place]:
    """The lines that are listed as unreachable but were executed with all outcomes."""
    lines = {(file, number): coverage.files.get(file, {}).get(number) for file, number in coverage.unreachable}
    return sorted(place for place, line in lines.items() if line and line.count and line.taken == len(line.branches))
