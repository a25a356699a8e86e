"""Verdict rows and differences as JSON documents."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fattn_probe.llama.launch.tiles import Tile
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis, Element
from fattn_probe.verdict.diagnose.difference import Difference, Side
from fattn_probe.verdict.diagnose.patterns import Pattern
from fattn_probe.verdict.judge.judgement import Judgement, count


def rows_as_json(rows: Sequence[Judgement]) -> dict[str, Any]:
    """The JSON document: `counts` (by status) and `rows`.

    A row has case, digest, on, status, reason, tolerance (nmse, max_abs), kernel, kernels, output, upstream, metrics,
    design, accuracy, finding, known, diagnosis, sampled, division_origin (each null if there is none), missing and
    checks; docs/guide/compare.md lists their keys. NaN and infinities are null.
    """
    counts = {status.value: number for status, number in count(rows).items()}
    return {"counts": counts, "rows": [_row(row) for row in rows]}


def difference_as_json(difference: Difference) -> dict[str, Any]:
    """The JSON document of two captures.

    Keys a, b, status, reason, kernels_a, kernels_b, elements, equal_bits, share, nmse, max_abs, worst, patterns; cuts
    (for a and b: tiles and blocks with differences, of: the number of tiles; null if unknown) and rows (those that
    differ most: at, and value, tile, blocks of a and of b).
    """
    names = {"a": difference.a, "b": difference.b, "status": difference.status.value, "reason": difference.reason}
    kernels = {"kernels_a": list(difference.kernels_a), "kernels_b": list(difference.kernels_b)}
    likeness = {**asdict(difference.likeness), "share": difference.likeness.share}
    patterns = {"patterns": [_pattern(pattern) for pattern in difference.patterns]}
    cuts = [
        None if cut is None else {"tiles": list(map(_tile, cut.tiles)), "of": cut.of, "blocks": list(cut.blocks)}
        for cut in difference.cuts
    ]
    rows = [{"at": asdict(row.at), "a": _side(row.a), "b": _side(row.b)} for row in difference.worst]
    return names | kernels | _plain(likeness) | patterns | {"cuts": cuts, "rows": rows}


def _side(side: Side) -> dict[str, Any]:
    return {**_plain({"value": side.value}), "tile": _tile(side.tile), "blocks": list(side.blocks)}


def _tile(tile: Tile | None) -> dict[str, int] | None:
    return None if tile is None else dict(zip(("sequence", "z_KV", "zt_gqa", "jt"), tile, strict=True))


def _row(row: Judgement) -> dict[str, Any]:
    verdict = row.verdict
    return {
        "case": row.case,
        "digest": row.digest,
        "on": row.on,
        "status": row.status.value,
        "reason": row.reason,
        "tolerance": {"nmse": row.tolerance.nmse, "max_abs": row.tolerance.max_abs},
        "kernel": row.kernel,
        "kernels": list(row.kernels),
        "division_origin": None if row.division is None else str(row.division),
        "output": row.output,
        "upstream": None if row.upstream is None else _plain(asdict(row.upstream)),
        "metrics": None if verdict.metrics is None else _plain(asdict(verdict.metrics)),
        "design": None if verdict.design is None else _plain(asdict(verdict.design)),
        "accuracy": None if verdict.accuracy is None else asdict(verdict.accuracy),
        "finding": None if row.finding is None else asdict(row.finding),
        "known": row.known or None,
        "missing": row.missing or None,
        "sampled": None if row.sampled is None else asdict(row.sampled),
        "diagnosis": None if row.diagnosis is None else _diagnosis(row.diagnosis),
        "checks": [asdict(check) for check in row.checks],
    }


def _diagnosis(found: Diagnosis) -> dict[str, Any]:
    return {
        "wrong": found.wrong,
        "elements": found.elements,
        "patterns": [_pattern(pattern) for pattern in found.patterns],
        "causes": [{**asdict(said.cause), "rows": said.rows} for said in found.causes],
        "rows_tried": found.rows_tried,
        "worst": [_element(element) for element in found.worst],
    }


def _pattern(pattern: Pattern) -> dict[str, Any]:
    return asdict(pattern) | {"text": str(pattern)}


def _element(element: Element) -> dict[str, Any]:
    cause = None if element.cause is None else asdict(element.cause)
    numbers = _plain({"value": element.value, "expected": element.expected})
    return {
        "at": asdict(element.at),
        **numbers,
        "tile": _tile(element.tile),
        "blocks": list(element.blocks),
        "cause": cause,
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """The values with null for NaN and infinity, which JSON lacks."""
    odd = [key for key, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
    return values | dict.fromkeys(odd)
