"""The cache of sources: each is made in a temporary folder, renamed into place, and read-only from then on."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock

from fattn_probe.cache import cache_dir
from fattn_probe.source.tree import OUTSIDE_GGML, digest_tree, has_models

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """One cached tree as its `source.json` records it."""

    spec: str
    build_number: str
    origin: str
    digest: str


Maker = Callable[[Path], Entry]
"""Fills `llama.cpp` in the folder it is given, and returns the record of it."""


def sources_dir() -> Path:
    """The folder of all cached sources."""
    return cache_dir() / "sources"


def tree_root(name: str) -> Path:
    """Where the tree of a cached source lies."""
    return sources_dir() / name / "llama.cpp"


def obtain(name: str, make: Maker, *, models: bool = False) -> Entry:
    """The entry `name`, made by `make(folder)` if it is missing or was modified.

    `make` fills `folder/llama.cpp` and returns its record. Processes that want the same entry wait for one another.
    With `models`, an entry that an earlier fattn-probe stored without libllama's source is made again.
    """
    sources_dir().mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(sources_dir() / f"{name}.lock"):
        entry = intact_entry(name)
        if entry is not None and models and not has_models(tree_root(name)):
            log.warning("the cached source %s lacks libllama, which models need: fetching it again", name)
            entry = None
        return entry if entry is not None else make_entry(name, make)


def intact_entry(name: str) -> Entry | None:
    """The entry if it is there and its files still have the digest they were stored with."""
    entry = read_entry(name)
    if entry is None or digest_tree(tree_root(name)) == entry.digest:
        return entry
    log.warning("the cached source %s was modified: fetching it again", name)
    return None


def read_entry(name: str) -> Entry | None:
    """The record of a cached source, or None where it is missing or damaged."""
    try:
        return Entry(**json.loads((sources_dir() / name / "source.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def make_entry(name: str, make: Maker) -> Entry:
    """Make an entry in a folder of its own, then rename it into place."""
    for stale in sources_dir().glob(f".{name}@*"):  # of a killed run: we hold the lock, so they are unused
        remove(stale)
    work = Path(tempfile.mkdtemp(prefix=f".{name}@", dir=sources_dir()))
    try:
        entry = make(work)
        (work / "source.json").write_text(json.dumps(asdict(entry), indent=1))
        protect(work / "llama.cpp")
        remove(sources_dir() / name)
        work.chmod(0o755)
        work.rename(sources_dir() / name)
        return entry
    finally:
        remove(work)


def linked(ggml: Path) -> Path:
    """A llama.cpp tree of links to a checkout of ggml's own repository, which is used in place."""
    root = sources_dir() / f"ggml-{hashlib.sha256(str(ggml).encode()).hexdigest()[:12]}"
    root.mkdir(parents=True, exist_ok=True)
    for name, target in (("ggml", ggml), *((name, ggml / name) for name in OUTSIDE_GGML)):
        if not (root / name).is_symlink():
            (root / name).symlink_to(target)
    return root


def protect(folder: Path) -> None:
    """Make a tree read-only, so that nothing edits it by mistake."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)


def remove(folder: Path) -> None:
    """Delete a folder, read-only or not; no error where there is none."""
    for path, _, _ in os.walk(folder):
        Path(path).chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


def entries() -> dict[str, Entry]:
    """Every cached source by its name, sorted."""
    folders = sorted(sources_dir().glob("*/source.json"))
    return {path.parent.name: entry for path in folders if (entry := read_entry(path.parent.name))}
