"""Expressions of a source file: their text on one line, and conditions as trees of logic."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from fattn_probe.llama.cxx.logic import Logic, Variable
from fattn_probe.llama.cxx.macros import Macro, debugger_expression
from fattn_probe.llama.cxx.tokens import CODE_KINDS, Draft

NOT_VARIABLES = frozenset({"nullptr", "true", "false", "sizeof", "const", "int", "float", "bool", "std", "struct"})
JOINTS: tuple[tuple[str, Literal["and", "or"]], ...] = (("||", "or"), ("&&", "and"))
COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">=", "%", "+", "-", "*", "/", "&", "|"})


@dataclass(frozen=True)
class Reader:
    """Reads token ranges [start, stop) of one file."""

    draft: Draft
    macros: Mapping[str, Macro]

    def text(self, start: int, stop: int) -> str:
        """The source's words on one line, without comments and directives."""
        if start >= stop:
            return ""
        tokens = self.draft.tokens[self.draft.places[start] : self.draft.places[stop - 1] + 1]
        return " ".join("".join(token.text if token.kind in CODE_KINDS else " " for token in tokens).split())

    def logic(self, start: int, stop: int) -> Logic:
        """A condition as a tree of its operators, without brackets."""
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
        variables = tuple(Variable(name, ask) for name, ask in asks if ask)
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
