"""Write replays as one page: pictures, the data as JSON, and a script that steps through them."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import groupby
from typing import Any

import numpy as np
from markupsafe import Markup

from fattn_probe.base.arrays import F64
from fattn_probe.base.view.marks import Box, Cells, ColourScale, Drawing, Look, Mark, Stroke, Words
from fattn_probe.base.view.svg import pinned
from fattn_probe.daily.inspect.coverage import check
from fattn_probe.daily.inspect.replay.replay import Lane, Replay, Traffic
from fattn_probe.daily.inspect.replay.row_numbers import NO_ROWS, RowNumbers
from fattn_probe.daily.inspect.trace.show import spelled
from fattn_probe.daily.inspect.view.error_tiles import error_picture, output_tiles
from fattn_probe.daily.inspect.view.page import environment
from fattn_probe.daily.inspect.view.stream_k_map import colour_of
from fattn_probe.daily.inspect.view.work_picture import BLOCKS, HIDDEN, MOST_SPANS, Paper, WorkMap, work_map
from fattn_probe.llama.launch.families import VEC
from fattn_probe.llama.launch.tiles import index_of
from fattn_probe.verdict.present.error_map import SCALE, shrunk

LEFT, TOP, WIDTH, RIGHT = 84, 36, 960, 16
WIDEST, NARROWEST, MOST_NUMBERS, LABELS = 64, 3, 3000, 20
MOST_TILES = 400
STRIP = 4
"""The height of the mask below a row of the map, in pixels."""
OTHER = Look("other", "@{fill:var(--soft)}@.n{fill:var(--paper)}", sign="▪")
TICK = Look("tick", "stroke:var(--soft);stroke-opacity:.45", sign="")
SHADES = ColourScale(
    tuple(range(1, 10)),
    tuple(Look(f"mask{digit}", f"fill:var(--ink);opacity:{0.06 + digit * 0.07:.2f}") for digit in range(10)),
    Look("none"),
)
"""The shades of a mask, by digit (0: hidden, 9: all visible)."""
PAPER = Look("under", "fill:var(--paper)", sign="")
MOST_CELLS = 120


@dataclass(frozen=True)
class Lanes:
    """The layout of the lanes: the top of each lane, the height of a lane, and the width of a step."""

    replay: Replay
    tops: tuple[float, ...]
    row: float
    step: float
    left: float

    @classmethod
    def of(cls, replay: Replay) -> "Lanes":
        """Choose the tallest lanes and the widest steps that fit."""
        lanes = replay.lanes
        row = min(22.0, max(6.0, 1100 / max(1, len(lanes))))
        left = max(LEFT, 7.0 * max(len(lane.name) for lane in lanes) + 14)
        step = min(WIDEST, max(NARROWEST, (WIDTH - left - RIGHT) / max(1, replay.stop)))
        later = [sum(lane.start > 0 for lane in lanes[: place + 1]) > 0 for place in range(len(lanes))]
        return cls(replay, tuple(TOP + row * place + 26 * after for place, after in enumerate(later)), row, step, left)

    @property
    def drawing(self) -> Drawing:
        """Draw a lane for each block, and for each tile that a second kernel completes."""
        replay = self.replay
        width = max(WIDTH, self.left + replay.stop * self.step + RIGHT)
        marks: list[Mark] = [*self._axis()]
        every = 1  # lanes per label
        while every * self.row < 13:
            every *= 2
        second = next((place for place, lane in enumerate(replay.lanes) if lane.start > 0), None)
        for place, (top, lane) in enumerate(zip(self.tops, replay.lanes, strict=True)):
            if (place - (second or 0) * (lane.start > 0)) % every == 0:
                marks.append(Words(self.left - 8, top + (self.row - 14) / 2 - 1, lane.name, end=True))
        if second is not None:
            words = "after all blocks: the parts of each tile are added"
            marks.append(Words(self.left, self.tops[second] - 19, words))
        cells = sum(lane.stop - lane.start for lane in replay.lanes)
        for top, lane in zip(self.tops, replay.lanes, strict=True):
            marks += self._lane(top, lane, cells <= MOST_NUMBERS and self.step >= LABELS)
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

    def _lane(self, top: float, lane: Lane, numbered: bool) -> Iterator[Box]:
        at = self.left + lane.start * self.step
        height, gap = self.row - (1 if self.row < 12 else 2), 1 if self.step >= 6 else 0
        for stretch in lane.stretches:
            kind, masks = self.replay.kinds[stretch.kind], self.replay.masks
            numbers = [stretch.first + step * stretch.every for step in range(stretch.count)]
            known = kind.sign == "#" and masks and stretch.tile >= 0
            hidden = [bool(known) and masks[stretch.tile][number] == "0" for number in numbers]
            looks = [(HIDDEN if dark else BLOCKS)[colour_of(max(0, stretch.tile))] for dark in hidden]
            for _, some in groupby(range(stretch.count), key=lambda at: at if numbered else hidden[at]):
                first, *more = some
                label = kind.sign.replace("#", str(numbers[first])) if numbered else ""
                place = at + first * self.step, top, (1 + len(more)) * self.step - gap, height
                if kind.sign:
                    yield Box(*place, looks[first] if kind.sign == "#" else OTHER, label)
            at += stretch.count * self.step


def tile_map(replay: Replay) -> WorkMap | None:
    """The map of the work, with all tiles unless there are too many."""
    spans = sum(len(block.tiles) for block in replay.facts.blocks)
    coverage = check(replay.facts) if replay.geometry else None
    return work_map(replay.facts, Paper(), MOST_TILES if spans <= MOST_SPANS else 24, coverage)


def with_mask(found: WorkMap, replay: Replay) -> Drawing:
    """Draw the map with the mask below each row, and each tile's error at the right edge."""
    drawn, marks, end = found.drawing(), list[Mark](), found.x(found.grid.iter_k)
    for top, row in zip(found.tops, found.rows, strict=True):
        index = index_of(row.tile, found.grid)
        if replay.masks and found.row >= 9:
            place = found.x(0), top + found.row - STRIP - 1, end - found.x(0), STRIP
            digits = np.array([[float(digit) for digit in replay.masks[index]]])
            marks += [Box(*place, PAPER), Cells(*place, digits, SHADES)]
        if index in replay.tile_errors:
            look = Look(
                f"h{int(SCALE.places(np.array(replay.tile_errors[index])))}",
                "stroke:var(--soft);stroke-width:.6",
                sign="",
            )
            title = f"error {replay.tile_errors[index]:.3g}"
            marks.append(Box(end + 4, top, 10, max(2.0, found.row - 2), look, title=title))
    return replace(drawn, marks=(*drawn.marks, *marks))


