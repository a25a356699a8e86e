"""Nsight Compute: its command line, and its CSV as values."""

import csv
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from fattn_probe.base.errors import InputError, MachineError
from fattn_probe.base.process import run
from fattn_probe.lab.profile.counts import BY_ADDRESS, ROWS, Counts
from fattn_probe.llama.build.toolchain import cuda_roots
from fattn_probe.llama.launch.name import parse_kernel_name
from fattn_probe.llama.launch.record import LaunchRecord, Names, Types

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
    """The options of ncu: one regular expression, so that it leaves out metrics that a GPU lacks instead of failing."""
    names = "|".join(re.escape(metric) for metric in ASKED)
    metrics = f"regex:^({names})$"
    return ("--csv", "--print-units", "base", "--target-processes", "all", "--metrics", metrics)


def find_ncu() -> Path:
    """ncu on PATH or in a CUDA toolkit; MachineError if there is none."""
    on_path = shutil.which("ncu")
    places = [Path(on_path)] if on_path else [root / "bin/ncu" for root in cuda_roots()]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise MachineError("ncu (Nsight Compute) is not installed: it comes with the CUDA toolkit")
    return found


def measure(argv: Sequence[str | Path], env: Mapping[str, str], timeout: float | None) -> str:
    """Run a program under ncu, and return its CSV. MachineError if ncu is missing or may not read counters."""
    done = run([find_ncu(), *options(), *argv], env=env, timeout=timeout, failure=None)
    if NO_PERMISSION in done.stdout + done.stderr:
        raise MachineError(
            "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM): an administrator allows it with"
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
        raise InputError("ncu profiled no kernel: " + (" ".join(text.split())[-300:] or "it said nothing"))
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
