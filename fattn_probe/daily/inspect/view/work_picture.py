"""The map of the work as a drawing, for a page or for a terminal; repeated tiles are folded."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from fattn_probe.base.figures import number_of
from fattn_probe.base.view.characters import lines
from fattn_probe.base.view.marks import Box, Drawing, Look, Mark, Stroke, Words
from fattn_probe.base.view.svg import svg
from fattn_probe.daily.inspect.coverage import Coverage, check, spell
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.view.stream_k_map import (
    PALETTE,
    Segment,
    TileRow,
    colour_of,
    rows_of,
    segments_of,
    select,
    step_rows,
    summary,
)
from fattn_probe.llama.launch.tiles import TILE, Grid

WIDTH, RIGHT, MOST_ROWS, MOST_SPANS, MOST_TITLES, WIDEST_STEP = 960, 16, 24, 8000, 2200, 12
EDGE, JOINED, MASKED = "│", "┃", "╱"
BLOCKS = tuple(
    Look(f"c{place}", f"@{{fill:{back}}}@.n{{fill:{fore}}}", f"{fore} on {back}", colour=back)
    for place, (back, fore) in enumerate(PALETTE)
)
HIDDEN = tuple(Look(f"{look.name} hid", "opacity:.3", "dim", MASKED, hatched=True) for look in BLOCKS)
IDLE, MIXED = Look("idle", "fill:var(--soft);opacity:.2", "dim", MASKED), Look("mixed", sign="▒")
BAD, FAULT = "fill:var(--bad);stroke:var(--ink);stroke-width:1.5", "bold white on red"
GAP, OVERLAP, POINTER = Look("bad", BAD, FAULT, "!"), Look("bad", BAD, FAULT, "#"), Look("bad", BAD, sign="")
SEAM = Look("seam", "stroke:var(--paper);stroke-width:2.5", sign="")
MARK = Look("mark", "fill:var(--ink);pointer-events:none", sign="")
TICK = Look("tick", "stroke:var(--soft);stroke-opacity:.45", sign="")
TIP = Look("tip", "fill:none;pointer-events:all", sign="")
PLAIN = Look("plain")


@dataclass(frozen=True)
class Paper:
    """The dimensions of a picture: the sizes of text, the height of a row, and the space between groups of rows."""

    width: float = WIDTH
    character: float = 6.3
    line: float = 14
    row: float = 26
    gap: float = 6
    beside: float = 3

    @property
    def terminal(self) -> bool:
        """Whether a unit is a character, not a pixel."""
        return self.character == 1


@dataclass(frozen=True)
class WorkMap:
    """The layout of the map: the chosen rows and their tops, the left edge of the work, and the width of a KV step.

    `digits`: blocks take turns, and a step is too narrow for their numbers. `columns` are the indices in a `Tile` that
    identify it, and the right ends of their labels; `folds` are the tops and words of lines about omitted tiles.
    """

    facts: Facts
    grid: Grid
    paper: Paper
    rows: tuple[TileRow, ...]
    tops: tuple[float, ...]
    folds: tuple[tuple[float, str], ...]
    columns: tuple[tuple[int, float], ...]
    row: float
    left: float
    step: float
    digits: bool

    @property
    def strided(self) -> bool:
        """Whether blocks take turns on a tile."""
        return any(span.step > 1 for row in self.rows for span in row.spans)

    def x(self, step: float) -> float:
        """The x coordinate at which a KV step begins."""
        return self.left + self.digits + step * self.step

    def segments(self) -> Iterator[tuple[float, TileRow, Segment]]:
        """The segments of all rows, each with the top of its row."""
        for top, row in zip(self.tops, self.rows, strict=True):
            for segment in segments_of(row, self.grid.iter_k):
                yield top, row, segment

    def box(self, top: float, start: int, stop: int, look: Look, title: str = "") -> Box:
        """A box for some KV steps of a row."""
        height = self.row - (not self.paper.terminal and self.row >= 6)
        return Box(self.x(start), top, (stop - start) * self.step, height, look, title=title)

    def drawing(self) -> Drawing:
        """The complete picture."""
        spans = sum(len(row.spans) for row in self.rows)
        device = self.facts.about.get("device", "")
        bottom = max(self.tops[-1] + self.row, *(top + self.paper.line for top, _ in self.folds), 0)
        work = _turns(self, spans <= MOST_TITLES) if self.strided else _work(self, spans <= MOST_TITLES)
        marks = [*_axis(self), *_labels(self), *work, *_seams(self), *(_tips(self) if spans > MOST_TITLES else ())]
        places = (min(self.left, self.paper.width - self.paper.character * len(words)) for _, words in self.folds)
        marks += [*_faults(self), *(Words(x, *fold) for x, fold in zip(places, self.folds, strict=True))]
        about = f"Blocks by KV step and output tile{' on ' + device if device else ''}"
        return Drawing("skm", self.paper.width, bottom, tuple(marks), about)

    def notes(self) -> tuple[str, ...]:
        """The legend of a page's map."""
        spans = [span for row in self.rows for span in row.spans]
        seam = "▾" if self.row >= 14 else "a gap within a row"
        signs = {
            f"{seam}: the fixup kernel adds the parts on either side": any(s.step == 1 and s.start > 0 for s in spans),
            "the blocks of a tile take turns": self.strided,
            "pale: hidden by the mask, skipped": any(span.shown_stop < span.stop for span in spans),
        }
        return tuple(sign for sign, there in signs.items() if there)

    def legend(self) -> str:
        """The legend of a terminal's map."""
        segments = [segment for _, _, segment in self.segments()]
        mixed = self.digits and self.step < 1
        said = {
            f"{EDGE}n  block n": not self.digits,
            f"{JOINED}  seam: the fixup kernel adds the two parts": any(segment.seam for segment in segments),
            "n  the block whose blockIdx.y ends in n": self.digits and not mixed,
            f"{MIXED.sign}  several blocks, in turn": mixed,
            f"{MASKED}  hidden by the mask, skipped": any(segment.hidden for segment in segments),
            f"{GAP.sign}  not computed by any block": any(not segment.doers for segment in segments),
            f"{OVERLAP.sign}  computed more than once": any(len(segment.doers) > 1 for segment in segments),
        }
        return "   ".join(words for words, there in said.items() if there)


