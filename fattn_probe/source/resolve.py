"""Resolve `--source` to a llama.cpp tree on this machine."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fattn_probe.errors import InputError
from fattn_probe.source import git, store
from fattn_probe.source.features import probe
from fattn_probe.source.spec import ALLOWED, FolderSpec, GitSpec, PypiSpec, parse_spec
from fattn_probe.source.tree import GGML_LANDMARK, LANDMARK, Tree, digest_tree, find_tree

if TYPE_CHECKING:  # HTTP and archives are imported to fetch a source that is not in the cache
    from fattn_probe.source.download import Progress


def resolve(spec: str, progress: "Progress | None" = None) -> Tree:
    """The tree that a source specification names, fetched if it is not in the cache.

    `progress` is called during a download. InputError for a wrong specification, release or archive; LostError for a
    network failure.
    """
    match parse_spec(spec):
        case PypiSpec() as release:
            tree = cached_tree(release.cache_name, spec, lambda folder: fetched_release(release, folder, progress))
            return replace(tree, build_number=release.build_number)
        case GitSpec() as repository:
            commit = git.find_commit(repository)
            name = f"git-{hashlib.sha256(repository.url.encode()).hexdigest()[:8]}-{commit}"
            tree = cached_tree(name, spec, lambda folder: fetched_commit(repository, commit, folder))
            return replace(tree, build_number=git.build_number_of_ref(repository.ref))
        case FolderSpec(path):
            return folder_tree(path, spec)


def cached_tree(name: str, spec: str, make: store.Maker) -> Tree:
    """A tree in the cache."""
    entry = store.obtain(name, make)
    root = store.tree_root(name)
    return Tree(spec, root, entry.build_number, entry.digest, probe(root))


def fetched_release(release: PypiSpec, folder: Path, progress: "Progress | None") -> store.Entry:
    """The tree of a release, downloaded to a folder."""
    from fattn_probe.source.download import silent
    from fattn_probe.source.fetch import fetch_release

    return fetch_release(release, folder, progress or silent)


def fetched_commit(repository: GitSpec, commit: str, folder: Path) -> store.Entry:
    """The tree of a commit, fetched to a folder."""
    from fattn_probe.source.fetch import fetch_commit

    return fetch_commit(repository, commit, folder)


def folder_tree(path: Path, spec: str) -> Tree:
    """A tree in the user's folder, used in place."""
    if not path.is_dir():
        hint = f"; did you mean 'pypi:{spec}'?" if "==" in spec else ""
        raise InputError(f"source {spec!r}: there is no such folder (allowed: {ALLOWED}){hint}")
    if root := find_tree(path.resolve()):
        return Tree(spec, root, git.build_number_of_folder(root), digest_tree(root), probe(root))
    if (path / GGML_LANDMARK).is_file():
        root = store.linked(path.resolve())
        return Tree(spec, root, "?", digest_tree(root), probe(root))
    raise InputError(f"source {spec!r}: the folder holds no llama.cpp tree (no {LANDMARK} in it)")
