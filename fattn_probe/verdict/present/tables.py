"""Show judgements and differences as text and as JSON documents."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fattn_probe.base.documents import plain
from fattn_probe.base.figures import first_of, times
from fattn_probe.base.tables import Table
from fattn_probe.llama.launch.tiles import Tile
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis, Element
from fattn_probe.verdict.diagnose.difference import Difference, Side
from fattn_probe.verdict.diagnose.patterns import Pattern
from fattn_probe.verdict.judge.judgement import Judgement, attention_kernel, count
from fattn_probe.verdict.judge.known import by_defect
from fattn_probe.verdict.measure.expected import Design
from fattn_probe.verdict.measure.metrics import Metrics
from fattn_probe.verdict.measure.verdict import Status, given
from fattn_probe.verdict.present.error_map import error_maps, legend

STYLES = {
    Status.PASS: "green",
    Status.FAIL: "bold red",
    Status.CHANGED: "yellow",
    Status.UNJUDGED: "bold yellow",
    Status.UNSUPPORTED: "dim",
    Status.LOST: "magenta",
}
COLUMNS = ("case\non", "kernel", "NMSE\nallowed", "max error\nat s, q, h, d", "by design", "verdict")
PLACE = ("seq", "query", "head", "d")
LISTED_BLOCKS = 4
MOST_MAPS = 4
"""The largest number of failed rows whose error maps are drawn, so that the output stays readable."""


def render(rows: Sequence[Judgement], maps: bool = True) -> RenderableType:
    """A table of the rows, then details of rows that need an explanation, then the counts.

    With `maps`, the first failed rows get error maps. A known defect of llama.cpp is explained once.
    """
    table = Table(COLUMNS, tuple(_cells(row) for row in rows), heading=("verdict", "case\non"), spaced=True)
    return Group(table, Text(), *explanations(rows, maps))


def explanations(rows: Sequence[Judgement], maps: bool) -> Iterator[RenderableType]:
    """Details of the rows that need an explanation, with error maps of the first failed ones, then the counts."""
    first = {row.known: row for row in reversed(rows)}
    told = [row for row in rows if not row.known or row is first[row.known]]
    drawn = [row for row in told if row.diagnosis is not None][:MOST_MAPS] if maps else []
    for row in told:
        yield from _explanation(row, any(row is one for one in drawn))
    designs = ((row, row.verdict.design) for row in rows)
    notes = [(row, row.missing) for row in rows] + [(row, design.assumed) for row, design in designs if design]
    for note in dict.fromkeys(note for _, note in notes if note):  # each note once
        concerned = first_of([f"{row.case} on {row.on}" for row, said in notes if said == note], 1)
        yield Text(f"{concerned}: {note}", "dim")
    yield from (Text(f"{row.case} on {row.on}: {row.sampled}", "dim") for row in rows if row.sampled is not None)
    # The rows whose grid depends on occupancy figures that are assumed or from elsewhere, by the figures' origin.
    for origin in dict.fromkeys(row.division for row in rows if row.division is not None and not row.division.known):
        concerned = first_of([f"{row.case} on {row.on}" for row in rows if row.division == origin], 1)
        said = "a GPU may divide the KV rows among more or fewer blocks, and give different bits"
        yield Text(f"{concerned}: {said}, since the occupancy is unknown: {origin.explained}", "dim")
    yield from (Text(line, "yellow") for line in by_defect(row.known for row in rows))
    parts = [f"{number} {status.value}" for status, number in count(rows).items() if number]
    yield Text(", ".join(parts) or "nothing to compare", style="bold")


def render_difference(difference: Difference) -> RenderableType:
    """Show how two captures differ: a sentence, the kernels if they differ, tiles, blocks and the worst elements."""
    status = Text(difference.status.value, STYLES[difference.status])
    head = Text.assemble(f"{difference.a} and {difference.b}: ", status, f", {difference.reason}")
    parts: list[RenderableType] = [head]
    if difference.kernels_a != difference.kernels_b:
        kernels = ((difference.a, difference.kernels_a), (difference.b, difference.kernels_b))
        parts += [Text(f"  {name}: {', '.join(said) or 'no kernel launched'}") for name, said in kernels]
    names = (difference.a, difference.b)
    for name, cut in zip(names, difference.cuts, strict=True):
        if cut is not None:
            several = "s" * (len(cut.tiles) > 1)
            tiles = "; ".join(", ".join(map(str, tile)) for tile in cut.tiles[:LISTED_BLOCKS])
            more = "; ..." if len(cut.tiles) > LISTED_BLOCKS else ""
            made = f"computed by block{'s' * (len(cut.blocks) > 1)} {_blocks(cut.blocks)}"
            placed = f"{len(cut.tiles)} of {cut.of} output tiles (tile{several} {tiles}{more}), {made}"
            parts.append(Text(f"  where, according to the launches of {name}: {placed}"))
    rows = []
    for row in difference.worst:
        words = [str(place) for place in (row.at.sequence, row.at.query, row.at.head, row.at.d)]
        for side in (row.a, row.b):
            words += [f"{side.value:.9g}", _tile(side.tile), _blocks(side.blocks)]
        rows.append(tuple(words))
    if rows:
        sides = [f"{name}\n{what}" for name in names for what in ("value", "tile", "blocks")]
        parts.append(Table((*PLACE, *sides), tuple(rows), heading=PLACE))
    return Group(*parts)


def _cells(row: Judgement) -> tuple[Text, ...]:
    """A row's cells; a kernel's name breaks before its template arguments, so that the table fits 100 columns."""
    kernel = attention_kernel(row.launches, row.finding).replace("<", "\n<", 1) or (
        "-" if row.verdict.metrics is None else "no attention kernel"
    )
    metrics, design, nmse, largest = row.verdict.metrics, row.verdict.design, "-", "-"
    if metrics is not None:
        allowed = f"{row.tolerance.nmse:.0e}" if design is None or given(row.tolerance) else "-"
        error, place = f"{metrics.max_abs:.2e}", metrics.worst
        if not metrics.all_finite:
            error, place = f"{metrics.nan + metrics.inf + metrics.unwritten} not finite", metrics.first_bad
        at = "-" if place is None else f"{place.sequence}, {place.query}, {place.head}, {place.d}"
        nmse, largest = f"{metrics.nmse:.2e}\n{allowed}", f"{error}\n{at}"
    words = [f"{row.case}\n{row.on}", kernel, nmse, largest, by_design(design)]
    verdict = Text(row.status.value, STYLES[row.status])
    if row.status is Status.PASS and row.verdict.accuracy is not None and not row.verdict.accuracy.passes:
        verdict.append("\nwarning", "yellow")
    if row.known:
        verdict.append(f"\n{row.known}", "yellow")
    return (*(Text(word) for word in words), verdict)


def by_design(design: Design | None) -> str:
    """The cell `by design`: RMSE / predicted, error / bound, and the share of elements that match the model."""
    if design is None:
        return "-"
    words = []
    if design.rmse_by_predicted is not None:
        words.append(f"RMSE {_times(design.rmse_by_predicted)}")
    if design.error_by_bound is not None:
        words.append(f"max {_times(design.error_by_bound)}")
    if design.equal_bits is not None:
        words.append(f"bits {100 * design.equal_bits:.4g} %")
    return "\n".join(words)


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 100 else f"{times(ratio)}x"


def _explanation(row: Judgement, maps: bool) -> Iterator[RenderableType]:
    """Why a row did not pass, and whether upstream's test would pass it; or the warning for a row that passed."""
    if row.status is not Status.PASS:
        text = Text.assemble((row.status.value, STYLES[row.status]), f" {row.case} on {row.on}: {row.reason}")
        if row.status is Status.FAIL and row.upstream is not None:
            ending = "passes" if row.upstream.passes else "fails too"
            text.append(f"; with llama.cpp's bound it {ending} ({row.upstream.reason})")
        yield text
    if row.warning:
        yield Text.assemble(("accuracy warning", "yellow"), f" {row.case} on {row.on}: {row.warning}")
    for check in row.checks:
        if not check.fails:
            mark = check.name if check.passes else f"not {check.name}" if check.made else f"{check.name} not checked:"
            style = "green" if check.passes else "yellow"
            yield Text.assemble((mark, style), f" {row.case} on {row.on}: {check.reason}")
    if row.status is Status.FAIL and row.verdict.metrics is not None:
        yield Text(f"  {_errors(row.verdict.metrics)}")
    if row.diagnosis is not None:
        yield Padding(_diagnosis(row.diagnosis), (0, 0, 0, 2))
        if maps and row.dst is not None and row.verdict.deviation is not None:
            drawn = [found for found in error_maps(row.dst, row.verdict.deviation) if found.values.size > 1]
            yield Padding(Group(*drawn, legend()), (0, 0, 1, 2))


