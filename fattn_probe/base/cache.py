"""The cache of downloads and builds. All access goes through this module: entries are published whole and verified."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

import platformdirs

from fattn_probe.base.digest import Content, Seal, contents, damage, files_of, hexdigest, read_seal, seal, write_seal
from fattn_probe.base.errors import MachineError
from fattn_probe.base.files import (
    PART,
    is_folder,
    lock_of_file,
    make_folder,
    remove_tree,
    replacing,
    scratch,
    sweep,
    writing,
)

log = logging.getLogger(__name__)
VARIABLE = "FATTN_PROBE_CACHE"
FULL = (EDQUOT, EFBIG, ENOSPC)
ENDING = ".document"
OLDER = "was made by an older version of fattn-probe"


def cache_dir() -> Path:
    """The cache folder: $FATTN_PROBE_CACHE, or the platform's default; MachineError if the path is a file."""
    override = os.environ.get(VARIABLE)
    folder = Path(override).absolute() if override else platformdirs.user_cache_path("fattn-probe")
    if os.path.lexists(folder) and not is_folder(folder):
        raise MachineError(f"{folder}: the cache must be a folder, but this is a file; set {VARIABLE} to another path")
    return folder


@dataclass(frozen=True)
class Kind:
    """A kind of entry in the cache: its folder, and its name in messages."""

    folder: str
    what: str

    @property
    def root(self) -> Path:
        """The folder of all entries of this kind."""
        return cache_dir() / self.folder

    def place(self, key: str) -> Path:
        """The path of an entry."""
        return self.root / key


def get_or_make(
    kind: Kind, key: str, make: Callable[[Path], None], fits: Callable[[Path], bool] = lambda folder: True
) -> Path:
    """The folder `key` of a kind; if it is missing or damaged, or `fits` rejects it, `make(folder)` fills a new one.

    Processes that need the same folder wait for one another. A complete folder is used without writing
    anything. The leftovers of killed processes are removed first.
    """
    sweep(parts())
    folder = kind.place(key)
    if not fault_of(folder) and fits(folder):
        return folder
    with lock_beside(folder):
        fault = fault_of(folder)
        if not fault and fits(folder):
            return folder
        if folder.is_dir():
            log.warning("%s: %s %s: recreating it", folder, kind.what, fault or OLDER)
        with room(folder), part() as made:
            make(made)
            seal(made)
            publish(made, folder)
    return folder


@contextmanager
def room(folder: Path) -> Iterator[None]:
    """Turn a disk-full error, which often names no file, into a MachineError that names the folder."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise MachineError(f"{folder}: cannot be written: {error.strerror}") from error
        raise


def fault_of(folder: Path) -> str:
    """The fault of a folder, worded to follow its name in a message; empty if it is finished and undamaged."""
    found = read_seal(folder)
    if found is None:
        return "has no record of its contents"
    if bad := damage(folder, found):
        return f"is damaged ({named(bad)})"
    return OLDER if found.unfinished else ""


def named(files: list[str]) -> str:
    """The first file and the number of others: `a.o and 2 more`."""
    return files[0] + (f" and {len(files) - 1} more" if len(files) > 1 else "")


@dataclass(frozen=True)
class Growth:
    """A change in progress: the folder's recorded files, and the names of the files written or removed so far."""

    folder: Path
    recorded: Mapping[str, Content] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    def write(self, name: str, text: str, errors: str = "strict") -> None:
        """Write a text file atomically, unless it already has this content; `errors` as for `open`."""
        if name in self.recorded and name not in self.changed:  # `growing` has verified it
            data = text.encode(errors=errors)
            if self.recorded[name] == (len(data), hexdigest(data)):
                return
        path = self.folder / name
        if not (path.is_file() and path.read_text(errors=errors) == text):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as part:
                part.write_text(text, errors=errors)
        self.changed.add(name)

    def remove(self, name: str) -> None:
        """Remove a file or a folder."""
        self.changed.update((name, *(file for file in self.recorded if file.startswith(f"{name}/"))))
        remove_tree(self.folder / name)


