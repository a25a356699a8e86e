"""The pictures of the history's page as inline SVG: verdicts, errors and times over the runs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

MARKS = {"pass": "p", "fail": "f", "unsupported": "u", "lost": "l"}
WIDTH, HEIGHT, EDGE = 300.0, 58.0, 4.0


@dataclass(frozen=True)
class Mark:
    """One run: its status, its tooltip, and whether its bits differ from those of the run before."""

    status: str
    said: str
    changed: bool = False


@dataclass(frozen=True)
class Series:
    """One value per run, None if there is none; `shade` is the CSS class."""

    shade: str
    values: tuple[float | None, ...]


def strip(marks: Sequence[Mark]) -> Markup:
    """One square per run: its colour is the verdict, a bar before it marks changed bits."""
    worst = [mark.status for mark in marks if mark.status not in ("pass", "unsupported")]
    label = f"{len(marks)} nights, {len(worst)} not passed" if marks else "no nights"
    width = 9 * len(marks) + 1
    size = f'width="{width}" height="14" viewBox="0 0 {width} 14" preserveAspectRatio="none"'
    head = f'<svg class="strip" {size} role="img" aria-label="{label}">'
    return Markup(head + "".join(_squares(marks)) + "</svg>")


def _squares(marks: Sequence[Mark]) -> Iterator[str]:
    for place, mark in enumerate(marks):
        box = f'x="{9 * place + 1}" y="2" width="8" height="11"'
        yield f'<rect class="{MARKS.get(mark.status, "l")}" {box}><title>{escape(mark.said)}</title></rect>'
        if mark.changed:
            yield f'<rect class="bits" x="{9 * place - 0.5}" y="0" width="2" height="14"/>'


def plot(series: Sequence[Series], label: str, *, least: float, limit: float | None = None) -> Markup:
    """Lines over the runs; empty if no line has two values. A dashed line marks `limit` if it is near.

    The height covers at least `least`, so that noise looks like noise. A run between two runs without a value is a
    point.
    """
    known = [value for line in series for value in line.values if value is not None]
    if max((sum(value is not None for value in line.values) for line in series), default=0) < 2:
        return Markup("")
    low, high = _range([*known, limit] if limit is not None and max(known) > limit - least else known, least)
    lines = "".join(_line(line, low, high) for line in series)
    limits = "" if limit is None or not low <= limit <= high else _limit(_y(limit, low, high))
    size = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none"'
    return Markup(f'<svg class="plot" {size} role="img" aria-label="{escape(label)}">{limits}{lines}</svg>')


def _range(values: Sequence[float], least: float) -> tuple[float, float]:
    spread = max(max(values) - min(values), least)
    low = (max(values) + min(values) - spread) / 2
    return low, low + spread


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT - EDGE - (value - low) / (high - low) * (HEIGHT - 2 * EDGE)


def _limit(y: float) -> str:
    return f'<path class="limit" d="M0 {y:.1f}H{WIDTH:g}"/>'


def _line(line: Series, low: float, high: float) -> str:
    across = (WIDTH - 2 * EDGE) / max(len(line.values) - 1, 1)
    parts, pen = [], "M"
    for place, value in enumerate(line.values):
        if value is None:
            pen = "M"
            continue
        x, y = EDGE + place * across, _y(value, low, high)
        alone = pen == "M" and (place + 1 == len(line.values) or line.values[place + 1] is None)
        parts.append(f"{pen}{x:.1f} {y:.1f}" + ("h.1" if alone else ""))
        pen = "L"
    return f'<path class="{line.shade}" d="{"".join(parts)}"/>'


def log10(value: float | None) -> float | None:
    """The logarithm; None if it does not exist."""
    return math.log10(value) if value else None
