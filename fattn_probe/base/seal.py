"""The record of a folder's contents, by size and sha256, so that damage is found before a file is used."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fattn_probe.base.digest import hexdigest
from fattn_probe.base.files import replacing

SEAL = "seal.json"
SEEN = "seen.json"
DAY = 86400.0
CHUNK = 1 << 20

Stat = tuple[int, int, int, int]
"""Size, times of the last change of the content and of the file (ns), and the file's number."""

Content = tuple[int, str]
"""Size and sha256 of a file."""


@dataclass(frozen=True)
class Seal:
    """The contents of a folder's files, by path.

    While a folder is being changed, `files` are the files from before.
    """

    files: Mapping[str, Content] = field(default_factory=dict)
    unfinished: bool = False


def read_seal(folder: Path) -> Seal | None:
    """The seal of a folder; None if it is missing or damaged."""
    try:
        found = json.loads((folder / SEAL).read_bytes())
        files = {str(name): (int(size), str(sha256)) for name, (size, sha256) in found["files"].items()}
        outside = any(".." in name or name.startswith("/") for name in files)  # in a cache that others can write
        return None if outside else Seal(files, bool(found["unfinished"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def seal(folder: Path) -> None:
    """Record all files of a new folder, which counts as finished from then on."""
    write_seal(folder, Seal(contents(folder, files_of(folder))))


def contents(folder: Path, names: Iterable[str]) -> dict[str, Content]:
    """The contents of these files, as far as they exist."""
    eyes = Eyes(folder)
    found = {name: eyes.content(name) for name in sorted(names) if os.path.isfile(f"{folder}/{name}")}  # noqa: PTH113
    eyes.remember()
    return found


def write_seal(folder: Path, made: Seal) -> None:
    """Write the seal of a folder, atomically."""
    with replacing(folder / SEAL) as part:
        part.write_text(json.dumps({"unfinished": made.unfinished, "files": dict(made.files)}))


def damage(folder: Path, found: Seal, wanted: Callable[[str], bool] = lambda name: True) -> list[str]:
    """The `wanted` files that are missing or do not have the recorded content."""
    eyes = Eyes(folder)
    bad = [name for name, content in found.files.items() if wanted(name) and not eyes.see(name, content)]
    eyes.remember()
    return bad


class Eyes:
    """Compares the files of a folder with their records.

    A file is hashed if `stat` has changed since it was last hashed, or if that was a day ago. The results are stored
    beside the seal; if that is impossible, each process hashes changed files again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[str, tuple[Stat, str, float]] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            found = json.loads((folder / SEEN).read_bytes())
            self._seen = {name: (tuple(stat), str(sha256), float(at)) for name, (stat, sha256, at) in found.items()}
        self._new = dict[str, tuple[Stat, str, float]]()

    def see(self, name: str, content: Content) -> bool:
        """Whether a file has this content."""
        try:
            return self.content(name) == content
        except OSError:
            return False

    def content(self, name: str) -> Content:
        """The size and the sha256 of a file."""
        path, now = f"{self.folder}/{name}", time.time()
        stat = status_of(path)
        known, sha256, at = self._seen.get(name, (None, "", 0.0))
        if known != stat or not 0 <= now - at < DAY:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                sha256 = hexdigest(iter(lambda: file.read(CHUNK), b""))
            self._new[name] = (stat, sha256, now)
        return stat[0], sha256

    def remember(self) -> None:
        """Store the hashes; not atomically, because an incomplete file only costs hashing again."""
        if self._new:
            with contextlib.suppress(OSError):  # a read-only or a full cache
                (self.folder / SEEN).write_bytes(json.dumps({**self._seen, **self._new}).encode())


def status_of(path: str) -> Stat:
    """The fields of `stat` that change when a file is written."""
    found = os.stat(path)  # noqa: PTH116 - Path takes three times as long, for 600 files of a build
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def files_of(folder: Path) -> Iterator[str]:
    """The files below a folder that a seal can have: no links, and not its own."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(parent, name), folder)  # noqa: PTH118
            if path not in (SEAL, SEEN) and not os.path.islink(f"{folder}/{path}"):  # noqa: PTH114
                yield path
