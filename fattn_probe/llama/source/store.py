"""The cache of sources: each has a read-only tree, and a record beside it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.base.cache import Kind, get_or_make
from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import writing
from fattn_probe.llama.source.tree import OUTSIDE_GGML, has_models

SOURCES = Kind("sources", "the source")
TREE, RECORD = "llama.cpp", "source.json"


@dataclass(frozen=True)
class SourceEntry:
    """One cached tree as its `source.json` records it."""

    spec: str
    build_number: str
    origin: str
    digest: str


ENTRY = Document("a source's record", SourceEntry, version=1, indent=1)
Maker = Callable[[Path], SourceEntry]
"""Fills `llama.cpp` in the folder it is given, and returns the record of it."""


def tree_root(name: str) -> Path:
    """The path of the tree of a cached source."""
    return SOURCES.place(name) / TREE


def obtain(name: str, make: Maker, *, models: bool = False) -> SourceEntry:
    """The entry `name`, made by `make(folder)` if it is missing or was modified.

    `make` fills `folder/llama.cpp` and returns its record. With `models`, an entry that an earlier version stored
    without libllama's source is made again.
    """

    def fits(folder: Path) -> bool:
        return read_entry(folder) is not None and (has_models(folder / TREE) or not models)

    def fill(folder: Path) -> None:
        entry, tree = make(folder), folder / TREE
        with writing(folder):
            (folder / RECORD).write_text(ENTRY.text(entry))
            for path in (*tree.rglob("*"), tree):  # read-only, so that it cannot be edited by mistake
                path.chmod(0o555 if path.is_dir() else 0o444)

    folder = get_or_make(SOURCES, name, fill, fits)
    entry = read_entry(folder)
    assert entry is not None
    return entry


def read_entry(folder: Path) -> SourceEntry | None:
    """The record of a cached source, or None if it is missing or damaged."""
    try:
        return ENTRY.read(folder / RECORD)
    except InputError:
        return None


def linked(ggml: Path) -> Path:
    """A llama.cpp tree of links to a checkout of ggml's own repository, which is used in place."""

    def link(folder: Path) -> None:
        for name, target in (("ggml", ggml), *((name, ggml / name) for name in OUTSIDE_GGML)):
            (folder / name).symlink_to(target)

    key = f"ggml-{short(str(ggml), 12)}"
    return get_or_make(SOURCES, key, link, lambda folder: (folder / "ggml").is_symlink())


def entries() -> dict[str, SourceEntry]:
    """Every cached source by its name, sorted."""
    folders = sorted(SOURCES.root.glob(f"*/{RECORD}"))
    return {path.parent.name: entry for path in folders if (entry := read_entry(path.parent))}
