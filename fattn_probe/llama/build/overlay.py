"""Write the files of a build folder: the overlay (the changed copy of a tree), and fattn-probe's own C++."""

import functools
import re
import shutil
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from fattn_probe.base.cache import Growth, Kind, part, read_document, write_document
from fattn_probe.base.digest import files_of, hexdigest, status_of
from fattn_probe.base.errors import BuildError
from fattn_probe.base.host import cores
from fattn_probe.base.workers import Died, Workers, simply
from fattn_probe.cases.device import is_amd
from fattn_probe.llama.build.key import OVERLAY, BuildRequest, Contents, kernels_apart
from fattn_probe.llama.build.plan import (
    STUBS_SCRIPT,
    body_text,
    case_file,
    case_text,
    common_text,
    derived,
    launches_text,
)
from fattn_probe.llama.build.precompiled import HEADERS, QUICK_HEADERS, TEXT, digest_line
from fattn_probe.llama.build.rewrite import Style, rewrite
from fattn_probe.llama.build.rewrite_kernels import Bodies
from fattn_probe.llama.build.simulator_flags import HIP_HEADERS
from fattn_probe.llama.build.sources import (
    BODY_PREFIX,
    COMMON,
    COMMON_OF,
    CONVERSIONS,
    CONVERSIONS_TO_F16,
    CUDA,
    DISPATCH,
    DISPATCH_OF_TILES,
    INSTANCES,
    KERNELS,
    LAUNCHES,
    LAUNCHES_PREFIX,
    LIBLLAMA,
    TO_OTHER_TYPES,
    Sources,
    is_joined,
)
from fattn_probe.llama.build.stamp import NATIVE, own_files, own_stamp
from fattn_probe.llama.cxx.includes import INCLUDE, included
from fattn_probe.llama.source import KernelCase, kept_files, model_files, patches
from fattn_probe.llama.source.features import kernel_parameters
from fattn_probe.llama.source.tree import digest_files

ERRORS = "surrogateescape"  # comments in a tree may not be UTF-8
OVERLAY_STAMP = "overlay.stamp"  # in a build folder: a digest of the overlay's state when it was written
OWN_CASES = "/fattn-probe-"  # occurs in the paths of generated files in the overlay
ATTENTION = "fattn"
REWRITTEN = Kind("rewritten", "the rewritten file")
Task = tuple[str, str, Style]  # a file to rewrite: its text, its name, and how to rewrite it
FEW = 16  # rewriting up to this many files takes less time than starting processes
VENDOR = "hip.h"
"""A file in vendors/ that defines CUDA's names for hipcc."""
NAME = re.compile(r"^#define (\w+)[ \t]+(\w+)$", re.MULTILINE)
CALLED = re.compile(r"\b(\w+)\s*\(")


@functools.cache
def known_ptx() -> frozenset[str]:
    """The names in `simt::ptx`: everything that the simulator's headers for this namespace declare or call."""
    names: set[str] = set()
    for path in (NATIVE / "sim").rglob("*.h"):
        text = path.read_text()
        if re.search(r"namespace (simt::)?ptx\b", text):
            names.update(CALLED.findall(text))
    return frozenset(names)


def prepare(growth: Growth, request: BuildRequest, sources: Sources, contents: Contents) -> None:
    """Update the overlay and native/ in a build folder; unchanged files keep their modification times."""
    growth.folder.mkdir(parents=True, exist_ok=True)
    renew_overlay(growth, request, sources, contents)
    cuda = f"{OVERLAY}/{CUDA}"
    write_native(growth)
    headers_line = ""
    if kernels_apart(request.engine, request.flavour):
        for name in (HEADERS, QUICK_HEADERS):
            growth.write(f"{cuda}/{name}", TEXT)
        headers_line = digest_line(growth.folder, (growth.folder / OVERLAY_STAMP).read_text())
    for case in map(sources.kernel, contents.kernels):
        growth.write(f"{cuda}/{INSTANCES}/{case_file(case.name)}", headers_line + case_text(case))
    if request.engine == "sim":
        common = kernel_parameters(growth.folder / OVERLAY, COMMON)
        for file in (*derived(contents, sources), *contents.sources):
            if LAUNCHES_PREFIX in file:
                growth.write(f"{cuda}/{file}", launches_text(sources.launched_by(file)))
            elif COMMON_OF.search(file):
                growth.write(f"{cuda}/{file}", headers_line + common_text(file, sources.launched_by(file), common))
        headers = sorted({case.header for case in sources.cases.values()})
        for file in contents.sources:
            if BODY_PREFIX in file:
                growth.write(f"{cuda}/{file}", body_text(file, headers))
    for unit, files in sources.libllama.items() if contents.has_libllama else ():
        if files != (unit,):
            growth.write(f"{OVERLAY}/{LIBLLAMA}/{unit}", "".join(f'#include "{name}"\n' for name in files))
    growth.write(STUBS_SCRIPT.name, STUBS_SCRIPT.read_text())


