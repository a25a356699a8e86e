"""Pictures as marks in user units. `svg`, `characters` and `plot` draw them; in a terminal a unit is a character.

This module does not depend on what a picture shows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fattn_probe.base.arrays import F64, Bytes, Indices


@dataclass(frozen=True)
class Look:
    """The appearance of a mark.

    In SVG, `name` is the class, and `css` holds its declarations, or rules with `@` for the selector; it is empty if
    the page already has them. In a terminal, a `sign` that is not empty fills the mark in rich's `style`;
    `colour` is for pixels and matplotlib.
    """

    name: str
    css: str = ""
    style: str = ""
    sign: str = " "
    colour: str = "#000000"
    hatched: bool = False


SOFT = Look("soft", style="dim")
"""The look of axes, labels and notes."""


@dataclass(frozen=True)
class Box:
    """A rectangle with a tooltip, and a label if there is room; `edge` is its first character in a terminal.

    If `every` is not 0, the box repeats to the right at that distance, up to `stop`.
    """

    x: float
    y: float
    width: float
    height: float
    look: Look
    label: str = ""
    title: str = ""
    edge: str = ""
    every: float = 0.0
    stop: float = 0.0


@dataclass(frozen=True)
class Stroke:
    """Straight lines through points, or a dot at a single point; `title` is its tooltip, or its name in a legend."""

    points: tuple[tuple[float, float], ...]
    look: Look
    title: str = ""
    closed: bool = False

    @property
    def x(self) -> float:
        """The x coordinate of the first point."""
        return self.points[0][0]


@dataclass(frozen=True)
class Words:
    """A line of text; (x, y) is its top left corner, or with `end` its top right corner."""

    x: float
    y: float
    text: str
    look: Look = SOFT
    end: bool = False


@dataclass(frozen=True, eq=False)
class ColourScale:
    """A look for each range: below `limits[0]`, between limits, `limits[-1]` or more; `odd` for non-finite values."""

    limits: tuple[float, ...]
    looks: tuple[Look, ...]
    odd: Look

    def places(self, values: F64) -> Indices:
        """The index in `looks` for each value; `len(looks)` for a non-finite value."""
        found = np.searchsorted(self.limits, values, side="right")
        return np.where(np.isfinite(values), found, len(self.looks))

    def pixels(self, values: F64) -> Bytes:
        """The values as an RGB image (rows, columns, 3)."""
        colours = [bytes.fromhex(look.colour[1:]) for look in (*self.looks, self.odd)]
        return np.array([list(colour) for colour in colours], np.uint8)[self.places(values)]


@dataclass(frozen=True, eq=False)
class Cells:
    """A matrix of values, drawn as coloured cells."""

    x: float
    y: float
    width: float
    height: float
    values: F64
    scale: ColourScale


Mark = Box | Stroke | Words | Cells


@dataclass(frozen=True)
class Axis:
    """An axis, in the units of its values; only `plot` draws it."""

    label: str
    first: float
    last: float
    log: bool = False

    def share(self, value: float) -> float:
        """The position of a value: 0 at the start, 1 at the end."""
        if self.log:
            value, first, last = (math.log10(number) for number in (value, self.first, self.last))
            return (value - first) / (last - first)
        return (value - self.first) / (self.last - self.first)


@dataclass(frozen=True)
class Drawing:
    """A picture: marks, drawn in order. `name` is its class in SVG, `about` says what it shows.

    `axes` are the horizontal and the vertical axis; marks use their units.
    """

    name: str
    width: float
    height: float
    marks: tuple[Mark, ...]
    about: str = ""
    x: float = 0.0
    y: float = 0.0
    axes: tuple[Axis, Axis] | None = None

    def placed(self, x: float, y: float, width: float, height: float) -> Iterator[Stroke]:
        """The lines, converted from the units of the axes to those of a window; the second axis points up."""
        assert self.axes is not None
        across, up = self.axes
        for line in self.marks:
            assert isinstance(line, Stroke)
            points = ((x + across.share(at) * width, y + (1 - up.share(to)) * height) for at, to in line.points)
            yield replace(line, points=tuple(points))


def outline(x: float, y: float, width: float, height: float, look: Look) -> Stroke:
    """The four sides of a rectangle."""
    right, bottom = x + width, y + height
    return Stroke(((x, y), (right, y), (right, bottom), (x, bottom)), look, closed=True)


STOPS = ((247, 251, 255), (158, 202, 225), (49, 130, 189), (8, 48, 107))
"""Light to dark blue, readable without colour vision."""


def ramp(limits: Sequence[float], odd: Look) -> ColourScale:
    """A scale from light to dark."""
    shares = np.linspace(0, len(STOPS) - 1, len(limits) + 1)
    red, green, blue = (np.interp(shares, range(len(STOPS)), channel) for channel in zip(*STOPS, strict=True))
    colours = (bytes(round(part) for part in colour).hex() for colour in zip(red, green, blue, strict=True))
    return ColourScale(tuple(limits), tuple(Look("", colour=f"#{colour}") for colour in colours), odd)
