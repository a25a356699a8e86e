"""Draw an error map with the output tiles on it, and derive the division of work from a launch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fattn_probe.base.arrays import F64
from fattn_probe.base.view.marks import Cells, Drawing, Look, Mark, outline
from fattn_probe.base.view.svg import svg
from fattn_probe.cases.op import Sizes
from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.llama.launch.geometry import Geometry, tile_rows
from fattn_probe.llama.launch.tiles import ntiles, tiles_in
from fattn_probe.verdict.present.error_map import SCALE

MAP_WIDTH, LEAST_PLACE, MOST_PLACE = 240.0, 5.0, 24.0
"""The width of an error map, and the smallest and largest size of a cell (one query of one head), in pixels."""
TILE, CUT = Look("tile"), Look("cut")
LEAST_TILE = 4.0
"""The smallest tile, in pixels, that is outlined."""
MOST_TILES = 2000


@dataclass(frozen=True)
class OutputTile:
    """The queries and heads of an output tile, and the number of blocks that share it."""

    queries: range
    heads: range
    blocks: int


@dataclass(frozen=True)
class ErrorPicture:
    """A drawing of an error map, the size of a query and a head in it, and whether it outlines tiles and seams."""

    drawing: Drawing
    across: float
    down: float
    tiles: bool
    seams: bool

    @property
    def svg(self) -> Markup:
        """The drawing for a page."""
        return Markup(svg(self.drawing))


def divided(geometry: Geometry, about: Mapping[str, str]) -> Facts:
    """The facts that follow from a launch; the scan of the mask is unknown, so every KV step counts as done."""
    family = geometry.kernel.family
    choice = Choice(family.name, geometry.kernel.spelling, {}, {family.step_name: geometry.rows})
    return Facts(about, choice=choice, grid=geometry.grid, blocks=geometry.blocks())


def output_tiles(sizes: Sizes, geometry: Geometry | None) -> tuple[OutputTile, ...]:
    """The output tiles of the first sequence; empty if the kernel is unknown or the tiles are too many to draw."""
    if geometry is None or ntiles(geometry.grid) > MOST_TILES:
        return ()
    kernel, tiles = geometry.kernel, (tile for tile in tiles_in(geometry.grid) if tile[0] == 0)
    return tuple(
        OutputTile(*tile_rows(tile, sizes, kernel.ncols1, kernel.ncols2), len(geometry.parts_of(tile)))
        for tile in tiles
    )


def error_picture(values: F64, shape: tuple[int, int], label: str, tiles: Sequence[OutputTile]) -> ErrorPicture:
    """Draw an error map, which may have been shrunk: heads down, queries across; `shape` is (heads, queries)."""
    rows, columns = values.shape
    width = max(MAP_WIDTH, columns * LEAST_PLACE)
    height = rows * max(LEAST_PLACE, min(MOST_PLACE, MAP_WIDTH / rows))
    across, down = width / shape[1], height / shape[0]
    places = [
        (one.queries.start * across, one.heads.start * down, len(one.queries) * across, len(one.heads) * down)
        for one in tiles
    ]
    outlined = len(tiles) > 1 and min(min(place[2:]) for place in places) >= LEAST_TILE
    marks: list[Mark] = [Cells(0, 0, width, height, values, SCALE)]
    for look in (TILE, CUT) if outlined else ():
        marks += [
            outline(*place, look) for tile, place in zip(tiles, places, strict=True) if look is TILE or tile.blocks > 1
        ]
    cut = sum(tile.blocks > 1 for tile in tiles) if outlined else 0
    drawing = Drawing("error-map", width, height, tuple(marks), label)
    return ErrorPicture(drawing, across, down, outlined and cut < len(tiles), bool(cut))
