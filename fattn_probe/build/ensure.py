"""Make builds, add to them, and copy them elsewhere."""

import datetime
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from fattn_probe.build.flags import Flags
from fattn_probe.build.key import (
    OVERLAY,
    PROGRAMS,
    RUNNER,
    Build,
    BuildRequest,
    Contents,
    Manifest,
    folder_of,
    key_of,
    manifest_of,
)
from fattn_probe.build.ninja import Report, run_ninja, silent
from fattn_probe.build.overlay import native_files, own_stamp, prepare, write_if_changed
from fattn_probe.build.plan import Planner
from fattn_probe.build.sources import CUDA, Sources, read_sources
from fattn_probe.build.steps import Plan
from fattn_probe.build.symbols import case_of, defining_source, demangle
from fattn_probe.build.toolchain import Toolchain, find_toolchain
from fattn_probe.errors import BuildError, InputError
from fattn_probe.source import KernelCase, ggml_types

MANIFEST = "manifest.json"
REGISTERS = "registers.json"
ENTRY = re.compile(r"Compiling entry function '(\w+)'[\s\S]*?Used (\d+) registers")


def ensure(
    request: BuildRequest,
    kernels: Iterable[KernelCase] = (),
    programs: Iterable[str] = (RUNNER,),
    *,
    full: bool = False,
    sources: Iterable[str] = (),
    progress: Report = silent,
    jobs: int | None = None,
) -> Build:
    """The build of a request with at least these kernels and programs, made or completed if need be.

    `sources` are further .cu files of ggml-cuda/; `full` compiles all that upstream does. A build that has everything
    is returned after a look at its manifest; a build in use by another process may be added to, under a lock.
    """
    wanted = Contents(tuple(case.name for case in kernels), tuple(sources), tuple(programs), full)
    toolchain = find_toolchain(request.engine)
    folder = folder_of(request, key_of(request, toolchain))
    if (build := existing(folder, request)) and is_complete(build.manifest, wanted):
        return build
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_of(folder):
        build = existing(folder, request)
        if build and is_complete(build.manifest, wanted):
            return build
        contents = build.manifest.contents.union(wanted) if build else wanted
        return make(folder, request, toolchain, contents, lambda path: run_ninja(path, progress, jobs))


def lock_of(folder: Path) -> FileLock:
    """What a process holds while it changes the build in a folder."""
    return FileLock(folder.with_name(f"{folder.name}.lock"))


def existing(folder: Path, request: BuildRequest | None) -> Build | None:
    """The build in a folder, or None where there is none that is whole."""
    manifest = folder / MANIFEST
    return Build(folder, manifest_of(manifest.read_text()), request) if manifest.is_file() else None


def is_complete(manifest: Manifest, wanted: Contents) -> bool:
    """Whether a build has what is wanted, and is from fattn-probe as it is now."""
    has = manifest.contents
    return (
        manifest.stamp == own_stamp()
        and set(wanted.programs) <= set(has.programs)
        and (has.full or set(wanted.kernels) <= set(has.kernels))
        and (has.full or set(wanted.sources) <= set(has.sources))
        and has.full >= wanted.full
    )


def make(
    folder: Path, request: BuildRequest, toolchain: Toolchain, contents: Contents, ninja: Callable[[Path], None]
) -> Build:
    """Write what is copied and generated, run `ninja`, and write the manifest; the caller holds the lock."""
    stamp = own_stamp()
    sources = read_sources(request.tree, request.quants, toolchain.machine)
    check_contents(contents, sources)
    prepare(folder, request, sources, [sources.cases[name] for name in contents.kernels])
    for name in ("bin", "lib", "obj"):
        (folder / name).mkdir(exist_ok=True)
    if toolchain.cudart and not (folder / "lib" / toolchain.cudart.name).is_file():
        shutil.copyfile(toolchain.cudart, folder / "lib" / toolchain.cudart.name)
    write_if_changed(folder / "build.ninja", make_plan(request, toolchain, contents, sources).render())
    ninja(folder)
    if request.engine == "cuda":
        write_if_changed(folder / REGISTERS, json.dumps(read_registers(folder), indent=1) + "\n")
    manifest = new_manifest(request, toolchain, contents, stamp)
    write_if_changed(folder / MANIFEST, manifest.to_json())
    return Build(folder, manifest, request)


