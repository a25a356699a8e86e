"""Repeating memory: a large array that maps the pages of its first part again and again."""

import ctypes
import os

import numpy as np

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.errors import MachineError
from fattn_probe.cases.op.tensors import Root

NOTHING, READ = 0, 1
SHARED, PRIVATE, FIXED, ANONYMOUS, NO_RESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000


def whole(root: Root, stored: Bytes) -> Bytes:
    """All bytes of a root, from the stored part; read-only if they repeat."""
    return stored if root.period is None else repeated(stored, root.nbytes)


def repeated(part: Bytes, size: int) -> Bytes:
    """`size` bytes (1-D, read-only) that repeat a part again and again; the part is whole pages.

    The same pages of memory are mapped again and again. MachineError if the system does not allow it.
    """
    file = os.memfd_create("fattn-probe")
    try:
        with os.fdopen(os.dup(file), "wb") as pages:
            pages.write(np.ascontiguousarray(part).data)
        return np.asarray(_Pages(file, part.size, size))
    finally:
        os.close(file)


class _Pages:
    """Address space over a file's pages, released with the last array that uses it."""

    def __init__(self, file: int, period: int, size: int) -> None:
        self._system = ctypes.CDLL(None, use_errno=True)
        self._system.mmap.restype = ctypes.c_void_p
        self._system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._size = size
        self._start = self._map(None, size, NOTHING, PRIVATE | ANONYMOUS | NO_RESERVE, -1)
        for offset in range(0, size, period):
            self._map(self._start + offset, min(period, size - offset), READ, SHARED | FIXED, file)
        self.__array_interface__ = {"data": (self._start, True), "shape": (size,), "typestr": "|u1", "version": 3}

    def _map(self, address: int | None, size: int, access: int, how: int, file: int) -> int:
        found: int = self._system.mmap(address, size, access, how, file, 0)
        if found == ctypes.c_void_p(-1).value:
            said = os.strerror(ctypes.get_errno())
            raise MachineError(f"a tensor of {self._size} bytes cannot be mapped into memory: {said}")
        return found

    def __del__(self) -> None:
        if hasattr(self, "_start"):
            self._system.munmap(self._start, self._size)
