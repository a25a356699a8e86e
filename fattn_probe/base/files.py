"""Files: reading with a size limit, writing with the path in every error, locks between processes, scratch folders."""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EPERM, EROFS
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from fattn_probe.base.errors import InputError, MachineError

MAGIC = re.compile(r"[*?[]")
MIB = 1 << 20
PART = ".part"
MOST_TEXT = MIB
"""Size limit of a scenario, suite or device file, in bytes; the largest shipped one is 30 KB."""
MOST_PATCH = 16 * MIB
MOST_VISITED = 100_000
"""Limit on the number of files and folders that a glob visits."""


def read_text(path: Path, what: str, most: int = MOST_TEXT) -> str:
    """The text of a user's file; `what` names it in messages, such as `the scenario`.

    InputError if it is not a regular file, is larger than `most` bytes, cannot be read, or is not UTF-8.
    """
    check_readable(path, what, most)
    try:
        with path.open("rb") as file:
            data = b""
            while len(data) <= most and (more := file.read(min(MIB, most + 1 - len(data)))):
                data += more
    except OSError as error:
        raise InputError(f"{path}: cannot read {what}: {error.strerror}") from None
    if len(data) > most:
        raise InputError(f"{path}: cannot read {what}: {too_large(most)}")
    try:
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: cannot read {what}: it is not UTF-8 text") from None


def is_folder(path: Path) -> bool:
    """Whether a path is a folder; False if the system rejects the name."""
    try:
        return path.is_dir()
    except OSError:
        return False


def find_files(folder: Path, pattern: str) -> list[Path]:
    """The sorted paths that match a glob, which is relative to `folder` unless it is absolute.

    `**` does not follow links to folders. InputError for a pattern that visits more than `MOST_VISITED` files.
    """
    anchor = Path(pattern).anchor
    todo = [(Path(anchor or folder), list(Path(pattern.removeprefix(anchor)).parts))] if pattern else []
    found, visited = set[Path](), 0
    while todo:
        here, parts = todo.pop()
        if not parts:
            found.add(here)
            continue
        name, rest = parts[0], parts[1:]
        if not MAGIC.search(name):
            todo += [(here / name, rest)] if (here / name).exists() else []
            continue
        entries = list[os.DirEntry[str]]()
        with suppress(OSError), os.scandir(here) as listed:  # an unreadable folder has no entries
            entries = list(islice(listed, MOST_VISITED + 1))
        visited += len(entries)
        if visited > MOST_VISITED:
            raise InputError(
                f"the pattern {pattern!r} visits more than {MOST_VISITED} files; start in a smaller folder"
            )
        if name == "**":
            todo += [(here, rest), *((Path(entry), parts) for entry in entries if entry.is_dir(follow_symlinks=False))]
        else:
            todo += [(Path(entry), rest) for entry in entries if fnmatchcase(entry.name, name)]
    return sorted(found)


def check_readable(path: Path, what: str, most: int | None = None) -> None:
    """Raise InputError unless the path is a regular file of at most `most` bytes; opening a fifo would block."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise InputError(f"{path}: cannot read {what}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: cannot read {what}: it is {kind_of(status.st_mode)}, not a file")
    if most is not None and status.st_size > most:
        raise InputError(f"{path}: cannot read {what}: {too_large(most)}")


def kind_of(mode: int) -> str:
    """The kind of a path that is not a regular file, in words."""
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a fifo" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def too_large(most: int) -> str:
    """The reason for refusing a file of more than `most` bytes."""
    return f"it is larger than {most // MIB} MiB"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError in the block into a MachineError that names `path`; BrokenPipeError passes through."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MachineError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; at the end, its file replaces `path`, or is removed after an error."""
    part = path.with_name(f".{path.name[:40]}-{secrets.token_hex(8)}{PART}")
    try:
        yield part
        part.replace(path)
    finally:
        with suppress(OSError):  # the original error is more informative
            part.unlink()


@contextmanager
def whole_folder(folder: Path, *, over: bool = False) -> Iterator[Path]:
    """A temporary folder beside `folder`; at the end it replaces `folder`, or is removed after an error.

    It is an error if `folder` already has files; with `over`, it is replaced.
    """
    with writing(folder), TemporaryDirectory(prefix=f".{folder.name[:40]}-", dir=folder.absolute().parent) as name:
        made = Path(name) / "made"
        made.mkdir()
        yield made
        if over and folder.exists():
            folder.rename(made.with_name("replaced"))
        made.rename(folder)


