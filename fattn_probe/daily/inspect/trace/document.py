"""A trace as a JSON document."""

import math
from typing import Any

import numpy as np

from fattn_probe.daily.inspect.trace.reference import JudgedTrace, TracedStep
from fattn_probe.daily.inspect.trace.show import drift, place_of, words_of
from fattn_probe.daily.inspect.trace.stages import Stage


def trace_json(trace: JudgedTrace, *, verbose: bool = False) -> dict[str, Any]:
    """The trace as JSON: a summary of each step, with `verbose` its arrays too; NaN and infinities are strings."""
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
        else vars(deviation) | {"words": words_of(deviation), "place": place_of(trace)},
        "stages": [_stage_json(stage, verbose) for stage in trace.stages],
        "tiles": [
            vars(tile.tile)
            | {name: getattr(tile, name) for name in ("query", "head", "exists")}
            | {"steps": [_step_json(step, verbose) for step in tile.steps]}
            for tile in trace.tiles
        ],
    }
    plain: dict[str, Any] = spelled(document)
    return plain


def _step_json(step: TracedStep, verbose: bool) -> dict[str, Any]:
    brief = {
        "kb0": step.kb0,
        "first_kv_row": step.kv_rows[0],
        "last_kv_row": step.kv_rows[-1],
        "checked": [vars(item) for item in step.checked],
        "drift": drift(step),
        "deviations": [vars(deviation) for deviation in step.deviations],
    }
    return brief | ({name: value for name, value in vars(step).items() if name not in brief} if verbose else {})


def _stage_json(stage: Stage, verbose: bool) -> dict[str, Any]:
    brief = {
        "where": stage.where,
        "quantity": stage.quantity,
        "place": stage.place,
        "numbers": stage.found.size,
        "error": stage.error.max(initial=0.0),
        "differing": stage.differs.sum(),
    }
    return brief | ({"found": stage.found, "expected": stage.expected} if verbose else {})


def spelled(value: object) -> Any:  # noqa: ANN401 - JSON
    """Arrays as lists; NaN and infinities as `nan`, `inf`, `-inf`."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: spelled(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
