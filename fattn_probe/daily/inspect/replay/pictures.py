"""The pictures of a replay: lanes of steps in time, the map of tiles with the mask beneath, and where errors are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fattn_probe.base.view.marks import Box, Cells, Drawing, Look, Mark, Stroke, Words, outline
from fattn_probe.base.view.svg import pinned
from fattn_probe.daily.inspect.coverage import check
from fattn_probe.daily.inspect.replay.replay import Lane, Replay
from fattn_probe.daily.inspect.view.stream_k_map import colour_of
from fattn_probe.daily.inspect.view.work_picture import BLOCKS, HIDDEN, MOST_SPANS, Paper, WorkMap, work_map
from fattn_probe.llama.launch.tiles import index_of
from fattn_probe.verdict.present.error_map import SCALE, shrunk

LEFT, TOP, WIDTH, RIGHT = 84, 36, 960, 16
WIDEST, NARROWEST, MOST_NUMBERS, ROOM = 64, 3, 3000, 20
MOST_TILES = 400
STRIP = 4
"""The height of the mask beneath a row of the map."""
OTHER = Look("other", "@{fill:var(--soft)}@.n{fill:var(--paper)}", sign="▪")
TICK = Look("tick", "stroke:var(--soft);stroke-opacity:.45", sign="")
SHADES = tuple(
    Look(f"mask{digit}", f"fill:var(--ink);opacity:{0.06 + digit * 0.07:.2f}", sign="") for digit in range(10)
)
ERRORS = tuple(
    Look(f"err{place}", f"fill:{colour};stroke:var(--soft);stroke-width:.5", sign="")
    for place, colour in enumerate(("#e7edf3", "#c6ddf4", "#84b4e3", "#3f7fc0", "#0b2f5c", "#d55e00"))
)
PAPER = Look("under", "fill:var(--paper)", sign="")
CUT = Look("cut", "fill:none;stroke:var(--soft);stroke-width:1", sign="")
SMALL, MOST_CELLS, CELL = 3.0, 120, 26.0


@dataclass(frozen=True)
class Lanes:
    """The layout of the lanes: the top of each, the height of a lane and the width of a step."""

    replay: Replay
    tops: tuple[float, ...]
    row: float
    step: float
    left: float

    @classmethod
    def of(cls, replay: Replay) -> "Lanes":
        """Lanes as high and steps as wide as their number allows."""
        lanes = replay.lanes
        row = min(22.0, max(6.0, 1100 / max(1, len(lanes))))
        left = max(LEFT, 7.0 * max(len(lane.name) for lane in lanes) + 14)
        step = min(WIDEST, max(NARROWEST, (WIDTH - left - RIGHT) / max(1, replay.stop)))
        later = [sum(lane.start > 0 for lane in lanes[: place + 1]) > 0 for place in range(len(lanes))]
        return cls(replay, tuple(TOP + row * place + 26 * after for place, after in enumerate(later)), row, step, left)

    @property
    def drawing(self) -> Drawing:
        """The picture: a lane for each block, and for each tile that a second kernel completes."""
        replay = self.replay
        width = max(WIDTH, self.left + replay.stop * self.step + RIGHT)
        marks: list[Mark] = [*self._axis(), *self._names()]
        cells = sum(lane.stop - lane.start for lane in replay.lanes)
        for top, lane in zip(self.tops, replay.lanes, strict=True):
            marks += self._lane(top, lane, cells <= MOST_NUMBERS and self.step >= ROOM)
        about = "Steps of each block from left to right, coloured by output tile"
        return Drawing("lanes", width, (self.tops[-1] if self.tops else TOP) + self.row + 4, tuple(marks), about)

    def _axis(self) -> Iterator[Mark]:
        every = 1
        while every * self.step < 46:
            every *= 2
        yield Words(self.left - 8, TOP - 18, "step", end=True)
        for step in range(0, self.replay.stop, every):
            x = self.left + step * self.step
            yield Words(x + 2, TOP - 18, str(step))
            yield Stroke(((x, TOP - 6), (x, TOP - 2)), TICK)

    def _names(self) -> Iterator[Mark]:
        every = 1
        while every * self.row < 13:
            every *= 2
        second = next((place for place, lane in enumerate(self.replay.lanes) if lane.start > 0), None)
        for place, (top, lane) in enumerate(zip(self.tops, self.replay.lanes, strict=True)):
            if (place - (second or 0) * (lane.start > 0)) % every == 0:
                yield Words(self.left - 8, top + (self.row - 14) / 2 - 1, lane.name, end=True)
        if second is not None:
            yield Words(self.left, self.tops[second] - 19, "after all blocks: the parts of each tile are added")

    def _lane(self, top: float, lane: Lane, numbered: bool) -> Iterator[Box]:
        at = self.left + lane.start * self.step
        height, gap = self.row - (1 if self.row < 12 else 2), 1 if self.step >= 6 else 0
        for stretch in lane.stretches:
            kind, masks = self.replay.kinds[stretch.kind], self.replay.masks
            numbers = [stretch.first + step * stretch.every for step in range(stretch.count)]
            known = kind.sign == "#" and masks and stretch.tile >= 0
            hidden = [bool(known) and masks[stretch.tile][number] == "0" for number in numbers]
            for run, dark in _runs(hidden, numbered) if kind.sign else ():
                look = (HIDDEN if dark else BLOCKS)[colour_of(max(0, stretch.tile))] if kind.sign == "#" else OTHER
                label = kind.sign.replace("#", str(numbers[run.start])) if numbered else ""
                yield Box(at + run.start * self.step, top, len(run) * self.step - gap, height, look, label)
            at += stretch.count * self.step


def _runs(hidden: Sequence[bool], single: bool) -> Iterator[tuple[range, bool]]:
    """Neighbouring steps that look the same, or each step alone."""
    start = 0
    for at in range(1, len(hidden) + 1):
        if single or at == len(hidden) or hidden[at] != hidden[start]:
            yield range(start, at), hidden[start]
            start = at


def tile_map(replay: Replay) -> WorkMap | None:
    """The map of the work with all tiles, if they are not too many."""
    grid = replay.facts.grid
    if grid is None or not replay.facts.blocks:
        return None
    spans = sum(len(block.tiles) for block in replay.facts.blocks)
    most = MOST_TILES if spans <= MOST_SPANS else 24
    return work_map(replay.facts, Paper(), most, check(replay.facts) if replay.geometry else None)


def with_mask(found: WorkMap, replay: Replay) -> Drawing:
    """The map with the mask beneath each row, and the error of each tile at the right edge."""
    drawn, marks = found.drawing(), list[Mark]()
    for top, row in zip(found.tops, found.rows, strict=True):
        index = index_of(row.tile, found.grid)
        if replay.masks and found.row >= 9:
            line = replay.masks[index]
            start = 0
            for at in range(1, len(line) + 1):
                if at == len(line) or line[at] != line[start]:
                    y = top + found.row - STRIP - 1
                    look = SHADES[int(line[start])]
                    paper = Box(found.x(start), y, (at - start) * found.step, STRIP, PAPER)
                    marks += [paper, replace(paper, look=look)]
                    start = at
        if index in replay.tile_errors:
            place = int(SCALE.places(np.array(replay.tile_errors[index])))
            x, height = found.x(found.grid.iter_k) + 4, max(2.0, found.row - 2)
            marks.append(Box(x, top, 10, height, ERRORS[place], title=f"error {replay.tile_errors[index]:.3g}"))
    return replace(drawn, marks=(*drawn.marks, *marks))


def error_picture(replay: Replay) -> tuple[Drawing, float] | None:
    """The errors of the output by head and query, cut into output tiles, and the size of a cell; None if unknown."""
    if replay.errors is None or replay.geometry is None:
        return None
    heads, queries = replay.errors.shape
    small = shrunk(replay.errors, MOST_CELLS, 4 * MOST_CELLS)
    cell = min(CELL, max(SMALL, (WIDTH - LEFT - RIGHT) / queries))
    high = min(18.0, max(SMALL, 400 / heads))
    width, height = cell * queries, high * heads
    marks: list[Mark] = [Words(LEFT, 0, f"query 0 to {queries - 1}"), Words(LEFT - 8, 18, "head 0", end=True)]
    if heads > 1:
        marks.append(Words(LEFT - 8, 18 + max(14, height - 14), str(heads - 1), end=True))
    names = replace(SCALE, looks=ERRORS[:-1], odd=ERRORS[-1])
    marks.append(Cells(LEFT, 18, width, height, small, names))
    kernel, group = replay.geometry.kernel, replay.geometry.group
    for first in range(0, heads, group):
        for inside in range(0, group, kernel.ncols2):
            tall = min(kernel.ncols2, group - inside) * high
            for query in range(0, queries, kernel.ncols1) if cell * kernel.ncols1 >= 6 else ():
                wide = min(kernel.ncols1, queries - query) * cell
                marks.append(outline(LEFT + query * cell, 18 + (first + inside) * high, wide, tall, CUT))
    about = "The largest error of each output row, by head and query, cut into output tiles"
    return Drawing("errors", max(WIDTH, LEFT + width + RIGHT), 22 + height, tuple(marks), about), cell


def pictures_of(replay: Replay, ids: str) -> dict[str, Any]:
    """The pictures as pairs of SVG (fixed labels, and what scrolls), with the layout that the page's script needs."""
    lanes, found, errors = Lanes.of(replay), tile_map(replay), error_picture(replay)
    made: dict[str, Any] = {
        "lanes": {
            "svg": pinned(lanes.drawing, lanes.left - 4, ids=f"{ids}-lanes"),
            "layout": {"left": lanes.left, "tops": lanes.tops, "row": lanes.row, "step": lanes.step},
        },
        "map": None,
        "errors": None,
    }
    if found is not None:
        tops = {index_of(row.tile, found.grid): top for top, row in zip(found.tops, found.rows, strict=True)}
        layout = {"left": found.x(0), "tops": tops, "row": found.row, "step": found.step, "count": found.grid.iter_k}
        made["map"] = {
            "svg": pinned(with_mask(found, replay), found.left, ids=f"{ids}-map"),
            "layout": layout,
            "notes": found.notes() if replay.geometry else (),
        }
    if errors is not None and replay.errors is not None:
        drawing, cell = errors
        heads, queries = replay.errors.shape
        layout = {"left": LEFT, "top": 18, "step": cell, "row": (drawing.height - 22) / heads}
        layout |= {"heads": heads, "queries": queries, "sequence": replay.errors_sequence}
        made["errors"] = {"svg": pinned(drawing, LEFT - 4, ids=f"{ids}-errors"), "layout": layout}
    return made
