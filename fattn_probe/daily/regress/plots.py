"""The pictures on the history's page: verdicts, errors and times by run, wrong outputs, the division of work."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from fattn_probe.base.figures import number_of
from fattn_probe.base.view.marks import Axis, Box, Drawing, Look, Stroke
from fattn_probe.base.view.svg import svg
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.view.error_tiles import ErrorPicture, OutputTile, divided, error_picture, output_tiles
from fattn_probe.daily.regress.records import Identity, PackedMap, Result, StoredCase
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.verdict.present.error_map import SCALE

LOOKS = {status: Look(name) for status, name in {"pass": "p", "fail": "f", "unsupported": "u"}.items()}
OTHER, BITS, LIMIT = Look("l"), Look("bits"), Look("limit")
WIDTH, HEIGHT, EDGE = 300.0, 58.0, 4.0
Values = Sequence[float | None]
"""One value per run; None for a run without a value."""
ERRORS = {
    "h0": f"below {SCALE.limits[0]:g}",
    **{look.name: f"{limit:g} and more" for look, limit in zip(SCALE.looks[1:], SCALE.limits, strict=True)},
    SCALE.odd.name: "not finite, or unwritten",
}
"""The legend of an error map: the words for each CSS class."""
MOST_BLOCKS = 20000


@dataclass(frozen=True)
class Square:
    """One run: its status, its tooltip, and whether its bits differ from those of the previous run."""

    status: str
    said: str
    changed: bool = False


def strip(marks: Sequence[Square]) -> Markup:
    """Draw one square per run: its colour shows the verdict, and a bar before it marks changed bits."""
    worst = [mark.status for mark in marks if mark.status not in ("pass", "unsupported")]
    label = f"{number_of(len(marks), 'run')}, {len(worst)} not passed"
    squares = [
        Box(9 * place + 1, 2, 8, 11, LOOKS.get(mark.status, OTHER), title=mark.said) for place, mark in enumerate(marks)
    ]
    bars = [Box(9 * place - 0.5, 0, 2, 14, BITS) for place, mark in enumerate(marks) if mark.changed]
    return Markup(svg(Drawing("strip", 9 * len(marks) + 1, 14, (*squares, *bars), label), stretched=True))


def plot(series: Mapping[str, Values], label: str, *, least: float, limit: float | None = None) -> Markup:
    """Plot lines over the runs, by CSS class; empty if no line has two values. A dashed line marks `limit`.

    The height covers a range of at least `least`, so that noise is not magnified. A run between gaps becomes a point.
    """
    known = [value for line in series.values() for value in line if value is not None]
    if max((sum(value is not None for value in line) for line in series.values()), default=0) < 2:
        return Markup("")
    shown = known if limit is None else [*known, limit]
    spread, middle = max(max(shown) - min(shown), least), (max(shown) + min(shown)) / 2
    runs = max(map(len, series.values()))
    axes = Axis("runs", 0, max(runs - 1, 1)), Axis(label, middle - spread / 2, middle + spread / 2)
    drawn = Drawing(
        "plot", WIDTH, HEIGHT, tuple(line for one in series.items() for line in _lines(*one)), label, axes=axes
    )
    marks = [*drawn.placed(EDGE, EDGE, WIDTH - 2 * EDGE, HEIGHT - 2 * EDGE)]
    if limit is not None:
        y = EDGE + (1 - axes[1].share(limit)) * (HEIGHT - 2 * EDGE)
        marks.insert(0, Stroke(((0, y), (WIDTH, y)), LIMIT))
    return Markup(svg(Drawing("plot", WIDTH, HEIGHT, tuple(marks), label), fixed=False, stretched=True))


def _lines(shade: str, values: Values) -> list[Stroke]:
    """A line for each sequence of consecutive values, and a point for each isolated value."""
    lines: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append((place, value))
    return [Stroke(tuple(line), Look(shade)) for line in lines if line]


def swatch(name: str, kind: str, width: float = 12, height: float = 12) -> Markup:
    """A swatch for a legend: the colour of one kind of mark in the drawings called `name`."""
    return Markup(svg(Drawing(name, width, height, (Box(0, 0, width, height, Look(kind)),))))


def log10(value: float | None) -> float | None:
    """The decimal logarithm; None for 0 or None."""
    return math.log10(value) if value else None


def work_facts(case: StoredCase, result: Result, identity: Identity) -> Facts | None:
    """The facts for the map of work; None if no launched kernel's division of work is known.

    The mask's values are not stored, so every KV step counts as computed.
    """
    geometry = geometry_of(case.op, result.kernels, arch_number(identity.cc)) if result.launches else None
    if geometry is None or int(np.prod(geometry.kernel.blocks)) > MOST_BLOCKS:
        return None
    return divided(geometry, {"case": case.name, "device": identity.device})


def tiles_of(case: StoredCase, result: Result, identity: Identity) -> tuple[OutputTile, ...]:
    """The output tiles of the first sequence; empty if the kernel is unknown or the tiles are too many to draw."""
    known = result.launches and geometry_of(case.op, result.kernels, arch_number(identity.cc))
    return output_tiles(case.op.sizes, known or None)


def picture_of(packed: PackedMap, label: str, tiles: Sequence[OutputTile] = ()) -> ErrorPicture:
    """The picture of a stored error map."""
    return error_picture(packed.values, (packed.heads, packed.queries), label, tiles)
