"""Drawings in a terminal: a unit is one character, and colours are optional."""

import math
from itertools import groupby, pairwise

import numpy as np
from rich.text import Text

from fattn_probe.base.view.marks import Box, Cells, Drawing, Stroke, Words

Canvas = list[list[tuple[str, str]]]
NEARLY = 1e-9
"""A position this close to the next column is rounded up to it."""


def lines(drawing: Drawing) -> list[Text]:
    """The drawing, line by line."""
    width = math.ceil(drawing.width)
    canvas: Canvas = [[(" ", "")] * width for _ in range(math.ceil(drawing.height))]
    for mark in drawing.marks:
        match mark:
            case Box() if mark.look.sign:
                starts = np.arange(mark.x, mark.stop, mark.every).tolist() if mark.every else [mark.x]
                for start in starts or [mark.x]:
                    first, width = _column(start), _column(start + mark.width) - _column(start)
                    words = mark.edge + mark.label if len(mark.edge + mark.label) <= width else mark.edge
                    for row in range(round(mark.height)):
                        filled = words.ljust(width, mark.look.sign)[:width]
                        _write(canvas, first, mark.y + row, filled, mark.look.style)
            case Words():
                first = _column(mark.x) - len(mark.text) * mark.end
                _write(canvas, first, mark.y, mark.text, mark.look.style)
            case Cells():
                looks = (*mark.scale.looks, mark.scale.odd)
                for row, places in enumerate(mark.scale.places(mark.values)):
                    for column, place in enumerate(places):
                        _write(canvas, _column(mark.x) + column, mark.y + row, looks[place].sign, looks[place].style)
            case Stroke() if mark.look.sign:
                _line(canvas, mark)
    return [_text(row) for row in canvas]


def _line(canvas: Canvas, line: Stroke) -> None:
    if len(line.points) == 1:
        _write(canvas, round(line.x), line.points[0][1], line.look.sign, line.look.style)
    for (x, y), (to_x, to_y) in pairwise(line.points):
        sign = "─" if y == to_y else "╱" if y > to_y else "╲"
        for column in range(math.ceil(x), math.floor(to_x) + 1):
            at = y + (to_y - y) * (column - x) / ((to_x - x) or 1)
            _write(canvas, column, at, sign, line.look.style)


def _column(x: float) -> int:
    return math.floor(x + NEARLY)


def _write(canvas: Canvas, column: int, y: float, words: str, style: str) -> None:
    """Write text on the canvas; anything outside is cut off."""
    row = canvas[round(y)] if 0 <= round(y) < len(canvas) else []
    for place, character in enumerate(words, column):
        if 0 <= place < len(row):
            row[place] = (character, style)


def _text(row: list[tuple[str, str]]) -> Text:
    text = Text(no_wrap=True)
    while row and row[-1] == (" ", ""):
        row.pop()
    for style, run in groupby(row, key=lambda cell: cell[1]):
        text.append("".join(character for character, _ in run), style)
    return text
