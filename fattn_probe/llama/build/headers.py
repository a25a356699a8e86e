"""CUDA's headers for the simulator: from PyPI's wheels, or from a CUDA toolkit on this machine."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.base.host import read

HEADERS = {
    "nvidia-cuda-runtime": "cuda_runtime_api.h",
    "nvidia-cuda-crt": "crt/host_defines.h",
    "nvidia-cuda-cccl": "nv/target",
}
"""One header from each wheel; a toolkit has all of these."""
MAJOR = 13
"""The CUDA version of the simulator's tests, which use the oldest and newest wheels that pyproject.toml allows."""
SYSTEM = Path("/usr/local/cuda")
OR_TOOLKIT = f"or set CUDA_HOME to a toolkit of CUDA {MAJOR}"
INSTALL_HEADERS = f"install them: `pip install {' '.join(HEADERS)}`, {OR_TOOLKIT}"


@dataclass(frozen=True)
class Headers:
    """A folder with all headers, and their version: those of the three wheels, or `toolkit-13.0.88`."""

    include: Path
    version: str


def wheel_root() -> Path | None:
    """The folder of PyPI's CUDA wheels, site-packages/nvidia/cu13, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((path for folder in folders if (path := Path(folder) / f"cu{MAJOR}").is_dir()), None)


def toolkit_roots() -> Iterator[Path]:
    """Folders that may contain a toolkit (bin/nvcc, include), starting with those that the user names."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(name):
            yield Path(value)
    if found := shutil.which("nvcc"):
        yield Path(found).resolve().parent.parent
    yield SYSTEM


def find_headers() -> Headers | None:
    """The headers of the wheels if complete, or those of the first toolkit of CUDA version MAJOR, or None."""
    if wheels := wheel_headers():
        return wheels
    for root in toolkit_roots():
        # The version of the toolkit's runtime: `13.0.96` from version.json, or `13.0` from the headers, or empty.
        listed = re.search(r'"cuda_cudart"\s*:\s*\{[^}]*"version"\s*:\s*"([\d.]+)"', read(root / "version.json"))
        defined = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", read(root / "include/cuda_runtime_api.h"))
        number = int(defined[1]) if defined else 0
        version = listed[1] if listed else f"{number // 1000}.{number % 1000 // 10}" if number else ""
        if len(present(root)) == len(HEADERS) and version.partition(".")[0] == str(MAJOR):
            return Headers(root / "include", f"toolkit-{version}")
    return None


def wheel_headers() -> Headers | None:
    """The headers of the wheels; None if one of them is missing."""
    root, versions = wheel_root(), [_version(wheel) for wheel in HEADERS]
    if root is None or None in versions or len(present(root)) < len(HEADERS):
        return None
    return Headers(root / "include", "-".join(filter(None, versions)))


def present(root: Path) -> dict[str, Path]:
    """The paths of the HEADERS that exist in the include folder of a toolkit or of the wheels, by wheel."""
    paths = {wheel: root / "include" / file for wheel, file in HEADERS.items()}
    return {wheel: path for wheel, path in paths.items() if path.is_file()}


def _version(wheel: str) -> str | None:
    try:
        return importlib.metadata.version(wheel)
    except importlib.metadata.PackageNotFoundError:
        return None
