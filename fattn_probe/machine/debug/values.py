"""gdb's value syntax -> Python values: what `print`, MI's `value=` and `gdb.Value.format_string()` write.

| gdb writes | Python value |
| --- | --- |
| `14`, `0.125`, `1e-05`, `-nan(0x7fffff)`, `inf`, `true` | int, float, bool |
| `48 '0'` | int |
| `"dst", '\\000' <repeats 60 times>` | str, with the NULs |
| `"some text"...` | CutText, a str marked as incomplete |
| `GGML_TYPE_F16`, `simt::Wait::none`, `(A | B)` | Symbol, a str |
| `(fattn_kernel_t) 0x7f <f<64>(int)>`, `0x0`, `0x5f "text"` | Pointer, an int with `symbol`, `type`, `text` |
| `@0x5f: {...}` | the value it refers to |
| `{1, 2, 0 <repeats 14 times>}` | list |
| `{1, 2...}`, `{...}` | a list that ends with Ellipsis; Ellipsis (gdb printed no more) |
| `{x = 1, <Base> = {y = 2}, static I = 16, {z = 3}}` | dict: `x`, `<Base>`, `I`, and `z` of the anonymous member |
| `<optimized out>`, `<error: Cannot access ...>` | Unavailable |

gdb writes a float without a fraction as an integer, so `1` reads as an int; an array with a fraction in it reads as
floats. A struct with only anonymous members reads as a list. Standard library only, because gdb's own Python loads this
module too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

Value = Any
"""bool, int, float, str, Symbol, Pointer, Unavailable, Ellipsis, or lists and dicts of them."""


class ValueSyntaxError(ValueError):
    """A text that is not a value in gdb's syntax."""


class Symbol(str):
    """An enumerator or several: `GGML_TYPE_F16`, `A | B`."""

    __slots__ = ()


class CutText(str):
    """The beginning of a text that gdb did not print in full."""

    __slots__ = ()


class Pointer(int):
    """An address; `symbol` is the symbol there (`main(int, char**)+4`), `text` the C string there; None if unknown."""

    symbol: str | None
    type: str | None
    text: str | None

    def __new__(cls, address: int, symbol: str | None = None, type: str | None = None, text: str | None = None) -> Self:
        """Make an address with its symbol, type and text."""
        self = super().__new__(cls, address)
        self.symbol, self.type, self.text = symbol, type, text
        return self

    def __repr__(self) -> str:
        said = "".join(f", {name}={value!r}" for name, value in vars(self).items() if value is not None)
        return f"Pointer({int(self):#x}{said})"


@dataclass(frozen=True)
class Unavailable:
    """A value that gdb could not read; `why` is its reason: `optimized out`, `error: Cannot access memory ...`."""

    why: str


INTEGER = re.compile(r"-?[1-9]\d*|0")
NUMBERS = re.compile(r"\{([-+\d., a-finx()]+)\}")
NAN_BITS = re.compile(r"(?<=nan)\(0x[0-9a-f]+\)")
NUMBER = re.compile(
    r"(-?[1-9]\d*|0)(?![\w]|\.\d)|(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?!\w)|(-?(?:inf|nan))(?:\(0x[0-9a-f]+\))?(?!\w)"
)
ADDRESS = re.compile(r"0x([0-9a-f]+)")
REFERENCE = re.compile(r"@0x([0-9a-f]+)(: )?")
FUNCTION = re.compile(r"\{([^{}]*)\} (?=0x)")
WORD = re.compile(r"unknown: (?:0x)?[0-9a-f]+|&?[A-Za-z_$][\w$]*|::|\(anonymous namespace\)")
FIELD = re.compile(r"(?:static )?([A-Za-z_$][\w$.]*|<(?!optimized out>|error)[^=]*>) = ")
REPEATS = re.compile(r" <repeats (\d+) times>")
QUOTED = re.compile(r"""[LuU]?(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)+)')""")
NEXT_QUOTED = re.compile(r""", (?=[LuU]?['"])""")
ESCAPE = re.compile(r"\\([0-7]{1,3}|.)|([^\\]+)")
ESCAPED = {"n": 10, "t": 9, "r": 13, "a": 7, "b": 8, "f": 12, "v": 11, "e": 27}
ANGLE = re.compile(r"operator(?:<=>|<<=|>>=|->\*|<<|>>|<=|>=|->|<|>)|[<>]")
ROUND = re.compile(r"[()]")
MEMBERS_OF = re.compile(r"(?m)^ *members of .*:$\n")
LINE_ENDS = re.compile(r"\s*\n\s*")
BRACE_LINES = re.compile(r"(?<=\{)\s*\n\s*|\s*\n\s*(?=\})")
RESULT = re.compile(r"\$\d+ = ")


