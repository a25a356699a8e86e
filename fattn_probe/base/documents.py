"""JSON documents: pydantic reads and writes each type, so records need no converters."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fattn_probe.base.cache import Kind, read_document, write_document
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import read_text

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
VERSION = "version"
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Document(Generic[T]):
    """A kind of JSON document with a value of `type`; `what` is its name in messages, such as `a manifest`.

    The `version` is the document's first key. Version 1 has no such key, so that an older version of fattn-probe, which
    may share the cache, can read it. Without a `version`, the place of the document determines it: the schema of the
    history, or the path in the cache. `from_first` converts a document of version 1 that is still read.
    """

    what: str
    type: type[T]
    version: int | None = None
    indent: int | None = field(default=None, kw_only=True)
    from_first: Callable[[dict[str, Any]], dict[str, Any]] | None = field(default=None, kw_only=True)

    @cached_property
    def _adapter(self) -> "TypeAdapter[T]":
        from pydantic import TypeAdapter  # 0.1 s, which `--help` does not need

        return TypeAdapter(self.type)

    def plain(self, value: T) -> Any:  # noqa: ANN401 (JSON)
        """A value as dictionaries, lists, strings and numbers."""
        plain = self._adapter.dump_python(value)
        return plain if self.version in (None, 1) else {VERSION: self.version} | plain

    def of(self, plain: Any) -> T:  # noqa: ANN401 (JSON)
        """The value from the data of `plain`; InputError if they do not fit the type."""
        from pydantic import ValidationError

        try:
            return self._adapter.validate_python(plain)
        except ValidationError as error:
            raise InputError(f"not {self.what}: {_first(error)}") from None

    def text(self, value: T) -> str:
        """The document of a value; `parse` reads it back."""
        return json.dumps(self.plain(value), indent=self.indent) + "\n" * (self.indent is not None)

    def parse(self, text: str | bytes, place: object) -> T:
        """The value of a document; InputError with the `place` if it is damaged or has a different version."""
        from pydantic import ValidationError

        try:
            if self.version is not None and (found := (read := json.loads(text)).get(VERSION, 1)) != self.version:
                if found == 1 and self.from_first is not None:
                    return self._adapter.validate_python(self.from_first(read))
                newer = isinstance(found, int) and found > self.version
                why = "made by a newer fattn-probe" if newer else "of an older format"
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
    """A value of dataclasses as dictionaries, lists, strings and numbers; NaN and infinities become None."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, inf_nan_mode="null")


def _first(error: "ValidationError") -> str:
    """The first mistake, in words."""
    first = error.errors()[0]
    at = ".".join(map(str, first["loc"]))
    return f"{at}: {first['msg']}" if at else str(first["msg"])