@functools.cache
def native_texts() -> dict[str, str]:
    """The text of each of fattn-probe's own C++ files, by its path in a build folder."""
    own = [path for path in own_files() if path.is_relative_to(NATIVE)]
    return {f"native/{path.relative_to(NATIVE)}": path.read_text() for path in own}


def write_native(growth: Growth) -> None:
    """Copy fattn-probe's own C++ to native/ in a build folder."""
    for name, text in native_texts().items():
        growth.write(name, text)


def renew_overlay(growth: Growth, request: BuildRequest, sources: Sources, contents: Contents) -> None:
    """Update the overlay unless it is up to date; a build folder belongs to one source with its patches."""
    overlay, stamp = growth.folder / OVERLAY, growth.folder / OVERLAY_STAMP
    # The compiled files, without generated ones, which only include the others and do not affect the overlay.
    compiled = {case.header for case in sources.cases.values()}
    compiled |= {CONVERSIONS, *(sources.full if contents.full else (*sources.cuda, *contents.sources))}
    files = sorted(file for file in compiled if OWN_CASES not in f"/{file}")
    if stamp.is_file() and stamp.read_text() == overlay_state(overlay, [*files, contents.libllama]):
        return
    models = model_files(request.tree.root) if contents.has_libllama else ()
    with part() as made:
        fresh = made / OVERLAY
        make_overlay(fresh, request, sources, files, models)
        settle(growth, fresh)
    growth.write(OVERLAY_STAMP, overlay_state(overlay, [*files, contents.libllama]))


def overlay_state(overlay: Path, compiled: list[str]) -> str:
    """A digest of the overlay's files (sizes and times), of the list of compiled files, and of fattn-probe's files."""
    files = sorted(path for path in files_of(overlay) if OWN_CASES not in f"/{path}")
    found = ("{} {} {}".format(path, *status_of(f"{overlay}/{path}")[:2]) for path in files)
    return hexdigest("\0".join((own_stamp(), *compiled, *found)))


def make_overlay(
    overlay: Path, request: BuildRequest, sources: Sources, compiled: Iterable[str], models: Iterable[PurePosixPath]
) -> None:
    """Copy a tree's files for the build, apply the patches, and rewrite the compiled files for the simulator.

    BuildError if the tree no longer has the request's digest: the build would mix two versions.
    """
    kept = list(kept_files(request.tree.root))
    for path in (*kept, *models):
        target = overlay / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(request.tree.root / path, target)
    if digest_files(overlay, kept) != request.tree.digest:
        raise BuildError(f"source {request.tree.spec!r}: its files changed during this command; run it again")
    for patch in request.applied:
        patches.apply(patch, overlay)
    declare_cases(overlay / CUDA, sources.cases.values())
    version = f'#pragma once\n#define GGML_VERSION "{sources.version}"\n#define GGML_COMMIT "unknown"\n'
    (overlay / "ggml/src/ggml-version.h").write_text(version)
    if (overlay / "src").is_dir():
        number = f'#pragma once\n#define LLAMA_VERSION "{request.tree.build_number}"\n#define LLAMA_COMMIT "unknown"\n'
        (overlay / "src/llama-version.h").write_text(number)
    if request.engine == "sim":
        cuda = overlay / CUDA  # the attention kernels include only a third of it
        paths = included([cuda / name for name in compiled], (cuda, cuda.parent), cuda)
        hip = is_amd(request.arch)  # for HIP, ggml's CMakeLists.txt does not set -ffast-math
        style = Style(not hip, apart=kernels_apart(request.engine, request.flavour), hip=hip)
        rewrite_files(paths, style)
        if (conversions := cuda / CONVERSIONS).is_file():
            text = f'#line 1 "{OVERLAY}/{CUDA}/{CONVERSIONS}"\n{conversions.read_text(errors=ERRORS)}'
            text = TO_OTHER_TYPES.sub(lambda match: "\n" * match[0].count("\n"), text)
            (cuda / CONVERSIONS_TO_F16).write_text(text, errors=ERRORS)
        if style.apart and is_joined(request.tree, request.applied):
            text = (cuda / LAUNCHES / DISPATCH_OF_TILES).read_text(errors=ERRORS)
            with (cuda / LAUNCHES / DISPATCH).open("a", errors=ERRORS) as file:  # it includes the headers already
                file.write("\n" + INCLUDE.sub("", text))