def check_contents(contents: Contents, sources: Sources) -> None:
    """Refuse programs and kernels that the tree does not have."""
    unknown = [name for name in contents.programs if name not in PROGRAMS]
    if unknown:
        raise InputError(f"there is no program {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    absent = [name for name in contents.kernels if name not in sources.cases]
    if absent:
        raise InputError(f"this source has no kernel case {absent[0]!r} in its template-instances/")


def make_plan(request: BuildRequest, toolchain: Toolchain, contents: Contents, sources: Sources) -> Plan:
    """The steps of a build."""
    cudart = toolchain.cudart.name if toolchain.cudart else None
    return Planner(Flags(request, toolchain, sources), contents, native_files(), cudart).plan()


def plan_build(
    request: BuildRequest,
    kernels: Iterable[KernelCase] = (),
    programs: Iterable[str] = (RUNNER,),
    *,
    full: bool = False,
) -> tuple[Path, Plan]:
    """The folder and the steps of a build from nothing; nothing is written."""
    toolchain = find_toolchain(request.engine)
    contents = Contents(tuple(case.name for case in kernels), (), tuple(programs), full)
    sources = read_sources(request.tree, request.quants, toolchain.machine)
    check_contents(contents, sources)
    return folder_of(request, key_of(request, toolchain)), make_plan(request, toolchain, contents, sources)


def new_manifest(request: BuildRequest, toolchain: Toolchain, contents: Contents, stamp: str) -> Manifest:
    """The manifest of a build that has just been made."""
    return Manifest(
        source=request.tree.spec,
        build_number=request.tree.build_number,
        tree=request.tree.digest,
        engine=request.engine,
        flavour=request.flavour,
        arch=request.arch,
        sanitize=request.sanitize,
        patches=tuple(patch.name for patch in request.applied),
        quants=request.quants,
        compilers=toolchain.versions,
        contents=contents,
        stamp=stamp,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def read_registers(folder: Path) -> dict[str, int]:
    """Registers a thread of each kernel (mangled name), as ptxas said when it compiled them."""
    texts = [path.read_text(errors="replace") for path in sorted((folder / "obj").rglob("*.cu.o.log"))]
    return {name: int(count) for text in texts for name, count in ENTRY.findall(text)}


def add_missing(build: Build, symbol: str, progress: Report = silent, jobs: int | None = None) -> Build:
    """Compile in what defines a symbol that a program of this build missed (exit status 87), and link again.

    A symbol that no file of the tree defines is a BuildError that names it, as is a build opened without its source.
    """
    name = demangle(symbol)
    if build.request is None:
        raise BuildError(f"{build.folder} is a copy, made without {name}: build it with that, and copy again")
    sources = read_sources(build.request.tree, build.request.quants, find_toolchain(build.request.engine).machine)
    case = case_of(name, sources.cases.values(), ggml_types(build.request.tree))
    file = None if case else defining_source(name, build.request.tree.root / CUDA)
    has = build.manifest.contents
    if (case is None and file is None) or (case and case.name in has.kernels) or file in (*has.sources, *sources.cuda):
        raise BuildError(f"a program needs {name} ({symbol}), and no file of {build.request.tree.spec} defines it")
    return ensure(
        build.request,
        [case] if case else [],
        has.programs,
        sources=[file] if file else [],
        progress=progress,
        jobs=jobs,
    )


def open_build(folder: Path) -> Build:
    """The build in a folder that `export` made, or in the cache."""
    build = existing(folder, None)
    if build is None:
        raise InputError(f"{folder} has no {MANIFEST}: it is not a build of fattn-probe")
    return build


def export(build: Build, folder: Path) -> Build:
    """Copy what runs, and the sources it was made from, to a new folder that works on another machine."""
    if folder.exists():
        raise InputError(f"{folder} exists already")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as name:
        part = Path(name) / "build"
        for item in ("bin", "lib", OVERLAY):
            shutil.copytree(build.folder / item, part / item)
        for file in (MANIFEST, REGISTERS):
            if (build.folder / file).is_file():
                shutil.copyfile(build.folder / file, part / file)
        part.rename(folder)
    return replace(build, folder=folder, request=None)
