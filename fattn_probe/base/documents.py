"""JSON documents: pydantic reads and writes each type, so records need no converters.

JSON Lines files survive a run that is killed while it appends to them; those named .gz are compressed.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from errno import ENOSPC
from functools import cached_property
from io import SEEK_END, FileIO
from os import strerror
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fattn_probe.base.cache import Kind, read_document, write_document
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import lock_of_file, read_text, replacing

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


T = TypeVar("T")
VERSION = "version"
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Document(Generic[T]):
    """A kind of JSON document that holds a value of `type`; `what` is its name in messages, such as `a manifest`.

    `version` is the document's first key. Version 1 has no such key, so that an older fattn-probe that shares the
    cache can read it. If `version` is None, the document's location implies the version: the schema of the history, or
    the path in the cache. `from_first`, if given, converts documents of version 1, so that they can still be read.
    """

    what: str
    type: type[T]
    version: int | None = None
    indent: int | None = field(default=None, kw_only=True)
    from_first: Callable[[dict[str, Any]], dict[str, Any]] | None = field(default=None, kw_only=True)

    @cached_property
    def _adapter(self) -> "TypeAdapter[T]":
        from pydantic import TypeAdapter  # takes 0.1 s, and `--help` does not need it

        return TypeAdapter(self.type)

    def plain(self, value: T) -> Any:  # noqa: ANN401 (JSON)
        """A value as dictionaries, lists, strings and numbers."""
        plain = self._adapter.dump_python(value)
        return plain if self.version in (None, 1) else {VERSION: self.version} | plain

    def of(self, plain: Any) -> T:  # noqa: ANN401 (JSON)
        """The value for data that `plain` returned; InputError if the data do not fit the type."""
        from pydantic import ValidationError

        try:
            return self._adapter.validate_python(plain)
        except ValidationError as error:
            raise InputError(f"not {self.what}: {_first(error)}") from None

    def text(self, value: T) -> str:
        """The document for a value, as text; `parse` reads it back."""
        return json.dumps(self.plain(value), indent=self.indent) + "\n" * (self.indent is not None)

    def parse(self, text: str | bytes, place: object) -> T:
        """The value of a document; InputError, naming the `place`, if it is damaged or has a different version."""
        from pydantic import ValidationError

        try:
            if self.version is not None and (found := (read := json.loads(text)).get(VERSION, 1)) != self.version:
                if found == 1 and self.from_first is not None:
                    return self._adapter.validate_python(self.from_first(read))
                newer = isinstance(found, int) and found > self.version
                why = "made by a newer fattn-probe" if newer else "in an older format"
                raise InputError(f"{place}: {self.what} of version {found}, {why}; this one knows {self.version}")
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise InputError(f"{place}: not {self.what}: {_first(error)}") from None
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{place}: not {self.what}: {error}") from None

    def read(self, path: Path) -> T:
        """The value in a user's file; InputError if it cannot be read."""
        return self.parse(read_text(path, self.what, MOST_BYTES), path)

    def remembered(self, kind: Kind, key: str) -> T | None:
        """A value in the cache; None if it is missing, damaged or from a different version of fattn-probe."""
        if body := read_document(kind, key):
            with suppress(InputError):
                return self.parse(body, key)
        return None

    def remember(self, kind: Kind, key: str, value: T) -> None:
        """Store a value in the cache, if the cache is writable."""
        write_document(kind, key, self.text(value).encode())


def plain(value: object) -> Any:  # noqa: ANN401 (JSON)
    """Dataclasses as dictionaries, lists, strings and numbers; NaN and infinities become None."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, inf_nan_mode="null")


def _first(error: "ValidationError") -> str:
    """The first validation error, as a message."""
    first = error.errors()[0]
    at = ".".join(map(str, first["loc"]))
    return f"{at}: {first['msg']}" if at else str(first["msg"])


PACKED = ".gz"
GZIP = 16 + zlib.MAX_WBITS
"""zlib's `wbits` value for data with a gzip header and checksum."""
CHUNK = 1 << 12
"""Bytes decompressed at a time: a little more than a typical member written by `append`."""


def read(path: Path, what: str) -> Iterator[dict[str, Any]]:
    """Yield the objects in a file, if it exists; `what` names an object in messages, such as `result`.

    A line or compressed member that a killed run did not finish is left out; InputError names any other bad line.
    """
    yield from (item for _, item in numbered(path, what))


def numbered(path: Path, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects in a file, each with its line number."""
    for number, line in enumerate(whole_lines(text_of(path, what)), 1):
        if not line:
            continue
        item = parsed(line)
        if not isinstance(item, dict):
            raise InputError(f"{path}:{number}: is not a {what}, expected a JSON object")
        yield number, item


def append(path: Path, items: Iterable[Mapping[str, Any]]) -> None:
    """Append all objects or none, even if the disk is full; first removes what a killed run left unfinished."""
    data = "".join(f"{json.dumps(item)}\n" for item in items).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_of_file(path):
        if path.suffix == PACKED:
            data = gzip.compress(data, mtime=0)  # readers concatenate gzip members
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
    """Compress a file as one member; the separate members that `append` writes take five times the space."""
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

    An incomplete last member is left out; it is an error if it is the first, which `append` writes atomically.
    """
    view, start = memoryview(data), 0
    while start < len(data):
        unpacker, end, texts = zlib.decompressobj(wbits=GZIP), start, list[bytes]()
        while end < len(data) and not unpacker.eof:
            texts.append(unpacker.decompress(view[end : end + CHUNK]))
            end = min(end + CHUNK, len(data))
        if not unpacker.eof:
            if start == 0:
                raise zlib.error("it is truncated")
            return
        end -= len(unpacker.unused_data)
        yield b"".join(texts), end - start
        start = end


def whole_lines(text: str) -> list[str]:
    """The lines of a string, without an unfinished last line."""
    *lines, last = text.split("\n")
    return lines if parsed(last) is None else [*lines, last]


def parsed(line: str) -> Any:  # noqa: ANN401
    """The value of a line; None if it is not JSON."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def text_of(path: Path, what: str) -> str:
    """The text of a file, empty if the file does not exist; InputError if it cannot be read."""
    if not path.is_file():
        return ""
    try:
        data = path.read_bytes()
        return (b"".join(text for text, _ in members(data)) if path.suffix == PACKED else data).decode()
    except (OSError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read the {what}s: {error}") from None
