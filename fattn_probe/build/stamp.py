"""The files of fattn-probe that builds depend on."""

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
NATIVE = PACKAGE / "native"
CXX = PACKAGE / "cxx"
NATIVE_FOLDERS = ("cublas", "cuda", "models", "runner", "sim")
NATIVE_SUFFIXES = (".h", ".hpp", ".cuh", ".cpp", ".inc", "")


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
