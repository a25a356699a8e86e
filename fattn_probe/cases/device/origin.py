"""The registers and memory that each attention kernel needs, and their origin: measured, estimated or assumed.

The tables contain what ptxas or clang reported in real builds.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device.catalogue import is_amd


class Method(StrEnum):
    """The source of figures: ptxas for the architecture, or a GPU's driver; a different compiler; the
    launch bounds; unknown, because the launch record does not name it."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    ASSUMED = "assumed"
    UNKNOWN = "unknown"


SPELLING = re.compile(rf"(?P<method>{'|'.join(Method)})(?: b(?P<build>\d+))?")
EXPLAINED = {
    Method.MEASURED: "",
    Method.ESTIMATED: "the figures come from another version of the GPU's compiler",
    Method.ASSUMED: "without the compiler's figures, the most registers that __launch_bounds__ allows are assumed, and "
    "no static shared memory",
    Method.UNKNOWN: "the launch record does not say where its figures are from",
}


@dataclass(frozen=True)
class Origin:
    """The origin of a kernel's registers and static shared memory, which determine how many blocks fit on an SM.

    `build_number` is the llama.cpp build that the figures come from, if it differs from the source that runs.
    """

    method: Method = Method.UNKNOWN
    build_number: int | None = None

    @property
    def known(self) -> bool:
        """Whether these are the figures of the kernel that runs."""
        return self == MEASURED

    @property
    def mark(self) -> str:
        """The short mark for uncertain figures: `assumed`, `b7551`, `estimated b7551`; empty for known ones."""
        return str(self).removeprefix(Method.MEASURED).strip()

    @property
    def explained(self) -> str:
        """A sentence that explains the mark; empty if the figures are known."""
        release = f"the figures are from llama.cpp b{self.build_number}, not from the source that runs here"
        return "; ".join(filter(None, (release if self.build_number else "", EXPLAINED[self.method])))

    def marked(self, value: object) -> str:
        """A value with its mark: `255 (assumed)`."""
        return f"{value} ({self.mark})" if self.mark else str(value)

    def __str__(self) -> str:
        return f"{self.method} b{self.build_number}" if self.build_number else self.method.value


MEASURED, UNKNOWN = Origin(Method.MEASURED), Origin()


def parse_origin(text: str) -> Origin:
    """The inverse of `str(origin)`; InputError for any other string."""
    match = SPELLING.fullmatch(text)
    if match is None:
        raise InputError(f"origin {text!r}: not one of {', '.join(Method)}, alone or with a build such as b7551")
    return Origin(Method(match["method"]), int(match["build"]) if match["build"] else None)


def legend(origins: Iterable[Origin]) -> list[str]:
    """A line that explains each mark among these origins: `(assumed): without the compiler's figures, ...`."""
    return [f"({origin.mark}): {origin.explained}" for origin in dict.fromkeys(origins) if not origin.known]


TABLE = "resources.csv"
AMD_TABLE = "amd-resources.csv"
CELL = re.compile(r"\d+(/\d+){2}|\d+(/\d+){5}")
ESTIMATED = frozenset({"61", "70"})
"""Architectures that nvcc 13 has dropped; their figures in the table are estimates by `scripts/resources --ptxas`."""


@dataclass(frozen=True)
class Resources:
    """A kernel's registers per thread, and its static shared memory and local memory (stack frame) in bytes."""

    registers: int
    shared: int = 0
    local: int = 0

    def __str__(self) -> str:
        return f"{self.registers}/{self.shared}/{self.local}"


@dataclass(frozen=True)
class Compiled:
    """The resources of a kernel (demangled name) in a llama.cpp build, for an arch as nvcc writes it (`89`)."""

    build_number: int
    arch: str
    kernel: str
    resources: Resources


@dataclass(frozen=True)
class Figures:
    """The resources of a kernel as the simulator uses them, and their origin."""

    resources: Resources
    origin: Origin


def figures_of(arch: str, build_number: str, path: Path | None = None, *, released: bool = True) -> dict[str, Figures]:
    """The figures of each kernel for an arch (`89`), from the nearest llama.cpp build that has the kernel.

    Figures change slowly between builds, so the nearest build is a better estimate than the launch bounds. Trees
    without a build number (a folder, a commit) get the newest figures. Figures count as measured only for an unchanged
    release (`released`), not for a tree that may have been changed. Empty if the table does not contain the arch.
    """
    table: dict[int, dict[str, Resources]] = {}
    for item in read_table(path, arch):
        table.setdefault(item.build_number, {})[item.kernel] = item.resources
    own = int(build_number) if build_number.isdigit() else None
    wanted = max(table, default=0) if own is None else own
    method = Method.ESTIMATED if arch in ESTIMATED or is_amd(arch) else Method.MEASURED
    found: dict[str, Figures] = {}
    for number in sorted(table, key=lambda number: (abs(number - wanted), -number), reverse=True):
        origin = Origin(method, None if released and number == own else number)
        found |= {kernel: Figures(resources, origin) for kernel, resources in table[number].items()}
    return found  # the nearest build comes last, and replaces the others


def merge(records: Iterable[Compiled], path: Path | None = None) -> str:
    """The text of the table with `records` added; a later record of a kernel replaces the earlier one."""
    cells: dict[str, dict[str, str]] = {}
    columns: set[tuple[int, str]] = set()
    for item in (*read_table(path), *records):
        if not 0 < item.resources.registers <= 255:
            raise InputError(f"{item.kernel}: {item.resources.registers} registers per thread, expected 1 to 255")
        columns.add((item.build_number, item.arch))
        cells.setdefault(item.kernel, {})[f"{item.build_number}/{item.arch}"] = str(item.resources)
    text = io.StringIO()
    names = [f"{number}/{arch}" for number, arch in sorted(columns)]
    writer = csv.DictWriter(text, ["kernel", *names], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({"kernel": kernel, **row} for kernel, row in sorted(cells.items()))
    return text.getvalue()


def read_table(path: Path | None = None, only: str = "") -> Iterator[Compiled]:
    """The table of NVIDIA GPUs, or only the columns of one arch, which may be an AMD architecture.

    It has a row per kernel, and a column per llama.cpp build and arch (`11549/89`) with `registers/shared/local`, or
    `VGPRs/AGPRs/SGPRs/LDS/scratch/waves` for AMD. VGPRs, LDS and scratch determine how many blocks fit on a compute
    unit (tests/maintain/test_amd_resources.py).
    """
    source = path or files("fattn_probe.cases.device") / (AMD_TABLE if is_amd(only) else TABLE)
    rows = csv.reader(io.StringIO(source.read_text()))
    columns = [column.split("/") for column in next(rows)[1:]]
    chosen = [(at, int(number), arch) for at, (number, arch) in enumerate(columns, 1) if only in ("", arch)]
    for row in rows:
        for at, number, arch in chosen:
            if CELL.fullmatch(row[at]):
                figures = [int(word) for word in row[at].split("/")]
                used = figures if len(figures) == 3 else (figures[0], *figures[3:5])
                yield Compiled(number, arch, row[0], Resources(*used))
