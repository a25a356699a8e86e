"""The map of the work in a terminal, with colours and block numbers; readable without colours."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from fattn_probe.inspect.coverage import Coverage
from fattn_probe.inspect.facts import Facts
from fattn_probe.inspect.view.stream_k_map import (
    PALETTE,
    Segment,
    Selection,
    TileRow,
    colour_of,
    rows_of,
    segments_of,
    select,
    step_rows,
    summary,
)
from fattn_probe.launch.tiles import Grid

NAMES = ("sequence", "z_KV", "zt_gqa", "jt")
EDGE, SEAM, HIDDEN, GAP, OVERLAP, MIXED = "│", "┃", "╱", "!", "#", "▒"
WIDEST_STEP = 12
FAULT = "bold white on red"


@dataclass(frozen=True)
class Scale:
    """Columns per KV step and KV steps per column; one of the two is 1."""

    columns: int
    steps: int

    def column(self, step: int) -> int:
        """The column where a step begins."""
        return step * self.columns // self.steps


@dataclass(frozen=True)
class Canvas:
    """The canvas for rows. `digits`: blocks take turns, and columns are too narrow for their numbers."""

    grid: Grid
    scale: Scale
    labels: "Labels"
    digits: bool


@dataclass(frozen=True)
class TerminalMap:
    """The map, with at most `most` rows; None for all."""

    facts: Facts
    coverage: Coverage | None = None
    most: int | None = 24

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(40, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid, rows = self.facts.grid, rows_of(self.facts)
        if grid is None or not self.facts.blocks:
            return
        marked = [finding.tile for finding in self.coverage.findings if finding.tile] if self.coverage else []
        selection = select(rows, grid, self.most or len(rows), marked)
        canvas = canvas_for(rows, grid, options.max_width)
        yield from axis(self.facts, canvas)
        yield from _body(rows, selection, canvas)
        yield Text(legend([rows[index] for index in selection.rows], canvas), style="dim")
        yield Text(" ".join(summary(self.facts)))


class Labels:
    """The columns left of the map that identify a tile, without columns that are equal everywhere."""

    def __init__(self, grid: Grid) -> None:
        extents = (grid.ne03, grid.ne12, grid.iter_z_gqa, grid.iter_j)
        self.shown = [place for place, extent in enumerate(extents) if extent > 1] or [3]
        self.widths = [max(len(NAMES[place]), len(str(extents[place] - 1))) for place in self.shown]
        self.width = max(sum(self.widths) + 2 * len(self.widths), len("KV step") + 1)

    def head(self) -> str:
        """The names of the columns."""
        return self._line([NAMES[place] for place in self.shown])

    def row(self, row: TileRow) -> str:
        """The labels of a tile."""
        return self._line([str(row.tile[place]) for place in self.shown])

    def _line(self, words: Sequence[str]) -> str:
        cells = [word.rjust(width) for word, width in zip(words, self.widths, strict=True)]
        return ("  ".join(cells) + " ").rjust(self.width)


def scale_of(iter_k: int, width: int) -> Scale:
    """The scale at which a tile's steps fit the width."""
    if iter_k <= width:
        return Scale(max(1, min(WIDEST_STEP, width // iter_k)), 1)
    return Scale(1, -(-iter_k // max(1, width)))


def canvas_for(rows: Sequence[TileRow], grid: Grid, width: int) -> Canvas:
    """A canvas of the given width for rows of a grid."""
    labels = Labels(grid)
    scale = scale_of(grid.iter_k, width - labels.width - 2)
    widest = max((span.block for row in rows for span in row.spans), default=0)
    turns = any(span.step > 1 for row in rows for span in row.spans)
    return Canvas(grid, scale, labels, turns and scale.columns <= len(str(widest)))


def axis(facts: Facts, canvas: Canvas) -> list[Text]:
    """The axis above the map: KV steps, and the KV rows where they begin."""
    grid, scale, labels = canvas.grid, canvas.scale, canvas.labels
    every = 1
    while scale.column(every) < 8 and every < grid.iter_k:
        every *= 2
    ticks = range(0, grid.iter_k, every)
    batch = step_rows(facts)
    lines = [("KV step ", [str(step) for step in ticks])]
    if batch is not None:
        lines.insert(0, ("KV row ", [str(step * batch) for step in ticks]))
    width = scale.column(grid.iter_k) + 1
    marked = [Text(name.rjust(labels.width) + _ticks(words, ticks, scale, width), "dim") for name, words in lines]
    return [*marked, Text(labels.head(), "dim")]


def _ticks(words: Sequence[str], ticks: Sequence[int], scale: Scale, width: int) -> str:
    line = " " * (width + 8)
    for word, step in zip(words, ticks, strict=True):
        column = scale.column(step) + 1
        line = line[:column] + word + line[column + len(word) :]
    return line.rstrip()


def _body(rows: Sequence[TileRow], selection: Selection, canvas: Canvas) -> list[Text]:
    """The drawn rows, with the number of omitted rows between them."""
    labels = canvas.labels
    drawn: list[Text] = []
    for before, index in pairwise((-1, *selection.rows, len(rows))):
        left_out = index - before - 1
        if left_out and not selection.period:
            drawn.append(Text(f"{'⋮':>{labels.width}} {left_out} tile{'s' if left_out > 1 else ''} not shown", "dim"))
        if index < len(rows):
            drawn.append(Text.assemble((labels.row(rows[index]), "dim"), paint(rows[index], canvas)))
    if selection.period:
        drawn.append(Text(f"{'⋮':>{labels.width}} {_again(selection, len(rows))}", "dim"))
    return drawn


def _again(selection: Selection, number: int) -> str:
    times = (number - len(selection.rows)) // (selection.period or 1)
    tiles = "each tile" if selection.period == 1 else f"every {selection.period} tiles"
    again = "once more" if times == 1 else f"{times} more times"
    return f"the same {again}: {tiles}, block numbers + {selection.blocks_on}"


def paint(row: TileRow, canvas: Canvas) -> Text:
    """A row as text, segment by segment."""
    text, scale = Text(no_wrap=True), canvas.scale
    if canvas.digits:
        text.append(EDGE)
    if scale.steps > 1 and any(span.step > 1 for span in row.spans):
        shown = max(scale.column(span.shown_stop) for span in row.spans)
        return text.append(MIXED * shown + HIDDEN * (scale.column(canvas.grid.iter_k) - shown) + EDGE)
    for segment in segments_of(row, canvas.grid.iter_k):
        width = scale.column(segment.stop) - scale.column(segment.start)
        text.append(_glyphs(segment, width, canvas.digits), _style(segment))
    return text.append(EDGE)


def _glyphs(segment: Segment, width: int, digits: bool) -> str:
    """A segment's characters: its left edge, its block's number if there is room, and its filling."""
    if len(segment.doers) != 1:
        return (OVERLAP if segment.doers else GAP) * width
    span = segment.doers[0]
    fill, edge = (HIDDEN if segment.hidden else " "), (SEAM if segment.seam else EDGE)
    if segment.hidden and (segment.start > span.start or digits):
        return fill * width
    if digits:
        return str(span.turn % 10).ljust(width)
    number = str(span.block) if width > len(str(span.block)) else ""
    return (edge + number).ljust(width, fill)[:width]


def _style(segment: Segment) -> str:
    if len(segment.doers) != 1:
        return FAULT
    if segment.hidden:
        return "dim"
    back, fore = PALETTE[colour_of(segment.doers[0].block)]
    return f"{fore} on {back}"


def legend(rows: Sequence[TileRow], canvas: Canvas) -> str:
    """The meaning of the signs that occur."""
    segments = [segment for row in rows for segment in segments_of(row, canvas.grid.iter_k)]
    mixed = canvas.digits and canvas.scale.steps > 1
    said = {
        f"{EDGE}n  block n": not canvas.digits,
        f"{SEAM}  seam: the fixup kernel adds the two parts": any(segment.seam for segment in segments),
        "n  the block whose blockIdx.y ends in n": canvas.digits and not mixed,
        f"{MIXED}  the blocks in turn": mixed,
        f"{HIDDEN}  hidden by the mask, skipped": any(segment.hidden for segment in segments),
        f"{GAP}  done by no block": any(not segment.doers for segment in segments),
        f"{OVERLAP}  done more than once": any(len(segment.doers) > 1 for segment in segments),
    }
    return "   ".join(words for words, there in said.items() if there)
