"""Show a trace as JSON, or as text: one line per step, the first deviation in words, and registers on request."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.arrays import F64
from fattn_probe.base.figures import extent
from fattn_probe.base.tables import Table
from fattn_probe.daily.inspect.trace.fragments import WarpFragments
from fattn_probe.daily.inspect.trace.reference import JudgedTrace, TracedStep, TracedTile
from fattn_probe.daily.inspect.trace.stages import Stage, StageDeviation

COLUMNS = ("kb0", "KV rows", "|KQ|", "+-", "KQ_max", "scale", "rowsum", "|VKQ|", "+-", "drift", "parts")
EXPLAINED = (
    "The largest values. +-: distance from the exact result, given the kernel's own earlier values. scale: the smallest"
    " KQ_max_scale. drift: distance of VKQ from an online softmax in float64 from the tile's start. *: rows with gaps."
)
STAGES = ("stage", "quantity", "numbers", "largest", "+-", "beyond the bound")
FOLLOWED = (
    "The stages of the warp and of output row {}. +-: distance from the kernel's rounding model; the output is compared"
    " with the result of the stored parts."
)
NOTHING_SEEN = -1e37
"""Below this, a kernel's maximum means that it has not seen an unmasked KV row."""
CELLS = 8
"""The number of values on a line of a table."""


def render_trace(trace: JudgedTrace, *, verbose: bool = False, lane: int | None = None) -> RenderableType:
    """Show the steps of a traced warp; adds the registers of `lane`, or if `verbose`, the values of all columns."""
    parts: list[RenderableType] = [Text(headline(trace), "bold")]
    detailed = verbose or lane is not None
    for tile in trace.tiles:
        steps = Table(COLUMNS, tuple(_row(tile, step) for step in tile.steps), frozenset(COLUMNS[:-1]))
        parts += [Text(words_of_tile(tile)), steps]
        for step in tile.steps:
            if trace.fragments is not None and lane is not None:
                tables = lane_tables(trace.fragments, tile, step, lane)
            else:
                tables = step_tables(tile, step)
            parts += [part for title, table in tables for part in (Text(title), table)] if detailed else []
    parts += [Text(EXPLAINED, "dim")] * bool(trace.tiles)
    if trace.stages:
        stored = [stage for stage in trace.stages if stage.stored]
        fitting = sum(stage.deviation is None for stage in stored)
        said = f" {fitting} of {len(stored)} stored quantities are within their bounds." if stored else ""
        parts += [stage_table(trace, verbose=verbose), Text(followed(trace) + said, "dim")]
    parts += [Text(f"not followed to the end: {trace.missing}", "yellow")] * bool(trace.missing)
    deviation = trace.deviation
    if deviation is None:
        parts.append(Text.assemble(("first deviation: ", "bold"), ("none", "green")))
    else:
        place = place_of(trace)
        words = (deviation.words, "red"), f", read at {place}" if place else ""
        parts.append(Text.assemble(("first deviation: ", "bold"), *words))
    if trace.stopped:
        parts.append(Text(f"the program ended before everything was read: {' '.join(trace.stopped)}", "yellow"))
    return Group(*parts)


def headline(trace: JudgedTrace) -> str:
    """The kernel, block and warp that were traced."""
    x, y, z = trace.block
    block = str(x) if y == z == 0 else f"({x}, {y}, {z})"
    return f"warp {trace.warp} of block {block}" + (
        f", one of {trace.shared} that share their columns" if trace.shared > 1 else ""
    )


def followed(trace: JudgedTrace) -> str:
    """The caption of the table of stages."""
    names = ("sequence", "query", "head")
    said = FOLLOWED.format(", ".join(f"{name} {at}" for name, at in zip(names, trace.row or (), strict=False)))
    return said + (f" An assumption of the model: {trace.assumed}." if trace.assumed else "")


