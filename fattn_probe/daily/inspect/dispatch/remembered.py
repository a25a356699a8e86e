"""The dispatch of a tree, stored in the cache, because reading the source takes 0.2 s of every inspection."""

from pathlib import Path

from fattn_probe.base.cache import Kind
from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document
from fattn_probe.daily.inspect.dispatch.records import DEFINES, FILES, Dispatch
from fattn_probe.llama import cxx
from fattn_probe.llama.source.features import CUDA

DISPATCH = Kind("dispatch", "the dispatch")
DOCUMENT = Document("a dispatch", Dispatch)
READERS = (Path(cxx.__file__).parent, Path(__file__).parent)
"""The folders with the code that reads a dispatch."""


def remembered_dispatch(root: Path) -> Dispatch:
    """The dispatch of the tree at `root`; from the cache, if the same code has read the same source before.

    A read-only cache is not an error, and a damaged document is replaced.
    """
    key = digest_of(root)
    if found := DOCUMENT.remembered(DISPATCH, key):
        return found
    from fattn_probe.daily.inspect.dispatch.conditions import read_dispatch  # imports the reader of C++ only if needed

    dispatch = read_dispatch(root)
    DOCUMENT.remember(DISPATCH, key, dispatch)
    return dispatch


def digest_of(root: Path) -> str:
    """A digest of everything that the dispatch of a tree depends on: the source, and the code that reads it."""
    sources = [*sorted((root / CUDA).glob(FILES)), *(root / path for path in DEFINES if (root / path).is_file())]
    readers = [path for folder in READERS for path in sorted(folder.glob("*.py"))]
    files = ((path.name, path.read_bytes()) for path in (*sources, *readers))
    return short((f"{name} {len(data)}\0".encode() + data for name, data in files), 32)
