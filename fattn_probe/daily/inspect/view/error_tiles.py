"""An error map on top of the output tiles, and the division of work that follows from a launch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fattn_probe.base.arrays import F64
from fattn_probe.base.view.marks import Cells, Drawing, Look, Mark, outline
from fattn_probe.base.view.svg import svg
from fattn_probe.cases.op import Sizes
from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.llama.launch.tiles import Tile, ntiles, tiles_in
from fattn_probe.verdict.present.error_map import SCALE

MAP_WIDTH, LEAST_PLACE, MOST_PLACE = 240.0, 5.0, 24.0
"""The width of an error map, and the limits of a place's size, in pixels."""
TILE, CUT = Look("tile"), Look("cut")
LEAST_TILE = 4.0
"""The smallest size of a tile, in pixels, that gets lines around it."""
MOST_TILES = 2000


@dataclass(frozen=True)
class OutputTile:
    """An output tile: its first query and head, how many of each it has, and the number of blocks that share it."""

    query: int
    head: int
    queries: int
    heads: int
    blocks: int


@dataclass(frozen=True)
class ErrorPicture:
    """A drawing of an error map, the sizes of a query and a head in it, and whether it outlines whole or cut tiles."""

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
    """The facts that follow from a launch; a scanned mask is not known, so every KV step counts as done."""
    family = geometry.kernel.family
    choice = Choice(family.name, geometry.kernel.spelling, {}, {family.step_name: geometry.rows})
    return Facts(about, choice=choice, grid=geometry.grid, blocks=geometry.blocks())


def output_tile(sizes: Sizes, geometry: Geometry, tile: Tile) -> OutputTile:
    """The part of an output tile that exists."""
    _, z_KV, zt_gqa, jt = tile
    query, within, kernel = jt * geometry.kernel.ncols1, zt_gqa * geometry.kernel.ncols2, geometry.kernel
    queries, heads = min(kernel.ncols1, sizes.n_q - query), min(kernel.ncols2, geometry.group - within)
    return OutputTile(query, z_KV * geometry.group + within, queries, heads, len(geometry.parts_of(tile)))


def output_tiles(sizes: Sizes, geometry: Geometry | None) -> tuple[OutputTile, ...]:
    """The output tiles of the first sequence; empty if the kernel is unknown or the tiles are too many to draw."""
    if geometry is None or ntiles(geometry.grid) > MOST_TILES:
        return ()
    return tuple(output_tile(sizes, geometry, tile) for tile in tiles_in(geometry.grid) if tile[0] == 0)


def error_picture(values: F64, shape: tuple[int, int], label: str, tiles: Sequence[OutputTile] = ()) -> ErrorPicture:
    """The picture of an error map, perhaps shrunk: heads down, queries across; `shape` is the number of each."""
    rows, columns = values.shape
    width = max(MAP_WIDTH, columns * LEAST_PLACE)
    height = rows * max(LEAST_PLACE, min(MOST_PLACE, MAP_WIDTH / rows))
    across, down = width / shape[1], height / shape[0]
    outlined = len(tiles) > 1 and min(min(tile.queries * across, tile.heads * down) for tile in tiles) >= LEAST_TILE
    marks: list[Mark] = [Cells(0, 0, width, height, values, SCALE)]
    for look in (TILE, CUT) if outlined else ():
        marks += [
            outline(tile.query * across, tile.head * down, tile.queries * across, tile.heads * down, look)
            for tile in tiles
            if look is TILE or tile.blocks > 1
        ]
    cut = sum(tile.blocks > 1 for tile in tiles) if outlined else 0
    drawing = Drawing("error-map", width, height, tuple(marks), label)
    return ErrorPicture(drawing, across, down, outlined and cut < len(tiles), bool(cut))
