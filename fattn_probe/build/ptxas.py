"""What ptxas reports of each kernel that nvcc compiles (`-Xptxas -v`)."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fattn_probe.device.resources import Resources

ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'"
    r"(?:(?!Compiling entry)[\s\S])*?(?P<local>\d+) bytes stack frame"
    r"(?:(?!Compiling entry)[\s\S])*?Used (?P<registers>\d+) registers(?P<rest>.*)"
)
SHARED = re.compile(r"(\d+) bytes smem")


def read_resources(folder: Path) -> dict[str, Resources]:
    """The resources of each kernel (by mangled name) in the logs of a build."""
    logs = sorted((folder / "obj").rglob("*.cu.o.log"))
    return dict(found for log in logs for found in parse_log(log.read_text(errors="replace")))


def parse_log(text: str) -> Iterator[tuple[str, Resources]]:
    """The kernels, by mangled name, and their resources in one log of nvcc."""
    for entry in ENTRY.finditer(text):
        shared = SHARED.search(entry["rest"])
        yield entry["name"], Resources(int(entry["registers"]), int(shared[1]) if shared else 0, int(entry["local"]))


def as_json(resources: Mapping[str, Resources]) -> dict[str, str]:
    """The resources as a build's folder has them: `registers/shared/local` by mangled name."""
    return {name: str(found) for name, found in resources.items()}
