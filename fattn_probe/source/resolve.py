"""Resolve `--source` to a llama.cpp tree on this machine."""

import hashlib
import logging
from dataclasses import replace
from pathlib import Path

from fattn_probe.errors import InputError
from fattn_probe.source import git, store
from fattn_probe.source.download import Progress, download, silent
from fattn_probe.source.features import probe
from fattn_probe.source.index import find_sdist
from fattn_probe.source.spec import ALLOWED, FolderSpec, GitSpec, PypiSpec, parse_spec
from fattn_probe.source.tree import LANDMARK, Tree, digest_tree, find_tree
from fattn_probe.source.unpack import unpack

log = logging.getLogger(__name__)


def resolve(spec: str, progress: Progress | None = None) -> Tree:
    """The tree that a source specification names, fetched if it is not in the cache.

    `progress` is called during a download. InputError for a wrong specification, release or archive; LostError for a
    network failure.
    """
    match parse_spec(spec):
        case PypiSpec() as release:
            return cached_tree(
                release.cache_name, spec, lambda folder: fetch_release(release, folder, progress or silent)
            )
        case GitSpec() as repository:
            commit = git.find_commit(repository)
            name = f"git-{hashlib.sha256(repository.url.encode()).hexdigest()[:8]}-{commit}"
            tree = cached_tree(name, spec, lambda folder: fetch_commit(repository, commit, folder))
            return replace(tree, build_number=git.build_number_of_ref(repository.ref))
        case FolderSpec(path):
            return folder_tree(path, spec)


def cached_tree(name: str, spec: str, make: store.Maker) -> Tree:
    """A tree in the cache."""
    entry = store.obtain(name, make)
    root = store.tree_root(name)
    return Tree(spec, root, entry.build_number, entry.digest, probe(root))


def fetch_release(release: PypiSpec, folder: Path, progress: Progress) -> store.Entry:
    """Download a release's sdist and unpack the tree in it.

    `pip download` would run the sdist's own build program to read its metadata, which is untrusted code. So this reads
    the index itself.
    """
    file = find_sdist(release)
    sha256 = release.pin or file.sha256
    if sha256 is None:
        log.warning("the package index gives no sha256 for %s: the download is not verified", file.filename)
    archive = folder / Path(file.filename).name
    download(file, sha256, archive, progress)
    unpack(archive, folder / "llama.cpp")
    archive.unlink()
    return new_entry(
        f"pypi:{release.name}=={release.version}", release.build_number, f"{file.url} sha256={sha256}", folder
    )


def fetch_commit(repository: GitSpec, commit: str, folder: Path) -> store.Entry:
    """Fetch a commit and unpack the tree in it."""
    archive = git.archive_commit(repository, commit, folder)
    unpack(archive, folder / "llama.cpp")
    archive.unlink()
    store.remove(folder / "git")
    build_number = git.build_number_of_ref(repository.ref)
    return new_entry(f"git+{repository.url}@{commit}", build_number, repository.url, folder)


def new_entry(spec: str, build_number: str, origin: str, folder: Path) -> store.Entry:
    """The record of a tree that was just unpacked."""
    return store.Entry(spec, build_number, origin, digest_tree(folder / "llama.cpp"))


def folder_tree(path: Path, spec: str) -> Tree:
    """A tree in the user's folder, used in place."""
    if not path.is_dir():
        hint = f"; did you mean 'pypi:{spec}'?" if "==" in spec else ""
        raise InputError(f"source {spec!r}: there is no such folder (allowed: {ALLOWED}){hint}")
    root = find_tree(path.resolve())
    if root is None:
        raise InputError(f"source {spec!r}: the folder holds no llama.cpp tree (no {LANDMARK} in it)")
    return Tree(spec, root, git.build_number_of_folder(root), digest_tree(root), probe(root))
