"""The `#define`s of a tree, and macro expansion: nvcc builds have no macro information for a debugger."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\(([\w, ]*)\))?[ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
WORD = re.compile(r"[^\W\d]\w*|\d[\w.]*|\s+|.", re.DOTALL)
CALL = re.compile(r"\b(?!sizeof\b)[^\W\d]\w*\s*(?:<[^<>&|=]*>\s*)?\(")
DEPTH = 8


@dataclass(frozen=True)
class Macro:
    """`parameters` is None for a macro without parentheses."""

    parameters: tuple[str, ...] | None
    body: str


def read_macros(texts: Iterable[str]) -> dict[str, Macro]:
    """One-line macros by name; macros with different definitions are left out."""
    found: dict[str, set[Macro]] = {}
    for text in texts:
        for name, brackets, parameters, body in DEFINE.findall(COMMENT.sub(" ", text)):
            names = tuple(parameters.replace(" ", "").split(",")) if brackets else None
            if not body.endswith("\\"):
                found.setdefault(name, set()).add(Macro(names, body))
    return {name: macros.pop() for name, macros in found.items() if len(macros) == 1}


def expand(text: str, macros: Mapping[str, Macro], depth: int = DEPTH) -> str:
    """The text with its macros expanded, each in parentheses unless it is one word; `nullptr` becomes 0."""
    words: list[str] = WORD.findall(text)
    out, index = [], 0
    while index < len(words):
        word = words[index]
        index += 1
        macro = macros.get(word) if depth else None
        if macro is None:
            out.append("0" if word == "nullptr" else word)
        elif macro.parameters is None:
            out.append(_bracketed(expand(macro.body, macros, depth - 1)))
        else:
            arguments, index = _arguments(words, index)
            values = dict(zip(macro.parameters, arguments, strict=False))
            body = "".join(values.get(item, item) for item in WORD.findall(macro.body))
            out.append(_bracketed(expand(body, macros, depth - 1)))
    return "".join(out)


def debugger_expression(text: str, macros: Mapping[str, Macro]) -> str:
    """The expression in a form that a debugger can evaluate; empty if that would call a function of the program."""
    expanded = expand(text, macros)
    return "" if CALL.search(expanded) or "{" in expanded else expanded


def _bracketed(text: str) -> str:
    return text if text.isalnum() else f"({text})"


def _arguments(words: list[str], index: int) -> tuple[list[str], int]:
    """The arguments of a call whose `(` is at `index`, and the index after its `)`."""
    arguments, depth = [""], 0
    while index < len(words):
        word = words[index]
        index += 1
        depth += (word == "(") - (word == ")")
        if depth == 0:
            break
        if depth == 1 and word == ",":
            arguments.append("")
        elif not (depth == 1 and word == "("):
            arguments[-1] += word
    return [argument.strip() for argument in arguments], index
