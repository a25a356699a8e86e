"""The conditions of the dispatch before a kernel launch, read from the source that was built, and stored in the cache.

This does not depend on the version of llama.cpp: it follows the functions from `ggml_cuda_flash_attn_ext`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fattn_probe.base.cache import Kind
from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document
from fattn_probe.daily.inspect.dispatch.extract import Extract
from fattn_probe.daily.inspect.dispatch.records import DEFINES, FILES, Dispatch
from fattn_probe.llama import cxx
from fattn_probe.llama.cxx.expressions import Reader
from fattn_probe.llama.cxx.functions import Function, SourceFile, read_source
from fattn_probe.llama.cxx.macros import Macro, read_macros
from fattn_probe.llama.source.features import CUDA

ENTRY = "ggml_cuda_flash_attn_ext"
LAUNCH = "launch_fattn"
CONTEXT = "ggml_backend_cuda_context"
ENUM = re.compile(r"\benum\s+(\w+)")


def read_dispatch(root: Path) -> Dispatch:
    """The dispatch of the tree at `root` (llama.cpp's folder)."""
    texts = {path.name: path.read_text(errors="replace") for path in sorted((root / CUDA).glob(FILES))}
    defines = [(root / path).read_text(errors="replace") for path in DEFINES if (root / path).is_file()]
    return dispatch_of(texts, read_macros(defines))


def dispatch_of(texts: Mapping[str, str], macros: Mapping[str, Macro]) -> Dispatch:
    """The dispatch in source files, given as text by file name."""
    enums = frozenset(name for text in texts.values() for name in ENUM.findall(text))
    files = [read_source(name, text) for name, text in texts.items()]
    chosen = list(_reachable(files, enums))
    names = frozenset(function.name for _, function in chosen)
    leading = {  # the macros that call a function of the dispatch
        file.name: frozenset(macro for macro in file.macros if not names.isdisjoint(_in_macro(file, macro)))
        for file in files
    }
    extracts = [
        Extract(file.name, function, Reader(file.draft, macros), file.depths, leading[file.name])
        for file, function in chosen
    ]
    headers_last = sorted(files, key=lambda file: file.name.endswith(".cuh"))  # a .cu file's function is local
    return Dispatch(
        tuple(extract.function_record() for extract in extracts),
        tuple(condition for extract in extracts for condition in extract.conditions()),
        {name: function.parameters for file in headers_last for name, function in file.functions.items()},
    )


def _reachable(files: Iterable[SourceFile], enums: frozenset[str]) -> Iterator[tuple[SourceFile, Function]]:
    """The functions reachable from the entry that take the context or return a choice."""
    known = {name: (file, function) for file in files for name, function in file.functions.items() if name != LAUNCH}
    waiting, seen = [ENTRY] * (ENTRY in known), {ENTRY}
    while waiting:
        file, function = known[waiting.pop(0)]
        takes_context = function.returns == "void" and CONTEXT in file.draft.words[slice(*function.arguments)]
        if function.returns in enums or takes_context:
            yield file, function
        words = dict.fromkeys(file.draft.words[function.start : function.stop])
        mentioned = [name for word in words for name in (word, *_in_macro(file, word))]
        new = [name for name in dict.fromkeys(mentioned) if name in known and name not in seen]
        seen.update(new)
        waiting.extend(new)


def _in_macro(file: SourceFile, name: str) -> set[str]:
    """The names in a macro's body and, transitively, in the macros that it uses."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = file.macros.get(waiting.pop(), frozenset()) - found
        found |= new
        waiting.extend(new)
    return found


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

    dispatch = read_dispatch(root)
    DOCUMENT.remember(DISPATCH, key, dispatch)
    return dispatch


def digest_of(root: Path) -> str:
    """A digest of everything that the dispatch of a tree depends on: the source, and the code that reads it."""
    sources = [*sorted((root / CUDA).glob(FILES)), *(root / path for path in DEFINES if (root / path).is_file())]
    readers = [path for folder in READERS for path in sorted(folder.glob("*.py"))]
    files = ((path.name, path.read_bytes()) for path in (*sources, *readers))
    return short((f"{name} {len(data)}\0".encode() + data for name, data in files), 32)
