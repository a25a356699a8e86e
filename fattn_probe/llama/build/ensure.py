"""Find builds, create missing ones, and extend builds that lack a kernel, a program or a file."""

import contextlib
import glob
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from fattn_probe.base.cache import growing, lock_beside, named
from fattn_probe.base.digest import SEAL, Seal, damage, read_seal, write_seal
from fattn_probe.base.errors import BuildError, InputError, MachineError
from fattn_probe.base.files import lock_of_file, scratch, whole_folder, writing
from fattn_probe.llama.build.ccache import STATS_LOG
from fattn_probe.llama.build.key import (
    MANIFEST,
    MANIFESTS,
    OVERLAY,
    RUNNER,
    Build,
    BuildRequest,
    Contents,
    Manifest,
    folder_of,
    key_of,
)
from fattn_probe.llama.build.ninja import JobSlots, Report, silent
from fattn_probe.llama.build.storage import remove_replaced
from fattn_probe.llama.build.toolchain import find_toolchain
from fattn_probe.llama.source import KernelCase

RESOURCES = "resources.json"
LIBRARIES_LOCK = "libraries.lock"
WHAT = "the build"


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
    jobs: int | JobSlots | None = None,
    again: bool = False,
) -> Build:
    """The build for a request with at least these kernels and programs; created or extended if necessary.

    `sources` are additional files of ggml-cuda/ and ggml-base, `architectures` those of libllama. `full` compiles all
    files that upstream compiles, `dry` only the parts for dry runs on a simulated GPU. A complete build is verified and
    returned. Builds are created and extended under a lock. `again` compiles everything anew, without reusing objects.
    """
    names = tuple(case.name for case in kernels)
    wanted = Contents(
        names, tuple(sources), tuple(programs), full, dry and request.engine == "sim", tuple(architectures)
    ).for_tree(request.tree)
    try:
        toolchain = find_toolchain(request.engine)
    except BuildError:
        if again or (build := finished_elsewhere(request, wanted)) is None:
            raise
        return build
    folder = folder_of(request, key_of(request, toolchain.versions))
    if not again and (build := finished(folder, request, wanted)):
        return build
    with lock_beside(folder):
        if not again and (build := finished(folder, request, wanted)):
            return build
        from fattn_probe.llama.build.make import (
            extend,  # imports the rewriter and the planner
        )

        remove_replaced(folder)
        with growing(folder, WHAT, is_unsealed) as growth:
            build = existing(folder, request)
            contents = build.manifest.contents.union(wanted) if build else wanted
            contents = contents.for_tree(request.tree)
            return extend(growth, request, toolchain, contents, progress=progress, jobs=jobs, again=again)


def finished(folder: Path, request: BuildRequest, wanted: Contents) -> Build | None:
    """The build in a folder if it has all requested contents and is undamaged, otherwise None."""
    build = existing(folder, request)
    if build is None or not is_complete(build.manifest, wanted):
        return None
    programs = [f"bin/{name}" for name in build.manifest.contents.programs]
    sealed = read_seal(folder)
    if sealed is None or not sealed.files.keys() >= {MANIFEST, *programs} or damage(folder, sealed, is_used):
        return None
    mark_used(folder)
    return build


def finished_elsewhere(request: BuildRequest, wanted: Contents) -> Build | None:
    """A finished build made by any compiler, for a machine without a compiler; None if there is none."""
    pattern = folder_of(request, key_of(request, ("*",)))
    for folder in sorted(pattern.parent.glob(f"{glob.escape(pattern.name.rpartition('-')[0])}-*")):
        build = existing(folder, request)
        compilers = build.manifest.fingerprint.compilers if build else ()
        if folder == folder_of(request, key_of(request, compilers)) and (build := finished(folder, request, wanted)):
            return build
    return None


