"""Locks between processes, each on a file that all of them open."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EPERM, EROFS
from pathlib import Path

READ_ONLY = (EROFS, EACCES, EPERM)


@contextmanager
def lock_of_file(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is missing; BlockingIOError if it is taken and `wait` is false.

    The lock is on the file itself, so processes with different caches exclude one another, and the kernel releases it
    when its holder dies. The holder may replace or remove the file. If the file cannot be made for lack of permission,
    nothing is locked: a process that cannot write changes nothing.
    """
    descriptor = _locked(path, wait)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(path: Path, wait: bool) -> int | None:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except OSError:
                return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder replaced or removed it