def pictures_of(replay: Replay, ids: str) -> dict[str, Any]:
    """The pictures, each as a pair of SVGs (fixed labels, scrolling part), with the layout for the page's script."""
    lanes, found = Lanes.of(replay), tile_map(replay)
    layout: dict[str, Any] = {"left": lanes.left, "tops": lanes.tops, "row": lanes.row, "step": lanes.step}
    drawn = {"lanes": (lanes.drawing, lanes.left - 4, layout)}
    if found is not None:
        tops = {index_of(row.tile, found.grid): top for top, row in zip(found.tops, found.rows, strict=True)}
        layout = {"left": found.x(0), "tops": tops, "row": found.row, "step": found.step, "count": found.grid.iter_k}
        layout["notes"] = found.notes() if replay.geometry else ()
        drawn["map"] = (with_mask(found, replay), found.left, layout)
    if replay.errors is not None:
        small = shrunk(replay.errors, MOST_CELLS, 2 * MOST_CELLS)
        tiles = output_tiles(replay.sizes, replay.geometry) if replay.sizes else ()
        picture = error_picture(
            small, replay.errors.shape, "the errors in the output, heads down, queries across", tiles
        )
        layout = {"left": 0, "top": 0, "step": picture.across, "row": picture.down, "sequence": replay.errors_sequence}
        layout |= dict(zip(("heads", "queries"), replay.errors.shape, strict=True))
        drawn["errors"] = (picture.drawing, 0, layout)
    return {
        name: {"svg": pinned(drawing, left, ids=f"{ids}-{name}"), "layout": layout}
        for name, (drawing, left, layout) in drawn.items()
    }


ROOM = "fattn_probe.daily.inspect.replay"


