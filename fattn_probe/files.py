"""The user's files: reading with a size limit, writing with the path in every error."""

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fattn_probe.errors import InputError, MachineError

MIB = 1 << 20
MOST_TEXT = MIB
"""Largest scenario, suite or device file in bytes; the largest shipped one has 30 KB."""
MOST_PATCH = 16 * MIB


def read_text(path: Path, what: str, most: int = MOST_TEXT) -> str:
    """The text of a user's file; `what` names it in messages, such as `the scenario`.

    InputError if it is not a regular file, has more than `most` bytes, cannot be read, or is not UTF-8.
    """
    check_readable(path, what, most)
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
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
    """Whether a path is a folder; False for a name that the system refuses."""
    try:
        return path.is_dir()
    except OSError:
        return False


def check_readable(path: Path, what: str, most: int | None = None) -> None:
    """InputError unless the path is a regular file of at most `most` bytes; runs before opening, as a fifo blocks."""
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
    """Why a file is refused."""
    return f"it has more than {most // MIB} MiB"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside into a MachineError that names `path`; except a broken pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MachineError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`: the file written there replaces `path` at the end; an error removes it."""
    part = path.with_name(f".{path.name[:40]}-{secrets.token_hex(8)}.part")
    try:
        yield part
        part.replace(path)
    finally:
        with suppress(OSError):  # the error that brought us here says more
            part.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a result for the user, completely or not at all; MachineError if the disk refuses.

    A link, a device, a pipe and a file that cannot be replaced are written in place.
    """
    with writing(path):
        if not is_replaceable(path):
            path.write_text(text, encoding="utf-8")
            return
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
            if path.exists():
                shutil.copymode(path, part)


def is_replaceable(path: Path) -> bool:
    """Whether nothing but its content is lost if another file takes a path's place."""
    try:
        status = path.lstat()
    except OSError:  # there is nothing yet, or nothing that can be replaced: writing says which
        return True
    plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return plain and os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def make_folder(path: Path, what: str) -> None:
    """Make a folder if it does not exist; MachineError if a file is in the way, or permission is missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        blocking = next((part for part in (path, *path.parents) if os.path.lexists(part)), path)
        raise MachineError(f"{path}: {what} needs a folder here, and {blocking} is a file") from error
    except OSError as error:
        raise MachineError(f"{path}: {what} cannot be made here: {error.strerror}") from error