def parse_value(text: str) -> Value:
    """Parse a value that gdb wrote, with or without `$1 = ` before it; ValueSyntaxError shows the wrong place."""
    if INTEGER.fullmatch(text):
        return int(text)
    text = LINE_ENDS.sub(" ", BRACE_LINES.sub("", MEMBERS_OF.sub("", text))).strip() if "\n" in text else text.strip()
    result = RESULT.match(text)
    value, end = _value(text, result.end() if result else 0)
    if end != len(text):
        raise _error(text, end)
    return value


def _value(text: str, at: int) -> tuple[Value, int]:
    return READERS.get(text[at : at + 1], _word)(text, at)


def _number(text: str, at: int) -> tuple[Value, int]:
    match = NUMBER.match(text, at)
    if match is None:
        if ADDRESS.match(text, at):
            return _pointer(text, at)
        raise _error(text, at)
    end = match.end()
    if match[1] is None:
        return float(match[2] or match[3]), end
    character = QUOTED.match(text, end + 1) if text[end : end + 1] == " " else None
    return int(match[1]), character.end() if character else end


def _pointer(text: str, at: int, type: str | None = None) -> tuple[Value, int]:
    match = ADDRESS.match(text, at)
    if match is None:
        raise _error(text, at)
    end = match.end()
    symbol: str | None = None
    said: str | None = None
    if text.startswith(" <", end) and not REPEATS.match(text, end):
        start, end = end + 2, _closing(text, end + 1, ANGLE)
        inside = text[start : end - 1]
        symbol = None if inside.startswith("error: ") else inside
    if QUOTED.match(text, end + 1) and text[end] == " ":
        said, end = _text(text, end + 1)
    return Pointer(int(match[1], 16), symbol, type, said), end


def _reference(text: str, at: int) -> tuple[Value, int]:
    match = REFERENCE.match(text, at)
    if match is None:
        raise _error(text, at)
    return _value(text, match.end()) if match[2] else (Pointer(int(match[1], 16)), match.end())


def _round(text: str, at: int) -> tuple[Value, int]:
    """Parse a type before an address, or enumerators: `(A | B)`."""
    if text.startswith("(anonymous namespace)::", at):
        return _word(text, at)
    end = _closing(text, at, ROUND)
    inside = text[at + 1 : end - 1]
    if text.startswith(" 0x", end):
        return _pointer(text, end + 1, inside)
    if text.startswith(" @0x", end):
        return _reference(text, end + 1)
    return Symbol(inside), end


def _angle(text: str, at: int) -> tuple[Value, int]:
    end = _closing(text, at, ANGLE)
    return Unavailable(text[at + 1 : end - 1]), end


def _word(text: str, at: int) -> tuple[Value, int]:
    """Parse an enumerator with its scope, a bool, or a number that is a word: `inf`."""
    if match := NUMBER.match(text, at):
        return float(match[0].partition("(")[0]), match.end()
    if QUOTED.match(text, at):
        return _text(text, at)
    end = at
    while True:
        if match := WORD.match(text, end):
            end = match.end()
        elif end > at and text.startswith("<", end):
            end = _closing(text, end, ANGLE)
        else:
            break
    if end == at:
        raise _error(text, at)
    word = text[at:end]
    return {"true": True, "false": False}.get(word, Symbol(word)), end


def _text(text: str, at: int, in_list: bool = False) -> tuple[Value, int]:
    """Parse a string in pieces: `"ab", 'c' <repeats 20 times>, "d"...`."""
    pieces: list[str] = []
    while match := QUOTED.match(text, at):
        at = match.end()
        piece = _unescaped(match[1] if match[2] is None else match[2])
        repeats = REPEATS.match(text, at) if match[2] is not None else None
        if repeats:
            piece, at = piece * int(repeats[1]), repeats.end()
        pieces.append(piece)
        if text.startswith("...", at):
            return CutText("".join(pieces)), at + 3
        following = NEXT_QUOTED.match(text, at)
        if not following or (in_list and not _goes_on(text, following.end(), piece, repeats is not None)):
            break
        at = following.end()
    return "".join(pieces), at