def declare_cases(cuda: Path, cases: Iterable[KernelCase]) -> None:
    """Declare every kernel case `extern` at the end of the header that defines its macro.

    Upstream's own list has gaps (head sizes 192 and 576 in October 2026), so fattn.cu would compile those kernels a
    second time: 40 s, most of the time that a debug build takes.
    """
    lines: dict[str, list[str]] = {}
    for case in cases:
        lines.setdefault(case.header, []).append(f"extern {case.declaration}\n")
    for header, declarations in lines.items():
        if (cuda / header).is_file():
            with (cuda / header).open("a") as file:
                file.write("\n" + "".join(declarations))


def rewrite_files(paths: Iterable[Path], style: Style) -> None:
    """Rewrite CUDA files as C++, in place; if kernels are compiled separately, attention files get a second version.

    The second version of a header launches the kernels but has no bodies, so a change in a body does not change it. The
    kernels of COMMON, which run alongside others, have their bodies only in a third version. To debuggers and
    compilers, all versions have the name and line numbers of the first.
    """
    tasks = dict[Path, Task]()
    for path in paths:
        if path.suffix in (".cu", ".cuh", ".h"):
            text, is_common = path.read_text(errors=ERRORS), style.apart and path.name == COMMON
            made: dict[str, Bodies] = {"": "device" if is_common else style.bodies}
            if style.apart and path.name.startswith(ATTENTION):
                made[LAUNCHES] = "none" if path.suffix == ".cuh" else "all"
            if is_common:
                made[KERNELS] = "kernels"
            for folder, bodies in made.items():
                tasks[path.parent / folder / path.name] = text, path.name, replace(style, bodies=bodies)
    for path, text in zip(tasks, rewritten(tuple(tasks.values())), strict=True):
        line = f'#line 1 "{OVERLAY}/{CUDA}/{path.name}"\n' if path.parent.name in (LAUNCHES, KERNELS) else ""
        path.parent.mkdir(exist_ok=True)
        path.write_text(line + text, errors=ERRORS)


@functools.lru_cache(maxsize=4)
def rewritten(tasks: tuple[Task, ...]) -> list[str]:
    """The text of each file after rewriting.

    Rewriting all files takes two seconds, so the results are cached for trees in which only a few files change.
    """
    keys = {task: hexdigest((f"{own_stamp()}\0{task[1]}\0{task[2]}\0", task[0])) for task in tasks}
    found = {task: kept for task, key in keys.items() if (kept := read_document(REWRITTEN, key)) is not None}
    missing = [task for task in tasks if task not in found]
    with Workers[Task, bytes](functools.partial(simply, packed), cores()) as pool:
        for task, made in pool.answers(missing) if len(missing) > FEW else ((task, packed(task)) for task in missing):
            found[task] = packed(task) if isinstance(made, Died) else made
            write_document(REWRITTEN, keys[task], found[task])
    return [zlib.decompress(found[task]).decode(errors=ERRORS) for task in tasks]


def packed(task: Task) -> bytes:
    """The rewritten text of one file, compressed."""
    text, name, style = task
    if name == VENDOR:
        # This header defines CUDA's names as HIP's names, and the simulator's HIP headers define HIP's as CUDA's.
        # A macro does not expand within itself, so HIP's name would remain.
        headers = (path.read_text() for path in (NATIVE / HIP_HEADERS).rglob("*.h"))
        names = {hip: cuda for header in headers for hip, cuda in NAME.findall(header)}
        text = NAME.sub(lambda match: "" if names.get(match[2]) == match[1] else match[0], text)
    return zlib.compress(rewrite(text, name, known_ptx(), style).text.encode(errors=ERRORS))


def settle(growth: Growth, fresh: Path) -> None:
    """Make the overlay a copy of `fresh`; identical files and generated files stay untouched."""
    target, wanted = growth.folder / OVERLAY, set(files_of(fresh))
    if not target.exists():
        fresh = fresh.rename(target)
    for path in wanted:
        equal = (target / path).is_file() and (target / path).read_bytes() == (fresh / path).read_bytes()
        if not equal:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (fresh / path).replace(target / path)
        if not equal or f"{OVERLAY}/{path}" not in growth.recorded:
            growth.changed.add(f"{OVERLAY}/{path}")
    for path in {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()} - wanted:
        if OWN_CASES not in f"/{path}":
            growth.remove(f"{OVERLAY}/{path}")
