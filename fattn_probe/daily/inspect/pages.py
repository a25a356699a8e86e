"""`--html` and `--svg`: write inspections to files, with a trace's P along the KV rows and its VKQ errors."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from markupsafe import Markup

from fattn_probe.base.arrays import F64
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import write_text
from fattn_probe.base.view.marks import Cells, Drawing, Look, Mark, Stroke, Words, outline, ramp
from fattn_probe.base.view.svg import pinned
from fattn_probe.daily.inspect.command import pair
from fattn_probe.daily.inspect.examine import Examined
from fattn_probe.daily.inspect.trace.reference import JudgedTrace, StepDeviation, TracedTile
from fattn_probe.daily.inspect.trace.show import drift, followed, headline, stage_table, words_of_tile
from fattn_probe.daily.inspect.trace.stages import largest_of
from fattn_probe.daily.inspect.view.page import environment, page, side_by_side_page
from fattn_probe.daily.inspect.view.show import side_by_side
from fattn_probe.daily.inspect.view.work_picture import svg_of

WIDTH, LEFT, ROW, STRIP = 960, 124, 12, 3
LABEL = 48.0  # the smallest distance between labelled KV rows, in pixels
NOT_FINITE = Look("", colour="#d1242f")
TICK = Look("tick", "stroke:var(--soft);stroke-opacity:.5")
BAD = Look("bad", "fill:none;stroke:var(--bad);stroke-width:2")


def write_page(done: Sequence[Examined], path: Path) -> None:
    """Write one inspection, or two side by side, as an HTML page."""
    both = pair(done)
    if both is None and len(done) != 1:
        raise InputError(f"--html shows one inspection, or two side by side; there are {len(done)}")
    (first, *_) = done
    if both is not None:
        write_text(path, side_by_side_page(side_by_side(*both)))
    elif first.facts is not None:
        trace = trace_section(first.trace) if first.trace else None
        write_text(path, page(first.facts, first.inspection.reasons, trace))


def trace_section(trace: JudgedTrace) -> Markup:
    """The pictures of a trace, and a table of its stages (`view` shows a trace step by step)."""
    body = Markup(trace_picture(trace))
    if trace.stages:
        table = environment().get_template("parts.html.j2").make_module().table  # type: ignore[attr-defined]
        body += Markup("<p>{}</p>").format(followed(trace)) + table("stages", stage_table(trace))
    return body


def write_map(done: Sequence[Examined], path: Path) -> None:
    """Write the map of one inspection's work as SVG."""
    facts = [item.facts for item in done if item.facts is not None]
    if len(facts) != 1 or not facts[0].blocks:
        raise InputError(f"--svg shows the blocks of one inspection; there are {len(facts)}")
    write_text(path, svg_of(facts[0]))


def trace_picture(trace: JudgedTrace) -> str:
    """HTML for a page: each tile's columns, and two heat maps (SVG) that scroll beside their labels."""
    deviation = trace.deviation
    said = f"first deviation: {deviation.words}" if deviation else "no value deviates from exact arithmetic"
    html = f"<p>{escape(headline(trace))}: {escape(said)}</p>"
    for at, tile in enumerate(trace.tiles):
        if tile.exists.any() and tile.steps:
            here = deviation if isinstance(deviation, StepDeviation) and at == deviation.tile else None
            html += f"<h3>{escape(words_of_tile(tile))}</h3>{_P(tile, here)}{_VKQ(tile)}"
    return html


def _P(tile: TracedTile, deviation: StepDeviation | None) -> str:
    """A heat map of P, all steps side by side, one row of pixels per column, with the first deviation marked."""
    matrix = np.concatenate([step.P for step in tile.steps], axis=1)[tile.exists]
    rows = [int(row) for step in tile.steps for row in step.kv_rows]
    columns = list(zip(tile.query[tile.exists], tile.head[tile.exists], strict=True))
    height, scale = ROW * len(matrix), (WIDTH - LEFT) / max(1, matrix.shape[1])
    marks, start, labelled = list[Mark]([_cells(matrix, height)]), 0, 0.0
    for step in tile.steps:  # ticks where steps begin; some are labelled with their first KV row
        x = LEFT + start * scale
        marks.append(Stroke(((x, height), (x, height + 5)), TICK))
        if x - labelled >= LABEL:
            marks.append(Words(x, height + 5, str(step.kv_rows[0])))
            labelled = x
        start += len(step.kv_rows)
    if deviation is not None and deviation.kv_row in rows:
        y = ROW * columns.index((deviation.query, deviation.head))
        x = LEFT + rows.index(deviation.kv_row) * scale
        marks.append(outline(x - 3, y - 2, scale + 6, ROW + 4, BAD))
    marks += [_label(ROW * at, f"query {query}, head {head}") for at, (query, head) in enumerate(columns)]
    title = f"P of each query and head along the KV rows: white is 0, dark is {largest_of(matrix):.3g}."
    return _figure(title, [*marks, _label(height + 5, "KV row")], height + 24)


def _VKQ(tile: TracedTile) -> str:
    """A heat map of |VKQ - exact| along d after each step, with one scale for all steps."""
    with np.errstate(invalid="ignore"):
        errors = [np.abs(step.VKQ - step.exact_VKQ)[tile.exists] for step in tile.steps]
    height, matrix = STRIP * len(errors[0]), np.concatenate(errors)
    marks: list[Mark] = [_cells(matrix, height * len(errors))]
    for at, step in enumerate(tile.steps):
        marks.append(Stroke(((LEFT - 4, at * height), (WIDTH, at * height)), TICK))
        if height >= ROW or at % -(-ROW // height) == 0:
            marks.append(_label(at * height, f"kb0 {step.kb0}: {drift(step, tile.exists):.1g}"))
    title = (
        "Distance of VKQ from exact arithmetic after each KV step, along d: white is 0, dark is"
        f" {largest_of(matrix):.3g}. Left: the step and its largest distance."
    )
    return _figure(title, marks, max(height * len(errors) + 6, ROW))


def _figure(title: str, marks: list[Mark], height: float) -> str:
    """Fixed labels with a picture that scrolls beside them, as the page's styles arrange it."""
    pictures = pinned(Drawing("trc", WIDTH, height + 3, tuple(marks), y=-3), LEFT - 4)
    return (
        f'<figure class="map"><p class="scrolls">Scroll the picture sideways →</p>'
        f'<div class="pinned" tabindex="0" role="region" aria-label="trace">{"".join(pictures)}</div>'
        f"<figcaption>{escape(title)}</figcaption></figure>"
    )


def _label(y: float, words: str) -> Words:
    return Words(LEFT - 8, y - 1, words, end=True)


def _cells(matrix: F64, height: float) -> Cells:
    """Cells coloured from light (0) to dark (the largest finite value); NaN and infinity are red."""
    limits = np.linspace(0, largest_of(matrix) or 1.0, 257)[1:]
    return Cells(LEFT, 0, WIDTH - LEFT, height, matrix, ramp(limits.tolist(), NOT_FINITE))
