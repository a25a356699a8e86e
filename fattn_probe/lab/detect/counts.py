"""The executed lines and branch outcomes of the attention sources."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from fattn_probe.llama.launch.families import BY_KERNEL

Place = tuple[str, int]
"""A file of ggml-cuda/ and a line."""


@dataclass(frozen=True)
class CountedLine:
    """One line of one function: how often it was executed, and how often each outcome of its branches was.

    `file` is relative to ggml-cuda/; `function` is an instance, `flash_attn_ext_vec<128,1,f16,f16,false>`.
    """

    file: str
    function: str
    line: int
    count: int
    branches: tuple[int, ...] = ()


@dataclass
class SourceLine:
    """One line of the source, over all instances of its functions.

    An instance in which a condition is known at compile time has fewer branches. `branches` are from the instances with
    the most, among those that execute the line if any does.
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
        """Add the counts of a different run."""
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
        """The branch outcomes that occurred, in executed and other lines."""
        return Share(
            sum(line.taken for _, line in self.reachable(file)),
            sum(len(line.branches) - self.argued(file, number) for number, line in self.reachable(file)),
        )

    def gaps(self, file: str) -> list[tuple[int, int]]:
        """The ranges of lines that were never executed: first and last. Lines without code do not end a range."""
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
        """The files without a compiled instance; host code may still have compiled a line of them."""
        return sorted(self.headers - {file for file, function, _ in self.functions if name_of(function) in BY_KERNEL})

    def of_kernel(self, kernel: str, target: str = "") -> tuple[Share, Share]:
        """The executed and compiled instances of a kernel on a target, each once per target; and their lines."""
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
