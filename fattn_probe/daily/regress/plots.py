"""The pictures of the history's page: verdicts, errors and times over the runs, and the colours of their keys."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fattn_probe.base.view.marks import Axis, Box, Drawing, Look, Stroke
from fattn_probe.base.view.svg import svg

LOOKS = {status: Look(name) for status, name in {"pass": "p", "fail": "f", "unsupported": "u"}.items()}
OTHER, BITS, LIMIT = Look("l"), Look("bits"), Look("limit")
WIDTH, HEIGHT, EDGE = 300.0, 58.0, 4.0


@dataclass(frozen=True)
class Square:
    """One run: its status, its tooltip, and whether its bits differ from those of the run before."""

    status: str
    said: str
    changed: bool = False


@dataclass(frozen=True)
class Series:
    """One value per run, None if there is none; `shade` is the CSS class."""

    shade: str
    values: tuple[float | None, ...]


def strip(marks: Sequence[Square]) -> Markup:
    """One square per run: its colour is the verdict, a bar before it marks changed bits."""
    worst = [mark.status for mark in marks if mark.status not in ("pass", "unsupported")]
    label = f"{len(marks)} nights, {len(worst)} not passed" if marks else "no nights"
    squares = [
        Box(9 * place + 1, 2, 8, 11, LOOKS.get(mark.status, OTHER), title=mark.said) for place, mark in enumerate(marks)
    ]
    bars = [Box(9 * place - 0.5, 0, 2, 14, BITS) for place, mark in enumerate(marks) if mark.changed]
    return Markup(svg(Drawing("strip", 9 * len(marks) + 1, 14, (*squares, *bars), label), stretched=True))


def plot(series: Sequence[Series], label: str, *, least: float, limit: float | None = None) -> Markup:
    """Lines over the runs; empty if no line has two values. A dashed line marks `limit` if it is near.

    The height covers at least `least`, so that noise looks like noise. A run between two runs without a value is a
    point.
    """
    known = [value for line in series for value in line.values if value is not None]
    if max((sum(value is not None for value in line.values) for line in series), default=0) < 2:
        return Markup("")
    shown = [*known, limit] if limit is not None and max(known) > limit - least else known
    spread, middle = max(max(shown) - min(shown), least), (max(shown) + min(shown)) / 2
    runs = max(len(line.values) for line in series)
    axes = Axis("runs", 0, max(runs - 1, 1)), Axis(label, middle - spread / 2, middle + spread / 2)
    drawn = Drawing("plot", WIDTH, HEIGHT, tuple(line for one in series for line in _lines(one)), label, axes=axes)
    marks = [*drawn.placed(EDGE, EDGE, WIDTH - 2 * EDGE, HEIGHT - 2 * EDGE)]
    if limit is not None and 0 <= (share := axes[1].share(limit)) <= 1:
        y = EDGE + (1 - share) * (HEIGHT - 2 * EDGE)
        marks.insert(0, Stroke(((0, y), (WIDTH, y)), LIMIT))
    return Markup(svg(Drawing("plot", WIDTH, HEIGHT, tuple(marks), label), fixed=False, stretched=True))


def _lines(series: Series) -> list[Stroke]:
    """A line for each run of values, a point for one that stands alone."""
    lines: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(series.values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append((place, value))
    return [Stroke(tuple(line), Look(series.shade)) for line in lines if line]


def swatch(name: str, kind: str, width: float = 12, height: float = 12) -> Markup:
    """The colour of a kind of marks in the drawings of a name."""
    return Markup(svg(Drawing(name, width, height, (Box(0, 0, width, height, Look(kind)),))))


def log10(value: float | None) -> float | None:
    """The logarithm; None if it does not exist."""
    return math.log10(value) if value else None
