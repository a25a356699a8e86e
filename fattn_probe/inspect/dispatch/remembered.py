"""The dispatch of a tree, remembered in the cache: reading the source takes 0.2 s of every inspection."""

import contextlib
import hashlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import fattn_probe
from fattn_probe.cache import cache_dir
from fattn_probe.files import replacing
from fattn_probe.inspect.dispatch.records import DEFINES, FILES, Dispatch
from fattn_probe.source.features import CUDA

READERS = ("cxx", "inspect/dispatch")
"""fattn-probe's own folders with the code that reads a dispatch."""


def remembered_dispatch(root: Path) -> Dispatch:
    """The dispatch of the tree at `root`; from the cache, if the same code has read the same source before.

    A read-only cache is not an error, and a damaged file is replaced.
    """
    path = cache_dir() / "dispatch" / f"{digest_of(root)}.pickle"
    with contextlib.suppress(Exception):  # pickle raises errors of many kinds for a damaged file
        found = pickle.loads(path.read_bytes())
        if isinstance(found, Dispatch):
            return found
    from fattn_probe.inspect.dispatch.conditions import read_dispatch  # the reader of C++, only if it is needed

    dispatch = read_dispatch(root)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(pickle.dumps(dispatch))
    return dispatch


def digest_of(root: Path) -> str:
    """A digest of all that the dispatch of a tree depends on: the source, and the code that reads it."""
    digest = hashlib.sha256()
    for path in (*_sources(root), *_readers()):
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\0".encode() + data)
    return digest.hexdigest()[:32]


def _sources(root: Path) -> Iterator[Path]:
    yield from sorted((root / CUDA).glob(FILES))
    yield from (root / path for path in DEFINES if (root / path).is_file())


def _readers() -> Iterator[Path]:
    package = Path(fattn_probe.__file__).parent
    for folder in READERS:
        yield from sorted((package / folder).glob("*.py"))
