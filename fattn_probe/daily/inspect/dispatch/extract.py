"""Extract the conditions in a function of the dispatch from its source, as records."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from fattn_probe.llama.cxx.expressions import Logic, Reader
from fattn_probe.llama.cxx.functions import Function
from fattn_probe.llama.cxx.statements import Statement, parse
from fattn_probe.llama.cxx.tokens import Span
from fattn_probe.llama.source.features import CUDA

FILES = "fattn*.cu*"  # the files in ggml-cuda/ with the dispatch
DEFINES = (CUDA / "common.cuh", CUDA / "fattn-common.cuh", Path("ggml/include/ggml.h"))  # the files with its macros
Lines = tuple[int, int]
Kind = Literal["if", "if constexpr", "while", "switch", "value", "macro", "outcome"]


@dataclass(frozen=True)
class SwitchCase:
    """One branch of a switch: its labels, its lines, and its consequence."""

    labels: tuple[str, ...]
    lines: Lines
    leads_to: str


@dataclass(frozen=True)
class Condition:
    """A condition in a function of the dispatch, on `lines` (first and last, inclusive, as everywhere here).

    `leads_to` is the source text of the consequence if the condition holds. A `value` is a bool or a `?:` assigned to
    `variable`. An `outcome` has no condition: it returns a choice or calls another function. A `macro` does the same,
    but hides its conditions. `around` is the enclosing block. `guarded`: between `#if` and `#endif`.
    """

    function: str
    file: str
    kind: Kind
    lines: Lines
    text: str
    logic: Logic
    leads_to: str
    body: Lines | None = None
    cases: tuple[SwitchCase, ...] = ()
    variable: str = ""
    around: Lines = (0, 0)
    in_loop: bool = False
    guarded: bool = False


@dataclass(frozen=True)
class DispatchFunction:
    """A function on the way to the kernel; `location` is its first statement, where a breakpoint goes.

    `calls` are the lines that call another function of the dispatch; the debugger steps into them.
    """

    name: str
    file: str
    lines: Lines
    location: str
    calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dispatch:
    """The functions that choose a kernel in one tree, the entry first, and their conditions.

    `parameters` are the template parameters of all functions in the files, by name.
    """

    functions: tuple[DispatchFunction, ...]
    conditions: tuple[Condition, ...]
    parameters: Mapping[str, tuple[str, ...]]


TEMPLATE = re.compile(r"(?<=\w)< +")
HEADED = frozenset({"if", "if constexpr", "switch", "while"})


def _unblocked(statements: Iterable[Statement]) -> Iterator[Statement]:
    """The statements, with bare blocks replaced by their content."""
    for statement in statements:
        if statement.kind == "block":
            yield from _unblocked(statement.body)
        else:
            yield statement


@dataclass(frozen=True)
class Value:
    """A value given to a variable: the tokens `asked` (for a `?:`, only its condition) and `chosen` (the result)."""

    variable: str
    asked: Span
    chosen: Span


@dataclass(frozen=True)
class Extract:
    """A function of the dispatch; `macros` are the macros that call another function of the dispatch."""

    file: str
    function: Function
    reader: Reader
    depths: Sequence[int]
    macros: frozenset[str]

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """The statements of the function's body."""
        return parse(self.reader.draft, self.function.start, self.function.stop)

    def function_record(self) -> DispatchFunction:
        """The function's name, location and calls."""
        first = self.statements[0].start if self.statements else self.function.stop
        return DispatchFunction(
            self.function.name,
            self.file,
            (self._line(self.function.arguments[0]), self._line(self.function.stop)),
            f"{self.file}:{self._line(first)}",
            tuple(self._calls()),
        )

    def _calls(self) -> Iterator[int]:
        """The lines that pass the context on, in a call or in a macro that contains a call."""
        for statement in (inner for outer in self.statements for inner in outer.all()):
            is_macro = statement.kind == "macro" and self.reader.draft.words[statement.start] in self.macros
            if is_macro or (statement.kind == "plain" and self._outcome(statement)):
                first, last = self._lines((statement.start, statement.stop))
                yield from range(first, last + 1)

    def conditions(self) -> Iterator[Condition]:
        """The function's conditions, in source order."""
        yield from self._walk(self.statements, (self._line(self.function.start - 1), self._line(self.function.stop)))

    def _line(self, token: int) -> int:
        return self.reader.draft.lines[token]

    def _lines(self, span: Span) -> Lines:
        return self._line(span[0]), self._line(max(span[1] - 1, span[0]))

    def _body(self, statements: Sequence[Statement]) -> Lines | None:
        return self._lines((statements[0].start, statements[-1].stop)) if statements else None

    def _walk(self, statements: Iterable[Statement], around: Lines, in_loop: bool = False) -> Iterator[Condition]:
        """The conditions of the statements in the block with the lines `around`."""
        for statement in statements:
            yield from (replace(found, around=around, in_loop=in_loop) for found in self._own(statement))
            if statement.kind == "switch":
                for case in statement.body:
                    yield from self._walk(case.body, self._lines((case.start, case.stop)), in_loop)
                continue
            repeated = in_loop or statement.kind in ("for", "while")
            for children in (statement.body, statement.orelse):
                yield from self._walk(children, self._body(children) or around, repeated)

    def _own(self, statement: Statement) -> Iterator[Condition]:
        whole, headed = (statement.start, statement.stop), (statement.start, statement.head[1] + 1)
        body = self._body(statement.body)
        kind: Kind = statement.kind  # type: ignore[assignment]
        if kind in ("if", "if constexpr", "while"):
            inside = (inner for part in (statement.body, statement.orelse) for child in part for inner in child.all())
            if any(one.kind == "macro" or self._outcome(one) or self._sets(one) or self._jumps(one) for one in inside):
                leads_to = self._leads(statement.body)
                yield self._condition(kind, headed, asked=statement.head, leads_to=leads_to, body=body)
        elif kind == "switch":
            cases = tuple(
                SwitchCase(case.labels, self._lines((case.start, case.stop)), self._leads(case.body))
                for case in statement.body
            )
            yield self._condition(kind, headed, asked=statement.head, body=body, cases=cases)
        elif kind == "macro":
            if self.reader.draft.words[statement.start] in self.macros:
                yield self._condition(kind, statement.head, asked=statement.head)
        elif value := self._value(statement):
            if value.variable in self._used:
                leads_to = f"{value.variable} = {self.reader.text(*value.chosen) or 'true'}"
                name = value.variable
                yield self._condition("value", whole, asked=value.asked, leads_to=leads_to, variable=name)
        elif leads_to := self._outcome(statement):
            yield self._condition("outcome", whole, leads_to=leads_to)

    def _condition(
        self,
        kind: Kind,
        span: Span,
        *,
        asked: Span = (0, 0),
        leads_to: str = "",
        body: Lines | None = None,
        cases: tuple[SwitchCase, ...] = (),
        variable: str = "",
    ) -> Condition:
        return Condition(
            function=self.function.name,
            file=self.file,
            kind=kind,
            lines=self._lines(span),
            text=self.reader.text(*asked),
            logic=self.reader.logic(*asked),
            leads_to=leads_to,
            body=body,
            cases=cases,
            variable=variable,
            guarded=self.depths[span[0]] > self.depths[self.function.start - 1],
        )

    @cached_property
    def _used(self) -> frozenset[str]:
        """The names used in conditions, and in the values of variables that conditions use."""
        words = self.reader.draft.words
        every = [inner for statement in self.statements for inner in statement.all()]
        used = {word for inner in every if inner.kind in HEADED for word in words[slice(*inner.head)]}
        values = [value for inner in every if (value := self._value(inner))]
        for value in reversed(values):
            if value.variable in used:
                used.update(words[slice(*value.asked)])
        return frozenset(used)

    def _value(self, statement: Statement) -> Value | None:
        """The bool or `?:` value that a statement assigns to a variable at run time."""
        span = self._given(statement)
        words = self.reader.draft.words
        if span is None or span[1] - span[0] < 2:
            return None
        before = words[statement.start : span[0] - 1]
        if "constexpr" in before or "static" in before:
            return None
        outer = list(self.reader.draft.outer(*span))
        question = next((index for index in outer if words[index] == "?"), None)
        if question is not None:
            colon = next((index for index in reversed(outer) if words[index] == ":"), span[1])
            return Value(before[-1], (span[0], question), (question + 1, colon))
        return Value(before[-1], span, (0, 0)) if "bool" in before else None

    def _given(self, statement: Statement) -> Span | None:
        """The tokens after the `=` of a statement that assigns to a plain variable."""
        if statement.kind != "plain":
            return None
        draft = self.reader.draft
        for index in self.reader.draft.outer(*statement.head):
            if draft.words[index] == "=":
                plain = draft.is_name(index - 1) and draft.word(index - 2) not in (".", "->")
                return (index + 1, statement.head[1]) if plain else None
        return None

    def _leads(self, body: Sequence[Statement]) -> str:
        """The effect of a body: its first outcome; without one, its first assignment, jump or constant.

        If the body has only a nested `if`, this is the text of that `if`.
        """
        flat = list(_unblocked(body))
        for find in (self._outcome, self._sets, self._jumps, self._constant):
            if found := next(filter(None, map(find, flat)), ""):
                return found
        alone = len(flat) == 1 and flat[0].kind == "if" and not flat[0].orelse
        inner = self._leads(flat[0].body) if alone else ""
        return f"if ({self.reader.text(*flat[0].head)}) {inner}" if inner else ""

    def _outcome(self, statement: Statement) -> str:
        """The text of an outcome: a call that takes the context (without arguments), a returned value, or an abort."""
        words, mates = self.reader.draft.words, self.reader.draft.mates
        start, stop = statement.start, statement.head[1]
        if statement.kind == "return":
            return self.reader.text(start, stop) if stop > start + 1 else ""
        if statement.kind != "plain" or stop <= start or words[stop - 1] != ")":
            return ""
        if words[start] == "GGML_ABORT":
            return self.reader.text(start, stop)
        opener = mates[stop - 1]
        if words[opener + 1] != "ctx" or words[opener + 2] not in (",", ")"):
            return ""
        return self._resolved(start, opener)

    def _resolved(self, start: int, stop: int) -> str:
        """The text, with each name replaced by the literal that the last `constexpr` before it assigned."""
        words = self.reader.draft.words
        text = TEMPLATE.sub("<", self.reader.text(start, stop))
        for name in set(words[start:stop]).intersection(self._literals):
            before = [literal for place, literal in self._literals[name] if place < start]
            text = re.sub(rf"\b{name}\b", before[-1] if before else name, text)
        return text

    @cached_property
    def _literals(self) -> dict[str, list[tuple[int, str]]]:
        """The values in statements like `constexpr int cols_per_block = 32;`, by name, each with its position."""
        found: dict[str, list[tuple[int, str]]] = {}
        for inner in (inner for statement in self.statements for inner in statement.all()):
            name, _, literal = self._constant(inner).partition(" = ")
            if name:
                found.setdefault(name, []).append((inner.start, literal))
        return found

    def _sets(self, statement: Statement) -> str:
        """The text of an assignment to a plain variable, unless it is a declaration."""
        span, word = self._given(statement), self.reader.draft.words[statement.start + 1]
        updates = statement.kind == "plain" and word in ("+=", "-=", "*=", "/=", "|=", "&=")
        assigns = span is not None and span[0] == statement.start + 2
        return self._resolved(*statement.head) if assigns or updates else ""

    def _constant(self, statement: Statement) -> str:
        """The text of a `constexpr` with a literal value, which may be a template argument of a later call."""
        words = self.reader.draft.words[statement.start : statement.stop]
        literal = statement.kind == "plain" and words[0] == "constexpr" and words[-3:-2] == ["="]
        return f"{words[-4]} = {words[-2]}" if literal else ""

    def _jumps(self, statement: Statement) -> str:
        word = self.reader.draft.words[statement.start]
        return word if statement.kind == "plain" and word == "continue" else ""