def check_place(path: Path) -> None:
    """Raise, before any work, the MachineError that writing a file at `path`, or replacing a folder, would raise."""
    with writing(path):
        if path.exists() and not path.is_dir():
            if not os.access(path, os.W_OK):
                raise PermissionError(EACCES, os.strerror(EACCES))
            return
        tempfile.TemporaryFile(dir=next(part for part in path.absolute().parents if part.exists())).close()


def write_text(path: Path, text: str) -> None:
    """Write a result for the user, completely or not at all; MachineError if it cannot be written.

    The folder is created if necessary, because the result may have taken an hour to compute. Links, devices, pipes
    and files that cannot be replaced are written in place.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not is_replaceable(path):
            path.write_text(text, encoding="utf-8")
            return
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
            if path.exists():
                shutil.copymode(path, part)


def is_replaceable(path: Path) -> bool:
    """Whether a new file can replace the path without losing anything but the old content."""
    try:
        status = path.lstat()
    except OSError:  # the path does not exist or is inaccessible: writing will show which
        return True
    plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return plain and os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def make_folder(path: Path, what: str) -> None:
    """Create a folder if it does not exist; MachineError if this fails, for example because a file has that name."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        blocking = next((part for part in (path, *path.parents) if os.path.lexists(part)), path)
        raise MachineError(f"{path}: {what} needs a folder here, but {blocking} is a file") from error
    except OSError as error:
        raise MachineError(f"{path}: {what} cannot be created here: {error.strerror}") from error


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder's files with their times; stops at the first error, which names the file being written."""
    for name, _, files in os.walk(source):
        folder = target / Path(name).relative_to(source)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            with writing(folder / file):
                shutil.copy2(Path(name) / file, folder / file)


def remove_tree(folder: Path) -> None:
    """Delete a folder or a file, even if read-only; no error if it does not exist."""
    if not folder.is_dir() or folder.is_symlink():
        with suppress(OSError):
            folder.unlink()
        return
    for path, _, _ in os.walk(folder):
        with suppress(OSError):  # errors during the deletion are ignored too
            Path(path).chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def lock_of_file(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file, which is created if missing; BlockingIOError if the lock is taken and `wait` is false.

    The lock is on the file itself, so processes with different caches exclude one another, and the kernel releases it
    when its holder dies. The holder may replace or remove the file. If permission to create the file is missing,
    nothing is locked: a process that cannot write changes nothing.
    """
    descriptor = _locked(path, wait)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(path: Path, wait: bool) -> int | None:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno not in (EROFS, EACCES, EPERM):
                raise
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except OSError:
                return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous holder replaced or removed the file


LOCK = ".lock"


@contextmanager
def scratch(root: Path | None = None) -> Iterator[Path]:
    """A new folder in `root`, $TMPDIR by default, removed at the end; first removes the folders of killed processes.

    Its owner holds a lock on `NAME.lock` beside it, which the kernel releases when the owner dies. Process numbers
    would not work: they are reused, and have no meaning in a container that shares the folder.
    """
    root = root or scratch_root()
    sweep(root)
    while True:  # again if another process removed the file before it was locked
        with writing(root):
            descriptor, name = tempfile.mkstemp(suffix=LOCK, dir=root)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)
    lock, folder = Path(name), Path(name).with_suffix("")
    try:
        folder.mkdir()
        yield folder
    finally:
        remove_tree(folder)
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def scratch_root() -> Path:
    """The user's folder of scratch folders, `fattn-probe-UID` in $TMPDIR; MachineError if another user owns it."""
    root = Path(tempfile.gettempdir()) / f"fattn-probe-{os.getuid()}"
    with writing(root):
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise MachineError(f"{root}: this folder for temporary files belongs to another user; set TMPDIR")
    return root


def sweep(root: Path) -> None:
    """Remove the scratch folders in `root` whose owners have died."""
    for lock in root.glob(f"*{LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as held:  # the owner is alive, or another process removed it
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(lock.with_suffix(""))
            lock.unlink(missing_ok=True)
