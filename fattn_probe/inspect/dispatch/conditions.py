"""The conditions of the dispatch before a kernel launch, read from the source that was built.

This depends on no version of llama.cpp: the functions are those that `ggml_cuda_flash_attn_ext` leads to.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fattn_probe.cxx.expressions import Reader
from fattn_probe.cxx.macros import Macro, read_macros
from fattn_probe.cxx.source_file import SourceFile, read_source
from fattn_probe.cxx.statements import Function
from fattn_probe.inspect.dispatch.extract import Extract
from fattn_probe.inspect.dispatch.records import DEFINES, FILES, Dispatch
from fattn_probe.source.features import CUDA

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
    extracts = [
        Extract(file.name, function, Reader(file.draft, macros), file.depths, _leading(file, names))
        for file, function in chosen
    ]
    return Dispatch(
        tuple(extract.function_record() for extract in extracts),
        tuple(condition for extract in extracts for condition in extract.conditions()),
        _parameters(files),
    )


def _parameters(files: Iterable[SourceFile]) -> dict[str, tuple[str, ...]]:
    """Template parameters by function; if two files define a name, the header's, since a .cu file's is local."""
    headers_last = sorted(files, key=lambda file: file.name.endswith(".cuh"))
    return {name: function.parameters for file in headers_last for name, function in file.functions.items()}


def _reachable(files: Iterable[SourceFile], enums: frozenset[str]) -> Iterator[tuple[SourceFile, Function]]:
    """The functions reachable from the entry that take the context or return a choice."""
    known = {name: (file, function) for file in files for name, function in file.functions.items() if name != LAUNCH}
    waiting, seen = [ENTRY] * (ENTRY in known), {ENTRY}
    while waiting:
        file, function = known[waiting.pop(0)]
        if function.returns in enums or _takes_context(file, function):
            yield file, function
        new = [name for name in _mentioned(file, function) if name in known and name not in seen]
        seen.update(new)
        waiting.extend(new)


def _takes_context(file: SourceFile, function: Function) -> bool:
    return function.returns == "void" and CONTEXT in file.draft.words[slice(*function.arguments)]


def _mentioned(file: SourceFile, function: Function) -> Iterator[str]:
    """The names in a function's body, and in the macros that it uses."""
    for word in dict.fromkeys(file.draft.words[function.start : function.stop]):
        yield word
        yield from _in_macro(file, word)


def _in_macro(file: SourceFile, name: str) -> set[str]:
    """The names in a macro's body and, transitively, in the macros that it uses."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = file.macros.get(waiting.pop(), frozenset()) - found
        found |= new
        waiting.extend(new)
    return found


def _leading(file: SourceFile, names: frozenset[str]) -> frozenset[str]:
    """The macros that call a function of the dispatch."""
    return frozenset(macro for macro in file.macros if not names.isdisjoint(_in_macro(file, macro)))
