"""The statements of a C++ function, parsed reliably enough to follow an `if` in any release."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fattn_probe.llama.cxx.tokens import UNMATCHED, Draft, Span

Kind = Literal["if", "if constexpr", "switch", "case", "while", "for", "block", "return", "plain", "macro"]
BEHIND_MACRO = frozenset({";", ",", ".", "->", "(", "[", "=", "+", "-", "*", "/", "?", ":", "<", ">", "{", "::"})


@dataclass(frozen=True)
class Statement:
    """A statement, as the tokens [start, stop).

    `head` is the condition between the parentheses, or the returned expression. `body` has the statements that run if
    the condition holds, without the braces of a block. The body of a switch consists of its cases, which have `labels`.
    """

    kind: Kind
    start: int
    stop: int
    head: Span = (0, 0)
    body: tuple["Statement", ...] = ()
    orelse: tuple["Statement", ...] = ()
    labels: tuple[str, ...] = ()

    def all(self) -> Iterator["Statement"]:
        """This statement and those inside it, in source order."""
        yield self
        for child in (*self.body, *self.orelse):
            yield from child.all()


def parse(draft: Draft, start: int, stop: int) -> tuple[Statement, ...]:
    """The statements of the tokens [start, stop) between two braces."""
    found: list[Statement] = []
    while start < stop:
        statement = _statement(draft, start, stop)
        found.append(statement)
        start = max(statement.stop, start + 1)
    return tuple(found)


def _statement(draft: Draft, start: int, stop: int) -> Statement:
    word = draft.words[start]
    if word == "{":
        end = _mate(draft, start, stop)
        return Statement("block", start, end + 1, body=parse(draft, start + 1, end))
    if word == "if":
        kind: Kind = "if constexpr" if draft.word(start + 1) == "constexpr" else "if"
        opener = start + 1 + (kind == "if constexpr")
        closer = _mate(draft, opener, stop)
        body = _inner(draft, closer + 1, stop)
        behind = body.stop < stop and draft.words[body.stop] == "else"
        other = _inner(draft, body.stop + 1, stop) if behind else Statement("block", body.stop, body.stop)
        return Statement(kind, start, other.stop, (opener + 1, closer), _unwrapped(body), _unwrapped(other))
    if word in ("switch", "while", "for"):
        closer = _mate(draft, start + 1, stop)
        body = _inner(draft, closer + 1, stop)
        children = _unwrapped(body)
        if word == "switch":  # one statement for each group of labels
            groups: list[list[Statement]] = []
            for statement in children:
                if not groups or (statement.kind == "case" and groups[-1][-1].kind != "case"):
                    groups.append([])
                groups[-1].append(statement)
            children = tuple(map(_case, groups))
        return Statement(word, start, body.stop, (start + 2, closer), children)  # type: ignore[arg-type]
    if word in ("case", "default"):
        end = next((index for index in range(start, stop) if draft.words[index] == ":"), stop - 1)
        return Statement("case", start, end + 1, labels=(draft.written(start + 1, end) or "default",))
    if word in ("do", "else"):
        inner = _statement(draft, start + 1, stop) if start + 1 < stop else Statement("block", start, stop)
        return Statement("block", start, inner.stop, body=_unwrapped(inner))
    return _simple(draft, start, stop)


def _simple(draft: Draft, start: int, stop: int) -> Statement:
    """A statement that ends with a semicolon, or a macro call without one."""
    if draft.words[start].isupper() and draft.word(start + 1) == "(":
        end = _mate(draft, start + 1, stop) + 1
        if end >= stop or draft.words[end] not in BEHIND_MACRO:
            return Statement("macro", start, min(end, stop), head=(start, min(end, stop)))
    index = start
    while index < stop and draft.words[index] != ";":
        index = _mate(draft, index, stop) if draft.words[index] in "([{" else index
        index += 1
    kind: Kind = "return" if draft.words[start] == "return" else "plain"
    return Statement(kind, start, min(index + 1, stop), head=(start + (kind == "return"), min(index, stop)))


def _case(group: list[Statement]) -> Statement:
    """One case of a switch, with its labels."""
    inside = tuple(statement for statement in group if statement.kind != "case")
    labels = tuple(label for statement in group for label in statement.labels)
    return Statement("case", group[0].start, group[-1].stop, body=inside, labels=labels)


def _inner(draft: Draft, start: int, stop: int) -> Statement:
    return _statement(draft, start, stop) if start < stop else Statement("block", stop, stop)


def _unwrapped(statement: Statement) -> tuple[Statement, ...]:
    return statement.body if statement.kind == "block" else (statement,)


def _mate(draft: Draft, index: int, stop: int) -> int:
    """The bracket that closes the bracket at `index`, or the last token before `stop` if there is none."""
    mate = draft.mates[index] if index < len(draft.mates) else UNMATCHED
    return mate if index < mate < stop else stop - 1
