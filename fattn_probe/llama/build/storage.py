"""The contents of the cache folder, and the removal of old contents."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.base.cache import Kind, cache_dir, lock_beside, parts
from fattn_probe.base.digest import SEAL
from fattn_probe.base.errors import InputError, MachineError
from fattn_probe.base.files import remove_tree, sweep
from fattn_probe.base.process import run
from fattn_probe.llama.build.ccache import Usage, ccache_folder, find_ccache, store_env, usage
from fattn_probe.llama.build.key import MANIFEST, MANIFESTS
from fattn_probe.llama.build.overlay import REWRITTEN
from fattn_probe.llama.build.stamp import own_stamp

VERDICTS = Kind("verdicts", "the stored verdict")
DAY = 86400.0
REPLACED_DAYS = 7.0
"""Days until an unused build of another version is removed; more than 0, because two checkouts may take turns."""
EARLIER = (
    *(".headers-*", "headers-*", ".tables-*", "tables-*", "resources-*", "sources/.*"),
    *("locks", "dispatch/*.pickle", "kernels/*.json", "mutants/*.json"),
)
"""Patterns of files from earlier versions of fattn-probe, which this version does not read."""


@dataclass(frozen=True)
class CacheEntry:
    """A build or a source in the cache: its size in bytes, and the days since its last use.

    `days` is None for an unfinished build.
    """

    name: str
    size: int
    days: float | None


@dataclass(frozen=True)
class Storage:
    """The cache folder; `other` is the size in bytes of headers, tables and gdb's indexes."""

    folder: str
    builds: tuple[CacheEntry, ...]
    sources: tuple[CacheEntry, ...]
    ccache: Usage | None
    other: int

    @property
    def size(self) -> int:
        """The total size in bytes, including ccache's objects."""
        entries = sum(entry.size for entry in (*self.builds, *self.sources))
        return entries + self.other + (self.ccache.size if self.ccache else 0)


def read_storage() -> Storage:
    """Measure the cache folder."""
    folder = cache_dir()
    ccache = find_ccache()
    known = {folder / "builds", folder / "sources", ccache_folder()}
    others = [path for path in contents(folder) if path not in known]
    return Storage(
        str(folder),
        tuple(builds()),
        tuple(CacheEntry(path.name, size_of(path), days_since(path)) for path in folders(folder / "sources")),
        usage(ccache) if ccache else None,
        sum(map(size_of, others)),
    )


def builds() -> Iterator[CacheEntry]:
    """The builds, most recently used first."""
    found = folders(cache_dir() / "builds")
    entries = [CacheEntry(path.name, size_of(path), days_since(path / SEAL)) for path in found]
    yield from sorted(entries, key=lambda entry: (entry.days is None, entry.days or 0))


def prune(days: float) -> tuple[CacheEntry, ...]:
    """Remove builds and ccache objects that have not been used for this many days; returns the removed builds.

    Rewritten files and verdicts of that age are removed too, because a run recreates them. So are unfinished builds
    and the leftovers of killed processes and earlier versions. A build that another process is changing stays.
    """
    if parts().is_dir():
        sweep(parts())
    for path in [path for pattern in EARLIER for path in cache_dir().glob(pattern)]:
        remove_tree(path)
    gone = []
    for entry in builds():
        folder = cache_dir() / "builds" / entry.name
        if (entry.days is None or entry.days >= days) and remove(folder):
            gone.append(entry)
    for path in (*contents(REWRITTEN.root), *contents(VERDICTS.root)):
        if (days_since(path) or 0.0) >= days:
            remove_tree(path)
    if ccache := find_ccache():
        run([ccache, "--evict-older-than", f"{int(days * DAY)}s"], env=store_env())
    return tuple(gone)


def remove_replaced(folder: Path) -> None:
    """Remove builds that a new one replaces: same name, another version of fattn-probe, unused for REPLACED_DAYS."""
    for other in folders(folder.parent) if not folder.exists() else ():
        if other.name.rpartition("-")[0] == folder.name.rpartition("-")[0]:
            with contextlib.suppress(InputError, MachineError):  # no usable manifest; a read-only cache
                days, made = days_since(other / SEAL), MANIFESTS.read(other / MANIFEST)
                if days is not None and days >= REPLACED_DAYS and made.fingerprint.stamp != own_stamp():
                    remove(other)


def remove(folder: Path) -> bool:
    """Remove a build and its lock; False if another process holds the lock."""
    try:
        with lock_beside(folder, wait=False):
            (folder / SEAL).unlink(missing_ok=True)  # first, because a folder without a seal does not count as a build
            remove_tree(folder)
            folder.with_name(f"{folder.name}.lock").unlink(missing_ok=True)
    except BlockingIOError:
        return False
    return True


def contents(folder: Path) -> list[Path]:
    """The files and folders in a folder; empty if it does not exist."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def folders(folder: Path) -> list[Path]:
    """The folders in a folder."""
    return [path for path in contents(folder) if path.is_dir()]


def size_of(path: Path) -> int:
    """The size in bytes of a file, or of all regular files below a folder, without links and vanished files."""
    size = 0
    for file in path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]:
        with contextlib.suppress(FileNotFoundError):
            size += file.lstat().st_size if file.is_file() and not file.is_symlink() else 0
    return size


def days_since(path: Path) -> float | None:
    """Days since a file changed; None if it does not exist."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime) / DAY
    except FileNotFoundError:
        return None
