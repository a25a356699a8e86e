"""The counts of a kernel launch, and their names in Nsight Compute."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fattn_probe.cases.device import Origin
from fattn_probe.llama.launch.record import LaunchRecord

SECTOR = 32
"""Bytes of a sector, the unit of requests to L1 and L2."""


ROWS = tuple(row for row in csv.DictReader(Path(__file__).with_suffix(".csv").read_text("utf-8").splitlines()))
"""The counts in the order of the table: `key` in JSON, `label`, and ncu's `metric`, empty if it follows from others."""
BY_ADDRESS = ("load_wavefronts", "ldmatrix_wavefronts", "store_wavefronts")
"""The wavefronts of shared memory that follow from the addresses alone."""


@dataclass(frozen=True)
class Traffic:
    """Bytes in whole sectors that a kernel asked for in one tensor."""

    tensor: str
    read: int
    written: int


@dataclass(frozen=True, eq=False)
class Counts:
    """The counts of one launch, by the keys of ROWS; one that could not be counted is missing.

    `traffic` is available only from the simulator, which knows the tensors. `arithmetic_flops` is from the op's
    formula, whatever the instructions.
    """

    launch: LaunchRecord
    values: Mapping[str, int]
    traffic: tuple[Traffic, ...] = ()

    @property
    def sectors_of_a_load(self) -> float | None:
        """Sectors of a global load request: 4 if 32 lanes load 4 adjacent bytes each."""
        return quotient(self.values.get("load_sectors"), self.values.get("load_requests"))

    @property
    def sectors_of_a_store(self) -> float | None:
        """Sectors of a global store request."""
        return quotient(self.values.get("store_sectors"), self.values.get("store_requests"))

    @property
    def sector_bytes(self) -> int | None:
        """Bytes, in whole sectors, that the kernel loaded and stored in global memory."""
        sectors = [self.values.get("load_sectors"), self.values.get("store_sectors")]
        return None if None in sectors else SECTOR * sum(filter(None, sectors))

    @property
    def dram_bytes(self) -> int | None:
        """Bytes from and to DRAM, if they were measured."""
        found = [self.values.get("dram_read_bytes"), self.values.get("dram_write_bytes")]
        return None if None in found else sum(filter(None, found))

    @property
    def bytes_moved(self) -> int | None:
        """DRAM bytes if they were measured, otherwise bytes in sectors."""
        return self.sector_bytes if self.dram_bytes is None else self.dram_bytes


@dataclass(frozen=True, eq=False)
class Profile:
    """All launches of a case or a program on one target; `problem` says why there are none.

    `flops` are those of the op by its formula; None for a program. `division` is the origin of the occupancy that
    determines the division of KV rows among blocks, None if none does.
    """

    on: str
    counts: tuple[Counts, ...] = ()
    problem: str = ""
    flops: int | None = None
    formula: tuple[Traffic, ...] = field(default=())
    division: Origin | None = None


def quotient(above: float | None, below: float | None) -> float | None:
    """A quotient; None if a number is unknown or it is undefined."""
    return None if above is None or not below else above / below


def ratio(above: float | None, below: float | None) -> float | None:
    """The ratio of two counts of the same kind, 1 if both are 0; None if one is unknown or it is undefined."""
    return 1.0 if above == below == 0 else quotient(above, below)


def matched(profiles: Sequence[Profile]) -> list[tuple[Counts | None, ...]]:
    """The launches of several targets side by side: those with the same kernel and place among its launches."""
    columns = [_numbered(profile.counts) for profile in profiles]
    keys = dict.fromkeys(key for column in columns for key in column)
    return [tuple(column.get(key) for column in columns) for key in keys]


def _numbered(counts: Sequence[Counts]) -> dict[tuple[str, tuple[str, ...], int], Counts]:
    found: dict[tuple[str, tuple[str, ...], int], Counts] = {}
    for one in counts:
        name = (one.launch.kernel, one.launch.values)
        found[*name, sum(key[:2] == name for key in found)] = one
    return found


def blocks_of(launch: LaunchRecord) -> int:
    """The blocks of a launch."""
    return math.prod(launch.grid)


TEMPORARY = "temporary"
"""The name for the kernels' own memory, apart from the op's tensors."""
ACCESSES = ("load", "ldmatrix", "store")
"""Accesses to shared memory in ncu's wavefronts and conflicts, which do not include cp.async and atomics."""


def read_counts(path: Path, launches: Sequence[LaunchRecord]) -> tuple[Counts, ...]:
    """The counts of launches in a file of the simulator; a later line of one launch replaces the earlier one.

    Later lines are from the same case in a new process, after a missing kernel was compiled.
    """
    lines = path.read_text().splitlines() if path.is_file() else []
    documents = {document["order"]: document for document in map(json.loads, lines)}
    return tuple(counts_of(documents[launch.order], launch) for launch in launches if launch.order in documents)


def counts_of(document: Mapping[str, Any], launch: LaunchRecord) -> Counts:
    """The counts of one launch from the simulator's JSON (native/sim/count_tally.cpp)."""
    shared, instructions = document["shared"], document["instructions"]
    values = {
        "tensor": instructions["tensor"],
        "ldmatrix": shared["ldmatrix"]["instructions"],
        "shared_loads": shared["load"]["instructions"],
        "shared_stores": shared["store"]["instructions"],
        "copies": shared["copy"]["instructions"],
        "shuffles": instructions["shuffle"],
        "barriers": instructions["barrier"],
        "wavefronts": sum(shared[kind]["wavefronts"] for kind in ACCESSES),
        "load_wavefronts": shared["load"]["wavefronts"],
        "ldmatrix_wavefronts": shared["ldmatrix"]["wavefronts"],
        "store_wavefronts": shared["store"]["wavefronts"],
        "conflicts": sum(shared[kind]["conflicts"] for kind in ACCESSES),
        "tensor_flops": document["tensor_flops"],
    }
    accesses = document["global"]
    named = any(one["tensor"] for one in accesses)
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for one in accesses:
        unnamed = TEMPORARY if named else f"allocation {one['allocation']}"
        name, size = one["tensor"] or unnamed, SECTOR * one["sectors"]
        read[name] = read.get(name, 0) + (size if one["access"] != "store" else 0)
        written[name] = written.get(name, 0) + (size if one["access"] in ("store", "atomic") else 0)
    return Counts(
        launch,
        values | global_values(document["global"]),
        tuple(Traffic(name, read[name], written[name]) for name in read),
    )


def global_values(accesses: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The counts of global memory; ncu counts a cp.async as a request to load."""

    def total(field: str, *kinds: str) -> int:
        return sum(one[field] for one in accesses if one["access"] in kinds)

    return {
        "global_loads": total("instructions", "load"),
        "global_stores": total("instructions", "store"),
        "load_sectors": total("sectors", "load", "copy"),
        "load_requests": total("instructions", "load", "copy"),
        "store_sectors": total("sectors", "store"),
        "store_requests": total("instructions", "store"),
    }
