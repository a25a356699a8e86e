"""Error maps: the largest error at each place, in units of the expected error of its row."""

from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from fattn_probe.arrays import F32, F64
from fattn_probe.compare.judge.metrics import Deviation

LIMITS = (1.0, 3.0, 10.0, 100.0)
CHARACTERS = " ·░▒▓"
STYLES = ("", "dim", "yellow", "dark_orange", "bold red")
NOT_FINITE, NOT_FINITE_STYLE = "X", "bold magenta"
WIDTH, HEIGHT, LABEL = 72, 16, 12


@dataclass(frozen=True, eq=False)
class ErrorMap:
    """The errors of an output over two of its axes (picture rows first), the largest along the other axes."""

    title: str
    across: str
    down: str
    values: F64

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        small = shrunk(self.values, HEIGHT, max(1, min(WIDTH, options.max_width - LABEL - 3)))
        rows, columns = self.values.shape
        yield Text(f"{self.title} (largest error, in units of the row's expected error)")
        for number, line in enumerate(small):
            first = number * rows // len(small)
            text = Text(f"{self.down + ' ' + str(first):>{LABEL}} │", no_wrap=True)
            for value in line:
                text.append(*_character(float(value)))
            yield text.append("│")
        first_column = f"{self.across} 0"
        ends = first_column + f"{columns - 1}".rjust(max(1, small.shape[1] + 1 - len(first_column)))
        yield Text(f"{'':>{LABEL + 1}}{ends}", no_wrap=True)


def error_maps(dst: F32, deviation: Deviation) -> tuple[ErrorMap, ErrorMap]:
    """The maps head by query and query by d; infinite where an element is not finite."""
    error = deviation.of(dst)
    return (
        ErrorMap("head x query", "query", "head", error.max(axis=(0, 3)).T),
        ErrorMap("query x d", "d", "query", error.max(axis=(0, 2))),
    )


def shrunk(values: F64, height: int, width: int) -> F64:
    """The map reduced to at most `height` x `width` places, each the largest of those that it replaces."""
    for axis, most in ((0, height), (1, width)):
        length = values.shape[axis]
        if length > most:
            values = np.maximum.reduceat(values, np.arange(most) * length // most, axis=axis)
    return values


def legend() -> Text:
    """The meaning of the characters."""
    text = Text()
    words = [f"< {LIMITS[0]:g}", *(f"{limit:g}" for limit in LIMITS)]
    for character, style, word in zip(CHARACTERS, STYLES, words, strict=True):
        text.append(f"[{character}]", style).append(f" {word if word.startswith('<') else '>= ' + word}  ")
    return text.append(f"[{NOT_FINITE}]", NOT_FINITE_STYLE).append(" not finite, or unwritten")


def _character(value: float) -> tuple[str, str]:
    if not np.isfinite(value):
        return NOT_FINITE, NOT_FINITE_STYLE
    place = int(np.searchsorted(LIMITS, value, side="right"))
    return CHARACTERS[place], STYLES[place]