def _errors(metrics: Metrics) -> str:
    """The errors on one line."""
    if np.isnan(metrics.rmse):
        return "errors: none, since no element is finite"
    return (
        f"errors: RMSE {metrics.rmse:.3g}, largest {metrics.max_abs:.3g}, largest relative {metrics.max_rel:.3g}, "
        f"in f16 ulps {metrics.f16_ulps:.3g} (mean {metrics.mean_f16_ulps:.2g}), mean error {100 * metrics.bias:+.2g} %"
    )


def _diagnosis(found: Diagnosis) -> RenderableType:
    share = 100 * found.wrong / found.elements
    lines = [Text(f"where: {found.wrong} of {found.elements} elements ({share:.3g} %)")]
    lines += [Text.assemble("       ", (str(pattern), "bold")) for pattern in found.patterns]
    if not found.patterns:
        lines.append(Text("       no pattern: they are everywhere or scattered", "dim"))
    for said in found.causes:  # a row that is not finite has no error to explain
        part = said.cause.explained
        error = "" if part is None else f", {100 * part:.3g} % of the first row's error"
        explains = f"{said.rows} of {said.of} rows examined{error}"
        lines.append(Text.assemble("what:  ", (str(said.cause), "bold"), f": {explains}"))
    columns, rows = (*PLACE, "value", "expected", "tile", "blocks", "cause"), []
    for element in found.worst:
        at, cause = element.at, element.cause
        said_of = "-" if cause is None else cause.detail or cause.words
        numbers = [f"{value:.6g}" for value in (element.value, element.expected)]
        places = [str(place) for place in (at.sequence, at.query, at.head, at.d)]
        rows.append((*places, *numbers, _tile(element.tile), _blocks(element.blocks), said_of))
    return Group(*lines, Table(columns, tuple(rows), frozenset(columns[:6]), frozenset({"cause"}), heading=PLACE))


