"""Copy or generate the files of a build folder: the overlay, and fattn-probe's own C++."""

import functools
import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from fattn_probe.build.key import OVERLAY, BuildRequest
from fattn_probe.build.plan import STUBS_SCRIPT, Native, case_file, case_text
from fattn_probe.build.rewrite import rewrite
from fattn_probe.build.sources import CUDA, Sources
from fattn_probe.source import KernelCase, kept_files, patches

PACKAGE = Path(__file__).parent.parent
NATIVE = PACKAGE / "native"
CXX = PACKAGE / "cxx"
NATIVE_FOLDERS = ("cublas", "cuda", "runner", "sim")
NATIVE_SUFFIXES = (".h", ".hpp", ".cpp", ".inc", "")
ERRORS = "surrogateescape"  # comments of a tree need not be UTF-8
OVERLAY_STAMP = "overlay.stamp"  # in a build folder: the state of the overlay when it was made
OWN_CASES = "fattn-probe-*"  # generated files in the overlay
CUDA_SUFFIXES = (".cu", ".cuh", ".h")
CALLED = re.compile(r"\b(\w+)\s*\(")


def own_files() -> Iterator[Path]:
    """The files of fattn-probe that builds depend on: native/ without its data, and the code of build/ and cxx/."""
    for folder in NATIVE_FOLDERS:
        for path in sorted((NATIVE / folder).rglob("*")):
            if path.is_file() and path.suffix in NATIVE_SUFFIXES:
                yield path
    for room in (Path(__file__).parent, CXX):
        yield from sorted(room.glob("*.py"))


@functools.cache
def own_stamp() -> str:
    """A digest of fattn-probe's own files, the same for two checkouts of one commit."""
    digest = hashlib.sha256()
    for path in own_files():
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def native_files() -> Native:
    """The C++ files of the runner and of the simulator."""
    runner, sim = (
        tuple(path.relative_to(NATIVE).as_posix() for path in sorted((NATIVE / folder).glob("*.cpp")))
        for folder in ("runner", "sim")
    )
    return Native(runner, sim)


def known_ptx() -> frozenset[str]:
    """The names in `simt::ptx`: all that the simulator's headers that open this namespace declare or call."""
    names: set[str] = set()
    for path in (NATIVE / "sim").rglob("*.h"):
        text = path.read_text()
        if re.search(r"namespace (simt::)?ptx\b", text):
            names.update(CALLED.findall(text))
    return frozenset(names)


def prepare(folder: Path, request: BuildRequest, sources: Sources, cases: Iterable[KernelCase]) -> None:
    """Update the overlay and native/ of a build folder; unchanged files keep their modification times."""
    folder.mkdir(parents=True, exist_ok=True)
    renew_overlay(folder, request, sources)
    instances = folder / OVERLAY / CUDA / "template-instances"
    for case in cases:
        write_if_changed(instances / case_file(case), case_text(case))
    write_if_changed(folder / STUBS_SCRIPT.name, STUBS_SCRIPT.read_text())
    for path in own_files():
        if path.is_relative_to(NATIVE):
            write_if_changed(folder / "native" / path.relative_to(NATIVE), path.read_text())


def renew_overlay(folder: Path, request: BuildRequest, sources: Sources) -> None:
    """Update the overlay, unless it is as this fattn-probe left it; the folder is for one source and its patches."""
    overlay, stamp = folder / OVERLAY, folder / OVERLAY_STAMP
    if stamp.is_file() and stamp.read_text() == overlay_state(overlay):
        return
    with tempfile.TemporaryDirectory(prefix=".overlay-", dir=folder) as name:
        fresh = Path(name) / OVERLAY
        make_overlay(fresh, request, sources)
        settle(fresh, overlay, keep=OWN_CASES)
    stamp.write_text(overlay_state(overlay))


def overlay_state(overlay: Path) -> str:
    """A digest of the files of an overlay, by size and time, and of the fattn-probe that made them."""
    digest = hashlib.sha256(own_stamp().encode())
    for path in sorted(path for path in overlay.rglob("*") if path.is_file() and not path.match(OWN_CASES)):
        stat = path.stat()
        digest.update(f"\0{path.relative_to(overlay)} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()


def make_overlay(overlay: Path, request: BuildRequest, sources: Sources) -> None:
    """Copy the files of a tree that are built, apply the patches, and for the simulator rewrite ggml-cuda."""
    for path in kept_files(request.tree.root):
        target = overlay / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(request.tree.root / path, target)
    for patch in request.applied:
        patches.apply(patch, overlay)
    declare_cases(overlay / CUDA, sources.cases.values())
    version = f'#pragma once\n#define GGML_VERSION "{sources.version}"\n#define GGML_COMMIT "unknown"\n'
    (overlay / "ggml/src/ggml-version.h").write_text(version)
    if request.engine == "sim":
        rewrite_folder(overlay / CUDA)


def declare_cases(cuda: Path, cases: Iterable[KernelCase]) -> None:
    """Declare every case `extern` at the end of the header that defines it.

    Upstream's own list has gaps (head sizes 192 and 576 in October 2026), and fattn.cu then compiles those kernels a
    second time: 40 s of a debug build, most of its time.
    """
    lines: dict[str, list[str]] = {}
    for case in cases:
        lines.setdefault(case.header, []).append(f"extern {case.declaration}\n")
    for header, declarations in lines.items():
        if (cuda / header).is_file():
            with (cuda / header).open("a") as file:
                file.write("\n" + "".join(declarations))


def rewrite_folder(cuda: Path) -> None:
    """Rewrite every CUDA file below a folder to C++, in place."""
    known = known_ptx()
    for path in sorted(cuda.rglob("*")):
        if path.suffix in CUDA_SUFFIXES:
            path.write_text(rewritten(path.read_text(errors=ERRORS), path.name, known), errors=ERRORS)


@functools.lru_cache(maxsize=1000)
def rewritten(text: str, name: str, known_ptx: frozenset[str]) -> str:
    """The text of one file for the simulator; the builds that a process makes for several GPUs share it."""
    return rewrite(text, name, known_ptx).text


def settle(fresh: Path, target: Path, keep: str) -> None:
    """Make `target` equal to `fresh`; leaves equal files and files that match `keep` untouched."""
    if not target.exists():
        fresh.rename(target)
        return
    wanted = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
    for path in wanted:
        if not (target / path).is_file() or (target / path).read_bytes() != (fresh / path).read_bytes():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (fresh / path).replace(target / path)
    for path in [path for path in target.rglob("*") if path.is_file() and not path.match(keep)]:
        if path.relative_to(target) not in wanted:
            path.unlink()


def write_if_changed(path: Path, text: str) -> None:
    """Write a text file atomically, unless it already has this content."""
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)
