"""The error map of a wrong output as inline SVG: colours scaled to its own errors, lines around the output tiles."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from fattn_probe.base.arrays import F64
from fattn_probe.base.figures import times
from fattn_probe.base.view.marks import Cells, ColourScale, Drawing, Look, Mark, outline
from fattn_probe.base.view.svg import svg
from fattn_probe.daily.regress.packed_map import PackedMap
from fattn_probe.daily.regress.work_map import OutputTile

STEPS = 4
LOOKS = (Look(""), *(Look(f"h{step}") for step in range(1, STEPS + 1)))
NOT_FINITE = Look(f"h{STEPS + 1}")
TILE, CUT = Look("tile"), Look("cut")
LEAST_TILE = 4.0
"""The smallest size of a tile, in pixels, that gets lines around it."""


@dataclass(frozen=True)
class ErrorPicture:
    """The picture, and its key: (CSS class, words) of each colour, and whether it outlines whole tiles and cut ones."""

    svg: Markup
    key: tuple[tuple[str, str], ...]
    tiles: bool
    seams: bool


def picture_of(packed: PackedMap, label: str, tiles: Sequence[OutputTile] = ()) -> ErrorPicture:
    """The picture of an error map: heads down, queries across."""
    scale = ColourScale(limits_of(packed.values), LOOKS, NOT_FINITE)
    width, height = packed.columns * _cell(packed.columns), packed.rows * _cell(packed.rows)
    across, down = width / packed.queries, height / packed.heads
    outlined = len(tiles) > 1 and min(min(tile.queries * across, tile.heads * down) for tile in tiles) >= LEAST_TILE
    marks: list[Mark] = [Cells(0, 0, width, height, packed.values, scale)]
    for look in (TILE, CUT) if outlined else ():
        marks += [
            outline(tile.query * across, tile.head * down, tile.queries * across, tile.heads * down, look)
            for tile in tiles
            if look is TILE or tile.blocks > 1
        ]
    cut = sum(tile.blocks > 1 for tile in tiles) if outlined else 0
    words = [
        f"below {times(scale.limits[0], 2)}",
        *(f"{times(limit, 2)} and more" for limit in scale.limits),
        "not finite, or unwritten",
    ]
    there = np.unique(scale.places(packed.values))
    key = tuple((f"h{place}", words[place]) for place in there)
    drawn = svg(Drawing("error-map", width, height, tuple(marks), label))
    return ErrorPicture(Markup(drawn), key, outlined and cut < len(tiles), bool(cut))


def limits_of(values: F64) -> tuple[float, ...]:
    """The lower limits of the colours: four equal steps on a logarithmic scale, from the least error above 1 up.

    An error of 1 is the error that the arithmetic predicts for the row.
    """
    wrong = values[np.isfinite(values) & (values >= 1)]
    if not wrong.size:
        return (1.0, 3.0, 10.0, 100.0)
    low = 1.0 if (values < 1).any() else float(wrong.min())
    ratio = max(float(wrong.max()) / low, 1.5)
    return tuple(low * ratio ** (step / STEPS) for step in range(STEPS))


def _cell(places: int) -> float:
    return max(5.0, min(24.0, 240 / places))
