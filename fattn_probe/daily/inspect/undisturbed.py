"""Repeat an attempt that another process disturbed by extending the build."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fattn_probe.base.errors import FattnProbeError, LostError

Result = TypeVar("Result")
MOST_ATTEMPTS = 5


def undisturbed(folder: Path, attempt: Callable[[], Result]) -> Result:
    """The result of an attempt during which no other process extended the build in `folder`.

    A debugger reads a library after the program has loaded it. If the library is replaced in between, the breakpoints
    are in wrong places and the program seems to launch no kernel; or the debugger, which opens the file by its name,
    finds unexpected contents and refuses. LostError after MOST_ATTEMPTS.
    """
    for _ in range(MOST_ATTEMPTS):
        before = linked(folder)
        try:
            result = attempt()
        except FattnProbeError:
            if linked(folder) == before:
                raise
            continue
        if linked(folder) == before:
            return result
    raise LostError(f"another process extended {folder} during each of {MOST_ATTEMPTS} inspections: try again")


def linked(folder: Path) -> frozenset[tuple[str, int, int]]:
    """The libraries and programs of a build: name, inode, and time of the last change in ns."""
    found = set()
    for path in (*folder.glob("lib/*"), *folder.glob("bin/*")):
        with contextlib.suppress(FileNotFoundError):  # linking has just finished, and its output has been renamed
            stat = path.stat()
            found.add((path.name, stat.st_ino, stat.st_mtime_ns))
    return frozenset(found)
