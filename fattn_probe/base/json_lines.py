"""Files of results with a JSON object on each line, appended to by runs that may be killed; compressed if named .gz."""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from errno import ENOSPC
from io import SEEK_END, FileIO
from os import strerror
from pathlib import Path
from typing import Any

from fattn_probe.base.errors import InputError
from fattn_probe.base.files import replacing
from fattn_probe.base.locks import lock_of_file

PACKED = ".gz"
GZIP = 16 + zlib.MAX_WBITS
"""zlib's code for a gzip header and checksum."""
CHUNK = 1 << 12
"""Bytes that are decompressed at once: a little more than a member that `append` writes."""


def read(path: Path, what: str) -> Iterator[dict[str, Any]]:
    """The objects of a file, none if there is no file; `what` names an object in messages, such as `result`.

    A line or compressed member that a killed run did not finish is left out; InputError names any other bad line.
    """
    yield from (item for _, item in numbered(path, what))


def numbered(path: Path, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file, each with its line number."""
    for number, line in enumerate(whole_lines(text_of(path, what)), 1):
        if not line:
            continue
        item = parsed(line)
        if not isinstance(item, dict):
            raise InputError(f"{path}:{number}: is not a {what}, which is a JSON object")
        yield number, item


def append(path: Path, items: Iterable[Mapping[str, Any]]) -> None:
    """Append objects completely or not at all, even to a full disk; first removes what a killed run left unfinished."""
    data = "".join(f"{json.dumps(item)}\n" for item in items).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_of_file(path):
        if path.suffix == PACKED:
            data = gzip.compress(data, mtime=0)  # readers join such members
        if path.suffix == PACKED and not path.exists():
            with replacing(path) as part:
                part.write_bytes(data)
            return
        with FileIO(path, "a+") as file:
            mend(file, packed=path.suffix == PACKED)
            end = file.seek(0, SEEK_END)
            try:
                if file.write(data) != len(data):
                    raise OSError(ENOSPC, strerror(ENOSPC), str(path))
            except OSError:
                file.truncate(end)
                raise


def pack(path: Path, what: str) -> None:
    """Compress a file as a whole: `append` compresses its objects separately, which takes five times the space."""
    if path.suffix == PACKED and path.is_file():
        with lock_of_file(path), replacing(path) as part:
            text = "".join(f"{line}\n" for line in whole_lines(text_of(path, what)))
            part.write_bytes(gzip.compress(text.encode(), mtime=0))


def mend(file: FileIO, *, packed: bool) -> None:
    """Cut off an incomplete last line, or an incomplete last member of a compressed file."""
    if packed:
        file.seek(0)
        data = file.readall()
        end = sum(size for _, size in members(data))
        if end != len(data):
            file.truncate(end)
        return
    if file.seek(0, SEEK_END) == 0 or (file.seek(-1, SEEK_END), file.read(1))[1] == b"\n":
        return
    file.seek(0)
    last = file.readall().rpartition(b"\n")[2]
    if parsed(last.decode(errors="replace")) is None:
        file.truncate(file.tell() - len(last))
    else:
        file.write(b"\n")


def members(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The content and the compressed size of each complete member of a file; zlib.error if one is damaged.

    An incomplete last member is left out, unless it is the first: an interrupted append cannot cut that one.
    """
    view, start = memoryview(data), 0
    while start < len(data):
        unpacker, end, texts = zlib.decompressobj(wbits=GZIP), start, list[bytes]()
        while end < len(data) and not unpacker.eof:
            texts.append(unpacker.decompress(view[end : end + CHUNK]))
            end = min(end + CHUNK, len(data))
        if not unpacker.eof:
            if start == 0:
                raise zlib.error("it was cut")
            return
        end -= len(unpacker.unused_data)
        yield b"".join(texts), end - start
        start = end


def whole_lines(text: str) -> list[str]:
    """The lines of a text, without an unfinished last one."""
    *lines, last = text.split("\n")
    return lines if parsed(last) is None else [*lines, last]


def parsed(line: str) -> Any:  # noqa: ANN401
    """The value of a line; None if it is not JSON."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def text_of(path: Path, what: str) -> str:
    """The text of a file, empty if there is none; InputError if it cannot be read."""
    if not path.is_file():
        return ""
    try:
        data = path.read_bytes()
        return (b"".join(text for text, _ in members(data)) if path.suffix == PACKED else data).decode()
    except (OSError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read the {what}s: {error}") from None
