"""The map of the work as SVG, for light and dark: one complete picture, or labels and map separately for a page.

Repeated tiles are folded as in the terminal.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

from fattn_probe.inspect.coverage import check, spell
from fattn_probe.inspect.facts import Facts
from fattn_probe.inspect.view.stream_k_map import (
    PALETTE,
    Segment,
    Selection,
    Span,
    TileRow,
    colour_of,
    rows_of,
    segments_of,
    select,
    step_rows,
)
from fattn_probe.launch.tiles import Grid, ntiles

NAMES = ("sequence", "z_KV", "zt_gqa", "jt")
WIDTH, RIGHT, TOP, BOTTOM, GROUP_GAP, FOLD_GAP = 960, 16, 44, 34, 6, 20
MOST_ROWS, MOST_SPANS, MOST_TITLES = 24, 8000, 2200

STYLE = """
.skm{color-scheme:light dark;max-width:100%;height:auto;font:11px ui-sans-serif,system-ui,sans-serif}
.skm{--ink:#1b1f24;--soft:#59636e;--paper:#fff;--bad:#d1242f}
@media(prefers-color-scheme:dark){.skm{--ink:#e6edf3;--soft:#9198a1;--paper:#0d1117;--bad:#ff6b6b}}
.skm text{fill:var(--soft)}.skm .n{font-weight:600;pointer-events:none}.skm .strong{fill:var(--ink)}
.skm .seam{stroke:var(--paper);stroke-width:2.5}.skm .mark{fill:var(--ink);pointer-events:none}
.skm .tick{stroke:var(--soft);stroke-opacity:.45}.skm .hid{opacity:.3}.skm .hatch{stroke:var(--paper);stroke-width:2}
.skm .idle{fill:var(--soft);opacity:.2}.skm .tip{fill:none;pointer-events:all}
.skm .bad{fill:var(--bad);stroke:var(--ink);stroke-width:1.5}.skm .edge{fill:none;stroke:var(--soft)}
"""


@dataclass(frozen=True)
class Layout:
    """The layout: the left edge, each row's top, the rows' height, the width of a KV step; ids begin with `name`.

    `folded` is the number of omitted tiles above each row.
    """

    name: str
    grid: Grid
    rows: tuple[TileRow, ...]
    folded: tuple[int, ...]
    tops: tuple[float, ...]
    height: float
    left: float
    step: float

    def x(self, step: float) -> float:
        """The x coordinate where a KV step begins."""
        return self.left + step * self.step

    @property
    def bottom(self) -> float:
        """The y coordinate where the last row ends."""
        return self.tops[-1] + self.height


@dataclass(frozen=True)
class Picture:
    """The elements of a map: the labels to its left, the work, and the legend in words."""

    layout: Layout
    device: str
    labels: tuple[str, ...]
    work: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def whole(self) -> str:
        """The map as one picture."""
        layout = self.layout
        words = "; ".join(self.notes)
        note = f'<text x="{_n(layout.left)}" y="{_n(layout.bottom + 20)}">{words}</text>'
        head = _head(layout, 0, WIDTH, layout.bottom + BOTTOM)
        return "\n".join([head, *_defs(layout, self.device), *self.labels, *self.work, note, "</svg>"])

    @property
    def pinned(self) -> tuple[str, str]:
        """The fixed labels, and the map, which may scroll beside them."""
        layout, height = self.layout, self.layout.bottom + 4
        labels = _head(layout, 0, layout.left - 2, height)
        work = _head(layout, layout.left - 2, WIDTH - layout.left + 2, height)
        return (
            "\n".join([labels, f"<title>tiles</title>{_style()}", *self.labels, "</svg>"]),
            "\n".join([work, *_defs(layout, self.device), *self.work, "</svg>"]),
        )


def svg_of(facts: Facts, name: str = "map") -> str:
    """The map; empty if there is nothing to draw. `name` makes ids unique if a page has several maps."""
    picture = picture_of(facts, name)
    return picture.whole if picture else ""


def picture_of(facts: Facts, name: str = "map") -> Picture | None:
    """The map's elements; None if there is nothing to draw."""
    grid, rows = facts.grid, rows_of(facts)
    if grid is None or not facts.blocks:
        return None
    coverage = check(facts)
    marked = [finding.tile for finding in coverage.findings if finding.tile] if coverage else []
    spans = sum(len(row.spans) for row in rows)
    selection = select(rows, grid, min(MOST_ROWS, max(8, MOST_SPANS * len(rows) // max(1, spans))), marked)
    layout = layout_of(name, grid, rows, selection)
    segments = [(place, segment) for place, row in enumerate(layout.rows) for segment in _drawn(row, grid)]
    strided = any(span.step > 1 for row in layout.rows for span in row.spans)
    work = [
        *_axis(facts, layout),
        *(_turns(layout) if strided else _work(layout, segments)),
        *_seams(layout, segments),
        *_numbers(layout),
        *_tips(layout),
        *_faults(layout, segments),
        *_folds(layout),
    ]
    labels = (*_axis_names(facts, layout), *_labels(layout))
    return Picture(layout, facts.about.get("device", ""), labels, tuple(work), _notes(layout, selection))


def layout_of(name: str, grid: Grid, rows: Sequence[TileRow], selection: Selection) -> Layout:
    """Rows as high as their number allows, with a gap where the head changes or tiles are omitted."""
    drawn = [rows[index] for index in selection.rows]
    folded = tuple(index - before - 1 for before, index in pairwise((-1, *selection.rows)))
    height = max(3.0, min(26.0, 1300 / len(drawn)))
    tops, top = [], float(TOP)
    for before, row, left_out in zip([drawn[0], *drawn], drawn, folded, strict=False):
        changes = before.tile[:3] != row.tile[:3] and grid.iter_j > 1
        top += FOLD_GAP if left_out else GROUP_GAP if changes else 0
        tops.append(top)
        top += height
    letters = sum(len(NAMES[axis]) + 3 for axis, extent in enumerate(_extents(grid)) if extent > 1)
    left = max(78, 14 + 6.3 * letters + (44 if grid.iter_j > 1 else 0))
    step = (WIDTH - left - RIGHT) / grid.iter_k
    return Layout(name, grid, tuple(drawn), folded, tuple(tops), height, left, step)


def _extents(grid: Grid) -> tuple[int, int, int]:
    return grid.ne03, grid.ne12, grid.iter_z_gqa


def _drawn(row: TileRow, grid: Grid) -> Iterator[Segment]:
    """A row's segments; if blocks take turns, only the faults, since the blocks are drawn as dashes."""
    strided = any(span.step > 1 for span in row.spans)
    return (item for item in segments_of(row, grid.iter_k) if not strided or len(item.doers) != 1)


def _head(layout: Layout, x: float, width: float, height: float) -> str:
    """The opening tag of a part of the map: `width` units from `x`, one pixel each."""
    size = f'width="{_n(width)}" height="{height:.0f}" viewBox="{_n(x)} 0 {_n(width)} {height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="skm" {size} role="img">'


def _defs(layout: Layout, device: str) -> Iterator[str]:
    """The title, the style, and the pattern of masked steps."""
    yield "<title>CUDA blocks by KV step and output tile"
    yield f"{escape(' on ' + device) if device else ''}</title>{_style()}"
    yield f'<defs><pattern id="{layout.name}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    yield 'patternTransform="rotate(45)"><path d="M0 0v6" class="hatch"/></pattern></defs>'


def _style() -> str:
    colours = "".join(f".skm .c{place}{{fill:{back};stroke:{back}}}" for place, (back, _) in enumerate(PALETTE))
    inks = "".join(f".skm .i{place}{{fill:{fore}}}" for place, (_, fore) in enumerate(PALETTE))
    return f"<style>{STYLE.replace(chr(10), '')}{colours}{inks}.skm .t{{fill:none}}.skm .r{{stroke:none}}</style>"


def _axis(facts: Facts, layout: Layout) -> Iterator[str]:
    """The axis: KV steps, KV rows above them, and ticks."""
    every, batch = 1, step_rows(facts)
    while every * layout.step < 46:
        every *= 2
    for step in range(0, layout.grid.iter_k, every):
        x = layout.x(step)
        yield f'<path class="tick" d="M{_n(x)} {TOP - 18}V{TOP - 2}"/><text x="{_n(x + 3)}" y="{TOP - 8}">{step}</text>'
        if batch:
            yield f'<text x="{_n(x + 3)}" y="{TOP - 22}">{step * batch}</text>'


def _axis_names(facts: Facts, layout: Layout) -> Iterator[str]:
    names = {"KV step": TOP - 8} | ({"KV row": TOP - 22} if step_rows(facts) else {})
    return (f'<text x="{_n(layout.left - 8)}" y="{y}" text-anchor="end">{name}</text>' for name, y in names.items())


def _labels(layout: Layout) -> Iterator[str]:
    """The labels left of the rows: the query tile if there is room; sequence, head and group once per group."""
    every = 1
    while every * layout.height < 12:
        every *= 2
    extents = _extents(layout.grid)
    alone = layout.grid.iter_j == 1
    for place, (row, top) in enumerate(zip(layout.rows, layout.tops, strict=True)):
        first = place == 0 or layout.rows[place - 1].tile[:3] != row.tile[:3]
        words = [f"{NAMES[axis]} {row.tile[axis]}" for axis in range(3) if extents[axis] > 1]
        baseline = _n(top + min(layout.height / 2 + 4, layout.height + 4))
        if first and words and (not alone or place % every == 0):
            yield f'<text class="strong" x="6" y="{baseline}">{" ".join(words)}</text>'
        if not alone and row.tile[3] % every == 0:
            jt = f"{'jt ' if first else ''}{row.tile[3]}"
            yield f'<text x="{_n(layout.left - 8)}" y="{baseline}" text-anchor="end">{jt}</text>'


def _work(layout: Layout, segments: Sequence[tuple[int, Segment]]) -> Iterator[str]:
    """Every block's part, as a rectangle with a tooltip; one path per colour if there are too many."""
    sound = [(place, segment) for place, segment in segments if len(segment.doers) == 1]
    if len(sound) <= MOST_TITLES:
        for place, segment in sound:
            yield _rectangle(layout, place, segment)
        return
    shapes: dict[str, list[str]] = {}
    for place, segment in sound:
        shade = f"r c{colour_of(segment.doers[0].block)}{' hid' if segment.hidden else ''}"
        shapes.setdefault(shade, []).append(_box(layout, place, segment.start, segment.stop))
    for shade, boxes in shapes.items():
        yield f'<path class="{shade}" d="{"".join(boxes)}"/>'


def _rectangle(layout: Layout, place: int, segment: Segment) -> str:
    span = segment.doers[0]
    title = f"<title>{_tooltip(layout, place, segment)}</title>"
    box = _box(layout, place, segment.start, segment.stop)
    shade = f"r c{colour_of(span.block)}"
    if not segment.hidden:
        return f'<path class="{shade}" d="{box}">{title}</path>'
    return f'<g>{title}<path class="{shade} hid" d="{box}"/><path fill="url(#{layout.name}-hatch)" d="{box}"/></g>'


def _tooltip(layout: Layout, place: int, segment: Segment) -> str:
    span = segment.doers[0]
    several = segment.stop - segment.start > 1
    steps = f"KV steps {segment.start} to {segment.stop - 1}" if several else f"KV step {segment.start}"
    hidden = ", hidden by the mask" if segment.hidden else ""
    return f"block {span.block}: {steps} of {spell(layout.rows[place].tile)}{hidden}"


def _box(layout: Layout, place: int, start: int, stop: int) -> str:
    x, width = layout.x(start), (stop - start) * layout.step
    return f"M{_n(x)} {_n(layout.tops[place])}h{_n(width)}v{_n(layout.height - _gap(layout))}h-{_n(width)}z"


def _gap(layout: Layout) -> int:
    return 1 if layout.height >= 6 else 0


def _turns(layout: Layout) -> Iterator[str]:
    """Blocks that take turns on a tile, as dashed lines; below them, pale, the masked steps."""
    for place, row in enumerate(layout.rows):
        shown = max((span.shown_stop for span in row.spans), default=layout.grid.iter_k)
        if shown < layout.grid.iter_k:
            yield f'<path class="idle" d="{_box(layout, place, shown, layout.grid.iter_k)}"/>'
    spans = _spans(layout)
    titled = len(spans) <= MOST_TITLES
    alike: dict[tuple[int, ...], list[tuple[int, Span]]] = {}
    for place, span in spans:
        key = (span.start, span.step, colour_of(span.block), *((place, span.block) if titled else ()))
        alike.setdefault(key, []).append((place, span))
    for found in alike.values():
        yield _dashes(layout, found, titled)


def _dashes(layout: Layout, spans: Sequence[tuple[int, Span]], titled: bool) -> str:
    """Lines of one colour that start at the same KV step, each at its row."""
    place, span = spans[0]
    height, gap = layout.height - _gap(layout), (span.step - 1) * layout.step
    lines = (
        f"M{_n(layout.x(span.start))} {_n(layout.tops[place] + height / 2)}H{_n(layout.x(span.shown_stop))}"
        for place, span in spans
        if span.start < span.shown_stop
    )
    steps = f"KV steps {span.start}, {span.start + span.step}, ... of {spell(layout.rows[place].tile)}"
    title = f"<title>block {span.block}: {steps}</title>" if titled else ""
    dash = f'stroke-width="{_n(height)}" stroke-dasharray="{_n(layout.step)} {_n(gap)}"'
    return f'<path class="t c{colour_of(span.block)}" {dash} d="{"".join(lines)}">{title}</path>'


def _tips(layout: Layout) -> Iterator[str]:
    """One tooltip per row, if there are too many blocks for one each."""
    if len(_spans(layout)) <= MOST_TITLES:
        return
    for place, row in enumerate(layout.rows):
        blocks = [span.block for span in row.spans] or [-1]
        who = f"block {blocks[0]}" if len(blocks) == 1 else f"blocks {min(blocks)} to {max(blocks)}"
        box = f"M{_n(layout.left)} {_n(layout.tops[place])}H{WIDTH - RIGHT}v{_n(layout.height)}H{_n(layout.left)}z"
        yield f'<path class="tip" d="{box}"><title>{spell(row.tile)}: {who}</title></path>'


def _spans(layout: Layout) -> list[tuple[int, Span]]:
    return [(place, span) for place, row in enumerate(layout.rows) for span in row.spans]


def _faults(layout: Layout, segments: Iterable[tuple[int, Segment]]) -> Iterator[str]:
    """Steps that no block does, or several do, in red, with a pointer at the right edge."""
    for place, segment in segments:
        if len(segment.doers) != 1:
            who = ", ".join(str(span.block) for span in segment.doers)
            said = f"done by blocks {who}" if who else "done by no block"
            steps = f"KV steps {segment.start} to {segment.stop - 1} of {spell(layout.rows[place].tile)}"
            middle = _n(layout.tops[place] + layout.height / 2)
            pointer = f"M{WIDTH - RIGHT + 2} {middle}l10-6v12z"
            box = _box(layout, place, segment.start, segment.stop)
            yield f'<path class="bad" d="{box}{pointer}"><title>{steps}: {said}</title></path>'


def _seams(layout: Layout, segments: Iterable[tuple[int, Segment]]) -> Iterator[str]:
    """The seams, where a tile passes from one block to the next: a line, and a triangle if there is room."""
    lines, marks = [], []
    for place, segment in segments:
        if len(segment.doers) == 1 and segment.seam and segment.start == segment.doers[0].start:
            x, top = layout.x(segment.start), layout.tops[place]
            lines.append(f"M{_n(x)} {_n(top)}v{_n(layout.height)}")
            marks.append(f"M{_n(x - 4)} {_n(top)}h8l-4 5z")
    if lines:
        yield f'<path class="seam" d="{"".join(lines)}"/>'
    if marks and layout.height >= 14:
        yield f'<path class="mark" d="{"".join(marks)}"/>'


def _numbers(layout: Layout) -> Iterator[str]:
    """The blocks' numbers, if they fit."""
    if layout.height < 11:
        return
    widest = max((span.block for _, span in _spans(layout)), default=0)
    for place, span in _spans(layout):
        steps = 1 if span.step > 1 else span.shown_stop - span.start
        room = steps * layout.step - 7 * len(str(widest if span.step > 1 else span.block))
        if span.shown_stop > span.start and room >= 3:
            x, y = layout.x(span.start) + min(6, room / 2), layout.tops[place] + layout.height / 2 + 4
            yield f'<text class="n i{colour_of(span.block)}" x="{_n(x)}" y="{_n(y)}">{span.block}</text>'


def _folds(layout: Layout) -> Iterator[str]:
    """The numbers of omitted tiles, where they are omitted."""
    for top, number in zip(layout.tops, layout.folded, strict=True):
        if number:
            words = f"⋮ {number} tile{'s' * (number > 1)} not shown"
            yield f'<text x="{_n(layout.left)}" y="{_n(top - 6)}">{words}</text>'


def _notes(layout: Layout, selection: Selection) -> tuple[str, ...]:
    """The meaning of the signs, and what is not drawn."""
    spans = [span for _, span in _spans(layout)]
    seam = "▾" if layout.height >= 14 else "a gap within a row"
    more = ntiles(layout.grid) - len(layout.rows)
    often = "per tile" if selection.period == 1 else f"every {selection.period} tiles"
    signs = {
        f"{seam}: the fixup kernel adds the parts left and right": any(s.step == 1 and s.start > 0 for s in spans),
        "the blocks of a tile take turns": any(span.step > 1 for span in spans),
        "pale: hidden by the mask, skipped": any(span.shown_stop < span.stop for span in spans),
        f"{more} more tiles repeat the pattern, block numbers + {selection.blocks_on} {often}": selection.period,
    }
    return tuple(sign for sign, there in signs.items() if there)


def _n(number: float) -> str:
    """A coordinate without unnecessary digits."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