def is_used(name: str) -> bool:
    """Whether a build's file is needed to run its programs or to show their source."""
    return name in (MANIFEST, RESOURCES) or name.startswith(("bin/", "lib/", f"{OVERLAY}/"))


def is_unsealed(name: str) -> bool:
    """Whether a build's file is a lock, or belongs to ninja or ccache."""
    return name in (".ninja_log", ".ninja_deps", "build.log", STATS_LOG, LIBRARIES_LOCK)


def mark_used(folder: Path) -> None:
    """Update the time stamp of a build's seal, by which `cache prune` recognises unused builds."""
    with contextlib.suppress(OSError):  # the cache may belong to another user
        os.utime(folder / SEAL)


def replacing_lock(folder: Path) -> contextlib.AbstractContextManager[None]:
    """The lock to hold while replacing or loading a build's libraries and programs.

    This lock is held for a much shorter time than the lock beside the folder, so cases can run while kernels compile.
    """
    return lock_of_file(folder / LIBRARIES_LOCK)


@contextlib.contextmanager
def at_rest(build: Build) -> Iterator[Build]:
    """A snapshot of the build's programs and libraries, which another process cannot change by extending the build.

    A debugger reads a library after the program has loaded it. If the library were replaced in between, breakpoints
    would be misplaced, or the debugger would reject the file. The linker writes a new file, so hard links are enough.
    """
    with scratch() as folder:
        with replacing_lock(build.folder), writing(folder):
            for name in ("bin", "lib"):
                shutil.copytree(build.folder / name, folder / name, copy_function=link_or_copy)
        yield replace(build, folder=folder)


def link_or_copy(file: str, to: str) -> None:
    """Hard-link a file, or copy it if the file system cannot link it there."""
    try:
        os.link(file, to)
    except OSError:
        shutil.copy2(file, to)


def existing(folder: Path, request: BuildRequest | None) -> Build | None:
    """The build in a folder; None if the manifest is missing or damaged."""
    try:
        return Build(folder, MANIFESTS.read(folder / MANIFEST), request)
    except InputError:
        return None


def is_complete(manifest: Manifest, wanted: Contents) -> bool:
    """Whether a build has all requested contents."""
    has = manifest.contents
    return (
        set(wanted.programs) <= set(has.programs)
        and (has.full or set(wanted.kernels) <= set(has.kernels))
        and (has.full or set(wanted.sources) <= set(has.sources))
        and has.full >= wanted.full
        and has.dry <= wanted.dry
        and set(wanted.architectures) <= set(has.architectures)
        and wanted.libllama in ("", has.libllama)
    )


def open_build(folder: Path) -> Build:
    """Open the build in a folder made by `export`, or in the cache."""
    try:
        build = Build(folder.absolute(), MANIFESTS.read(folder / MANIFEST), None)  # gdb runs in another folder
    except InputError as error:
        raise InputError(f"{folder} is not a fattn-probe build: it has no complete {MANIFEST}: {error}") from None
    sealed = read_seal(folder)
    if sealed is None:
        raise InputError(f"{folder} has no record of its contents ({SEAL}): build and export it again")
    if bad := damage(folder, sealed, is_used):
        raise InputError(f"{folder} is damaged ({named(bad)}): build and export it again")
    return build


def export(build: Build, folder: Path) -> Build:
    """Copy programs, libraries and sources to a new folder that works on another machine."""
    if folder.exists():
        raise InputError(f"{folder} already exists; choose a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder) as part:
        sealed = read_seal(build.folder)
        files = {name: content for name, content in sealed.files.items() if is_used(name)} if sealed else {}
        for name in files:
            with writing(part / name), contextlib.suppress(FileNotFoundError):
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(build.folder / name, part / name)
        if bad := damage(part, Seal(files)) if files else [SEAL]:
            raise MachineError(f"{build.folder}: {WHAT} changed while it was copied ({named(bad)}): run this again")
        write_seal(part, Seal(files))
    return replace(build, folder=folder, request=None)