def stage_table(trace: JudgedTrace, *, verbose: bool = True) -> Table:
    """A table of the stages: the largest value and distance from the model, and how many values exceed the bound.

    Without `verbose`, it leaves out stored parts that are within their bounds.
    """
    rows = []
    for stage in trace.stages:
        if not verbose and stage.stored and stage.deviation is None:
            continue
        largest, error = f"{np.abs(stage.found).max(initial=0.0):.3g}", f"{stage.error.max(initial=0.0):.1g}"
        rows.append(
            (stage.where, stage.quantity, str(stage.found.size), largest, error, str(stage.differs.sum() or "-"))
        )
    return Table(STAGES, tuple(rows), frozenset(STAGES[2:]))


def place_of(trace: JudgedTrace) -> str:
    """The line before which the first deviation was read; empty if unknown."""
    deviation = trace.deviation
    if isinstance(deviation, StageDeviation):
        return deviation.place
    return trace.places.get(deviation.anchor, "") if deviation else ""


def words_of_tile(tile: TracedTile) -> str:
    """The queries and heads of the warp's columns, and the block's KV steps on the tile."""
    if not tile.exists.any():
        return "columns past the last query or head"
    work = tile.tile
    queries, heads = (extent(of[tile.exists].tolist()) for of in (tile.query, tile.head))
    steps = extent(range(work.kb0_start, work.kb0_stop))
    return f"sequence {work.sequence}, query {queries}, head {heads}, kb0 {steps}"


