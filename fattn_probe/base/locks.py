"""Locks between processes, each on a file that all of them open."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
        descriptor = _opened(path)
        if descriptor is None:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder replaced or removed it


def _opened(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None


def _is_at(descriptor: int, path: Path) -> bool:
    ours = os.fstat(descriptor)
    try:
        theirs = path.stat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
