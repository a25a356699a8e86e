"""The error map of a wrong output as inline SVG: colours scaled to its own errors, lines around the output tiles."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from markupsafe import Markup

from fattn_probe.arrays import F64, Bools, Indices
from fattn_probe.figures import times
from fattn_probe.regress.packed_map import PackedMap
from fattn_probe.regress.work_map import OutputTile

STEPS = 4
NOT_FINITE = STEPS + 1
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
    values, limits = packed.values, limits_of(packed.values)
    kinds = np.where(np.isfinite(values), np.searchsorted(limits, values, side="right"), NOT_FINITE)
    width, height = packed.columns * _cell(packed.columns), packed.rows * _cell(packed.rows)
    across, down = width / packed.queries, height / packed.heads
    boxes = [_Box(tile.query * across, tile.head * down, tile.queries * across, tile.heads * down) for tile in tiles]
    outlined = len(boxes) > 1 and min(min(box.width, box.height) for box in boxes) >= LEAST_TILE
    cut = [box for box, tile in zip(boxes, tiles, strict=True) if tile.blocks > 1] if outlined else []
    shapes = [*_squares(kinds, width / packed.columns, height / packed.rows)]
    shapes += [f'<path class="tile" d="{"".join(box.outline for box in boxes)}"/>'] if outlined else []
    shapes += [f'<path class="cut" d="{"".join(box.outline for box in cut)}"/>'] if cut else []
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    svg = f'<svg class="error-map" {size} role="img" aria-label="{escape(label)}">{"".join(shapes)}</svg>'
    return ErrorPicture(Markup(svg), tuple(_key(limits, kinds)), outlined and len(cut) < len(boxes), bool(cut))


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


@dataclass(frozen=True)
class _Box:
    x: float
    y: float
    width: float
    height: float

    @property
    def outline(self) -> str:
        return f"M{self.x:.4g} {self.y:.4g}h{self.width:.4g}v{self.height:.4g}h-{self.width:.4g}z"


def _squares(kinds: Indices, width: float, height: float) -> Iterator[str]:
    """One SVG path per colour."""
    for kind in range(1, NOT_FINITE + 1):
        boxes = [
            _Box(start * width, row * height, (stop - start) * width, height).outline
            for row, line in enumerate(kinds)
            for start, stop in _runs(line == kind)
        ]
        if boxes:
            yield f'<path class="h{kind}" d="{"".join(boxes)}"/>'


def _key(limits: Sequence[float], kinds: Indices) -> Iterator[tuple[str, str]]:
    """The colours in the picture, and the errors that they stand for."""
    words = [
        f"below {times(limits[0], 2)}",
        *(f"{times(limit, 2)} and more" for limit in limits),
        "not finite, or unwritten",
    ]
    return ((f"h{kind}", said) for kind, said in enumerate(words) if (kinds == kind).any())


def _cell(places: int) -> float:
    return max(5.0, min(24.0, 240 / places))


def _runs(which: Bools) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], which, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
