"""Search for fragments of C++ in the patched CUDA files of a tree."""

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario.spec import Spec
from fattn_probe.llama.cxx.functions import functions
from fattn_probe.llama.cxx.tokens import CODE_KINDS, draft_of, tokenize
from fattn_probe.llama.source.features import CUDA
from fattn_probe.llama.source.patches import Patch, plan

ANYTHING = "..."


@dataclass(frozen=True)
class Code:
    """The CUDA files of the tree at `root` after `patches`."""

    root: Path
    patches: tuple[Patch, ...] = ()

    @functools.cached_property
    def changed(self) -> Mapping[Path, str | None]:
        """The files that the patches change, None for a deleted one."""
        found: dict[Path, str | None] = {}
        for patch in self.patches:
            found = plan(patch, self.root, found)
        return found

    def text(self, file: str) -> str | None:
        """The text of a file of ggml-cuda/; None if it does not exist."""
        path = self.root / CUDA / file
        if path in self.changed:
            return self.changed[path]
        return path.read_text(errors="replace") if path.is_file() else None

    def body(self, file: str, function: str) -> str | None:
        """The tokens of a function's definitions, separated by spaces; None if the file does not define it."""
        try:
            text = self.text(file)
        except (OSError, InputError):
            return None
        return None if text is None else bodies_of(text).get(function)


@functools.lru_cache(maxsize=64)
def bodies_of(text: str) -> Mapping[str, str]:
    """The tokens of each function of a file, separated by spaces; overloads are concatenated."""
    draft, found = draft_of(tokenize(text)), defaultdict[str, list[str]](list)
    for function in functions(draft):
        found[function.name].append(" ".join(draft.words[function.start : function.stop]))
    return {name: " ; ".join(bodies) for name, bodies in found.items()}


@functools.cache
def pattern_of(fragment: str) -> re.Pattern[str]:
    """The pattern of a fragment in tokens separated by spaces; `...` matches one token or more."""
    words = [token.text for token in tokenize(fragment) if token.kind in CODE_KINDS]
    inner = r"\s".join(".*?" if word == ANYTHING else re.escape(word) for word in words)
    return re.compile(rf"(?<!\S){inner}(?!\S)")


class Probe(Spec):
    """Fragments that a function must or must not contain, ignoring blanks and comments."""

    file: str
    function: str
    has: list[str] = Field(default=[])
    lacks: list[str] = Field(default=[])

    def holds(self, code: Code) -> bool | None:
        """Whether a tree has the code; None if the function is missing."""
        body = code.body(self.file, self.function)
        if body is None:
            return None
        found = [bool(pattern_of(fragment).search(body)) for fragment in (*self.has, *self.lacks)]
        return all(found[: len(self.has)]) and not any(found[len(self.has) :])

    def __str__(self) -> str:
        return f"{self.function}() in {self.file}"


def all_hold(probes: Iterable[Probe], code: Code) -> bool | None:
    """Whether all probes hold: False if one does not; otherwise None if the result of one is unknown."""
    found = [probe.holds(code) for probe in probes]
    return False if False in found else None if None in found else True
