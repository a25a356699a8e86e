"""The division of work as a picture: one row per output tile, KV steps from left to right, coloured by CUDA block.

This module computes the content of the picture; `work_picture` draws it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import gcd

from fattn_probe.base.figures import extent, number_of
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.llama.launch.families import BY_NAME
from fattn_probe.llama.launch.tiles import Grid, Tile, in_grid, index_of, parallel_blocks_of, share_of, tiles_in

# Alternately dark and light, so that neighbouring blocks differ even without colour; the hues are distinct for people
# with red-green colour blindness.
PALETTE = (
    ("#1f4e8c", "#ffffff"),
    ("#f2c14e", "#000000"),
    ("#8c2d04", "#ffffff"),
    ("#8ecae6", "#000000"),
    ("#1b6b50", "#ffffff"),
    ("#f4a6a0", "#000000"),
    ("#5c3a8c", "#ffffff"),
    ("#b8de8f", "#000000"),
)


@dataclass(frozen=True)
class Span:
    """KV steps `range(start, stop, step)` of a tile, computed by one block; the mask hides those from `shown_stop` on.

    `turn` is the block's `blockIdx.y` if blocks take turns on a tile.
    """

    block: int
    start: int
    stop: int
    shown_stop: int
    step: int = 1
    turn: int = 0


@dataclass(frozen=True)
class Segment:
    """KV steps `range(start, stop)` of a tile, computed by the same blocks (one, unless there is a fault)."""

    start: int
    stop: int
    doers: tuple[Span, ...]
    hidden: bool

    @property
    def seam(self) -> bool:
        """Whether the fixup kernel adds this segment to the previous one."""
        return bool(self.doers) and self.doers[0].step == 1 and self.start > 0


@dataclass(frozen=True)
class TileRow:
    """An output tile, and which of its KV steps each block computes."""

    tile: Tile
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class MapSelection:
    """The indices of the rows to draw, in order. With a `period`, all later rows repeat the last `period` rows drawn.

    `blocks_on` is the increase in block numbers from one repetition to the next.
    """

    rows: tuple[int, ...]
    period: int | None = None
    blocks_on: int = 0


def colour_of(block: int) -> int:
    """A block's colour in the palette; with eight blocks per tile, the blocks in a column also differ in colour."""
    return (block + 2 * (block // len(PALETTE))) % len(PALETTE)


def rows_of(facts: Facts) -> tuple[TileRow, ...]:
    """Every tile of the grid, in numerical order."""
    grid = facts.grid
    if grid is None:
        return ()
    turns = parallel_blocks_of(facts.blocks)
    spans: dict[Tile, list[Span]] = {}
    for block in facts.blocks:
        shares = {(work.tile, work.kb0_start): work.kb0_stop for work in share_of(block, grid, turns)}
        for work in block.tiles:
            if in_grid(work.tile, grid):
                stop = max(shares.get((work.tile, work.kb0_start), 0), work.kb0_stop)  # including masked steps
                shown = max(work.kb0_start, work.kb0_stop)
                span = Span(block.block, work.kb0_start, stop, shown, work.kb0_step, block.blockIdx[1])
                spans.setdefault(work.tile, []).append(span)
    tiles = tiles_in(grid)
    return tuple(TileRow(tile, tuple(sorted(spans.get(tile, []), key=lambda span: span.start))) for tile in tiles)


def segments_of(row: TileRow, iter_k: int) -> tuple[Segment, ...]:
    """A row's segments from left to right: runs of consecutive steps by the same block."""
    doers: list[tuple[Span, ...]] = [()] * iter_k
    for span in row.spans:
        for step in range(max(0, span.start), min(iter_k, span.stop), max(1, span.step)):
            doers[step] += (span,)
    hidden = [all(step >= span.shown_stop for span in doers[step]) for step in range(iter_k)]
    found = []
    for (who, dark), run in groupby(range(iter_k), key=lambda step: (doers[step], bool(doers[step]) and hidden[step])):
        steps = list(run)
        found.append(Segment(steps[0], steps[-1] + 1, who, dark))
    return tuple(found)


def select(rows: Sequence[TileRow], grid: Grid, most: int, marked: Iterable[Tile] = ()) -> MapSelection:
    """Choose at most `most` rows: all; or one period if rows repeat; or the faulty, first, middle and last rows."""
    if len(rows) <= most:
        return MapSelection(tuple(range(len(rows))))
    repeating = _repeating(rows, most)
    if repeating is not None:
        return repeating
    chosen: set[int] = set()
    for tile in [tile for tile in marked if in_grid(tile, grid)][: most // 3]:
        chosen.update({index_of(tile, grid), max(0, index_of(tile, grid) - 1)})
    left = most - len(chosen)
    head, mid, tail = left - 2 * (left // 4), left // 4, left // 4
    centre = (len(rows) - mid) // 2
    chosen.update(range(head), range(centre, centre + mid), range(len(rows) - tail, len(rows)))
    return MapSelection(tuple(sorted(chosen)))


def _repeating(rows: Sequence[TileRow], most: int) -> MapSelection | None:
    """Choose the first rows, if all later rows repeat them with different block numbers.

    The division of T tiles among B stream-K blocks repeats after T/gcd(B, T) tiles.
    """
    number = len({span.block for row in rows for span in row.spans})
    common = gcd(number, len(rows))
    period, blocks_on = len(rows) // common, number // common
    if period > most // 2 and period + 1 > most:
        return None
    shapes = [
        tuple((s.block - blocks_on * (index // period), s.start, s.stop, s.shown_stop, s.step) for s in row.spans)
        for index, row in enumerate(rows)
    ]
    if any(shape != shapes[index % period] for index, shape in enumerate(shapes)):
        return None
    shown = period * max(1, min(-(-4 // period), most // period, common - 1))
    return MapSelection(tuple(range(shown)), period, blocks_on)


def summary(facts: Facts) -> list[str]:
    """The division of work in words."""
    grid = facts.grid
    if grid is None or not facts.blocks:
        return []
    rows = rows_of(facts)
    shares = dict.fromkeys((block.block for block in facts.blocks), 0)
    for span in (span for row in rows for span in row.spans):
        shares[span.block] += len(range(span.start, span.shown_stop, max(1, span.step)))
    blocks, tiles = number_of(len(shares), "block"), number_of(len(rows), "output tile")
    each, idle = shares.values(), [*shares.values()].count(0)
    said = [
        f"{blocks} on {tiles} of {grid.iter_k} KV steps; {extent(each)} KV step{'s' * (max(each) != 1)} per block.",
        *([f"{number_of(idle, 'block')} {'has' if idle == 1 else 'have'} nothing to do."] if idle else []),
    ]
    parts = [len(row.spans) for row in rows if len(row.spans) > 1]
    if not parts:
        return [*said, "No tile is divided."]
    if any(span.step > 1 for row in rows for span in row.spans):
        return [*said, f"{extent(parts)} blocks take turns on a tile."]
    which = "Each tile" if len(parts) == len(rows) else number_of(len(parts), "tile")
    verb = "is" if len(parts) in (1, len(rows)) else "are"
    return [*said, f"{which} {verb} divided among {extent(parts)} blocks."]


def step_rows(facts: Facts) -> int | None:
    """The number of KV rows in a step; None if unknown."""
    family = BY_NAME.get(facts.choice.family) if facts.choice else None
    rows = facts.choice.config.get(family.step_name) if facts.choice and family else None
    return rows if isinstance(rows, int) and rows > 0 else None