def drift(step: TracedStep, exists: npt.NDArray[np.bool_] | None = None) -> float:
    """The largest distance of VKQ from the online softmax in float64."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(step.VKQ - step.exact_VKQ)
    return float(np.max(distance if exists is None else distance[exists], initial=0.0))


def _row(tile: TracedTile, step: TracedStep) -> tuple[str, ...]:
    """The table row of a step."""
    checked = {item.name: item for item in step.checked}
    KQ, VKQ = checked.get("KQ"), checked.get("VKQ")
    maximum, scale, rowsum = (values[tile.exists] for values in (step.KQ_max, step.KQ_max_scale, step.KQ_rowsum))
    largest = maximum.max(initial=-np.inf)
    return (
        str(step.kb0),
        f"{step.kv_rows[0]}-{step.kv_rows[-1]}" + ("*" if (np.diff(step.kv_rows) != 1).any() else ""),
        *((f"{KQ.largest:.3g}", f"{KQ.error:.1g}") if KQ else ("", "")),
        f"{largest:.4g}" if not largest < NOTHING_SEEN else "masked",
        f"{scale.min(initial=np.inf):.4g}" if len(scale) else "",
        f"{rowsum.max(initial=0.0):.4g}",
        *((f"{VKQ.largest:.3g}", f"{VKQ.error:.1g}") if VKQ else ("", "")),
        f"{drift(step, tile.exists):.1g}",
        ", ".join(deviation.quantity for deviation in step.deviations[:1]) or "-",
    )


def step_tables(tile: TracedTile, step: TracedStep) -> Iterator[tuple[str, Table]]:
    """Titled tables for each existing column: KQ and P along KV rows, and VKQ along d."""
    rows = [int(row) for row in step.kv_rows]
    yield f"kb0 {step.kb0}: KQ before the mask", _matrix(tile, step.KQ, "KV row", rows)
    yield f"kb0 {step.kb0}: P", _matrix(tile, step.P, "KV row", rows)
    yield f"kb0 {step.kb0}: VKQ after the step", _matrix(tile, step.VKQ, "d", range(step.VKQ.shape[1]))


def _matrix(tile: TracedTile, matrix: F64, along: str, labels: Sequence[int]) -> Table:
    lines = []
    for column in np.flatnonzero(tile.exists):
        for start in range(0, len(labels), CELLS):
            words = [f"{value:.3g}" for value in matrix[column, start : start + CELLS]]
            place = (str(tile.query[column]), str(tile.head[column]), str(labels[start]))
            lines.append((*place, *words, *[""] * (CELLS - len(words))))
    columns = ("query", "head", along, *(f"+{cell}" for cell in range(CELLS)))
    return Table(columns, tuple(lines), frozenset(columns))


def lane_tables(fragments: WarpFragments, tile: TracedTile, step: TracedStep, lane: int) -> Iterator[tuple[str, Table]]:
    """Titled tables with the registers of one lane, in order, next to their expected values."""
    KQ = fragments.KQ_places(step.KQ.shape[1] // fragments.kv_per_tile * fragments.KQ.ne)
    VKQ = fragments.VKQ_places(step.VKQ.shape[1] // fragments.d_per_tile * 2 * fragments.VKQ.ne)
    rows, d = np.searchsorted(np.unique(KQ.along), KQ.along), np.arange(step.VKQ.shape[1])
    of_KQ = {"KQ": step.KQ, "exact KQ": step.exact_KQ, "P": step.P}
    of_VKQ = {"before": step.VKQ_before, "after": step.VKQ, "exact": step.exact_VKQ}
    for name, along, column, at, labels, values in (
        ("KQ_C", "KV row", KQ.column, rows, step.kv_rows, of_KQ),
        ("VKQ_C", "d", VKQ.column, VKQ.along, d, of_VKQ),
    ):
        pairs = zip(column[lane] - fragments.first_column, at[lane], strict=True)
        lines = [
            (
                *map(str, (number, tile.query[of_warp], tile.head[of_warp], labels[place])),
                *(f"{matrix[of_warp, place]:.6g}" for matrix in values.values()),
            )
            for number, (of_warp, place) in enumerate(pairs)
        ]
        columns = ("number", "query", "head", along, *values)
        yield f"kb0 {step.kb0}, lane {lane}: {name}", Table(columns, tuple(lines), frozenset(columns))


def trace_json(trace: JudgedTrace) -> dict[str, Any]:
    """The trace as JSON: a summary of each step and stage, and its arrays; NaN and infinities are strings."""
    deviation = trace.deviation
    document = {
        "block": trace.block,
        "warp": trace.warp,
        "np": trace.shared,
        "row": None if trace.row is None else dict(zip(("sequence", "query", "head"), trace.row, strict=True)),
        "places": dict(trace.places),
        "stopped": trace.stopped,
        "missing": trace.missing,
        "assumed": trace.assumed,
        "first_deviation": None
        if deviation is None
        else vars(deviation) | {"words": deviation.words, "place": place_of(trace)},
        "stages": [_stage_json(stage) for stage in trace.stages],
        "tiles": [
            vars(tile.tile)
            | {name: getattr(tile, name) for name in ("query", "head", "exists")}
            | {"steps": [_step_json(step) for step in tile.steps]}
            for tile in trace.tiles
        ],
    }
    plain: dict[str, Any] = spelled(document)
    return plain


def _step_json(step: TracedStep) -> dict[str, Any]:
    summary = {
        "kb0": step.kb0,
        "first_kv_row": step.kv_rows[0],
        "last_kv_row": step.kv_rows[-1],
        "checked": [vars(item) for item in step.checked],
        "drift": drift(step),
        "deviations": [vars(deviation) for deviation in step.deviations],
    }
    return summary | {name: value for name, value in vars(step).items() if name not in summary}


def _stage_json(stage: Stage) -> dict[str, Any]:
    return {
        "where": stage.where,
        "quantity": stage.quantity,
        "place": stage.place,
        "numbers": stage.found.size,
        "error": stage.error.max(initial=0.0),
        "differing": stage.differs.sum(),
        "found": stage.found,
        "expected": stage.expected,
    }


def spelled(value: object) -> Any:  # noqa: ANN401 - JSON
    """Convert arrays to lists, and NaN and infinities to `nan`, `inf`, `-inf`."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: spelled(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
