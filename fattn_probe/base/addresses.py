"""The limit on a process's address space (`ulimit -v`): errors name it if it is too small for some program."""

import os
import re
import resource

from fattn_probe.base.errors import MachineError
from fattn_probe.base.host import affinity

MIB, GIB = 1 << 20, 1 << 30
PYTHON = 512 * MIB
A_THREAD = 40 * MIB
"""Bytes for a buffer and a stack of OpenBLAS, which exits if it cannot allocate them."""
NO_MEMORY = re.compile(r"out of memory|cannot allocate|bad_alloc", re.IGNORECASE)
REMEDY = "raise it: `ulimit -v unlimited`"


def check_start() -> None:
    """MachineError if the limit is too small for Python and NumPy."""
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "")
    needed = PYTHON + A_THREAD * (int(threads) if threads.isdecimal() else affinity())
    if _limit() < needed:
        raise MachineError(f"{_words()}, and fattn-probe needs {needed / GIB:.1f} GiB; {REMEDY}")


def check_program(stderr: str) -> None:
    """MachineError if there is a limit and the program's stderr says that it ran out of memory."""
    if _limit() < float("inf") and NO_MEMORY.search(stderr):
        reserved = "a simulated GPU reserves 16 GiB of addresses (not of memory) around each allocation"
        raise MachineError(f"{_words()}, and {reserved}; {REMEDY}")


def _limit() -> float:
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def _words() -> str:
    return f"a process may have {_limit() / GIB:.3g} GiB of addresses here (`ulimit -v`)"
