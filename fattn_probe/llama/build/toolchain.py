"""Find the compilers on this machine: g++, and nvcc from the system or from PyPI's wheels."""

import functools
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from ctypes.util import find_library as find_system_library
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.base.cache import Kind, cache_dir, get_or_make
from fattn_probe.base.errors import BuildError
from fattn_probe.base.files import copy_tree
from fattn_probe.base.process import run
from fattn_probe.llama.build.ccache import find_ccache
from fattn_probe.llama.build.headers import (
    INSTALL_HEADERS,
    Headers,
    find_headers,
    toolkit_roots,
    wheel_headers,
    wheel_root,
)

HEADERS = Kind("headers", "the copy of CUDA's headers")
CUDART, CUBLAS = "cudart", "cublas"
INSTALL_GXX = "install it: `sudo apt install g++`"
INSTALL_NVCC = "install a CUDA toolkit, or the packages from PyPI: `pip install 'fattn-probe[cuda]'`"


@dataclass(frozen=True)
class Toolchain:
    """The paths of compilers and CUDA files; `nvcc` and `cudart` (the shared library) are None for the simulator.

    `ccache` is None if it is not installed.
    """

    cc: str
    cxx: str
    versions: tuple[str, ...]
    machine: str
    cuda_include: Path
    nvcc: Path | None = None
    cudart: Path | None = None
    ccache: Path | None = None

    @property
    def path(self) -> str:
        """$PATH for a build.

        Commands name ccache, nvcc and python3 without their folders, because these differ between environments that
        share the cache, and ninja repeats a step whose command has changed.
        """
        own = [tool.parent for tool in (self.ccache, self.nvcc, Path(sys.executable)) if tool is not None]
        return os.pathsep.join([*map(str, own), *os.get_exec_path()])


def cuda_roots() -> Iterator[Path]:
    """Folders that may contain nvcc: the folders of toolkits, then the folder of the wheels."""
    yield from toolkit_roots()
    if wheels := wheel_root():
        yield wheels


def find_library(root: Path, name: str) -> Path | None:
    """The path of libNAME.so.N in a toolkit or in the wheels; None if it is missing."""
    folders = [root / "lib64", root / "lib", *sorted(root.glob("targets/*/lib"))]
    return next((path for folder in folders for path in sorted(folder.glob(f"lib{name}.so.[0-9][0-9]"))), None)


def find_cublas() -> Path | None:
    """The path of cuBLAS in the first toolkit that has it, or in the wheels; or None."""
    return next(filter(None, (find_library(root, CUBLAS) for root in cuda_roots())), None)


def has_cublas() -> bool:
    """Whether a program can load cuBLAS: from a toolkit, or from the dynamic linker's own paths."""
    return find_cublas() is not None or find_system_library(CUBLAS) is not None


def library_path() -> str:
    """$LD_LIBRARY_PATH with the folder of `find_cublas` first; empty if cuBLAS was not found."""
    found = find_cublas()
    return os.pathsep.join(filter(None, (str(found.parent), os.environ.get("LD_LIBRARY_PATH")))) if found else ""


def find_toolchain(engine: str) -> Toolchain:
    """The toolchain for an engine; if a part is missing, BuildError says what to install."""
    machine = platform.machine()
    cxx, cc = shutil.which("g++"), shutil.which("gcc")
    if cxx is None or cc is None:
        raise BuildError(f"g++ is not installed; {INSTALL_GXX}")
    gxx = version_of(cxx)
    if not gxx:
        raise BuildError(f"{cxx} does not report its version: it is not g++; {INSTALL_GXX}")
    if engine == "cuda":
        # The first nvcc of `cuda_roots` that comes with its runtime library.
        for root in cuda_roots():
            nvcc, cudart = root / "bin/nvcc", find_library(root, CUDART)
            if nvcc.is_file() and cudart:
                version = version_of(nvcc)
                wheels = wheel_headers() if root == wheel_root() else None
                include = cached_headers(wheels) if wheels else root / "include"
                return Toolchain(cc, cxx, (gxx, version), machine, include, nvcc, cudart, find_ccache())
        raise BuildError(f"nvcc is not installed; {INSTALL_NVCC}")
    headers = find_headers()
    if headers is None:
        raise BuildError(f"the CUDA headers are not installed; {INSTALL_HEADERS}")
    return Toolchain(cc, cxx, (gxx,), machine, cached_headers(headers), ccache=find_ccache())


def cached_headers(headers: Headers) -> Path:
    """A copy of CUDA's headers in the cache, made once for each version.

    This path appears in every command line of a build. If it were inside a Python environment, two environments that
    share the cache would recompile each other's objects.
    """
    return _headers_in(cache_dir(), headers)


@functools.cache
def _headers_in(_cache: Path, headers: Headers) -> Path:
    return get_or_make(HEADERS, headers.version, functools.partial(copy_tree, headers.include))


@functools.cache
def version_of(compiler: str | Path) -> str:
    """The version from a compiler's `--version`: `nvcc V13.0.88`, or g++'s first line."""
    text = run([compiler, "--version"]).stdout
    release = re.search(r"release \S+ (V[\d.]+)", text)
    return f"nvcc {release.group(1)}" if release else text.partition("\n")[0]