@contextmanager
def growing(folder: Path, what: str, leave_out: Callable[[str], bool]) -> Iterator[Growth]:
    """Let the `with` block change a folder; at the end, record changed files, except those that `leave_out` accepts.

    Damaged files are removed first, or all files if there is no record. Files that the block does not change keep their
    records: MachineError if such a file is damaged meanwhile. After an error, the next call keeps new and unchanged
    files; after a kill, only unchanged ones. The caller holds the folder's lock.
    """
    make_folder(folder.parent, "the cache")
    with writing(folder):
        growth = Growth(folder, _mended(folder, what, leave_out))
        folder.mkdir(exist_ok=True)
        write_seal(folder, Seal(growth.recorded, unfinished=True))
    with room(folder):
        try:
            yield growth
        except BaseException:
            with suppress(OSError):  # the original error is more informative
                new = contents(folder, (it for it in growth.changed - growth.recorded.keys() if not leave_out(it)))
                write_seal(folder, Seal({**growth.recorded, **new}, unfinished=True))
            raise
        old = {name: content for name, content in growth.recorded.items() if name not in growth.changed}
        if bad := damage(folder, Seal(old)):  # anything built from these is suspect: the record stays unfinished
            raise MachineError(f"{folder}: {what} was damaged while it was extended ({named(bad)}): run this again")
        write_seal(folder, Seal(old | contents(folder, (name for name in growth.changed if not leave_out(name)))))


def _mended(folder: Path, what: str, leave_out: Callable[[str], bool]) -> dict[str, Content]:
    """Remove damaged files, and unrecorded files from an interrupted change; returns the records of the other files."""
    found = read_seal(folder)
    if found is None:
        if os.path.lexists(folder):
            log.warning("%s: %s has no record of its contents: recreating it", folder, what)
        remove_tree(folder)
        return {}
    bad = damage(folder, found)
    if bad and not found.unfinished:  # after an interrupted change, damage is expected
        log.warning("%s: %s is damaged (%s): recreating it", folder, what, named(bad))
    in_place_of_files = [path for path in folder.iterdir() if leave_out(path.name) and path.is_dir()]
    unknown = [name for name in files_of(folder) if name not in found.files] if found.unfinished else []
    gone = (*bad, *(name for name in unknown if not leave_out(name)))
    left = folder.rglob(f".*{PART}") if found.unfinished else folder.glob(f".*{PART}")
    for path in (*(folder / name for name in gone), *in_place_of_files, *left):
        remove_tree(path)
    return {name: content for name, content in found.files.items() if name not in bad}


def tended(kind: Kind) -> Path:
    """Verify a kind's folder, which another program fills with files named `*.FOLDER`; returns the folder.

    Damaged files are removed and new files recorded; files with other names are not yet finished.
    """
    folder = kind.root
    with (
        suppress(OSError, MachineError),  # a read-only cache
        lock_beside(folder),
        growing(folder, kind.what, lambda name: not name.endswith(f".{kind.folder}")) as growth,
    ):
        growth.changed.update(name for name in files_of(folder) if name not in growth.recorded)
    return folder


def parts() -> Path:
    """The folder for unfinished entries; leftovers of killed processes are removed when the next entry is used."""
    return cache_dir() / "parts"


@contextmanager
def part() -> Iterator[Path]:
    """A new folder on the cache's file system, to be filled and published; if not published, it is removed."""
    make_folder(parts(), "the cache")
    with scratch(parts()) as folder:
        made = folder / "made"
        with writing(made):
            made.mkdir()
        yield made


def publish(made: Path, folder: Path) -> None:
    """Rename a folder of `part()` into place; replaces an existing folder, whose open files remain usable."""
    make_folder(folder.parent, "the cache")
    with writing(folder):
        if os.path.lexists(folder):
            folder.rename(made.with_name("replaced"))
        made.rename(folder)


@contextmanager
def lock_beside(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder in the cache; BlockingIOError if the lock is taken and `wait` is false."""
    with lock_of_file(folder.with_name(f"{folder.name}.lock"), wait=wait):
        yield


def read_document(kind: Kind, key: str) -> bytes | None:
    """The bytes stored under a key; None if they are missing or damaged."""
    path = _document(kind, key)
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if head == _head(kind, body):
        return body
    log.warning("%s: %s is damaged: recreating it", path, kind.what)
    remove_tree(path)  # callers may write it again only when they have something new
    return None


def write_document(kind: Kind, key: str, body: bytes) -> None:
    """Store bytes under a key; a read-only or full cache is not an error, as the document can be recomputed."""
    path = _document(kind, key)
    with suppress(OSError, MachineError):
        make_folder(path.parent, "the cache")
        if path.is_dir():
            remove_tree(path)
        with replacing(path) as written:  # a folder of `part()` would take five times as long
            written.write_bytes(_head(kind, body) + b"\n" + body)


def _document(kind: Kind, key: str) -> Path:
    place = kind.place(key)
    return place.with_name(f"{place.name}{ENDING}")


def _head(kind: Kind, body: bytes) -> bytes:
    return f"fattn-probe {kind.folder} 1 {hexdigest(body)}".encode()
