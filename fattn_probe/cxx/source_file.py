"""A C++ file as tokens and functions, with its macros and the nesting of its `#if`s."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fattn_probe.cxx.statements import Function, functions
from fattn_probe.cxx.tokens import CONDITIONAL, Draft, draft_of, tokenize

NAME = re.compile(r"[^\W\d]\w*")
DEFINED = re.compile(r"\s*#\s*define\s+(\w+)")


@dataclass(frozen=True)
class SourceFile:
    """A file's tokens and functions; `macros` has the names in each macro's body, `depths` each token's `#if` depth."""

    name: str
    draft: Draft
    functions: Mapping[str, Function]
    macros: Mapping[str, frozenset[str]]
    depths: tuple[int, ...]


def read_source(name: str, text: str) -> SourceFile:
    """Read a file from its text; `name` identifies it."""
    draft = draft_of(tokenize(text))
    directives = [token.text for token in draft.tokens if token.kind == "directive"]
    macros = {match[1]: frozenset(NAME.findall(line)) for line in directives if (match := DEFINED.match(line))}
    return SourceFile(
        name, draft, {function.name: function for function in functions(draft)}, macros, tuple(_depths(draft))
    )


def _depths(draft: Draft) -> Iterator[int]:
    depth = place = 0
    for target in draft.places:
        for token in draft.tokens[place:target]:
            match = CONDITIONAL.match(token.text) if token.kind == "directive" else None
            if match:
                depth += (match[1] == "if") - (match[1] == "endif")
        place = target
        yield depth
