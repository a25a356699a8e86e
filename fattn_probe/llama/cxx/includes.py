"""Which files a C++ file includes."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)


def included(paths: Iterable[Path], folders: Sequence[Path], below: Path) -> dict[Path, str]:
    """The text of files and of those below a folder that they include; looked up beside each file and in `folders`."""
    found: dict[Path, str] = {}
    to_read = list(paths)
    while to_read:
        path = Path(os.path.normpath(to_read.pop()))
        if path not in found and path.is_relative_to(below) and path.is_file():
            found[path] = path.read_text(errors="replace")
            to_read += [place / name for name in INCLUDE.findall(found[path]) for place in (path.parent, *folders)]
    return found