def _goes_on(text: str, at: int, piece: str, repeated: bool) -> bool:
    """Whether a quoted piece in a list continues the string before it: NULs end a string, as does a plain end."""
    if repeated:
        return piece[0] != "\0"
    match = QUOTED.match(text, at)
    return match is not None and match[2] is not None and REPEATS.match(text, match.end()) is not None


def _unescaped(text: str) -> str:
    """A string's bytes decoded as UTF-8; an invalid byte becomes a surrogate, as in Python's file names."""
    if "\\" not in text:
        return text
    parts = (
        plain.encode()
        if plain
        else bytes([int(code, 8) & 255 if code[0] in "01234567" else ESCAPED.get(code, ord(code) & 255)])
        for code, plain in ESCAPE.findall(text)
    )
    return b"".join(parts).decode(errors="surrogateescape")


def _braces(text: str, at: int) -> tuple[Value, int]:
    if (match := NUMBERS.match(text, at)) and (plain := _plain_numbers(match[1])) is not None:
        return plain, match.end()
    if match := FUNCTION.match(text, at):
        return _pointer(text, match.end(), match[1])
    for whole, value in (("{...}", ...), ("{}", []), ("{<No data fields>}", {})):
        if text.startswith(whole, at):
            return value, at + len(whole)
    members, end = _members(text, at + 1)
    named = any(name is not None for name, _ in members)
    return _struct(members) if named else [item for _, item in members], end


def _plain_numbers(text: str) -> list[Value] | None:
    """Parse an array of numbers, `1.5, 0, 1e-05`, at once, because most values are such arrays; None for others."""
    items = (NAN_BITS.sub("", text) if "nan(" in text else text).split(", ")
    try:
        return [int(item) for item in items] if "-0" not in text else [float(item) for item in items]
    except ValueError:
        pass
    try:
        floats: list[Value] = [float(item) for item in items]
    except ValueError:
        return None
    # An integer that is not a double was not a float: this is a struct, whose members have their own types
    exact = (
        len(item) < 16 or not INTEGER.fullmatch(item) or int(item) == value
        for item, value in zip(items, floats, strict=True)
    )
    return floats if all(exact) else None


def _members(text: str, at: int) -> tuple[list[tuple[str | None, Value]], int]:
    """(name or None, value) of each member or element up to the closing brace, and the position after it."""
    members: list[tuple[str | None, Value]] = []
    while True:
        if field := FIELD.match(text, at):
            value, at = _value(text, field.end())
        elif text[at : at + 1] in "\"'":
            value, at = _text(text, at, in_list=True)
        else:
            value, at = _value(text, at)
        repeats = REPEATS.match(text, at)
        members.extend([(field[1] if field else None, value)] * (int(repeats[1]) if repeats else 1))
        at = repeats.end() if repeats else at
        if text.startswith("...", at):
            members.append((None, ...))
            at += 3
        if text.startswith("}", at):
            return members, at + 1
        if not text.startswith(", ", at):
            raise _error(text, at)
        at += 2


def _struct(members: list[tuple[str | None, Value]]) -> dict[str, Value]:
    """A struct's fields, including those of its anonymous members, as in C++."""
    fields: dict[str, Value] = {}
    for name, value in members:
        if name is not None:
            fields[name] = value
        elif isinstance(value, dict):
            fields.update(value)
        elif isinstance(value, list):
            fields.update(_struct([(None, item) for item in value]))
        else:
            fields["..."] = value
    return fields


def _closing(text: str, at: int, brackets: re.Pattern[str]) -> int:
    """The position after the bracket that closes the one at `at`."""
    depth = 0
    for match in brackets.finditer(text, at):
        if len(match[0]) == 1:
            depth += 1 if match[0] in "<(" else -1
            if depth == 0:
                return match.end()
    raise _error(text, at)


def _error(text: str, at: int) -> ValueSyntaxError:
    before, after = text[max(at - 30, 0) : at], text[at : at + 40]
    return ValueSyntaxError(f"not a value as gdb prints it, at character {at}: {before}>>>{after}")


READERS: dict[str, Callable[[str, int], tuple[Value, int]]] = {
    "{": _braces,
    '"': _text,
    "'": _text,
    "<": _angle,
    "(": _round,
    "@": _reference,
    **dict.fromkeys("-0123456789", _number),
}
