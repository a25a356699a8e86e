"""CUDA C++ text as tokens, and the draft in which the rewriter replaces them."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

MASTER = re.compile(
    r"""
      (?P<directive> ^[ \t]*\#(?: \\\r?\n | //(?:\\\r?\n|[^\n])* | /\*[\s\S]*?\*/ | "(?:\\.|[^"\\\n])*" | [^\n] )* )
    | (?P<space>     [ \t\r\f\v]+ | \n+ | \\\r?\n )
    | (?P<comment>   //(?:\\\r?\n|[^\n])* | /\*[\s\S]*?\*/ )
    | (?P<string>    (?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\([\s\S]*?\)(?P=fence)"
                   | (?:u8|[uUL])?"(?:\\[\s\S]|[^"\\\n])*" )
    | (?P<char>      (?:u8|[uUL])?'(?:\\.|[^'\\\n])+' )
    | (?P<name>      [^\W\d]\w* )
    | (?P<number>    \.?\d(?:[eEpP][+-]|'\w|[\w.])* )
    | (?P<punct>     <<<|<<=|>>=|<=>|->\*|\.\.\.|<<|::|->|\+\+|--|&&|\|\||[-+*/%&|^!=<>]=|\#\#|. )
    | (?P<other>     [\s\S] )
    """,
    re.VERBOSE | re.MULTILINE,
)
CODE_KINDS = frozenset({"string", "char", "name", "number", "punct"})
CLOSERS = {")": "(", "]": "[", "}": "{"}
OPENERS = frozenset(CLOSERS.values())
CONDITIONAL = re.compile(r"[ \t]*#[ \t]*(if|else|elif|endif)")
DEFINES = re.compile(r"[ \t]*#[ \t]*(define|undef|include)\b")
UNMATCHED = -1
Span = tuple[int, int]


class Token(NamedTuple):
    """One token, which may be trivia; the texts of all tokens, concatenated, are the file.

    It is a tuple, because a tree has a million tokens.
    """

    kind: str
    text: str


def tokenize(text: str) -> list[Token]:
    """Split a file into tokens.

    A preprocessor directive with its continuation lines is one token. `<<<` always opens a launch, because C++ has no
    other use for it. Each `>` is a separate token, since only context tells a launch's `>>>` from templates.
    """
    return [Token(match.lastgroup or "other", match.group()) for match in MASTER.finditer(text)]


@dataclass
class Draft:
    """A file's code tokens (without trivia and directives), and the replacement text of each.

    Passes refer to a token by its index among the code tokens. They change the replacement text, never `words` or the
    number of newlines in a token. `lines` are the tokens' first lines, counted from 1.
    """

    tokens: list[Token]
    words: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    mates: list[int] = field(default_factory=list)
    where: dict[str, list[int]] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    out: list[str] = field(default_factory=list)

    def word(self, index: int) -> str:
        """A token's text; empty before the file's first token and after its last."""
        return self.words[index] if 0 <= index < len(self.words) else ""

    def replace(self, index: int, text: str) -> None:
        """Replace a token by `text`, and keep its newlines."""
        place = self.places[index]
        newlines = self.tokens[place].text.count("\n") - text.count("\n")
        self.out[place] = text + "\n" * newlines

    def blank(self, start: int, stop: int) -> None:
        """Remove the tokens [start, stop)."""
        for index in range(start, stop):
            self.replace(index, "")

    def erase(self, start: int, stop: int, *, lines: bool = True) -> None:
        """Remove the tokens [start, stop), including comments and directives.

        If one of them defines a macro or includes a file, directives and newlines stay; `lines` always keeps newlines.
        """
        places = range(self.places[start - 1] + 1, self.places[stop])
        defines = any(self.tokens[it].kind == "directive" and DEFINES.match(self.tokens[it].text) for it in places)
        for place in places:
            kind, text = self.tokens[place]
            if kind != "directive" or not defines:
                self.out[place] = "\n" * text.count("\n") * (lines or defines)

    def before(self, index: int, text: str) -> None:
        """Insert `text` before a token's replacement."""
        self.out[self.places[index]] = text + self.out[self.places[index]]

    def after(self, index: int, text: str) -> None:
        """Insert `text` after a token's replacement."""
        self.out[self.places[index]] += text

    def written(self, start: int, stop: int) -> str:
        """The replacement text of the tokens [start, stop), on one line, without comments."""
        return " ".join(" ".join(self.out[self.places[index]].split()) for index in range(start, stop))

    def first_on_line(self, index: int) -> bool:
        """Whether only white space precedes a token on its line."""
        for token in reversed(self.tokens[: self.places[index]]):
            if "\n" in token.text:
                return token.kind == "space"
            if token.kind != "space":
                return False
        return True

    def same_line(self, start: int, stop: int) -> bool:
        """Whether there is no newline between two tokens."""
        return not any("\n" in token.text for token in self.tokens[self.places[start] : self.places[stop]])

    def directives(self, start: int, stop: int) -> list[str]:
        """The conditional directives between two tokens: if, else, elif, endif."""
        between = self.tokens[self.places[start] : self.places[stop]]
        found = (CONDITIONAL.match(token.text) for token in between if token.kind == "directive")
        return [match.group(1) for match in found if match]

    def is_name(self, index: int) -> bool:
        """Whether a token is an identifier or a keyword."""
        return 0 <= index < len(self.kinds) and self.kinds[index] == "name"

    def behind(self, index: int) -> int:
        """The token after the one at `index`; for an opening bracket, the one after its closing bracket."""
        mate = self.mates[index]
        return mate + 1 if self.words[index] in OPENERS and mate != UNMATCHED else index + 1

    def outer(self, start: int, stop: int) -> Iterator[int]:
        """The tokens of [start, stop) outside all brackets, including the opening brackets."""
        while start < stop:
            yield start
            start = self.behind(start)

    def split(self, start: int, stop: int) -> tuple[Span, ...]:
        """The spans between the commas of [start, stop) that are outside all brackets and all template arguments."""
        spans, began, depth = list[Span](), start, 0
        for index in self.outer(start, stop):
            depth += (self.words[index] == "<") - (self.words[index] == ">")
            if depth == 0 and self.words[index] == ",":
                spans.append((began, index))
                began = index + 1
        return (*spans, (began, stop))

    def behind_variable(self, index: int) -> int:
        """The token after a variable whose name is at `index`, including its members and indices: `K->ne[1]`."""
        index += 1
        while self.word(index) in (".", "->", "["):
            index = self.behind(index) if self.word(index) == "[" else index + 2
        return index

    def back_over_angles(self, index: int) -> int:
        """The `<` that the `>` at `index` closes, or UNMATCHED."""
        depth = 0
        while index >= 0:
            word = self.words[index]
            if word in CLOSERS:
                index = self.mates[index]
            elif word in (">", "<"):
                depth += 1 if word == ">" else -1
                if depth == 0:
                    return index
            elif word in (";", "{"):
                return UNMATCHED
            index -= 1
        return UNMATCHED


def draft_of(tokens: list[Token]) -> Draft:
    """Index the code tokens of a file and match their brackets; a bracket without a mate gets UNMATCHED.

    Each preprocessor branch may open or close brackets.
    """
    draft, line = Draft(tokens, out=[text for _, text in tokens]), 1
    open_brackets, saved = list[int](), list[list[int]]()
    for place, (kind, text) in enumerate(tokens):
        if kind == "directive" and (match := CONDITIONAL.match(text)):
            if match[1] == "if":
                saved.append(open_brackets.copy())
            elif saved and match[1] == "endif":
                saved.pop()
            elif saved:
                open_brackets = saved[-1].copy()
        elif kind in CODE_KINDS:
            index = len(draft.words)
            draft.where.setdefault(text, []).append(index)
            draft.words.append(text)
            draft.kinds.append(kind)
            draft.mates.append(UNMATCHED)
            draft.places.append(place)
            draft.lines.append(line)
            if text in OPENERS:
                open_brackets.append(index)
            elif text in CLOSERS and open_brackets and draft.words[open_brackets[-1]] == CLOSERS[text]:
                draft.mates[index] = open_brackets.pop()
                draft.mates[draft.mates[index]] = index
        if kind not in {"name", "number", "punct"}:
            line += text.count("\n")
    return draft


@dataclass(frozen=True)
class Spans:
    """Disjoint ranges of code tokens, in order."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    def __contains__(self, index: int) -> bool:
        return self.start_of(index) is not None

    def start_of(self, index: int) -> int | None:
        """The start of the range that contains a token; None if no range does."""
        nearest = bisect_right(self.starts, index) - 1
        return self.starts[nearest] if nearest >= 0 and index < self.stops[nearest] else None


def spans_of(ranges: list[Span]) -> Spans:
    """The outermost of some ranges, which may be nested."""
    ordered = sorted(ranges)
    reach = list(accumulate((stop for _, stop in ordered), max))
    outer = [span for place, span in enumerate(ordered) if place == 0 or span[0] >= reach[place - 1]]
    return Spans(tuple(start for start, _ in outer), tuple(stop for _, stop in outer))
