"""Find the compilers of this machine: g++, and nvcc from the system or from PyPI's wheels."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from ctypes.util import find_library as find_system_library
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.build.ccache import find_ccache
from fattn_probe.cache import cache_dir
from fattn_probe.errors import BuildError
from fattn_probe.process import run

HEADER_WHEELS = ("nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
CUDART, CUBLAS = "cudart", "cublas"
INSTALL_GXX = "install it: `sudo apt install g++`"
INSTALL_HEADERS = "install them: `pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl`"
INSTALL_NVCC = "install a CUDA toolkit, or PyPI's: `pip install 'fattn-probe[cuda]'`"


@dataclass(frozen=True)
class Toolchain:
    """Compilers and CUDA files; `nvcc` and `cudart` (the shared library) are None for the simulator.

    `ccache` is None where it is not installed or not wanted.
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

        Commands name ccache, nvcc and python3 without a folder: two environments that share the cache have them in
        different places, and a command that changes is a step to run again.
        """
        own = [tool.parent for tool in (self.ccache, self.nvcc, Path(sys.executable)) if tool is not None]
        return os.pathsep.join([*map(str, own), *os.get_exec_path()])


def wheel_root() -> Path | None:
    """site-packages/nvidia/cu13, the folder of PyPI's CUDA wheels, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((path for folder in folders if (path := Path(folder) / "cu13").is_dir()), None)


def cuda_roots() -> Iterator[Path]:
    """Folders that may hold a toolkit (bin/nvcc); those that the user names come first."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(name):
            yield Path(value)
    yield Path("/usr/local/cuda")
    if found := shutil.which("nvcc"):
        yield Path(found).resolve().parent.parent
    if wheels := wheel_root():
        yield wheels


def find_library(root: Path, name: str) -> Path | None:
    """libNAME.so.N of a toolkit, or of the wheels."""
    folders = [root / "lib64", root / "lib", *sorted(root.glob("targets/*/lib"))]
    return next((path for folder in folders for path in sorted(folder.glob(f"lib{name}.so.[0-9][0-9]"))), None)


def find_cublas() -> Path | None:
    """cuBLAS of the first toolkit, or of the wheels, that has it."""
    return next(filter(None, (find_library(root, CUBLAS) for root in cuda_roots())), None)


def has_cublas() -> bool:
    """Whether a program can open cuBLAS: a toolkit's, or one that the dynamic linker knows."""
    return find_cublas() is not None or find_system_library(CUBLAS) is not None


def library_path() -> str:
    """$LD_LIBRARY_PATH with the folder of a toolkit's cuBLAS in front; empty if there is none."""
    found = find_cublas()
    return os.pathsep.join(filter(None, (str(found.parent), os.environ.get("LD_LIBRARY_PATH")))) if found else ""


def find_toolchain(engine: str) -> Toolchain:
    """The toolchain for an engine; BuildError with what to install if a part is missing."""
    machine = platform.machine()
    cxx, cc = shutil.which("g++"), shutil.which("gcc")
    if cxx is None or cc is None:
        raise BuildError(f"g++ is not on this machine; {INSTALL_GXX}")
    gxx = version_line(run([cxx, "--version"]).stdout)
    if not gxx:
        raise BuildError(f"{cxx} does not tell its version: it is not g++; {INSTALL_GXX}")
    if engine == "cuda":
        return find_cuda(cc, cxx, gxx, machine)
    wheels = wheel_root()
    if wheels is None or not (wheels / "include/cuda_runtime.h").is_file():
        raise BuildError(f"the CUDA headers are not on this machine; {INSTALL_HEADERS}")
    return Toolchain(cc, cxx, (gxx,), machine, cached_headers(wheels / "include"), ccache=find_ccache())


def cached_headers(include: Path) -> Path:
    """A copy of the wheels' headers in the cache, made once for each version of the wheels.

    Its path stands in every command line of a build. The path of an environment would make two environments that share
    the cache recompile each other's objects. BuildError where a wheel is missing.
    """
    try:
        versions = [importlib.metadata.version(wheel) for wheel in HEADER_WHEELS]
    except importlib.metadata.PackageNotFoundError as error:
        raise BuildError(f"the CUDA headers of {error.name} are not on this machine; {INSTALL_HEADERS}") from None
    folder = cache_dir() / "-".join(["headers", *versions])
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            shutil.copytree(include, part / "include").rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def find_cuda(cc: str, cxx: str, gxx: str, machine: str) -> Toolchain:
    """g++ and the first nvcc of `cuda_roots` that comes with its runtime library."""
    for root in cuda_roots():
        nvcc, cudart = root / "bin/nvcc", find_library(root, CUDART)
        if nvcc.is_file() and cudart:
            version = version_line(run([nvcc, "--version"]).stdout)
            include = cached_headers(root / "include") if root == wheel_root() else root / "include"
            return Toolchain(cc, cxx, (gxx, version), machine, include, nvcc, cudart, find_ccache())
    raise BuildError(f"nvcc is not on this machine; {INSTALL_NVCC}")


def version_line(text: str) -> str:
    """The line of `--version` with the version: the release line of nvcc, the first line of g++."""
    release = re.search(r"release \S+ (V[\d.]+)", text)
    return f"nvcc {release.group(1)}" if release else text.partition("\n")[0]
