"""The counts of a kernel launch, their names in Nsight Compute, its command line, and its CSV as values."""

import csv
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fattn_probe.base.errors import InputError, MachineError
from fattn_probe.base.process import run
from fattn_probe.cases.device import Origin
from fattn_probe.llama.build.toolchain import cuda_roots
from fattn_probe.llama.launch.name import parse_kernel_name
from fattn_probe.llama.launch.record import LaunchRecord, Names, Types

SECTOR = 32
"""Bytes per sector, the unit of requests to L1 and L2."""


ROWS = tuple(row for row in csv.DictReader(Path(__file__).with_suffix(".csv").read_text("utf-8").splitlines()))
"""The counts in the order of the table: `key` in JSON, `label`, and ncu's `metric`, empty for derived counts."""
BY_ADDRESS = ("load_wavefronts", "ldmatrix_wavefronts", "store_wavefronts")
"""The wavefronts of shared memory that follow from the addresses alone."""


@dataclass(frozen=True)
class Traffic:
    """Bytes, in whole sectors, that a kernel requested from one tensor."""

    tensor: str
    read: int
    written: int


@dataclass(frozen=True, eq=False)
class Counts:
    """The counts of one launch, by the keys of ROWS; a count that is unavailable is missing.

    `traffic` is available only from the simulator, which knows the tensors. `arithmetic_flops` follows from the op's
    formula, not from the instructions.
    """

    launch: LaunchRecord
    values: Mapping[str, int]
    traffic: tuple[Traffic, ...] = ()

    @property
    def sectors_of_a_load(self) -> float | None:
        """Sectors per global load request: 4 if 32 lanes load 4 adjacent bytes each."""
        return quotient(self.values.get("load_sectors"), self.values.get("load_requests"))

    @property
    def sectors_of_a_store(self) -> float | None:
        """Sectors per global store request."""
        return quotient(self.values.get("store_sectors"), self.values.get("store_requests"))

    @property
    def sector_bytes(self) -> int | None:
        """Bytes, in whole sectors, that the kernel loaded from and stored to global memory."""
        sectors = [self.values.get("load_sectors"), self.values.get("store_sectors")]
        return None if None in sectors else SECTOR * sum(filter(None, sectors))

    @property
    def dram_bytes(self) -> int | None:
        """Bytes read from and written to DRAM, if they were measured."""
        found = [self.values.get("dram_read_bytes"), self.values.get("dram_write_bytes")]
        return None if None in found else sum(filter(None, found))

    @property
    def bytes_moved(self) -> int | None:
        """DRAM bytes if they were measured, otherwise bytes in sectors."""
        return self.sector_bytes if self.dram_bytes is None else self.dram_bytes


@dataclass(frozen=True, eq=False)
class Profile:
    """All launches of a case or a program on one target; `problem` says why there are none.

    `flops` are the op's operations according to its formula; None for a program. `division` is the origin of the
    occupancy that determines the division of KV rows among blocks, None if occupancy plays no role.
    """

    on: str
    counts: tuple[Counts, ...] = ()
    problem: str = ""
    flops: int | None = None
    formula: tuple[Traffic, ...] = field(default=())
    division: Origin | None = None


def quotient(above: float | None, below: float | None) -> float | None:
    """A quotient; None if a number is unknown or the quotient is undefined."""
    return None if above is None or not below else above / below


def ratio(above: float | None, below: float | None) -> float | None:
    """The ratio of two counts of the same kind, 1 if both are 0; None if one is unknown or the ratio is undefined."""
    return 1.0 if above == below == 0 else quotient(above, below)


def matched(profiles: Sequence[Profile]) -> list[tuple[Counts | None, ...]]:
    """The launches of several targets side by side: the nth launch of a kernel on each target."""
    columns: list[dict[tuple[str, tuple[str, ...], int], Counts]] = []
    for profile in profiles:
        column: dict[tuple[str, tuple[str, ...], int], Counts] = {}
        for one in profile.counts:
            name = (one.launch.kernel, one.launch.values)
            column[*name, sum(key[:2] == name for key in column)] = one
        columns.append(column)
    keys = dict.fromkeys(key for column in columns for key in column)
    return [tuple(column.get(key) for column in columns) for key in keys]


TEMPORARY = "temporary"
"""The name for the kernels' own memory, apart from the op's tensors."""
ACCESSES = ("load", "ldmatrix", "store")
"""Accesses to shared memory that ncu's wavefronts and conflicts include; cp.async and atomics are not among them."""


def read_counts(path: Path, launches: Sequence[LaunchRecord]) -> tuple[Counts, ...]:
    """The counts of launches in a file from the simulator; a later line for a launch replaces an earlier one.

    Later lines are from the same case in a new process, after a missing kernel was compiled.
    """
    lines = path.read_text().splitlines() if path.is_file() else []
    documents = {document["order"]: document for document in map(json.loads, lines)}
    return tuple(counts_of(documents[launch.order], launch) for launch in launches if launch.order in documents)


def counts_of(document: Mapping[str, Any], launch: LaunchRecord) -> Counts:
    """The counts of one launch from the simulator's JSON (native/sim/count_tally.cpp)."""
    shared, instructions, accesses = document["shared"], document["instructions"], document["global"]

    def total(field: str, *kinds: str) -> int:
        return sum(one[field] for one in accesses if one["access"] in kinds)

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
        "global_loads": total("instructions", "load"),
        "global_stores": total("instructions", "store"),
        "load_sectors": total("sectors", "load", "copy"),  # ncu counts a cp.async as a load request
        "load_requests": total("instructions", "load", "copy"),
        "store_sectors": total("sectors", "store"),
        "store_requests": total("instructions", "store"),
    }
    named = any(one["tensor"] for one in accesses)
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for one in accesses:
        unnamed = TEMPORARY if named else f"allocation {one['allocation']}"
        name, size = one["tensor"] or unnamed, SECTOR * one["sectors"]
        read[name] = read.get(name, 0) + (size if one["access"] != "store" else 0)
        written[name] = written.get(name, 0) + (size if one["access"] in ("store", "atomic") else 0)
    return Counts(launch, values, tuple(Traffic(name, read[name], written[name]) for name in read))