def _tile(tile: Tile | None) -> str:
    return "-" if tile is None else ", ".join(map(str, tile))


def _blocks(blocks: Sequence[int]) -> str:
    if not blocks:
        return "-"
    if len(blocks) > LISTED_BLOCKS and np.ptp(blocks) == len(blocks) - 1:
        return f"{blocks[0]}..{blocks[-1]}"
    return first_of(blocks, LISTED_BLOCKS, counted=False)


def rows_as_json(rows: Sequence[Judgement]) -> dict[str, Any]:
    """The JSON document: `counts` (by status) and `rows`.

    A row has case, digest, on, status, reason, tolerance (nmse, max_abs), kernel, kernels, output, upstream, metrics,
    design, accuracy, finding, known, diagnosis, sampled, division_origin (each null if there is none), missing and
    checks; docs/guide/compare.md lists their keys. NaN and infinities are null.
    """
    counts = {status.value: number for status, number in count(rows).items()}
    return {"counts": counts, "rows": [_row(row) for row in rows]}


def difference_as_json(difference: Difference) -> dict[str, Any]:
    """The JSON document for the difference of two captures.

    Keys a, b, status, reason, kernels_a, kernels_b, elements, equal_bits, share, nmse, max_abs, worst, patterns; cuts
    (for a and b: tiles and blocks with differences, `of`: the number of tiles; null if unknown) and rows (those that
    differ most: at, and value, tile, blocks of a and of b).
    """
    names = {"a": difference.a, "b": difference.b, "status": difference.status.value, "reason": difference.reason}
    kernels = {"kernels_a": difference.kernels_a, "kernels_b": difference.kernels_b}
    likeness = {**asdict(difference.likeness), "share": difference.likeness.share}
    patterns = {"patterns": [_pattern(pattern) for pattern in difference.patterns]}
    cuts = [cut and vars(cut) | {"tiles": list(map(_tile_json, cut.tiles))} for cut in difference.cuts]
    rows = [{"at": row.at, "a": _placed(row.a), "b": _placed(row.b)} for row in difference.worst]
    document: dict[str, Any] = plain(names | kernels | likeness | patterns | {"cuts": cuts, "rows": rows})
    return document


def _tile_json(tile: Tile | None) -> dict[str, int] | None:
    return None if tile is None else dict(zip(("sequence", "z_KV", "zt_gqa", "jt"), tile, strict=True))


def _placed(one: Side | Element) -> dict[str, Any]:
    placed: dict[str, Any] = plain(vars(one) | {"tile": _tile_json(one.tile)})
    return placed


def _row(row: Judgement) -> dict[str, Any]:
    verdict, found = row.verdict, row.diagnosis
    document: dict[str, Any] = plain(
        {
            "case": row.case,
            "digest": row.digest,
            "on": row.on,
            "status": row.status.value,
            "reason": row.reason,
            "tolerance": {"nmse": row.tolerance.nmse, "max_abs": row.tolerance.max_abs},
            "kernel": row.kernel,
            "kernels": row.kernels,
            "division_origin": None if row.division is None else str(row.division),
            "output": row.output,
            "upstream": row.upstream,
            "metrics": verdict.metrics,
            "design": verdict.design,
            "accuracy": verdict.accuracy,
            "finding": row.finding,
            "known": row.known or None,
            "missing": row.missing or None,
            "sampled": row.sampled,
            "diagnosis": None
            if found is None
            else {
                "wrong": found.wrong,
                "elements": found.elements,
                "patterns": [_pattern(pattern) for pattern in found.patterns],
                "causes": [{**asdict(said.cause), "rows": said.rows} for said in found.causes],
                "rows_tried": found.rows_tried,
                "worst": [_placed(element) for element in found.worst],
            },
            "checks": row.checks,
        }
    )
    return document


def _pattern(pattern: Pattern) -> dict[str, Any]:
    return asdict(pattern) | {"text": str(pattern)}
