"""Download a file, computing its digest as it arrives."""

import http.client
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fattn_probe.base.digest import hexdigest
from fattn_probe.base.errors import InputError, LostError
from fattn_probe.base.files import MIB, writing
from fattn_probe.llama.source.index import IndexFile, open_url

log = logging.getLogger(__name__)
CHUNK = 1 << 18
ATTEMPTS = 3
MOST_BYTES = 1024 * MIB
"""Size limit of a download, in bytes; the default source's sdist is 36 MiB."""
BROKEN = (OSError, http.client.HTTPException)

Progress = Callable[[str, int, int | None], None]
"""A callback for (file name, bytes so far, total bytes or None) during a download."""


def silent(what: str, done: int, total: int | None) -> None:
    """A progress callback that shows nothing."""


def download(file: IndexFile, sha256: str | None, target: Path, progress: Progress = silent) -> None:
    """Download `file` to `target`, which appears only if the complete file has the digest `sha256`.

    A broken connection is retried, and after the last attempt raises LostError; a wrong digest raises InputError.
    """
    part = target.with_name(target.name + ".part")
    try:
        with writing(part):
            part.touch()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                digest = stream(file, part, progress)
                break
            except BROKEN as error:
                if attempt == ATTEMPTS:
                    raise LostError(f"the download of {file.url} broke off {ATTEMPTS} times: {error}") from error
                log.warning("%s: %s; trying again (%d of %d)", file.filename, error, attempt + 1, ATTEMPTS)
                time.sleep(0.2 * attempt)
        if sha256 is not None and digest != sha256:
            raise InputError(f"{file.url} has the sha256 {digest}, expected {sha256}: not used")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def stream(file: IndexFile, part: Path, progress: Progress) -> str:
    """Copy the whole body to `part` and return its sha256; a body that is too short raises ConnectionError."""
    with open_url(file.url) as answer, part.open("wb", buffering=0) as output:
        length = answer.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None

        def copied() -> Iterator[bytes]:
            while chunk := answer.read(CHUNK):
                with writing(part):
                    output.write(chunk)
                done = output.tell()
                if max(done, total or 0) > MOST_BYTES:
                    raise InputError(f"{file.url} is larger than {MOST_BYTES // MIB} MiB: not used")
                progress(file.filename, done, total)
                yield chunk

        digest, done = hexdigest(copied()), output.tell()
    if total is not None and done != total:
        raise ConnectionError(f"{done} of {total} bytes arrived")
    return digest
