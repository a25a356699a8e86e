"""Facts about this machine; only `probe` examines it."""

import contextlib
import ctypes
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fattn_probe.base.cache import cache_dir
from fattn_probe.base.errors import FattnProbeError
from fattn_probe.base.host import cores
from fattn_probe.base.process import run
from fattn_probe.llama.build.ccache import Usage, find_ccache, usage
from fattn_probe.llama.build.headers import find_headers, present, wheel_root
from fattn_probe.llama.build.toolchain import cuda_roots

TOOLS = ("g++", "addr2line", "gdb", "git", "ninja", "ccache", "cmake", "nvcc", "cuda-gdb", "ncu", "cuobjdump")
PACKAGES = ("ninja", "cmake")
"""Tools that may be installed from PyPI."""
PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class Tool:
    """A program on this machine: its path, and the version it prints (zeros if it prints none)."""

    path: str
    version: tuple[int, ...]


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU: the driver's name for it, and its compute capability, such as `9.0`."""

    name: str
    cc: str


@dataclass(frozen=True)
class MachineFacts:
    """The facts that `probe` found: `tools` by name, `headers` and `packages` by PyPI name, if present."""

    system: str
    machine: str
    cpu_flags: frozenset[str]
    cores: int
    python: tuple[int, ...]
    distribution: tuple[str, ...]
    tools: Mapping[str, Tool]
    packages: Mapping[str, str]
    headers: Mapping[str, str]
    gdb_python: bool
    driver: str | None
    gpus: tuple[Gpu, ...]
    cache: str
    cache_writable: bool
    cache_free: int
    gpu_problem: str = field(default="")
    shared: Usage | None = None
    """How often builds reused objects through ccache; None without a working ccache."""


def probe() -> MachineFacts:
    """Examine this machine: run each tool once with `--version`, and query the NVIDIA driver for its GPUs."""
    tools = {name: tool for name in TOOLS if (tool := find_tool(name)) is not None}
    driver, gpus, problem = find_gpus()
    folder, ccache, shared = cache_dir(), find_ccache(), None
    with contextlib.suppress(FattnProbeError):
        shared = usage(ccache) if ccache else None
    packages: dict[str, str] = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
    gdb_python = False
    if "gdb" in tools:
        words = [tools["gdb"].path, "--batch", "-nx", "-ex", "python print('python works')"]
        with contextlib.suppress(FattnProbeError):
            gdb_python = "python works" in run(words, timeout=PROBE_SECONDS, failure=None).stdout
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return MachineFacts(
        system=platform.system(),
        machine=platform.machine(),
        cpu_flags=cpu_flags(_text("/proc/cpuinfo")),
        cores=cores(),
        python=sys.version_info[:3],
        distribution=distribution(_text("/etc/os-release")),
        tools=tools,
        packages=packages,
        headers=headers_here(),
        gdb_python=gdb_python,
        driver=driver,
        gpus=gpus,
        gpu_problem=problem,
        cache=str(folder),
        cache_writable=os.access(existing, os.W_OK),
        cache_free=shutil.disk_usage(existing).free,
        shared=shared,
    )


def version_of(text: str) -> tuple[int, ...]:
    """Parse `--version` output: the version in nvcc's release line, otherwise the first dotted number."""
    release = re.search(r"release \d+\.\d+, V(\d+(?:\.\d+)+)", text)
    lines = (re.sub(r"\([^()]*\)", "", line) for line in text.splitlines())
    found = release or next((match for line in lines if (match := re.search(r"(\d+(?:\.\d+)+)", line))), None)
    return tuple(int(part) for part in found[1].split(".")) if found else (0,)


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The instruction-set flags of the first processor in /proc/cpuinfo."""
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return frozenset(line[1].split()) if line else frozenset()


def distribution(os_release: str) -> tuple[str, ...]:
    """ID, then each word of ID_LIKE, from /etc/os-release: (`ubuntu`, `debian`)."""
    pairs = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    return tuple(f"{pairs.get('ID', '')} {pairs.get('ID_LIKE', '')}".replace('"', "").split())


def find_tool(name: str) -> Tool | None:
    """Find a program on the PATH, in a CUDA toolkit or NVIDIA's wheels, or in the folder of this Python."""
    tools = [str(root / "bin") for root in cuda_roots()]
    places = [*os.get_exec_path(), *tools, str(Path(sys.executable).parent)]
    path = shutil.which(name, path=os.pathsep.join(places))
    if path is None:
        return None
    try:
        done = run([path, "--version"], timeout=PROBE_SECONDS, failure=None)
    except FattnProbeError:
        return Tool(path, (0,))
    return Tool(path, version_of(done.stdout + done.stderr))


def headers_here() -> dict[str, str]:
    """The CUDA headers that builds use; if builds cannot use any, the headers of the installed wheels."""
    headers, wheels = find_headers(), wheel_root()
    root = headers.include.parent if headers else wheels
    return {wheel: str(path) for wheel, path in present(root).items()} if root else {}


def find_gpus() -> tuple[str | None, tuple[Gpu, ...], str]:
    """Query nvidia-smi or libcuda for (driver version, GPUs, reason if there are none)."""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version,compute_cap,name", "--format=csv,noheader"]
        try:
            done = run(query, timeout=PROBE_SECONDS, failure=None)
        except FattnProbeError as error:
            return None, (), str(error)
        if done.code == 0 and done.stdout.strip():
            return parse_smi(done.stdout)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, (), "no NVIDIA driver (libcuda.so.1 was not found)"
    number, name, major, minor = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    driver = f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"
    if code := cuda.cuInit(0):
        return driver, (), f"the NVIDIA driver has no usable GPU (cuInit returned {code})"
    cuda.cuDeviceGetCount(ctypes.byref(number))
    gpus = []
    for device in range(number.value):
        cuda.cuDeviceGetName(name, 256, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        gpus.append(Gpu(name.value.decode(), f"{major.value}.{minor.value}"))
    return driver, tuple(gpus), "" if gpus else "the NVIDIA driver lists no GPU"


def parse_smi(text: str) -> tuple[str | None, tuple[Gpu, ...], str]:
    """Parse nvidia-smi's reply to `driver_version,compute_cap,name`: CSV without a header."""
    rows = [[cell.strip() for cell in line.split(",", 2)] for line in text.splitlines() if line.count(",") >= 2]
    return (rows[0][0] if rows else None), tuple(Gpu(row[2], row[1]) for row in rows), ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
