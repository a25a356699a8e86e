"""The executed lines and branch outcomes of the attention sources, and two lists of exceptions with reasons.

equivalents.yaml: mutants that no case can distinguish from the original. unreachable.yaml: lines that no op reaches.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Self

import yaml
from pydantic import Field, model_validator

from fattn_probe.cases.scenario.spec import Spec
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.llama.launch.families import BY_KERNEL
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA

Place = tuple[str, int]
"""A file in ggml-cuda/ and a line."""


@dataclass(frozen=True)
class CountedLine:
    """One line of one function: how often it was executed, and how often each outcome of its branches occurred.

    `file` is relative to ggml-cuda/; `function` is an instance, `flash_attn_ext_vec<128,1,f16,f16,false>`.
    """

    file: str
    function: str
    line: int
    count: int
    branches: tuple[int, ...] = ()


@dataclass
class SourceLine:
    """One line of the source, with the counts of all instances of its functions.

    An instance in which a condition is known at compile time has fewer branches. `branches` are from the instances with
    the most branches; if any instance executes the line, only executing instances count.
    """

    count: int = 0
    branches: tuple[int, ...] = ()

    def add(self, count: int, branches: tuple[int, ...]) -> None:
        """Add the counts of one instance."""
        self.count += count
        if len(branches) == len(self.branches):
            self.branches = tuple(a + b for a, b in zip(self.branches, branches, strict=True))
        else:
            self.branches = max(self.branches, branches, key=lambda counts: (any(counts), len(counts)))

    @property
    def taken(self) -> int:
        """The number of outcomes that occurred."""
        return sum(count > 0 for count in self.branches)


@dataclass(frozen=True)
class Share:
    """A number out of a total."""

    done: int
    total: int

    def __str__(self) -> str:
        """`97.5 % of 812`; only a full share is 100 %, and a share of nothing is `none`."""
        if not self.total:
            return "none"
        shown = 100.0 if self.done == self.total else min(100.0 * self.done / self.total, 99.9)
        return f"{shown:.3g} % of {self.total}"


@dataclass
class LineCoverage:
    """Lines by file and number, and the number of executed lines for each function and target.

    Lines in `unreachable`, which gives reasons, count only if they are executed. `headers` are files whose code is
    compiled only with an instance of a kernel.
    """

    files: dict[str, dict[int, SourceLine]] = field(default_factory=lambda: defaultdict(dict))
    functions: dict[tuple[str, str, str], Share] = field(default_factory=dict)
    unreachable: Mapping[Place, str] = field(default_factory=dict)
    headers: frozenset[str] = frozenset()

    def add(self, counted: Iterable[CountedLine], target: str) -> None:
        """Add the counts of a target."""
        executed: dict[tuple[str, str], dict[int, bool]] = defaultdict(lambda: defaultdict(bool))
        for item in counted:
            self.files[item.file].setdefault(item.line, SourceLine()).add(item.count, item.branches)
            executed[item.file, item.function][item.line] |= item.count > 0
        for (file, function), lines in executed.items():
            self.functions[file, function, target] = Share(sum(lines.values()), len(lines))

    def update(self, other: "LineCoverage") -> None:
        """Add the counts of another run."""
        for file, lines in other.files.items():
            for number, line in lines.items():
                self.files[file].setdefault(number, SourceLine()).add(line.count, line.branches)
        for key, share in other.functions.items():
            self.functions[key] = max(share, self.functions.get(key, share), key=lambda one: one.done)

    def lines(self, file: str) -> Share:
        """The executed lines of a file."""
        counts = [line.count for _, line in self.reachable(file)]
        return Share(sum(count > 0 for count in counts), len(counts))

    def branches(self, file: str) -> Share:
        """The branch outcomes that occurred, out of those on all lines, whether executed or not."""
        return Share(
            sum(line.taken for _, line in self.reachable(file)),
            sum(len(line.branches) - self.argued(file, number) for number, line in self.reachable(file)),
        )

    def gaps(self, file: str) -> list[tuple[int, int]]:
        """The ranges (first, last) of lines that were never executed. Lines without code do not end a range."""
        lines = self.reachable(file)
        ranges: Iterator[tuple[bool, Iterable[tuple[int, SourceLine]]]] = groupby(lines, lambda item: item[1].count > 0)
        numbers = [(executed, [number for number, _ in group]) for executed, group in ranges]
        return [(group[0], group[-1]) for executed, group in numbers if not executed]

    def one_sided(self, file: str) -> list[int]:
        """The executed lines with a branch outcome that never occurred."""
        lines = [(number, line) for number, line in self.reachable(file) if line.count]
        return [number for number, line in lines if line.taken + self.argued(file, number) < len(line.branches)]

    def reachable(self, file: str) -> list[tuple[int, SourceLine]]:
        """The lines of a file that count, in order."""
        lines = sorted(self.files.get(file, {}).items())
        return [(number, line) for number, line in lines if line.count or (file, number) not in self.unreachable]

    def left_out(self, file: str) -> list[int]:
        """The lines of a file that are left out, entirely or in part, because they are unreachable."""
        lines = sorted(self.files.get(file, {}).items())
        argued = [(number, line) for number, line in lines if (file, number) in self.unreachable]
        return [number for number, line in argued if not line.count or self.argued(file, number)]

    def argued(self, file: str, number: int) -> int:
        """The number of outcomes of a line that did not occur and are not required."""
        line = self.files[file][number]
        return len(line.branches) - line.taken if (file, number) in self.unreachable else 0

    @property
    def not_compiled(self) -> list[str]:
        """The files without a compiled instance; some of their lines may still be compiled as host code."""
        return sorted(self.headers - {file for file, function, _ in self.functions if name_of(function) in BY_KERNEL})

    def of_kernel(self, kernel: str, target: str = "") -> tuple[Share, Share]:
        """How many instances of a kernel are executed on a target (empty: on all), and how many of their lines."""
        of_kernel = (
            share
            for (_, function, on), share in self.functions.items()
            if name_of(function) == kernel and target in ("", on)
        )
        found = list(of_kernel)
        lines = Share(sum(share.done for share in found), sum(share.total for share in found))
        return Share(sum(share.done > 0 for share in found), len(found)), lines


def name_of(function: str) -> str:
    """The name of a function without its template arguments."""
    return function.partition("<")[0]


HERE = Path(__file__).parent


class Argued(Spec):
    """Code in one file, and why no test can detect or reach it. Strings between slashes are regular expressions."""

    because: str = Field(min_length=20)
    """The argument."""
    file: str
    """The file in ggml-cuda/."""


class Equivalent(Argued):
    """A mutant, or a family of mutants, that nothing can detect.

    The strings have three tokens of context on either side, as in reports, so they remain valid if lines move.
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
    """The first and last line, in the default release, if the same strings elsewhere are a different mutant."""

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
    """Lines that are never executed, or only in part."""

    lines: list[str] = Field(min_length=1)
    """The lines, as in the source except for indentation."""
    after: str = ""
    """Applies only after the first line that matches this."""
    until: str = ""
    """Applies only before the next line that matches this."""
    amd: bool = False
    """Whether an op on an AMD GPU reaches these lines."""


def matches(wanted: str, text: str) -> bool:
    """Whether a string is `wanted`, or contains a match of `wanted` if that is a regular expression between slashes."""
    if len(wanted) > 1 and wanted.startswith("/") and wanted.endswith("/"):
        return re.search(wanted[1:-1], text) is not None
    return wanted in ("", text)


def equivalents(path: Path = HERE / "equivalents.yaml", *, amd: bool = False) -> tuple[Equivalent, ...]:
    """The equivalent mutants in a file; with `amd`, only those that are also equivalent on AMD GPUs."""
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
    """The reasons why lines of a release are not reached; none for files that the release lacks."""
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
