"""Expressions in a source file: their text on one line, and conditions as logic trees.

A tree consists of `&&`, `||`, `!` and atoms. It is evaluated in three-valued logic: True, False, or None for unknown.
Macros are expanded, because nvcc's debug information lacks them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from fattn_probe.llama.cxx.tokens import CODE_KINDS, Draft

Truths = dict[str, bool | None]
NUMBER = re.compile(r"(-?(?:0x[0-9a-f]+|\d+(?:\.\d*)?(?:e[-+]?\d+)?))(?: .*)?$", re.IGNORECASE)
POINTER = re.compile(r"(?:\(.*\*\) ?)?0x[0-9a-f]+\b", re.IGNORECASE)


@dataclass(frozen=True)
class Logic:
    """A node of a logic tree: an `atom` has variables and `ask`, its expression for a debugger; others have children.

    A variable is a pair: its text in the source, and its expression for a debugger.
    """

    kind: Literal["and", "or", "not", "atom"]
    text: str
    children: tuple["Logic", ...] = ()
    ask: str = ""
    variables: tuple[tuple[str, str], ...] = ()

    def atoms(self) -> Iterator["Logic"]:
        """The leaves, in source order."""
        if self.kind == "atom":
            yield self
        for child in self.children:
            yield from child.atoms()

    def asks(self) -> Iterator[str]:
        """Every expression that a debugger has to evaluate."""
        for atom in self.atoms():
            yield from filter(None, (atom.ask, *(ask for _, ask in atom.variables)))


def truth_of_value(value: str | None) -> bool | None:
    """The truth value of a condition, from the value that gdb printed; None if unknown."""
    if value in ("true", "false", None):
        return None if value is None else value == "true"
    if POINTER.match(value):
        return not re.search(r"\b0x0+\b", value)
    match = NUMBER.match(value)
    return None if match is None else float(int(match[1], 0) if "x" in match[1].lower() else match[1]) != 0


def truths(logic: Logic, values: Mapping[str, str | None]) -> Truths:
    """The truth value of each atom, by its text, from the debugger's values."""
    return {atom.text: truth_of_value(values.get(atom.ask)) for atom in logic.atoms()}


def holds(logic: Logic, known: Mapping[str, bool | None]) -> bool | None:
    """The truth value of a condition: an `and` is False if one child is False, even if others are unknown."""
    if logic.kind == "atom":
        return known.get(logic.text)
    found = [holds(child, known) for child in logic.children]
    if logic.kind == "not":
        return None if found[0] is None else not found[0]
    decisive = logic.kind == "or"
    if decisive in found:
        return decisive
    return None if None in found else not decisive


def settle(logic: Logic, outcome: bool | None, known: Truths) -> None:
    """Fill in the truth values that follow from the outcome: if an `and` held, every child held.

    If an `and` did not hold, and all children but one did, the remaining child did not hold.
    """
    if outcome is None:
        return
    if logic.kind == "atom":
        if known.get(logic.text) is None:
            known[logic.text] = outcome
    elif logic.kind == "not":
        settle(logic.children[0], not outcome, known)
    elif outcome == (logic.kind == "and"):
        for child in logic.children:
            settle(child, outcome, known)
    else:
        open_children = [child for child in logic.children if holds(child, known) is not (not outcome)]
        if len(open_children) == 1:
            settle(open_children[0], outcome, known)


def lacking(logic: Logic, known: Mapping[str, bool | None]) -> tuple[Logic, ...]:
    """The smallest parts that are not True and so made the condition false; for `a && b`, `a`, `b` or both."""
    if holds(logic, known) is True:
        return ()
    if logic.kind == "and":
        return tuple(part for child in logic.children for part in lacking(child, known))
    return (logic,)


DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\(([\w, ]*)\))?[ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
WORD = re.compile(r"[^\W\d]\w*|\d[\w.]*|\s+|.", re.DOTALL)
CALL = re.compile(r"\b(?!sizeof\b)[^\W\d]\w*\s*(?:<[^<>&|=]*>\s*)?\(")
DEPTH = 8


@dataclass(frozen=True)
class Macro:
    """A macro's definition; `parameters` is None for a macro without parentheses."""

    parameters: tuple[str, ...] | None
    body: str


def read_macros(texts: Iterable[str]) -> dict[str, Macro]:
    """The one-line macros by name; macros with several different definitions are left out."""
    found: dict[str, set[Macro]] = {}
    for text in texts:
        for name, brackets, parameters, body in DEFINE.findall(COMMENT.sub(" ", text)):
            names = tuple(parameters.replace(" ", "").split(",")) if brackets else None
            if not body.endswith("\\"):
                found.setdefault(name, set()).add(Macro(names, body))
    return {name: macros.pop() for name, macros in found.items() if len(macros) == 1}


def expand(text: str, macros: Mapping[str, Macro], depth: int = DEPTH) -> str:
    """The text with macros expanded, each in parentheses unless it is one word; `nullptr` becomes 0."""
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
            arguments, index = macro_arguments(words, index)
            values = dict(zip(macro.parameters, arguments, strict=False))
            body = "".join(values.get(item, item) for item in WORD.findall(macro.body))
            out.append(_bracketed(expand(body, macros, depth - 1)))
    return "".join(out)


def debugger_expression(text: str, macros: Mapping[str, Macro]) -> str:
    """The expression in a form that a debugger can evaluate; empty if this would call a function of the program."""
    expanded = expand(text, macros)
    return "" if CALL.search(expanded) or "{" in expanded else expanded


def _bracketed(text: str) -> str:
    return text if text.isalnum() else f"({text})"


def macro_arguments(words: list[str], index: int) -> tuple[list[str], int]:
    """The arguments of a macro's call whose `(` is at `index`, and the index after its `)`."""
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


NOT_VARIABLES = frozenset({"nullptr", "true", "false", "sizeof", "const", "int", "float", "bool", "std", "struct"})
JOINTS: tuple[tuple[str, Literal["and", "or"]], ...] = (("||", "or"), ("&&", "and"))
COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">=", "%", "+", "-", "*", "/", "&", "|"})


@dataclass(frozen=True)
class Reader:
    """Reads token ranges [start, stop) of one file."""

    draft: Draft
    macros: Mapping[str, Macro]

    def text(self, start: int, stop: int) -> str:
        """The source text on one line, without comments and directives."""
        if start >= stop:
            return ""
        tokens = self.draft.tokens[self.draft.places[start] : self.draft.places[stop - 1] + 1]
        return " ".join("".join(token.text if token.kind in CODE_KINDS else " " for token in tokens).split())

    def logic(self, start: int, stop: int) -> Logic:
        """A condition as a logic tree, without redundant parentheses."""
        words, outer = self.draft.words, self.draft.outer
        while stop - start > 2 and words[start] == "(" and self.draft.mates[start] == stop - 1:
            start, stop = start + 1, stop - 1
        text = self.text(start, stop)
        if any(words[index] == "?" for index in outer(start, stop)):
            return self._atom(start, stop)
        for word, kind in JOINTS:
            places = [index for index in outer(start, stop) if words[index] == word]
            if places:
                edges = pairwise((start - 1, *places, stop))
                return Logic(kind, text, tuple(self.logic(left + 1, right) for left, right in edges))
        if start < stop and words[start] == "!" and not any(words[i] in COMPARISONS for i in outer(start, stop)):
            return Logic("not", text, (self.logic(start + 1, stop),))
        return self._atom(start, stop)

    def _atom(self, start: int, stop: int) -> Logic:
        text = self.text(start, stop)
        names = [name for name in dict.fromkeys(self._variables(start, stop)) if name != text]
        asks = ((name, debugger_expression(name, self.macros)) for name in names)
        variables = tuple((name, ask) for name, ask in asks if ask)
        return Logic("atom", text, (), debugger_expression(text, self.macros), variables)

    def _variables(self, start: int, stop: int) -> Iterator[str]:
        """Variables with their members and indices: `K->ne[1]`."""
        draft, index = self.draft, start
        while index < stop:
            word, begin = draft.words[index], index
            constant = word in self.macros or ("_" in word and word == word.upper())
            is_type = word in NOT_VARIABLES or word.endswith("_t")
            if constant or is_type or not draft.is_name(index) or draft.word(index - 1) in (".", "->", "::"):
                index += 1
                continue
            index = draft.behind_variable(index)
            if index < stop and draft.words[index] in ("(", "::"):
                index = begin + 1
            else:
                yield self.text(begin, index)
