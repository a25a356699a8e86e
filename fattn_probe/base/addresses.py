"""The limit of addresses of a process (`ulimit -v`): too small a one is named, whatever program met it."""

import os
import re
import resource

from fattn_probe.base.errors import MachineError
from fattn_probe.base.host import affinity

MIB, GIB = 1 << 20, 1 << 30
PYTHON = 512 * MIB
A_THREAD = 40 * MIB
"""Of OpenBLAS, which ends the process itself where it does not get them: a buffer and a stack."""
NO_MEMORY = re.compile(r"out of memory|cannot allocate|bad_alloc", re.IGNORECASE)
REMEDY = "raise it: `ulimit -v unlimited`"


def check_start() -> None:
    """MachineError if the limit is too small for Python and NumPy."""
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "")
    needed = PYTHON + A_THREAD * (int(threads) if threads.isdecimal() else affinity())
    if _limit() < needed:
        raise MachineError(f"{_words()}, and fattn-probe needs {needed / GIB:.1f} GiB; {REMEDY}")


def check_program(stderr: str) -> None:
    """MachineError if a program that ran under a limit says that it got no memory."""
    if _limit() < float("inf") and NO_MEMORY.search(stderr):
        reserved = "a simulated GPU reserves 16 GiB of addresses (not of memory) around each allocation"
        raise MachineError(f"{_words()}, and {reserved}; {REMEDY}")


def _limit() -> float:
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def _words() -> str:
    return f"a process may have {_limit() / GIB:.3g} GiB of addresses here (`ulimit -v`)"
