"""Locks of files that several processes change."""

import hashlib
from pathlib import Path

from filelock import FileLock

from fattn_probe.cache import cache_dir


def lock_of_file(path: Path) -> FileLock:
    """The lock to hold while a file is read and rewritten; it is in the cache, so that no folder of results has it."""
    folder = cache_dir() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    return FileLock(folder / f"{name}.lock")
