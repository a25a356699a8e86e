"""Parses gdb's text of a value (from `print`, MI's `value=` or `gdb.Value`): its numbers and C strings.

This module uses only the standard library, because gdb's own Python loads it too.
"""

import math
import re

Numbers = list[float | int]

TOKEN = re.compile(
    r"\w+ = (?=[{\d.naif+-])"  # a member's name
    r"|(-?nan(?:\(\w+\))?|-?inf|[-+]?\d[\d.]*(?:e[-+]?\d+)?)"
    r"|<repeats (\d+) times>"
)
PIECE = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)+)'(?: <repeats (\d+) times>)?""")


def numbers(value: str) -> Numbers:
    """The numbers in gdb's text of a value, in order, including arrays, structs, `<repeats N times>`, nan and inf.

    gdb writes a float without a fraction as an integer, so `1` becomes an int.
    """
    found: Numbers = []
    last: Numbers = []
    for token in TOKEN.finditer(value):
        if token[2]:
            found.extend(last * (int(token[2]) - 1))
        elif token[1]:
            text = token[1]
            last = [math.nan if "nan" in text else float(text) if re.search(r"[.ein]", text) else int(text)]
            found.extend(last)
    return found


def c_text(value: str) -> str:
    """The string in gdb's text of a char array, up to its first NUL: `"dst", '\\000' <repeats 60 times>` is `dst`.

    A byte that is not valid UTF-8 becomes a surrogate, as in Python's file names.
    """
    pieces = ((string or character) * int(times or 1) for string, character, times in PIECE.findall(value))
    stored = "".join(pieces).encode().decode("unicode_escape").encode("latin-1")
    return stored.partition(b"\0")[0].decode(errors="surrogateescape")
