"""Error maps: the largest error at each position, in units of the expected error of its row."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from fattn_probe.base.arrays import F32, F64
from fattn_probe.base.view.characters import lines
from fattn_probe.base.view.marks import Axis, Cells, ColourScale, Drawing, Look, Mark, Words, ramp
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.metrics import Deviation

NOT_FINITE = Look("h5", style="bold magenta", sign="X", colour="#d55e00")
SCALE = ColourScale(
    (1.0, 3.0, 10.0, 100.0),
    (
        Look("", sign=" "),
        Look("h1", style="dim", sign="·"),
        Look("h2", style="yellow", sign="░"),
        Look("h3", style="dark_orange", sign="▒"),
        Look("h4", style="bold red", sign="▓"),
    ),
    NOT_FINITE,
)
"""The scale of all error maps in terminals and on pages; darker is worse. An error of 1 is as large as predicted."""
FINE = ramp(np.logspace(-1, 3, 161).tolist(), NOT_FINITE)
WIDTH, HEIGHT, LABEL = 72, 16, 12
PIXELS = 512


@dataclass(frozen=True, eq=False)
class ErrorMap:
    """The errors of an output over two of its axes (picture rows first); each is the largest along the other axes."""

    title: str
    across: str
    down: str
    values: F64

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        small = shrunk(self.values, HEIGHT, max(1, min(WIDTH, options.max_width - LABEL - 3)))
        (rows, columns), (height, width) = self.values.shape, small.shape
        left, right = LABEL + 2, LABEL + 2 + width
        first = f"{self.across} 0"
        last = LABEL + 1 + max(width + 1, len(f"{first} {columns - 1}"))
        yield Text(f"{self.title} (largest error, in units of the row's expected error)")
        plain = Look("")
        marks: list[Mark] = [
            *(Words(LABEL, row, f"{self.down} {row * rows // height}", plain, end=True) for row in range(height)),
            *(Words(at, row, "│", plain) for row in range(height) for at in (left - 1, right)),
            Cells(left, 0, width, height, small, SCALE),
            Words(left - 1, height, first, plain),
            *([Words(last, height, str(columns - 1), plain, end=True)] if columns > 1 else []),
        ]
        yield from lines(Drawing("", max(right + 1, last), height + 1, tuple(marks)))

    @property
    def drawing(self) -> Drawing:
        """The map in the units of its axes."""
        rows, columns = self.values.shape
        cells = Cells(-0.5, -0.5, columns, rows, shrunk(self.values, PIXELS, PIXELS), FINE)
        axes = Axis(self.across, 0, columns - 1), Axis(self.down, 0, rows - 1)
        return Drawing("", columns, rows, (cells,), self.title, axes=axes)


def error_maps(dst: F32, deviation: Deviation) -> tuple[ErrorMap, ErrorMap]:
    """The maps head by query and query by d; infinite where an element is not finite."""
    error = deviation.of(dst)
    return (
        ErrorMap("head x query", "query", "head", error.max(axis=(0, 3)).T),
        ErrorMap("query x d", "d", "query", error.max(axis=(0, 2))),
    )


def shrunk(values: F64, height: int, width: int) -> F64:
    """The map reduced to at most `height` x `width` cells; each contains the largest of the values that it replaces."""
    for axis, most in ((0, height), (1, width)):
        length = values.shape[axis]
        if length > most:
            values = np.maximum.reduceat(values, np.arange(most) * length // most, axis=axis)
    return values


def legend() -> Text:
    """The meaning of the characters."""
    text = Text()
    words = [f"< {SCALE.limits[0]:g}", *(f">= {limit:g}" for limit in SCALE.limits)]
    for look, word in zip(SCALE.looks, words, strict=True):
        text.append(f"[{look.sign}]", look.style).append(f" {word}  ")
    return text.append(f"[{NOT_FINITE.sign}]", NOT_FINITE.style).append(" not finite, or unwritten")


def plot_row(row: Judgement, folder: Path) -> Iterator[Path]:
    """Write the error maps of a row's output, if it has one, as CASE@TARGET.png and .svg; yields the files."""
    from fattn_probe.base.view.plot import plot  # matplotlib takes a second to load

    if row.dst is None or row.verdict.deviation is None:
        return
    maps = error_maps(row.dst, row.verdict.deviation)
    holes = "" if all(np.isfinite(found.values).all() for found in maps) else " (orange: not finite, or unwritten)"
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.=+@-]", "-", f"{row.case}@{row.on}")
    paths = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    title = f"{row.case} on {row.on}: {row.status.value}{holes}"
    plot([found.drawing for found in maps], paths, (9.0, 3.6), title, "largest error / expected error of the row")
    yield from paths
