"""Digests; and seals, which record the size and sha256 of a folder's files, so that damage is found before use."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fattn_probe.base.files import replacing

SHORT = 16
"""The default number of digits in a short digest."""
Chunk = str | bytes | memoryview


def hexdigest(data: Chunk | Iterable[Chunk]) -> str:
    """The sha256 in 64 hex digits; the digest of chunks is that of their concatenation."""
    found = hashlib.sha256()
    for chunk in (data,) if isinstance(data, str | bytes | memoryview) else data:
        found.update(chunk.encode(errors="surrogateescape") if isinstance(chunk, str) else chunk)
    return found.hexdigest()


def short(data: Chunk | Iterable[Chunk], digits: int = SHORT) -> str:
    """The first `digits` hex digits of the sha256."""
    return hexdigest(data)[:digits]


SEAL = "seal.json"
SEEN = "seen.json"
DAY = 86400.0
CHUNK = 1 << 20

Stat = tuple[int, int, int, int]
"""Size, mtime and ctime (ns), and inode number."""

Content = tuple[int, str]
"""Size and sha256 of a file."""


@dataclass(frozen=True)
class Seal:
    """The record of a folder's files, by path.

    While the folder is being changed (`unfinished`), `files` describes its state before the change.
    """

    files: Mapping[str, Content] = field(default_factory=dict)
    unfinished: bool = False


def read_seal(folder: Path) -> Seal | None:
    """The seal of a folder; None if it is missing or damaged."""
    try:
        found = json.loads((folder / SEAL).read_bytes())
        files = {str(name): (int(size), str(sha256)) for name, (size, sha256) in found["files"].items()}
        outside = any(".." in name or name.startswith("/") for name in files)  # possible if other users can write to it
        return None if outside else Seal(files, bool(found["unfinished"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def seal(folder: Path) -> None:
    """Record all files of a new folder, which counts as finished from then on."""
    write_seal(folder, Seal(contents(folder, files_of(folder))))


def contents(folder: Path, names: Iterable[str]) -> dict[str, Content]:
    """The size and sha256 of each named file in a folder; unreadable files are left out.

    A file is hashed again if its `stat` has changed, or after a day. The hashes are stored beside the seal, and not
    atomically: if that file is incomplete or cannot be written, the files are simply hashed again.
    """
    seen: dict[str, tuple[Stat, str, float]] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        read = json.loads((folder / SEEN).read_bytes())
        seen = {name: (tuple(stat), str(sha256), float(at)) for name, (stat, sha256, at) in read.items()}
    found, now, hashed = dict[str, Content](), time.time(), False
    for name in sorted(names):
        with contextlib.suppress(OSError):
            stat = status_of(f"{folder}/{name}")
            known, sha256, at = seen.get(name, (None, "", 0.0))
            if known != stat or not 0 <= now - at < DAY:
                with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                    sha256 = hexdigest(iter(lambda: file.read(CHUNK), b""))
                seen[name], hashed = (stat, sha256, now), True
            found[name] = stat[0], sha256
    if hashed:
        with contextlib.suppress(OSError):  # a read-only or a full cache
            (folder / SEEN).write_bytes(json.dumps(seen).encode())
    return found


def write_seal(folder: Path, made: Seal) -> None:
    """Write the seal of a folder, atomically."""
    with replacing(folder / SEAL) as part:
        part.write_text(json.dumps({"unfinished": made.unfinished, "files": dict(made.files)}))


def damage(folder: Path, found: Seal, wanted: Callable[[str], bool] = lambda name: True) -> list[str]:
    """The `wanted` files that are missing or differ from their record."""
    recorded = {name: content for name, content in found.files.items() if wanted(name)}
    now = contents(folder, recorded)
    return [name for name, content in recorded.items() if now.get(name) != content]


def status_of(path: str) -> Stat:
    """The fields of `stat` that change when a file is written."""
    found = os.stat(path)  # noqa: PTH116 - Path takes three times as long: a build has 600 files
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def files_of(folder: Path) -> Iterator[str]:
    """The paths below a folder that a seal records: all except links and the seal's own files."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = f"{parent}/{name}"[len(str(folder)) + 1 :]
            if path not in (SEAL, SEEN) and not os.path.islink(f"{folder}/{path}"):  # noqa: PTH114
                yield path
