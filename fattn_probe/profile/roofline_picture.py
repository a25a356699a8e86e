"""A roofline in characters."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from fattn_probe.profile.roofline import Point, Roof

HEIGHT, WIDTH = 8, 60
DECADES = 2.0
"""Of flops a byte shown on each side of the ridge and the point."""


@dataclass(frozen=True)
class RooflinePicture:
    """A roofline with logarithmic axes; `o` is where a kernel may get, `x` where it did."""

    roof: Roof
    point: Point

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from map(Text, lines(self.roof, self.point, min(WIDTH, options.max_width - 12)))


def lines(roof: Roof, point: Point, width: int) -> Iterator[str]:
    """The picture, from the top to the axis."""
    first = math.log10(min(roof.ridge, point.intensity)) - DECADES / 2
    last = math.log10(max(roof.ridge, point.intensity)) + DECADES / 2
    top = math.log10(roof.flops)
    bottom = min(math.log10(roof.attainable(10**first)), math.log10(point.achieved or roof.flops)) - 0.2

    def column(intensity: float) -> int:
        return round((math.log10(intensity) - first) / (last - first) * (width - 1))

    def row(flops: float) -> int:
        return round((top - math.log10(flops)) / (top - bottom) * (HEIGHT - 1))

    grid = [[" "] * width for _ in range(HEIGHT)]
    for place in range(width):
        intensity = 10 ** (first + (last - first) * place / (width - 1))
        grid[row(roof.attainable(intensity))][place] = "─" if intensity >= roof.ridge else "╱"
    place = column(point.intensity)
    grid[row(roof.attainable(point.intensity))][place] = "o"
    if point.achieved:
        grid[row(point.achieved)][place] = "x"
    labels = {0: f"{roof.flops / 1e12:.4g} TF/s"}
    for number, cells in enumerate(grid):
        yield f"{labels.get(number, ''):>11}│{''.join(cells).rstrip()}"
    axis = f"{10**first:.2g}"
    end = f"{10**last:.2g} flops a byte"
    yield " " * 11 + "└" + "─" * width
    yield " " * 12 + axis + " " * max(1, width - len(axis) - len(end)) + end
