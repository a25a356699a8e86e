"""Resolve `--source` to a llama.cpp tree on this machine."""

import functools
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fattn_probe.errors import InputError
from fattn_probe.source import git, store
from fattn_probe.source.features import probe
from fattn_probe.source.spec import ALLOWED, FolderSpec, GitSpec, PypiSpec, parse_spec
from fattn_probe.source.tree import GGML_LANDMARK, LANDMARK, MODEL_LANDMARK, Tree, digest_tree, find_tree, has_models

if TYPE_CHECKING:  # HTTP and archives are imported to fetch a source that is not in the cache
    from fattn_probe.source.download import Progress


def resolve(spec: str, progress: "Progress | None" = None, *, models: bool = False) -> Tree:
    """The tree that a source specification names, fetched if it is not in the cache.

    `progress` is called during a download; `models`: the tree must have libllama. InputError for a wrong specification,
    release or archive, LostError for a network failure.
    """
    tree = resolved(spec, progress, models)
    if models and not has_models(tree.root):
        raise InputError(f"source {spec!r}: this tree has no {MODEL_LANDMARK}: models need llama.cpp's whole source")
    return tree


def resolved(spec: str, progress: "Progress | None", models: bool) -> Tree:
    """The same, without the check for libllama."""
    match parse_spec(spec):
        case PypiSpec() as release:
            fetched = functools.partial(fetched_release, release, progress=progress)
            tree = cached_tree(release.cache_name, spec, fetched, models)
            return replace(tree, build_number=release.build_number)
        case GitSpec() as repository:
            commit = git.find_commit(repository)
            name = f"git-{hashlib.sha256(repository.url.encode()).hexdigest()[:8]}-{commit}"
            tree = cached_tree(name, spec, functools.partial(fetched_commit, repository, commit), models)
            return replace(tree, build_number=git.build_number_of_ref(repository.ref))
        case FolderSpec(path):
            return folder_tree(path, spec)


def cached_tree(name: str, spec: str, make: store.Maker, models: bool) -> Tree:
    """A tree in the cache."""
    entry = store.obtain(name, make, models=models)
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
