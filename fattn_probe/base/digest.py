"""Digests: sha256 in hex, of a text, of bytes, or of a sequence of chunks."""

import hashlib
from collections.abc import Iterable

SHORT = 16
"""The default number of digits in a short digest."""
Chunk = str | bytes | memoryview


def hexdigest(data: Chunk | Iterable[Chunk]) -> str:
    """All 64 digits; the digest of chunks is that of their concatenation."""
    found = hashlib.sha256()
    for chunk in (data,) if isinstance(data, str | bytes | memoryview) else data:
        found.update(chunk.encode(errors="surrogateescape") if isinstance(chunk, str) else chunk)
    return found.hexdigest()


def short(data: Chunk | Iterable[Chunk], digits: int = SHORT) -> str:
    """The first `digits` digits."""
    return hexdigest(data)[:digits]
