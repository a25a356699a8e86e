"""The files that C++ files include."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)


def included(paths: Iterable[Path], folders: Sequence[Path], below: Path) -> dict[Path, str]:
    """The texts of files and of their includes `below` a folder, looked up beside each file and in `folders`."""
    found, seen = dict[Path, str](), set[str]()
    to_read = list(map(str, paths))
    while to_read:
        place = os.path.normpath(to_read.pop())
        if place not in seen and (path := Path(place)).is_relative_to(below) and path.is_file():
            found[path] = path.read_text(errors="replace")
            to_read += [f"{at}/{name}" for name in INCLUDE.findall(found[path]) for at in (path.parent, *folders)]
        seen.add(place)
    return found
