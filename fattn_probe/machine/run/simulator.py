"""The environment variables for simulator builds: device, tables, kernels' resources, schedule."""

import functools
import gzip
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from fattn_probe.base.arrays import F32, I8, Bytes
from fattn_probe.base.cache import Kind, cache_dir, get_or_make
from fattn_probe.base.digest import short
from fattn_probe.base.host import cores
from fattn_probe.cases.device import Device, arch_name
from fattn_probe.cases.device.origin import Figures, figures_of

TABLES = Kind("tables", "the folder of tables")
RESOURCES = Kind("resources", "the file of kernels' resources")
FIGURES = "figures"
TABLE_FORMAT = b"corrections in two bits, bounds of ex2"
"""Part of the key of the folder with unpacked tables: change this text when `unpack` changes."""
FRACTIONS = 1 << 23
"""Entries in the tables of ex2 and rcp: one for each significand."""
RANGE = FRACTIONS // 1024


@dataclass(frozen=True)
class Simulation:
    """Options for how the simulator runs kernels.

    `schedule` is the seed of an adversarial order of warps; 0 means the fixed order. `threads` is the number of host
    threads, None for all cores. `dry` records launches without running kernels. With `skip_kernels`, a missing kernel
    is named on stderr and skipped, instead of stopping the run. `counters` is the folder to which a build of flavour
    `coverage` writes its counters. `reached` is the file to which a build with switches for faults writes the numbers
    of the faults that a run reaches (`lab/detect/schema.py`). `counts` is the file to which a build of flavour `count`
    appends the counts of each launch.
    """

    schedule: int = 0
    threads: int | None = None
    dry: bool = False
    skip_kernels: bool = False
    counters: Path | None = None
    reached: Path | None = None
    counts: Path | None = None

    def env(self, device: Device, build_number: str, *, released: bool = False) -> dict[str, str]:
        """Environment variables for a program of a simulator build; `released`: from an unchanged llama.cpp release."""
        env = {
            "FATTN_PROBE_DEVICE": device.spec(),
            "FATTN_PROBE_RESOURCES": str(_resources_in(cache_dir(), device.arch, build_number, released)),
            "FATTN_PROBE_SCHEDULE": str(self.schedule),
        }
        if device.gfx:
            env["FATTN_PROBE_GFX"] = device.gfx
        if self.counters is not None:
            env["GCOV_PREFIX"] = str(self.counters)
        if self.reached is not None:
            env["FATTN_PROBE_REACHED"] = str(self.reached)
        if self.counts is not None:
            env["FATTN_PROBE_COUNTS"] = str(self.counts)
        if not self.dry:
            env["FATTN_PROBE_SIM_DATA"] = str(unpacked_tables())
        return env | self.dry_env | {"FATTN_PROBE_SIM_THREADS": str(self.threads or cores())}

    @property
    def dry_env(self) -> dict[str, str]:
        """The variables that programs on a real GPU also read."""
        return {
            **({"FATTN_PROBE_DRY": "1"} if self.dry else {}),
            **({"FATTN_PROBE_SKIP_KERNELS": "1"} if self.skip_kernels else {}),
        }


def unpacked_tables() -> Path:
    """The folder with the special functions' tables, unpacked to the cache once; kernels map them into memory."""
    return _tables_in(cache_dir())


@functools.cache
def _tables_in(_cache: Path) -> Path:
    packed = {path.name: path.read_bytes() for path in (files("fattn_probe") / "native/sim/data").iterdir()}
    tables = {name: data for name, data in sorted(packed.items()) if name.endswith(".gz")}

    def unpack(folder: Path) -> None:
        for name, data in ((name, gzip.decompress(data)) for name, data in tables.items()):
            differences = name.endswith(".diff32.gz")
            whole = np.cumsum(np.frombuffer(data, "<i4"), dtype=np.int32).tobytes() if differences else b""
            (folder / name.partition(".")[0]).write_bytes(whole or pack_corrections(np.frombuffer(data, np.int8)))
        corrections = np.frombuffer(gzip.decompress(tables["ex2.gz"]), np.int8)
        (folder / "ex2-bounds").write_bytes(ex2_bounds(corrections).tobytes())

    return get_or_make(TABLES, short((TABLE_FORMAT, *tables.values()), 12), unpack)


def pack_corrections(corrections: I8) -> bytes:
    """Pack corrections (-1, 0 or 1, stored plus 1) into two bits each, lowest bits first, to save memory."""
    fields = (corrections + 1).astype(np.uint8).reshape(-1, 4)
    packed: Bytes = np.bitwise_or.reduce(fields << np.arange(0, 8, 2, dtype=np.uint8), axis=1)
    return packed.tobytes()


def ex2_bounds(corrections: I8) -> F32:
    """The amount that the hardware adds to 2^f before truncating: (middle, margin) for 1024 ranges of f, and at f = 1.

    `corrections` is the table of ex2. In units of 2^-23, ex2(f) is floor(2^f + middle), unless that sum is within the
    margin of an integer. Range i has the 8192 values of f around i / 1024.
    """
    f = np.arange(FRACTIONS) / FRACTIONS
    power = np.exp2(f) * FRACTIONS
    least = np.rint(power) + corrections - power  # the smallest possible amount; the largest is 1 more
    low = np.concatenate([np.full(RANGE // 2, -np.inf), least, np.full(RANGE // 2, -np.inf)])
    high = np.concatenate([np.full(RANGE // 2, np.inf), least + 1, np.full(RANGE // 2, np.inf)])
    low, high = low.reshape(-1, RANGE).max(axis=1), high.reshape(-1, RANGE).min(axis=1)
    margin = np.maximum((low - high) / 2, 0) + 1e-5  # 1e-5 covers float32 rounding: middle, margin, power
    return np.stack([(low + high) / 2, margin], axis=1).astype(np.float32)


@functools.cache
def _resources_in(_cache: Path, arch: str, build_number: str, released: bool) -> Path:
    """The path of a file with a line `registers shared local kernel value value ...` per kernel with known figures.

    The kernels follow a line with their origin, such as `0 0 0 # measured b7551`.
    """
    text = "".join(resource_lines(figures_of(arch, build_number, released=released)))

    def write(folder: Path) -> None:
        (folder / FIGURES).write_text(text)

    return get_or_make(RESOURCES, f"{arch_name(arch)}-{short(text, 12)}", write) / FIGURES


def resource_lines(figures: Mapping[str, Figures]) -> Iterator[str]:
    """The lines of the file, which native/sim/device.cpp reads."""
    by_origin = sorted(figures.items(), key=lambda item: (str(item[1].origin), item[0]))
    for origin, kernels in itertools.groupby(by_origin, key=lambda item: item[1].origin):
        yield f"0 0 0 # {origin}\n"
        for kernel, found in kernels:
            taken = found.resources
            words = " ".join(re.split("[<,]", kernel.removesuffix(">")))
            yield f"{taken.registers} {taken.shared} {taken.local} {words}\n"
