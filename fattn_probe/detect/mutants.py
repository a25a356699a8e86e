"""Small faults in the attention kernels, each behind a switch: a build has all of them, and a run switches one on.

A mutant changes one expression or drops one statement. The changed file is C++ as before, with the original in place
and the same lines: `if (a < b)` becomes `if ((simt::mutant(7) ? (a <= b) : (a < b)))`.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fattn_probe.cxx.statements import Function, Span, Statement, functions, parse
from fattn_probe.cxx.tokens import Draft, draft_of, tokenize

RELATIONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/"}
COMPOUND = {"+=": "-=", "-=": "+=", "*=": "+="}
JUMPS = {"continue": "break", "break": "continue"}
SWAPPED = (
    *(("ne01", "ne02"), ("ne11", "ne12"), ("nb01", "nb02"), ("nb31", "nb33"), ("ncols1", "ncols2")),
    *((f"nb1{dim}", f"nb2{dim}") for dim in "123"),
    *(("stride_K", "stride_V"), ("nthreads_KQ", "nthreads_V"), ("DKQ", "DV")),
)
"""Names that are mistaken for one another: strides and sizes of other tensors or dimensions."""
OTHER_NAMES = dict(SWAPPED) | {b: a for a, b in SWAPPED}
WAITS = frozenset({"__syncthreads", "__syncwarp", "cp_async_wait_all"})
ASSIGNMENTS = frozenset({"=", "+=", "-=", "*="})
NOT_SWITCHED = frozenset({"constexpr", "static", "static_assert", "using", "typedef", "extern", "__shared__", "asm"})
"""A statement with one of these needs a constant, or declares what the next statements use."""
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Mutant:
    """One fault: `before` becomes `after` in a line of a file of ggml-cuda/; `operator` is its kind."""

    id: int
    file: str
    line: int
    operator: str
    before: str
    after: str

    @property
    def digest(self) -> str:
        """What identifies the fault in every release: its text, not its number."""
        return hashlib.sha256(repr((self.file, self.line, self.operator, self.before, self.after)).encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.operator}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Change:
    """A fault in the tokens [start, stop): the text of the whole that replaces them, and what differs in it."""

    start: int
    stop: int
    text: str
    operator: str
    before: str
    after: str


def mutate(text: str, file: str, first: int = 1, without: frozenset[int] = frozenset()) -> tuple[str, list[Mutant]]:
    """A source with its mutants switched, and the mutants, numbered from `first`; some can be left `without`."""
    draft = draft_of(tokenize(text))
    found: list[Mutant] = []
    for changes in switched_spans(draft):
        chosen = []
        for change in changes:
            number = first + len(found)
            line = draft.lines[change.start]
            found.append(Mutant(number, file, line, change.operator, change.before, change.after))
            if number not in without:
                chosen.append((number, change))
        if chosen:
            switch(draft, chosen)
    return "".join(draft.out), [mutant for mutant in found if mutant.id not in without]


def switch(draft: Draft, chosen: list[tuple[int, Change]]) -> None:
    """Put the changes of one span before the original, each behind its number."""
    start, stop = chosen[0][1].start, chosen[0][1].stop
    if chosen[0][1].text.endswith(";"):
        draft.before(
            start, "".join(f"if (simt::mutant({number})) {{ {change.text} }} else " for number, change in chosen)
        )
        return
    draft.before(
        start, "(" + "".join(f"simt::mutant({number}) ? ({change.text}) : " for number, change in chosen) + "("
    )
    draft.after(stop - 1, "))")


def switched_spans(draft: Draft) -> Iterator[list[Change]]:
    """The changes of each expression and each statement that can be switched, in source order."""
    for function in functions(draft):
        if not is_constexpr(draft, function):
            for top in parse(draft, function.start, function.stop):
                for statement in top.all():
                    yield from of_statement(draft, statement)


def is_constexpr(draft: Draft, function: Function) -> bool:
    """Whether a function is called for constants."""
    began = function.arguments[0]
    while began > 0 and draft.words[began - 1] not in (";", "}"):
        began -= 1
    return "constexpr" in draft.words[began : function.arguments[0]]


def of_statement(draft: Draft, statement: Statement) -> Iterator[list[Change]]:
    """The changes of one statement, without those inside it."""
    words = draft.words[statement.start : statement.stop]
    if draft.directives(statement.start, max(statement.start, statement.stop - 1)):
        return
    if statement.kind in ("if", "while"):
        yield [*of_condition(draft, statement.head), *(of_guard(draft, statement) if statement.kind == "if" else ())]
    elif statement.kind == "for":
        yield from ([*of_condition(draft, span)] for span in loop_conditions(draft, statement.head))
    elif statement.kind == "return" and statement.head[0] < statement.head[1] and "{" not in words:
        yield [*of_expression(draft, statement.head)]
    elif statement.kind == "plain" and not NOT_SWITCHED & set(words) and "{" not in words and len(words) > 1:
        yield from of_plain(draft, statement)


def of_plain(draft: Draft, statement: Statement) -> Iterator[list[Change]]:
    """The changes of an assignment, a declaration with a value, a jump, or a wait."""
    start, stop = statement.start, statement.stop
    first = draft.words[start]
    if first in JUMPS:
        yield [Change(start, stop, f"{JUMPS[first]};", "jump", first, JUMPS[first])]
    elif first in WAITS:
        yield [Change(start, stop, ";", "wait dropped", draft.written(start, stop - 1), "nothing")]
    else:
        equals = next((index for index in draft.outer(start, stop) if draft.words[index] in ASSIGNMENTS), None)
        if equals is None or equals == start:
            return
        yield [*of_expression(draft, (equals + 1, stop - 1))]


def of_guard(draft: Draft, statement: Statement) -> Iterator[Change]:
    """A test that always holds."""
    start, stop = statement.head
    before = draft.written(start, stop)
    yield Change(start, stop, "true", "guard dropped", before, "true")


def loop_conditions(draft: Draft, head: Span) -> Iterator[Span]:
    """The condition of a `for` with one."""
    ends = [index for index in draft.outer(*head) if draft.words[index] == ";"]
    if len(ends) == 2 and ends[0] + 1 < ends[1]:
        yield ends[0] + 1, ends[1]


def of_condition(draft: Draft, span: Span) -> Iterator[Change]:
    """Relations that are off by one or turned around, and what an expression can have."""
    for index in range(*span):
        word = draft.words[index]
        shift = word in "<>" and word in (draft.word(index - 1), draft.word(index + 1))
        if word in RELATIONS and not shift and not in_template(draft, index):
            yield changed(draft, span, (index, index + 1), RELATIONS[word], "relation")
    yield from of_expression(draft, span)


def of_expression(draft: Draft, span: Span) -> Iterator[Change]:
    """Arithmetic, numbers, names of other strides, casts to fewer bits."""
    for index in range(*span):
        word = draft.words[index]
        if word in ARITHMETIC and is_binary(draft, index, span):
            yield changed(draft, span, (index, index + 1), ARITHMETIC[word], "arithmetic")
        elif NUMBER.fullmatch(word) and not in_template(draft, index):
            yield changed(draft, span, (index, index + 1), str(int(word) + 1), "constant")
        elif word in OTHER_NAMES and draft.word(index - 1) not in (".", "->", "::") and not in_template(draft, index):
            yield changed(draft, span, (index, index + 1), OTHER_NAMES[word], "other name")
        elif word == "int64_t" and draft.word(index + 1) in ("(", ")"):
            yield changed(draft, span, (index, index + 1), "int", "32 bits")
        elif word == "threadIdx" and draft.words[index + 1 : index + 3] == [".", "y"]:
            yield changed(draft, span, (index, index + 3), "0", "warp forgotten")


def changed(draft: Draft, span: Span, part: Span, text: str, operator: str) -> Change:
    """The expression with a part replaced."""
    pieces = (draft.written(span[0], part[0]), text, draft.written(part[1], span[1]))
    before = draft.written(*part)
    near = [draft.written(max(span[0], part[0] - 3), part[0]), draft.written(part[1], min(span[1], part[1] + 3))]
    shown = [" ".join(filter(None, (near[0], middle, near[1]))) for middle in (before, text)]
    return Change(span[0], span[1], " ".join(filter(None, pieces)), operator, shown[0], shown[1])


def is_binary(draft: Draft, index: int, span: Span) -> bool:
    """Whether an operator is between two values: neither a sign, nor a pointer's star, nor a template's."""
    if index <= span[0] or index + 1 >= span[1]:
        return False
    before, after = draft.word(index - 1), draft.word(index + 1)
    value = draft.is_name(index - 1) or NUMBER.match(before) is not None or before in (")", "]")
    pointer = draft.words[index] == "*" and (after in (")", ">", ",", "const", "*") or before == "const")
    cast = before == ")" and is_cast(draft, index - 1)
    return value and not pointer and not cast and not in_template(draft, index)


def is_cast(draft: Draft, closer: int) -> bool:
    """Whether a `)` ends a C cast to a pointer or a number: `(const half2 *)`, `(float)`."""
    inside = draft.words[draft.mates[closer] + 1 : closer]
    return bool(inside) and (inside[-1] == "*" or inside in (["float"], ["int"], ["int64_t"], ["half"], ["float2"]))


def in_template(draft: Draft, index: int) -> bool:
    """Whether a token is `<`, `>` or an argument of a template, as far as its line shows."""
    word = draft.words[index]
    if word == "<":
        return draft.is_name(index - 1) and closing_angle(draft, index) is not None
    for opener in range(index, max(index - 24, -1), -1):
        if draft.words[opener] in (";", "{", "}"):
            return False
        if draft.words[opener] == "<" and opener != index and draft.is_name(opener - 1):
            closer = closing_angle(draft, opener)
            if closer is not None and closer >= index:
                return True
    return False


def closing_angle(draft: Draft, index: int) -> int | None:
    """The `>` that ends the template arguments from `<` on, if these are followed by `(`, `::`, `>` or a name."""
    depth = 0
    for at in range(index, min(index + 40, len(draft.words))):
        word = draft.words[at]
        if word in (";", "{", "}", "&&", "||", "?"):
            return None
        depth += (word == "<") - (word == ">") - 2 * (word == ">>")
        if depth <= 0:
            after = draft.word(at + 1)
            return at if after in ("(", "::", ">", ",", ")", "{", ";", ":") or draft.is_name(at + 1) else None
    return None
