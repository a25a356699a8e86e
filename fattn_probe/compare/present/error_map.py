"""Error maps: the largest error of each place, in units of the error expected of its row."""

from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.arrays import F32, F64
from fattn_probe.compare.judge.metrics import Deviation

LIMITS = (1.0, 3.0, 10.0, 100.0)
CHARACTERS = " ·░▒▓"
STYLES = ("", "dim", "yellow", "dark_orange", "bold red")
NOT_FINITE, NOT_FINITE_STYLE = "X", "bold magenta"
WIDTH, HEIGHT = 72, 16


@dataclass(frozen=True, eq=False)
class ErrorMap:
    """The errors of an output over two of its axes, the largest along the others; rows of the picture first."""

    title: str
    across: str
    down: str
    values: F64


def error_maps(dst: F32, deviation: Deviation) -> tuple[ErrorMap, ErrorMap]:
    """Head by query and query by d; infinite where an element is not finite."""
    error = deviation.of(dst)
    return (
        ErrorMap("head x query", "query", "head", error.max(axis=(0, 3)).T),
        ErrorMap("query x d", "d", "query", error.max(axis=(0, 2))),
    )


def shrunk(values: F64, height: int, width: int) -> F64:
    """At most so many rows and columns, each the largest of those it stands for."""
    for axis, most in ((0, height), (1, width)):
        length = values.shape[axis]
        if length > most:
            values = np.maximum.reduceat(values, np.arange(most) * length // most, axis=axis)
    return values


def render_map(found: ErrorMap) -> RenderableType:
    """One map for a terminal, within 100 columns."""
    small = shrunk(found.values, HEIGHT, WIDTH)
    rows, columns = found.values.shape
    lines = [Text(f"{found.title} (largest error, by what its row may be expected to have)")]
    for number, line in enumerate(small):
        first = number * rows // len(small)
        text = Text(f"{found.down + ' ' + str(first):>12} │")
        for value in line:
            text.append(*_character(float(value)))
        lines.append(text.append("│"))
    ends = f"{found.across} 0", f"{columns - 1}"
    lines.append(Text(f"{'':>13}{ends[0]}{ends[1]:>{max(1, small.shape[1] + 1 - len(ends[0]))}}"))
    return Group(*lines)


def legend() -> Text:
    """What the characters mean."""
    text = Text("             ")
    words = [f"< {LIMITS[0]:g}", *(f"{limit:g}" for limit in LIMITS)]
    for character, style, word in zip(CHARACTERS, STYLES, words, strict=True):
        text.append(f"[{character}]", style).append(f" {word if word.startswith('<') else '>= ' + word}  ")
    return text.append(f"[{NOT_FINITE}]", NOT_FINITE_STYLE).append(" not finite, or unwritten")


def _character(value: float) -> tuple[str, str]:
    if not np.isfinite(value):
        return NOT_FINITE, NOT_FINITE_STYLE
    place = int(np.searchsorted(LIMITS, value, side="right"))
    return CHARACTERS[place], STYLES[place]
