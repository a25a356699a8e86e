"""Register counts of kernels, as ptxas gave them in real builds."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from fattn_probe.errors import InputError

Table = dict[str, dict[str, dict[str, int]]]


@dataclass(frozen=True)
class Registers:
    """One count: llama.cpp's build number, nvcc's arch (`89`), the kernel as demangled, registers a thread."""

    build_number: int
    arch: str
    kernel: str
    count: int


def measured_registers(arch: str, build_number: str, path: Path | None = None) -> dict[str, int]:
    """Registers a thread of each kernel measured for an arch (`89`), in the llama.cpp build nearest to this one.

    Counts drift slowly from build to build, so a neighbour's is a better guess than what launch bounds allow; of a tree
    without a build number (a folder, a commit) the newest count is taken. Empty if none was measured for the arch.
    """
    builds = {int(number): arches[arch] for number, arches in _table(path).items() if arch in arches}
    wanted = int(build_number) if build_number.isdigit() else max(builds, default=0)
    counts: dict[str, int] = {}
    for number in sorted(builds, key=lambda number: (abs(number - wanted), -number), reverse=True):
        counts |= builds[number]  # the nearest last, so that it wins
    return counts


def merge(records: Iterable[Registers], path: Path | None = None) -> str:
    """The text of registers.json with `records` added; a later count of the same kernel replaces the earlier."""
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
