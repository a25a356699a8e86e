"""Small faults in the attention kernels, each behind a switch: a build has all of them, and a run switches one on.

A mutant changes one expression, or drops or moves one statement. The changed file is still valid C++, with the original
in place and the same lines: `if (a < b)` becomes `if ((simt::mutant(7, ...) ? (a <= b) : (a < b)))`. The argument `...`
compares the two values, if computing both has no side effect. A case in which they stay equal cannot detect the mutant.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from fattn_probe.base.digest import hexdigest
from fattn_probe.lab.detect.mutant_expressions import (
    Mutation,
    floats_of,
    is_pure,
    of_condition,
    of_expression,
    of_template,
    of_value,
)
from fattn_probe.llama.cxx.expressions import Reader, holds
from fattn_probe.llama.cxx.functions import Function, function_at, functions
from fattn_probe.llama.cxx.statements import Statement, parse
from fattn_probe.llama.cxx.tokens import CODE_KINDS, Draft, Span, draft_of, spans_of, tokenize

JUMPS = {"continue": "break", "break": "continue"}
WAITS = frozenset({"__syncthreads", "__syncwarp", "cp_async_wait_all", "cp_async_wait_group", "__threadfence"})
ASSIGNMENTS = frozenset({"=", "+=", "-=", "*="})
NOT_SWITCHED = frozenset({"constexpr", "static", "static_assert", "using", "typedef", "extern", "__shared__", "asm"})
"""A statement with one of these needs a constant, or declares something that the next statements use."""
NOT_ON_NVIDIA = re.compile(
    r"defined ?\(? ?(GGML_USE_(HIP|MUSA)|AMD_\w+|V_DOT2_F32_F16_AVAILABLE|(RDNA|CDNA|GCN)[\d_]*|__gfx\w+)\b"
)
"""Macros that no build for an NVIDIA GPU defines."""
IF = re.compile(r"\s*#\s*(?P<word>if|ifdef|ifndef|elif|else|endif)\b(?P<condition>.*?)(?://.*)?$", re.DOTALL)
NOT_THE_RESULT = re.compile(r"GGML_|CUDA_SET_|NO_DEVICE_CODE|static_assert")
"""Calls that check, abort or report."""


@dataclass(frozen=True)
class Mutant:
    """One fault: `before` becomes `after` on a line in a function in a file of ggml-cuda/; `operator` is its kind.

    `again` is the number of earlier faults with the same text on the line. `amd`: only AMD GPUs run the line.
    """

    id: int
    file: str
    line: int
    operator: str
    before: str
    after: str
    function: str = ""
    again: int = 0
    amd: bool = False

    @property
    def digest(self) -> str:
        """Identifies the fault in every release by its text, not its number."""
        text = (self.file, self.line, self.operator, self.before, self.after, *([self.again] if self.again else []))
        return hexdigest(repr(text))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.operator}: {self.before} -> {self.after}"


def mutate(text: str, file: str, first: int = 1, without: frozenset[int] = frozenset()) -> tuple[str, list[Mutant]]:
    """A source with switches for its mutants, except those in `without`; and all mutants, numbered from `first`."""
    draft = draft_of(tokenize(text))
    named, only_amd = functions_of(draft), not_on_nvidia(draft)
    starts = [function.start for function in named]
    found, seen = list[Mutant](), Counter[tuple[int, str, str, str]]()
    for changes in switched_spans(draft):
        chosen = []
        for change in changes:
            amd = change.amd or change.start in only_amd
            if file == "mma.cuh" and not amd:  # NVIDIA's code is PTX
                continue
            number = first + len(found)
            line = draft.lines[change.start]
            function = named[bisect_right(starts, change.start) - 1].name
            said = line, change.operator, change.before, change.after
            found.append(Mutant(number, file, *said, function, seen[said], amd))
            seen[said] += 1
            if number not in without:
                chosen.append((number, change))
        if chosen:
            switch(draft, chosen)
    return "".join(draft.out), found


def switch(draft: Draft, chosen: list[tuple[int, Mutation]]) -> None:
    """Put the changes to a span before the original, each selected by its number.

    The switch of an expression also records whether the value differs.
    """
    start, stop = chosen[0][1].start, chosen[0][1].stop
    if chosen[0][1].text.endswith(";"):
        changed = (f"if (simt::mutant({number})) {{ {change.text} }} else " for number, change in chosen)
        draft.before(start, "".join(changed))
        for number, change in chosen:
            if change.later:
                draft.after(change.later[0], f" if (simt::mutant({number})) {{ {change.later[1]} }}")
        return
    parts = []
    for number, change in chosen:
        noted = ""
        if change.compared is not None:
            mutated, original = change.compared
            noted = f", simt::unknown({number}) && simt::differ(({mutated}), ({original}))"
        parts.append(f"simt::mutant({number}{noted}) ? ({change.text}) : ")
    draft.before(start, f"({''.join(parts)}(")
    draft.after(stop - 1, "))")


def functions_of(draft: Draft) -> list[Function]:
    """The functions of a file, in order: those at file level, and those in its namespaces and structs; no lambdas."""
    inside = (function_at(draft, index) for index in draft.where.get("__device__", ()))
    every = {function.start: function for function in (*filter(None, inside), *functions(draft))}
    outer = spans_of([(function.start, function.stop) for function in every.values()])
    return [every[start] for start in outer.starts]


def not_on_nvidia(draft: Draft) -> frozenset[int]:
    """The code tokens in preprocessor branches that no build for an NVIDIA GPU compiles."""
    found, branches, index = set[int](), list[list[bool | None]](), 0
    for kind, text in draft.tokens:
        if kind == "directive" and (match := IF.match(text)):
            word, condition = match.groups()
            if word == "endif":
                branches.pop()
                continue
            if word.startswith("if"):
                branches.append([])
            defined = {"ifdef": "defined(%s)", "ifndef": "!defined(%s)"}.get(word, "%s") % condition.strip()
            read = draft_of(tokenize(defined))
            logic = Reader(read, {}).logic(0, len(read.words))
            known = {atom.text: False for atom in logic.atoms() if NOT_ON_NVIDIA.match(atom.text)}
            branches[-1].append(word == "else" or holds(logic, known))
        elif kind in CODE_KINDS:
            if any(truths[-1] is False or True in truths[:-1] for truths in branches):
                found.add(index)
            index += 1
    return frozenset(found)


def switched_spans(draft: Draft) -> Iterator[list[Mutation]]:
    """The changes to each expression and each statement that can be switched, in source order.

    There are none in a `constexpr` function, which may be called in constant expressions.
    """
    floats = floats_of(draft)
    for function in functions_of(draft):
        began = function.arguments[0]
        while began > 0 and draft.words[began - 1] not in (";", "}"):
            began -= 1
        if "constexpr" not in draft.words[began : function.arguments[0]]:
            yield from of_statements(draft, parse(draft, function.start, function.stop), floats)


def of_statements(draft: Draft, statements: Sequence[Statement], floats: frozenset[str]) -> Iterator[list[Mutation]]:
    """The changes to the statements of one block, and to those inside them."""
    for index, statement in enumerate(statements):
        following = statements[index + 1] if index + 1 < len(statements) else None
        amd = statement.kind == "if" and draft.written(*statement.head).lstrip("( ").startswith("amd_")
        own, body = of_statement(draft, statement, following, floats), of_statements(draft, statement.body, floats)
        for changes in chain(own, body):
            yield [replace(change, amd=True) for change in changes] if amd else changes
        yield from of_statements(draft, statement.orelse, floats)
        words = draft.words[statement.start : statement.stop]
        if statement.kind == "plain" and words[:1] == ["auto"] and words[2:4] == ["=", "["] and "{" in words:
            brace = statement.start + words.index("{")  # the body of a lambda: `auto load = [&] (const int n) { ... };`
            yield from of_statements(draft, parse(draft, brace + 1, draft.mates[brace]), floats)


def of_statement(
    draft: Draft, statement: Statement, following: Statement | None, floats: frozenset[str]
) -> Iterator[list[Mutation]]:
    """The changes to one statement, without those to the statements inside it."""
    words, head = draft.words[statement.start : statement.stop], statement.head
    if draft.directives(statement.start, max(statement.start, statement.stop - 1)) and statement.kind == "plain":
        return
    if statement.kind in ("if", "while"):
        if not draft.directives(*head):
            changes = [*of_condition(draft, head)]
            if statement.kind == "if":  # a test that is always true
                before = draft.written(*head)
                both = ("true", f"bool({before})") if is_pure(draft, head) else None
                changes.append(Mutation(*head, "true", "guard dropped", before, "true", compared=both))
            yield changes
    elif statement.kind == "for":
        ends = [index for index in draft.outer(*head) if draft.words[index] == ";"]
        if len(ends) == 2 and ends[0] + 1 < ends[1]:
            yield [*of_condition(draft, (ends[0] + 1, ends[1]))]
    elif statement.kind == "return" and head[0] < head[1] and "{" not in words:
        yield [*of_expression(draft, head)]
    elif statement.kind == "plain" and not NOT_SWITCHED & set(words) and "{" not in words and len(words) > 1:
        yield from of_plain(draft, statement, following, floats)


def of_plain(
    draft: Draft, statement: Statement, following: Statement | None, floats: frozenset[str]
) -> Iterator[list[Mutation]]:
    """The changes to an assignment, a declaration with a value, a jump, a wait, or a call."""
    start, stop = statement.start, statement.stop
    first = draft.words[start]
    if first in JUMPS:
        yield [Mutation(start, stop, f"{JUMPS[first]};", "jump", first, JUMPS[first])]
    elif first in WAITS:
        yield [*of_wait(draft, statement, following)]
    elif not NOT_THE_RESULT.match(first):
        equals = next((index for index in draft.outer(start, stop) if draft.words[index] in ASSIGNMENTS), None)
        if equals is None:
            yield from of_call(draft, (start, stop))
        elif equals > start:
            for opener in draft.outer(start, equals):  # the indices on the left of the assignment
                if draft.words[opener] == "[" and first not in ("const", "float", "int", "half2", "half"):
                    yield [*of_expression(draft, (opener + 1, draft.mates[opener]))]
            value, declared = (equals + 1, stop - 1), draft.words[start:equals]
            yield [*of_expression(draft, value), *of_template(draft, value), *of_value(draft, value, declared, floats)]


def of_wait(draft: Draft, statement: Statement, following: Statement | None) -> Iterator[Mutation]:
    """The wait removed, or placed after the next statement instead of before it."""
    start, stop = statement.start, statement.stop
    before = draft.written(start, stop - 1)
    yield Mutation(start, stop, ";", "wait dropped", before, "nothing")
    if following is None or following.kind in ("return", "case") or draft.words[following.start] in (*JUMPS, *WAITS):
        return
    if not draft.directives(start, following.stop - 1):
        later = following.stop - 1, draft.written(start, stop)
        after = f"after {draft.written(following.start, min(following.start + 4, following.stop))}"
        yield Mutation(start, stop, ";", "wait moved", before, after, later)


def of_call(draft: Draft, span: Span) -> Iterator[list[Mutation]]:
    """The changes to a call's arguments, including template arguments."""
    opener = next((index for index in draft.outer(*span) if draft.words[index] == "("), None)
    if opener is None or opener == span[0] or draft.mates[opener] != span[1] - 2:
        return
    yield [
        replace(change, start=span[0], stop=span[1], text=f"{change.text};", compared=None)
        for change in of_template(draft, (span[0], span[1] - 1))
    ]
    start, stop = opener + 1, draft.mates[opener]
    for index in [*(index for index in draft.outer(start, stop) if draft.words[index] == ","), stop]:
        if start < index:
            yield [*of_expression(draft, (start, index))]
        start = index + 1
