"""The macros of a build that the simulator's own files depend on; other files' objects serve every build."""

import functools
import re
from pathlib import Path

SIM = Path(__file__).parent.parent / "native/sim"
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
MACRO = re.compile(r"\bSIMT_(?:AHEAD|ARCH|CHECK)\b")


@functools.cache
def macros_of(name: str) -> frozenset[str]:
    """The macros that a file, relative to native/, or a header that it includes mentions."""
    found: set[str] = set()
    to_read, seen = [SIM.parent / name], set()
    while to_read:
        path = to_read.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        text = path.read_text()
        found.update(MACRO.findall(text))
        to_read += [folder / header for header in INCLUDE.findall(text) for folder in (SIM, SIM / "include")]
    return frozenset(found)
