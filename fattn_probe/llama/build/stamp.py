"""fattn-probe's own files on which builds depend, and their digests."""

import functools
from collections.abc import Iterator
from pathlib import Path

from fattn_probe.base.digest import hexdigest

PACKAGE = Path(__file__).parents[2]
NATIVE = PACKAGE / "native"
CXX = PACKAGE / "llama/cxx"


def own_files() -> Iterator[Path]:
    """fattn-probe's own files on which builds depend: native/ without its data, and the code of build/ and cxx/."""
    for folder in ("cublas", "cuda", "models", "runner", "sim"):
        for path in sorted((NATIVE / folder).rglob("*")):
            if path.is_file() and path.suffix in (".h", ".hpp", ".cuh", ".cpp", ".inc", ""):
                yield path
    for room in (Path(__file__).parent, CXX):
        yield from sorted(room.glob("*.py"))


@functools.cache
def package_stamp() -> str:
    """A digest of all files in the package, any of which may affect a verdict."""
    files = sorted(path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return hexdigest(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes() + b"\0" for path in files)


@functools.cache
def own_stamp() -> str:
    """A digest of `own_files`, the same for any two checkouts of a commit."""
    return hexdigest(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes() + b"\0" for path in own_files())
