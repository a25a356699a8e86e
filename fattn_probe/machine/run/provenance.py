"""The provenance of a capture: the versions of the packages that created it, and of the driver."""

import functools
import platform
import re
from importlib import metadata
from pathlib import Path

DRIVER_FILE = Path("/proc/driver/nvidia/version")
DRIVER = re.compile(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", re.MULTILINE)


@functools.cache
def versions() -> dict[str, str]:
    """The versions of this package, of the packages that generate inputs, and of Python."""
    return {name: version(name) for name in ("fattn-probe", "numpy", "gguf")} | {"python": platform.python_version()}


@functools.cache
def version(name: str) -> str:
    """The version of a package; "not installed" for fattn-probe in a checkout without metadata."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def driver(file: Path = DRIVER_FILE) -> str | None:
    """The version of the loaded NVIDIA driver; None without a driver."""
    match = DRIVER.search(file.read_text()) if file.exists() else None
    return match[1] if match else None