def replay_page(replays: Sequence[Replay], title: str) -> str:
    """Make a self-contained page of one replay, or of two side by side."""
    runs, pictures = [], []
    for number, replay in enumerate(replays):
        made = pictures_of(replay, f"run{number}")
        runs.append(document_of(replay) | {"layouts": {name: one["layout"] for name, one in made.items()}})
        pictures.append({name: one | {"svg": [*map(Markup, one["svg"])]} for name, one in made.items()})
    data = json.dumps(spelled(runs), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    script = (files(ROOM) / "templates" / "replay.js").read_text(encoding="utf-8")
    words = {"title": title, "replays": list(zip(replays, pictures, strict=True)), "data": Markup(data)}
    return environment(ROOM).get_template("replay.html.j2").render(words, script=Markup(script))


def document_of(replay: Replay) -> dict[str, Any]:
    """A replay's data for the page's script."""
    traffics: dict[Traffic, int] = {}
    lanes = []
    for lane in replay.lanes:
        runs = []
        for one in lane.stretches:
            traffic = traffics.setdefault(one.traffic, len(traffics))
            runs.append([one.kind, one.tile, one.first, one.count, one.every, traffic, *filter(None, [one.values])])
        lanes.append({"name": lane.name, "link": lane.link, "start": lane.start, "runs": runs})
    geometry = replay.geometry
    return {
        "title": replay.title,
        "kinds": [vars(kind) | {"lines": [[*vars(line).values()] for line in kind.lines]} for kind in replay.kinds],
        "lanes": lanes,
        "traffics": list(traffics),
        "tiles": replay.tiles,
        "masks": replay.masks,
        "step_rows": replay.step_rows,
        "n_kv": replay.n_kv,
        "unit": replay.unit,
        "rows": [_row(replay, row) for row in replay.rows],
        "traced": [vars(one) | {"place": vars(one.place)} for one in replay.traced],
        "marked": replay.marked and vars(replay.marked) | {"place": vars(replay.marked.place)},
        "shape": geometry
        and {
            "ncols1": geometry.kernel.ncols1,
            "ncols2": geometry.kernel.ncols2,
            "group": geometry.group,
            "grid": vars(geometry.grid),
            "warps": geometry.kernel.warps,
            "chunk": replay.chunk,
            "sparse": geometry.kernel.sparse,
            "np": geometry.kernel.warps if geometry.kernel.family is VEC else geometry.kernel.warps_per_column,
        },
    }


def _row(replay: Replay, row: RowNumbers) -> dict[str, Any]:
    """A row's values: the kernel's arrays as float32 in base64, and their errors."""
    assert replay.geometry is not None
    sequence, query, head = row.row
    parts = []
    for part in row.parts:
        *steps, end = zip(part.kernel, part.exact, strict=True)
        parts.append(
            {
                "block": part.block,
                "kb0": part.kb0,
                "m": [[state.m for state in pair] for pair in steps],
                "l": [[state.l for state in pair] for pair in steps],
                "P": _arrays([[state.P for state in pair] for pair in steps]),
                "P_sizes": [len(exact.P) for _, exact in steps],
                "VKQ": _arrays([[state.VKQ for state in pair] for pair in steps]),
                "end": {
                    "m": [state.m for state in end],
                    "l": [state.l for state in end],
                    "VKQ": _arrays([[state.VKQ for state in end]]),
                },
            }
        )
    tile = index_of(replay.geometry.tile_of(*row.row), replay.geometry.grid)
    found = replay.outputs.get(row.row)
    out = {"kernel": _arrays([[row.output, row.exact]]), "found": found is not None and _arrays([[found, row.exact]])}
    return {"row": [sequence, query, head], "tile": tile, "parts": parts, "out": out}


def _arrays(pairs: Sequence[Sequence[F64]]) -> list[str]:
    """Encode the kernel's arrays, joined, and their errors; each pair is a kernel's array and the exact array."""
    ours, right = (np.concatenate([NO_ROWS, *each]) for each in ([pair[at] for pair in pairs] for at in (0, 1)))
    with np.errstate(invalid="ignore", over="ignore"):
        return [base64.b64encode(one.astype("<f4").tobytes()).decode() for one in (ours, ours - right)]
