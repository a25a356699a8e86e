"""The machine as this process sees it: its cores, its address space (`ulimit -v`), and the user's name."""

import getpass
import math
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from fattn_probe.base.errors import MachineError

GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
SHARE = "FATTN_PROBE_CORES"
"""Environment variable with the number of cores that a worker process may use."""
HIERARCHIES = ("", "unified", "cpu", "cpu,cpuacct")
"""Subfolders of the cgroup mount: for version 2, for version 2 alongside version 1, and for version 1."""


def cores() -> int:
    """The number of threads that can run at once: the cores in the affinity mask, limited by the cgroups' CPU quotas.

    In a worker process, it is the worker's share. With a single core, the quotas are not read, which saves 2 ms.
    """
    share = os.environ.get(SHARE, "")
    most = min(affinity(), int(share)) if share.isdecimal() else affinity()
    return 1 if most <= 1 else max(1, min(most, math.ceil(min(quotas(GROUPS, MOUNT), default=most))))


def affinity() -> int:
    """The number of cores that this process may run on; OpenBLAS starts that many threads, and ignores cgroups."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quotas(groups: Path, mount: Path) -> Iterator[float]:
    """The CPU quotas of this process's cgroup and of its parents, in cores.

    In a container, the cgroup may be mounted as the root, so its path is missing below `mount`.
    """
    for line in read(groups).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for hierarchy in HIERARCHIES:
                for depth in range(len(parts) + 1):
                    group = mount.joinpath(hierarchy, *parts[:depth])  # microseconds of CPU time per period
                    words = read(group / "cpu.max").split()
                    words = words or [read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
                    limited = all(word.isascii() and word.isdigit() for word in words)  # unlimited: `max` or -1
                    if limited and int(words[1]) > 0:
                        yield int(words[0]) / int(words[1])


def read(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def user_name() -> str:
    """The user's name; `uid 1000` if it is unknown, as in a container without an entry in /etc/passwd."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}"


MIB, GIB = 1 << 20, 1 << 30
PYTHON = 512 * MIB
A_THREAD = 40 * MIB
"""Bytes for the buffer and stack of an OpenBLAS thread; OpenBLAS exits if it cannot allocate them."""
NO_MEMORY = re.compile(r"out of memory|cannot allocate|bad_alloc", re.IGNORECASE)
REMEDY = "raise it: `ulimit -v unlimited`"


def check_start() -> None:
    """Raise MachineError if the limit on the address space is too small for Python and NumPy."""
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "")
    needed = PYTHON + A_THREAD * (int(threads) if threads.isdecimal() else affinity())
    if _limit() < needed:
        raise MachineError(f"{_words()}, but fattn-probe needs {needed / GIB:.1f} GiB; {REMEDY}")


def check_program(stderr: str) -> None:
    """Raise MachineError if there is a limit and the program's stderr says that it ran out of memory."""
    if _limit() < float("inf") and NO_MEMORY.search(stderr):
        reserved = "a simulated GPU reserves 16 GiB of address space (not memory) around each allocation"
        raise MachineError(f"{_words()}, but {reserved}; {REMEDY}")


def _limit() -> float:
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def _words() -> str:
    return f"a process may use {_limit() / GIB:.3g} GiB of address space here (`ulimit -v`)"