NO_PERMISSION = "ERR_NVGPUCTRPERM"
HEAD = "ID"
KEYS = {row["metric"]: row["key"] for row in ROWS if row["metric"]}
DATA_PIPE = (
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
)
"""Wavefronts of loads (including ldmatrix) and stores; more than BY_ADDRESS if the memory was busy."""
CONFLICTS = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
)
"""Wavefronts beyond the first of each access, including repeated ones."""
ASKED = (*KEYS, *DATA_PIPE, *CONFLICTS)
DIM = re.compile(r"\d+")


def options() -> tuple[str, ...]:
    """The options for ncu: one regular expression, with which ncu omits metrics that a GPU lacks instead of failing."""
    names = "|".join(re.escape(metric) for metric in ASKED)
    return ("--csv", "--print-units", "base", "--target-processes", "all", "--metrics", f"regex:^({names})$")


def find_ncu() -> Path:
    """ncu on PATH or in a CUDA toolkit; MachineError if there is none."""
    on_path = shutil.which("ncu")
    places = [Path(on_path)] if on_path else [root / "bin/ncu" for root in cuda_roots()]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise MachineError("ncu (Nsight Compute) is not installed: it comes with the CUDA toolkit")
    return found


def measure(argv: Sequence[str | Path], env: Mapping[str, str], timeout: float | None) -> str:
    """Run a program under ncu, and return its CSV. MachineError if ncu is missing or has no access to counters."""
    done = run([find_ncu(), *options(), *argv], env=env, timeout=timeout, failure=None)
    if NO_PERMISSION in done.stdout + done.stderr:
        raise MachineError(
            "ncu is not allowed to read the GPU's counters (ERR_NVGPUCTRPERM): an administrator can allow it with"
            " NVreg_RestrictProfilingToAdminUsers=0, a parameter of the nvidia kernel module"
        )
    if done.code != 0:
        raise MachineError(f"ncu failed: {done.describe()}")
    return done.stdout


def parse(text: str, *, types: Types | None = None, names: Names | None = None) -> tuple[Counts, ...]:
    """The counts of each launch in the output of `ncu --csv`, in the order of the launches.

    ncu writes its messages (`==PROF== ...`) and the program's output before the CSV, which has a line for each metric
    of each launch. InputError if there is no CSV.
    """
    launches: dict[int, LaunchRecord] = {}
    metrics: dict[int, dict[str, int]] = {}
    lines = text.splitlines()
    start = next((place for place, line in enumerate(lines) if line.startswith(f'"{HEAD}",')), None)
    if start is None:
        raise InputError("ncu profiled no kernel: " + (" ".join(text.split())[-300:] or "it printed nothing"))
    for line in csv.DictReader([line for line in lines[start:] if line.startswith('"')]):
        order = int(line["ID"])
        launches.setdefault(order, launch_of(order, line, types, names))
        found = metrics.setdefault(order, {})
        value = number(line["Metric Value"])
        if line["Metric Name"] in ASKED and value is not None:
            found[line["Metric Name"]] = value
    return tuple(Counts(launch, values_of(metrics[order])) for order, launch in sorted(launches.items()))


def values_of(metrics: Mapping[str, int]) -> dict[str, int]:
    """The counts of a launch, by the keys of ROWS.

    Wavefronts that repeat because the memory is busy (with global loads, for example) differ from run to run. ncu
    includes them in conflicts. So they are counted separately, and conflicts are only those that the addresses require.

    Global loads are the requests not made by cp.async. ncu's own count lacks generic loads (`LD`), which nvcc uses for
    a pointer that may be to local memory: for K and V in kernels that check the end of K.
    """
    values = {KEYS[metric]: value for metric, value in metrics.items() if metric in KEYS}
    if "load_requests" in values and "copies" in values:
        values["global_loads"] = values["load_requests"] - values["copies"]
    if all(key in values for key in BY_ADDRESS):
        values["wavefronts"] = sum(values[key] for key in BY_ADDRESS)
        if all(metric in metrics for metric in (*DATA_PIPE, *CONFLICTS)):
            values["repeats"] = max(0, sum(metrics[metric] for metric in DATA_PIPE) - values["wavefronts"])
            values["conflicts"] = max(0, sum(metrics[metric] for metric in CONFLICTS) - values["repeats"])
    return values


def launch_of(order: int, line: Mapping[str, str], types: Types | None, names: Names | None) -> LaunchRecord:
    """The launch on a line of the CSV, which does not contain its dynamic shared memory."""
    name = parse_kernel_name(line["Kernel Name"], types=types, names=names)
    return LaunchRecord(order, name.base, name.args, dim3(line["Grid Size"]), dim3(line["Block Size"]), 0)


def dim3(text: str) -> tuple[int, int, int]:
    """`(8, 1, 1)`."""
    x, y, z = map(int, DIM.findall(text))
    return x, y, z


def number(text: str) -> int | None:
    """`2,048` and `1.5`, rounded; None for a metric without a value (`n/a`, `nan`)."""
    try:
        return round(float(text.replace(",", "")))
    except ValueError:
        return None
