"""Check that a binary has debug information; without it a debugger finds neither lines nor variables."""

import struct
from pathlib import Path

from fattn_probe.base.errors import BuildError

DEBUG_INFO = frozenset({".debug_info", ".zdebug_info"})


def require_debug_info(binary: Path) -> None:
    """BuildError if a program or library was stripped, or built without `-g`."""
    if not DEBUG_INFO & section_names(binary.read_bytes()):
        raise BuildError(
            f"{binary} has no debug information, so the debugger finds neither its lines nor its variables: "
            "it was stripped, or built without -g (`fattn-probe build --debug` makes one that has it)"
        )


def section_names(elf: bytes) -> frozenset[str]:
    """The names of the sections of a 64-bit little-endian ELF file; empty for any other file."""
    if elf[:6] != b"\x7fELF\x02\x01":
        return frozenset()
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + index * size) for index in range(count)]
    if not headers:
        return frozenset()
    names = elf[headers[names_at][4] :]
    return frozenset(names[header[0] : names.index(b"\0", header[0])].decode() for header in headers)
