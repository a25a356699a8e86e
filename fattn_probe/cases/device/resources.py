"""The resources of an SM that each attention kernel needs, as ptxas reported in real builds."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from importlib.resources import files
from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device.origin import Method, Origin

TABLE = "resources.csv"
AMD_TABLE = "amd-resources.csv"
NO_CODE = "-"
CELL = re.compile(r"\d+(/\d+){2}|\d+(/\d+){5}")
ESTIMATED = frozenset({"61", "70"})
"""Architectures that nvcc 13 has dropped; their figures in the table are estimates of `scripts/resources --ptxas`."""


@dataclass(frozen=True)
class Resources:
    """The resources of a kernel: registers per thread, static shared memory and local memory (stack frame) in bytes."""

    registers: int
    shared: int = 0
    local: int = 0

    def __str__(self) -> str:
        return f"{self.registers}/{self.shared}/{self.local}"


@dataclass(frozen=True)
class AmdResources:
    """The resources of a kernel as clang compiles it for an AMD GPU; `None` stands for a kernel without code.

    `vgprs` counts all vector registers of a thread, `agprs` those of them (from gfx90a on) or beside them (gfx908) that
    only matrix instructions use. `shared` is the static LDS of a block and `local` the scratch of a thread, in bytes.
    `waves` is what fits on a SIMD by these figures.
    """

    vgprs: int
    agprs: int
    sgprs: int
    shared: int
    local: int
    waves: int

    @property
    def resources(self) -> Resources:
        """The figures that decide how many blocks fit on a compute unit.

        The scalar registers of an attention kernel never do (tests/cases/device/test_resources.py).
        """
        return Resources(self.vgprs, self.shared, self.local)

    def __str__(self) -> str:
        return "/".join(map(str, astuple(self)))


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

    They change slowly between builds, so the nearest one is a better estimate than the limit of the launch bounds.
    Trees without a build number (a folder, a commit) get the newest figures. Figures count as measured only for an
    unchanged release (`released`), not for a tree that may have been changed. Empty if the table lacks the arch.
    """
    table: dict[int, dict[str, Resources]] = {}
    for item in read_table(path, arch):
        table.setdefault(item.build_number, {})[item.kernel] = item.resources
    own = int(build_number) if build_number.isdigit() else None
    wanted = max(table, default=0) if own is None else own
    method = Method.ESTIMATED if arch in ESTIMATED or arch.startswith("gfx") else Method.MEASURED
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
            raise InputError(f"{item.kernel}: {item.resources.registers} registers a thread, expected 1 to 255")
        columns.add((item.build_number, item.arch))
        cells.setdefault(item.kernel, {})[f"{item.build_number}/{item.arch}"] = str(item.resources)
    text = io.StringIO()
    names = [f"{number}/{arch}" for number, arch in sorted(columns)]
    writer = csv.DictWriter(text, ["kernel", *names], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({"kernel": kernel, **row} for kernel, row in sorted(cells.items()))
    return text.getvalue()


def read_table(path: Path | None = None, only: str = "") -> Iterator[Compiled]:
    """The table of NVIDIA GPUs, or the columns of one arch, which may be one of AMD.

    It has a row per kernel, and a column per llama.cpp build and arch (`11549/89`) with `registers/shared/local`, or
    the fields of `AmdResources`.
    """
    source = path or files("fattn_probe.cases.device") / (AMD_TABLE if only.startswith("gfx") else TABLE)
    rows = csv.reader(io.StringIO(source.read_text()))
    columns = [column.split("/") for column in next(rows)[1:]]
    chosen = [(at, int(number), arch) for at, (number, arch) in enumerate(columns, 1) if only in ("", arch)]
    for row in rows:
        for at, number, arch in chosen:
            if CELL.fullmatch(row[at]):
                figures = [int(word) for word in row[at].split("/")]
                found = Resources(*figures) if len(figures) == 3 else AmdResources(*figures).resources
                yield Compiled(number, arch, row[0], found)


def merge_amd(build_number: int, gfx: str, found: Mapping[str, AmdResources | None], path: Path) -> str:
    """The text of AMD's table with a column added or replaced: a build and an architecture (`11549/gfx1100`)."""
    column = f"{build_number}/{gfx}"
    rows = {row["kernel"]: row for row in csv.DictReader(io.StringIO(path.read_text() if path.exists() else ""))}
    names = sorted({name for row in rows.values() for name in row if name not in ("kernel", column)} | {column})
    for kernel in {*rows, *found}:
        row = rows.setdefault(kernel, {"kernel": kernel})
        row[column] = str(found[kernel] or NO_CODE) if kernel in found else ""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["kernel", *names], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[kernel] for kernel in sorted(rows))
    return text.getvalue()


def read_amd(gfx: str, build_number: int, path: Path | None = None) -> dict[str, AmdResources | None]:
    """The resources of each kernel of a build for an architecture (`gfx1100`); None for a kernel without code."""
    source = path or files("fattn_probe.cases.device") / AMD_TABLE
    rows = csv.DictReader(io.StringIO(source.read_text()))
    cells = {row["kernel"]: row.get(f"{build_number}/{gfx}", "") for row in rows}
    return {
        kernel: None if cell == NO_CODE else AmdResources(*map(int, cell.split("/")))
        for kernel, cell in cells.items()
        if cell
    }
