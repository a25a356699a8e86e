"""Register counts of kernels, as reported by ptxas in real builds."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from fattn_probe.errors import InputError

Table = dict[str, dict[str, dict[str, int]]]


@dataclass(frozen=True)
class Registers:
    """One count: llama.cpp's build number, nvcc's arch (`89`), the demangled kernel name, registers per thread."""

    build_number: int
    arch: str
    kernel: str
    count: int


def measured_registers(arch: str, build_number: str, path: Path | None = None) -> dict[str, int]:
    """Registers per thread of each kernel measured for an arch (`89`), from the nearest llama.cpp build.

    Counts change slowly between builds, so the nearest one is a better estimate than the limit of the launch bounds.
    Trees without a build number (a folder, a commit) get the newest count. Empty if the arch was not measured.
    """
    builds = {int(number): arches[arch] for number, arches in _table(path).items() if arch in arches}
    wanted = int(build_number) if build_number.isdigit() else max(builds, default=0)
    counts: dict[str, int] = {}
    for number in sorted(builds, key=lambda number: (abs(number - wanted), -number), reverse=True):
        counts |= builds[number]  # nearest last, so that it overrides the others
    return counts


def merge(records: Iterable[Registers], path: Path | None = None) -> str:
    """The text of registers.json with `records` added; a later count of a kernel replaces the earlier one."""
    table = _table(path)
    for record in records:
        if not 0 < record.count <= 255:
            raise InputError(f"{record.kernel}: {record.count} registers a thread, expected 1 to 255")
        table.setdefault(str(record.build_number), {}).setdefault(record.arch, {})[record.kernel] = record.count
    return json.dumps(table, indent=1, sort_keys=True) + "\n"


def _table(path: Path | None) -> Table:
    source = path or files("fattn_probe.device") / "registers.json"
    table: Table = json.loads(source.read_text())
    return table
