"""Find builds, and make or extend those that lack something."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from fattn_probe.build.key import (
    MANIFEST,
    OVERLAY,
    RUNNER,
    Build,
    BuildRequest,
    Contents,
    Manifest,
    folder_of,
    key_of,
    manifest_of,
)
from fattn_probe.build.ninja import Report, silent
from fattn_probe.build.stamp import own_stamp
from fattn_probe.build.toolchain import find_toolchain
from fattn_probe.errors import InputError
from fattn_probe.process import log
from fattn_probe.source import KernelCase

RESOURCES = "resources.json"


def ensure(
    request: BuildRequest,
    kernels: Iterable[KernelCase] = (),
    programs: Iterable[str] = (RUNNER,),
    *,
    full: bool = False,
    dry: bool = False,
    sources: Iterable[str] = (),
    architectures: Iterable[str] = (),
    progress: Report = silent,
    jobs: int | None = None,
    again: bool = False,
) -> Build:
    """The build of a request with at least these kernels and programs; makes or extends it if necessary.

    `sources` are further files of ggml-cuda/ and ggml-base, `architectures` of libllama's src/models/; `full` compiles
    all that upstream does, `dry` only what dry runs on a simulated GPU need. A complete build is returned after a check
    of its manifest. A build that another process uses is extended under a lock. `again` compiles everything, and
    replaces the objects that builds share.
    """
    names = tuple(case.name for case in kernels)
    wanted = Contents(
        names, tuple(sources), tuple(programs), full, dry and request.engine == "sim", tuple(architectures)
    ).for_tree(request.tree)
    toolchain = find_toolchain(request.engine)
    folder = folder_of(request, key_of(request, toolchain))
    if not again and (build := existing(folder, request)) and is_complete(build.manifest, wanted):
        mark_used(folder)
        return build
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_of(folder):
        build = existing(folder, request)
        if build and is_complete(build.manifest, wanted) and not again:
            return build
        from fattn_probe.build.make import extend  # the rewriter and the planner, only if there is something to do

        contents = build.manifest.contents.union(wanted) if build else wanted
        contents = contents.for_tree(request.tree)
        return extend(folder, request, toolchain, contents, progress=progress, jobs=jobs, again=again)


def mark_used(folder: Path) -> None:
    """Update the time of a build's manifest, by which `cache prune` finds unused builds."""
    with contextlib.suppress(OSError):  # another user's cache
        os.utime(folder / MANIFEST)


def lock_of(folder: Path) -> FileLock:
    """The lock that a process holds while it changes the build in a folder."""
    return FileLock(folder.with_name(f"{folder.name}.lock"))


def existing(folder: Path, request: BuildRequest | None) -> Build | None:
    """The build in a folder, or None if there is no complete one; a damaged manifest counts as none."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return None
    try:
        return Build(folder, manifest_of(manifest.read_text()), request)
    except ValueError as error:
        log.warning("%s is damaged (%s)", manifest, error)
        return None


def is_complete(manifest: Manifest, wanted: Contents) -> bool:
    """Whether a build has all requested contents and was made by the current fattn-probe."""
    has = manifest.contents
    return (
        manifest.stamp == own_stamp()
        and set(wanted.programs) <= set(has.programs)
        and (has.full or set(wanted.kernels) <= set(has.kernels))
        and (has.full or set(wanted.sources) <= set(has.sources))
        and has.full >= wanted.full
        and has.dry <= wanted.dry
        and set(wanted.architectures) <= set(has.architectures)
        and wanted.libllama in ("", has.libllama)
    )


def open_build(folder: Path) -> Build:
    """Open the build in a folder made by `export`, or in the cache."""
    build = existing(folder, None)
    if build is None:
        raise InputError(f"{folder} is not a build of fattn-probe: it has no whole {MANIFEST}")
    return build


def export(build: Build, folder: Path) -> Build:
    """Copy programs, libraries and sources to a new folder that works on another machine."""
    if folder.exists():
        raise InputError(f"{folder} already exists; choose a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as name:
        part = Path(name) / "build"
        for item in ("bin", "lib", OVERLAY):
            shutil.copytree(build.folder / item, part / item)
        for file in (MANIFEST, RESOURCES):
            if (build.folder / file).is_file():
                shutil.copyfile(build.folder / file, part / file)
        part.rename(folder)
    return replace(build, folder=folder, request=None)
