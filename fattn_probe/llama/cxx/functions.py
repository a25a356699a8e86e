"""Finds the functions that a C++ file defines, reliably enough for the sources of any release."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fattn_probe.llama.cxx.tokens import CONDITIONAL, UNMATCHED, Draft, Span, Spans, draft_of, spans_of, tokenize

BODIES = "simt_body"
"""The namespace for bodies of attention kernels on the simulator; a kernel describes itself and calls its body."""
ONCE = "simt_once_"
"""The name prefix of the functions to which `llama/build/rewrite_flags` moves the bodies of templates."""
NOT_FUNCTIONS = frozenset({"if", "for", "while", "switch", "catch", "alignas", "decltype"})
NOT_A_NAME = frozenset({"__launch_bounds__", "__attribute__", "__align__", "alignas", "decltype", "noexcept"})
NAME = re.compile(r"[^\W\d]\w*")
DEFINED = re.compile(r"\s*#\s*define\s+(\w+)")


@dataclass(frozen=True)
class Function:
    """A function with a body, as indices of code tokens.

    `at` is its name, `header` the first specifier (after `template<...>`), [start, stop) the body without the braces.
    `returns` is the word before the name, and `parameters` are the names of the template parameters.
    """

    name: str
    at: int
    header: int
    returns: str
    parameters: tuple[str, ...]
    arguments: Span
    start: int
    stop: int


def functions(draft: Draft) -> Iterator[Function]:
    """The functions defined at file scope."""
    index, began = 0, 0
    while index < len(draft.words):
        word = draft.words[index]
        if word == "{" and draft.mates[index] != UNMATCHED:
            closer = index - 1
            while draft.word(closer) in {"const", "noexcept", "override"}:
                closer -= 1
            opener = draft.mates[closer] if draft.word(closer) == ")" else UNMATCHED
            if opener != UNMATCHED and draft.is_name(opener - 1) and draft.words[opener - 1] not in NOT_FUNCTIONS:
                yield _function(draft, began, opener, index)
            index = draft.mates[index]
        if word in (";", "{", "}"):
            began = index + 1
        index += 1


def functions_with(draft: Draft, *specifiers: str) -> Iterator[Function]:
    """The functions that have a body and one of these specifiers, ordered by specifier."""
    return filter(None, (function_at(draft, index) for word in specifiers for index in draft.where.get(word, ())))


def template_of(draft: Draft, header: int) -> int:
    """The index of `template` before a function's first specifier, or UNMATCHED."""
    first = draft.back_over_angles(header - 1) - 1 if draft.word(header - 1) == ">" else UNMATCHED
    return first if draft.word(first) == "template" else UNMATCHED


def function_at(draft: Draft, index: int) -> Function | None:
    """The function whose specifier (`__global__`, `__device__`) is at `index`; None for a declaration or a variable."""
    opener, body = _parameter_list(draft, index), _body(draft, index)
    if opener is None or body is None:
        return None
    header = header_start(draft, index)
    first = template_of(draft, header)
    return _function(draft, header if first == UNMATCHED else first, opener, body)


def _function(draft: Draft, began: int, opener: int, body: int) -> Function:
    """The function whose declaration begins at `began`, with its parameters at `opener` and its body at `body`."""
    at, header, parameters = opener - 1, began, list[str]()
    if draft.word(at) == ">":
        at = max(draft.back_over_angles(at), 1) - 1
    if "template" in draft.words[began:opener]:
        last, depth, in_default = "", 0, False
        for header in draft.outer(draft.words.index("template", began) + 1, opener):
            word = draft.words[header]
            depth += (word == "<") - (word == ">")
            if depth == 0 or (depth == 1 and word == ","):
                parameters.append(last)
                last, in_default = "", False
            if depth == 0:
                break
            in_default = in_default or word == "="
            last = word if draft.is_name(header) and not in_default else last
        header += 1
    arguments = opener + 1, draft.mates[opener]
    names = tuple(filter(None, parameters))
    return Function(draft.words[at], at, header, draft.word(at - 1), names, arguments, body + 1, draft.mates[body])


def header_start(draft: Draft, index: int) -> int:
    """The first specifier of the declaration that contains the specifier at `index`."""
    while index > 0:
        before = index - 1
        mate = draft.mates[before]
        if draft.is_name(before):
            index = before
        elif draft.words[before] == ")" and mate > 0 and draft.words[mate - 1] in NOT_A_NAME:
            index = mate - 1
        elif draft.words[before] == "]" and mate > 0 and draft.word(mate + 1) == "[":
            index = mate
        else:
            break
    return index


def _parameter_list(draft: Draft, index: int) -> int | None:
    """The `(` of the parameters in the function header that contains `index`; None for a variable."""
    while index < len(draft.words) and draft.words[index] not in (";", "{", "}"):
        if draft.words[index] == "=" and draft.words[index - 1] != "operator":
            return None
        if draft.words[index] == "(":
            if draft.words[index - 1] not in NOT_A_NAME:
                return index
            index = max(draft.mates[index], index)
        index += 1
    return None


def _body(draft: Draft, index: int) -> int | None:
    """The `{` of the function whose header contains `index`; None for a declaration or a variable."""
    colon = False
    while index < len(draft.words):
        word, mate = draft.words[index], draft.mates[index]
        # after a constructor's colon, a `{` may initialise a member
        initialises = colon and (draft.is_name(index - 1) or draft.words[index - 1] == ">")
        if word in ("(", "[") or (word == "{" and initialises):
            if mate == UNMATCHED:
                return None
            index = mate
        elif word == "{":
            return index if mate != UNMATCHED else None
        elif word in (";", "}", ")") or (word == "=" and draft.words[index - 1] != "operator"):
            return None
        colon = colon or word == ":"
        index += 1
    return None


def device_spans(draft: Draft, *, host_too: bool = False) -> Spans:
    """The bodies of device functions and lambdas; with `host_too`, including `__host__ __device__` ones."""
    found = functions_with(draft, "__device__", "__global__")
    return spans_of(
        [(it.start - 1, it.stop) for it in found if host_too or "__host__" not in draft.words[it.header : it.start]]
    )


@dataclass(frozen=True)
class SourceFile:
    """A file's tokens and functions; `macros` has the names in each macro's body, `depths` the tokens' `#if` depths."""

    name: str
    draft: Draft
    functions: Mapping[str, Function]
    macros: Mapping[str, frozenset[str]]
    depths: tuple[int, ...]


def read_source(name: str, text: str) -> SourceFile:
    """Parse a file's text; `name` identifies the file."""
    draft = draft_of(tokenize(text))
    directives = [token.text for token in draft.tokens if token.kind == "directive"]
    macros = {match[1]: frozenset(NAME.findall(line)) for line in directives if (match := DEFINED.match(line))}
    depth, place, depths = 0, 0, list[int]()
    for target in draft.places:
        for token in draft.tokens[place:target]:
            if token.kind == "directive" and (match := CONDITIONAL.match(token.text)):
                depth += (match[1] == "if") - (match[1] == "endif")
        place = target
        depths.append(depth)
    return SourceFile(name, draft, {function.name: function for function in functions(draft)}, macros, tuple(depths))
