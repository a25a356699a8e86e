"""Read the counts of a simulator build with counters (flavour `count`)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fattn_probe.lab.profile.counts import SECTOR, Counts, Traffic
from fattn_probe.llama.launch.record import LaunchRecord

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
    return Counts(launch, values | global_values(document["global"]), traffic_of(document["global"]))


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


def traffic_of(accesses: Sequence[Mapping[str, Any]]) -> tuple[Traffic, ...]:
    """Bytes in sectors by tensor; unnamed allocations are combined, or numbered if none has a name."""
    named = any(one["tensor"] for one in accesses)
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for one in accesses:
        unnamed = TEMPORARY if named else f"allocation {one['allocation']}"
        name, size = one["tensor"] or unnamed, SECTOR * one["sectors"]
        read[name] = read.get(name, 0) + (size if one["access"] != "store" else 0)
        written[name] = written.get(name, 0) + (size if one["access"] in ("store", "atomic") else 0)
    return tuple(Traffic(name, read[name], written[name]) for name in read)
