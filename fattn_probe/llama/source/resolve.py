"""Resolve `--source` to a llama.cpp tree on this machine."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fattn_probe.base.digest import short
from fattn_probe.base.errors import InputError
from fattn_probe.llama.source import git, store
from fattn_probe.llama.source.features import probe
from fattn_probe.llama.source.spec import ALLOWED, FolderSpec, GitSpec, PypiSpec, parse_spec
from fattn_probe.llama.source.tree import (
    GGML_LANDMARK,
    LANDMARK,
    MODEL_LANDMARK,
    Tree,
    digest_tree,
    find_tree,
    has_models,
)

if TYPE_CHECKING:
    from fattn_probe.llama.source.download import Progress


def resolve(spec: str, progress: "Progress | None" = None, *, models: bool = False, unverified: bool = False) -> Tree:
    """The tree that a source specification names, fetched if it is not in the cache.

    `progress` is called during a download; `models`: the tree must have libllama; `unverified`: a download may have no
    sha256. InputError for a wrong specification, release or archive, LostError for a network failure.
    """
    tree = resolved(spec, progress, models, unverified)
    if models and not has_models(tree.root):
        raise InputError(f"source {spec!r}: this tree has no {MODEL_LANDMARK}: models need llama.cpp's whole source")
    return tree


def resolved(spec: str, progress: "Progress | None", models: bool, unverified: bool) -> Tree:
    """`resolve` without the check for libllama."""

    def cached(name: str, make: store.Maker) -> Tree:
        entry, root = store.obtain(name, make, models=models), store.tree_root(name)
        return Tree(spec, root, entry.build_number, entry.digest, probe(root))

    match parse_spec(spec):
        case PypiSpec() as release:

            def release_in(folder: Path) -> store.SourceEntry:
                from fattn_probe.llama.source.fetch import fetch_release  # imports HTTP and archives

                return fetch_release(release, folder, progress, unverified=unverified)

            return replace(cached(release.cache_name, release_in), build_number=release.build_number)
        case GitSpec() as repository:
            commit = git.find_commit(repository)

            def commit_in(folder: Path) -> store.SourceEntry:
                from fattn_probe.llama.source.fetch import fetch_commit

                return fetch_commit(repository, commit, folder)

            tree = cached(f"git-{short(repository.url, 8)}-{commit}", commit_in)
            return replace(tree, build_number=git.build_number_of_ref(repository.ref))
        case FolderSpec(path):  # a tree in the user's folder, used in place
            if not path.is_dir():
                hint = f"; did you mean 'pypi:{spec}'?" if "==" in spec else ""
                raise InputError(f"source {spec!r}: there is no such folder (allowed: {ALLOWED}){hint}")
            if root := find_tree(path.resolve()):
                return Tree(spec, root, git.build_number_of_folder(root), digest_tree(root), probe(root))
            if (path / GGML_LANDMARK).is_file():
                root = store.linked(path.resolve())
                return Tree(spec, root, "?", digest_tree(root), probe(root))
            raise InputError(f"source {spec!r}: the folder holds no llama.cpp tree (no {LANDMARK} in it)")
