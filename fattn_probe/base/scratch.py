"""Temporary folders for one run, removed when it ends, or at the next start if it was killed."""

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fattn_probe.base.errors import MachineError
from fattn_probe.base.files import remove_tree, writing

LOCK = ".lock"


@contextmanager
def scratch(root: Path | None = None) -> Iterator[Path]:
    """A new folder in `root`, $TMPDIR by default, removed at the end; first removes the folders of killed processes.

    Its owner holds a lock on `NAME.lock` beside it, which the kernel releases when the owner dies. Process numbers
    would not work: they are reused, and have no meaning in a container that shares the folder.
    """
    root = root or scratch_root()
    sweep(root)
    while True:  # until no other process removes the file before it is locked
        with writing(root):
            descriptor, name = tempfile.mkstemp(suffix=LOCK, dir=root)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)
    lock, folder = Path(name), Path(name).with_suffix("")
    try:
        folder.mkdir()
        yield folder
    finally:
        remove_tree(folder)
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def scratch_root() -> Path:
    """A user's folder for scratch folders, `fattn-probe-UID` in $TMPDIR; MachineError if another user owns it."""
    root = Path(tempfile.gettempdir()) / f"fattn-probe-{os.getuid()}"
    with writing(root):
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise MachineError(f"{root}: this place for temporary files belongs to another user; set TMPDIR")
    return root


def sweep(root: Path) -> None:
    """Remove the folders whose owners are dead."""
    for lock in root.glob(f"*{LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as held:  # its owner is alive, or another process was faster
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(lock.with_suffix(""))
            lock.unlink(missing_ok=True)