@dataclass(frozen=True)
class TerminalMap:
    """The map in a terminal, with at most `most` rows; None for all."""

    facts: Facts
    coverage: Coverage | None = None
    most: int | None = MOST_ROWS

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(40, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        paper = Paper(options.max_width, character=1, line=1, row=1, gap=0, beside=1)
        found = work_map(self.facts, paper, self.most, self.coverage)
        if found is not None:
            yield from lines(found.drawing())
            yield Text(found.legend(), style="dim")
            yield Text(" ".join(summary(self.facts)))


def page_map(facts: Facts) -> WorkMap | None:
    """The map for a page, with few enough rows to keep the file small; None if there is nothing to draw."""
    rows = rows_of(facts)
    spans = sum(len(row.spans) for row in rows)
    return work_map(facts, Paper(), min(MOST_ROWS, max(8, MOST_SPANS * len(rows) // max(1, spans))), check(facts))


def svg_of(facts: Facts, name: str = "map") -> str:
    """The map as one picture with its notes; empty if there is nothing to draw. `name` makes the ids unique."""
    found = page_map(facts)
    if found is None:
        return ""
    drawn = found.drawing()
    notes = [Words(found.left, drawn.height + 8, "; ".join(found.notes()))] if found.notes() else []
    return svg(Drawing("skm", WIDTH, drawn.height + 34, (*drawn.marks, *notes), drawn.about), ids=name)


def work_map(facts: Facts, paper: Paper, most: int | None, coverage: Coverage | None) -> WorkMap | None:
    """Lay out the map with the tallest rows that fit, a gap where the head changes, and a line for omitted tiles."""
    grid, rows = facts.grid, rows_of(facts)
    if grid is None or not facts.blocks:
        return None
    marked = [finding.tile for finding in coverage.findings if finding.tile] if coverage else []
    selection = select(rows, grid, most or len(rows), marked)
    extents = (grid.ne03, grid.ne12, grid.iter_z_gqa, grid.iter_j)
    shown = [place for place, extent in enumerate(extents) if extent > 1] or [3]
    columns, end = list[tuple[int, float]](), 0
    for place in shown:
        end += max(len(TILE[place]), len(str(extents[place] - 1))) + 2
        columns.append((place, end - 1))
    width = max(end, len("KV step") + 1)
    left = width * paper.character
    ends = tuple((place, (at + width - end) * paper.character) for place, at in columns)
    height = min(paper.row, max(3.0, 1300 / len(selection.rows)))
    top, tops, folds = (2 + (step_rows(facts) is not None)) * paper.line, list[float](), list[tuple[float, str]]()
    for before, index in pairwise((-1, *selection.rows, len(rows))):
        if left_out := index - before - 1:
            words = f"⋮ {number_of(left_out, 'tile')} not shown"
            if selection.period is not None:
                times = (len(rows) - len(selection.rows)) // selection.period
                tiles = "each tile" if selection.period == 1 else f"every {selection.period} tiles"
                again = "once more" if times == 1 else f"{times} more times"
                words = f"⋮ the same {again}: {tiles}, block numbers + {selection.blocks_on}"
            folds.append((top + paper.gap / 2, words))
            top += paper.line + paper.gap
        elif 0 <= before < index < len(rows) and rows[before].tile[:3] != rows[index].tile[:3] and grid.iter_j > 1:
            top += paper.gap
        if index < len(rows):
            tops.append(top)
            top += height
    step = (paper.width - left - RIGHT) / grid.iter_k
    if paper.terminal:  # several characters per step, or several steps per character
        room = max(1, int(paper.width - left - 2))
        step = min(WIDEST_STEP, room // grid.iter_k) if grid.iter_k <= room else 1 / -(-grid.iter_k // room)
    widest = max((span.block for row in rows for span in row.spans), default=0)
    strided = any(span.step > 1 for row in rows for span in row.spans)
    digits = paper.terminal and strided and step <= len(str(widest))
    chosen = tuple(rows[index] for index in selection.rows)
    return WorkMap(facts, grid, paper, chosen, tuple(tops), tuple(folds), ends, height, left, step, digits)


def _axis(found: WorkMap) -> Iterator[Mark]:
    """The axis: KV steps, KV rows above them, and ticks."""
    paper, iter_k, batch = found.paper, found.grid.iter_k, step_rows(found.facts)
    every, least = 1, 8 if paper.terminal else 46
    while int(every * found.step) < least and every < iter_k:
        every *= 2
    rows = [("KV row", batch), ("KV step", 1)] if batch else [("KV step", 1)]
    for line, (name, factor) in enumerate(rows):
        yield Words(found.left - paper.character, line * paper.line, name, end=True)
        for step in range(0, iter_k, every):
            yield Words(found.left + step * found.step + paper.beside, line * paper.line, str(step * factor))
    for step in range(0, iter_k, every):
        x = found.left + step * found.step
        yield Stroke(((x, (len(rows) - 1) * paper.line), (x, found.tops[0] - 2)), TICK)


def _labels(found: WorkMap) -> Iterator[Mark]:
    """The labels that identify tiles; if rows are short, only some have labels."""
    line = found.paper.line
    every = 1
    while every * found.row < 0.85 * line:
        every *= 2
    for place, end in found.columns:
        yield Words(end, found.tops[0] - line, TILE[place], end=True)
        for top, row in list(zip(found.tops, found.rows, strict=True))[::every]:
            yield Words(end, top + (found.row - line) / 2, str(row.tile[place]), end=True)
    if found.paper.terminal:
        for top in found.tops:
            yield Words(found.x(found.grid.iter_k), top, EDGE, PLAIN)
            if found.digits:
                yield Words(found.left, top, EDGE, PLAIN)


def _work(found: WorkMap, titled: bool) -> Iterator[Mark]:
    """The marks for each block's part."""
    for top, row, segment in found.segments():
        if len(segment.doers) == 1:
            (span,) = segment.doers
            look = (HIDDEN if segment.hidden else BLOCKS)[colour_of(span.block)]
            title = f"block {span.block}: {_steps(segment, row)}{', hidden by the mask' * segment.hidden}"
            box = found.box(top, segment.start, segment.stop, look, title if titled else "")
            begins = not segment.hidden or segment.start == span.start
            edge = JOINED if segment.seam else EDGE
            yield replace(box, label=str(span.block), edge=edge) if begins else box


def _turns(found: WorkMap, titled: bool) -> Iterator[Mark]:
    """The marks for blocks that take turns on a tile, and for the masked steps."""
    for top, row in zip(found.tops, found.rows, strict=True):
        shown = max((span.shown_stop for span in row.spans), default=found.grid.iter_k)
        if shown < found.grid.iter_k:
            yield found.box(top, shown, found.grid.iter_k, IDLE)
        if found.digits and found.step < 1:
            yield found.box(top, 0, shown, MIXED)
            continue
        for span in row.spans:
            if span.start < span.shown_stop:
                steps = f"KV steps {span.start}, {span.start + span.step}, ... of {spell(row.tile)}"
                title = f"block {span.block}: {steps}" if titled else ""
                box = found.box(top, span.start, span.start + 1, BLOCKS[colour_of(span.block)], title)
                label, edge = (str(span.turn % 10), "") if found.digits else (str(span.block), EDGE)
                every, stop = span.step * found.step, found.x(span.shown_stop)
                yield replace(box, label=label, edge=edge, every=every, stop=stop)


def _steps(segment: Segment, row: TileRow) -> str:
    several = segment.stop - segment.start > 1
    steps = f"KV steps {segment.start} to {segment.stop - 1}" if several else f"KV step {segment.start}"
    return f"{steps} of {spell(row.tile)}"


def _seams(found: WorkMap) -> Iterator[Mark]:
    """Mark where a tile passes from one block to the next: a line, and a triangle if there is room."""
    joined = [(top, found.x(s.start)) for top, _, s in found.segments() if s.seam and s.start == s.doers[0].start]
    yield from (Stroke(((x, top), (x, top + found.row)), SEAM) for top, x in joined)
    if found.row >= 14:
        yield from (Stroke(((x - 4, top), (x + 4, top), (x, top + 5)), MARK, closed=True) for top, x in joined)


def _tips(found: WorkMap) -> Iterator[Mark]:
    """One tooltip per row, if there are too many blocks for one tooltip each."""
    for top, row in zip(found.tops, found.rows, strict=True):
        blocks = [span.block for span in row.spans] or [-1]
        who = f"block {blocks[0]}" if len(blocks) == 1 else f"blocks {min(blocks)} to {max(blocks)}"
        yield found.box(top, 0, found.grid.iter_k, TIP, f"{spell(row.tile)}: {who}")


def _faults(found: WorkMap) -> Iterator[Mark]:
    """Mark steps that no block or several blocks compute, with a pointer at the right edge."""
    for top, row, segment in found.segments():
        if len(segment.doers) != 1:
            who = ", ".join(str(span.block) for span in segment.doers)
            said = f"computed by blocks {who}" if who else "not computed by any block"
            title = f"{_steps(segment, row)}: {said}"
            yield found.box(top, segment.start, segment.stop, OVERLAP if who else GAP, title)
            x, y = found.x(found.grid.iter_k) + 2, top + found.row / 2
            yield Stroke(((x, y), (x + 10, y - 6), (x + 10, y + 6)), POINTER, closed=True)
