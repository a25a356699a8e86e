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


def measured_registers(arch: str, build_number: int, path: Path | None = None) -> dict[str, int]:
    """Registers a thread of each kernel measured for an arch (`89`) in a llama.cpp build; empty if none was."""
    return dict(_table(path).get(str(build_number), {}).get(arch, {}))


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
