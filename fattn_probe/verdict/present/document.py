"""Verdict rows and differences as JSON documents."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fattn_probe.base.documents import plain
from fattn_probe.llama.launch.tiles import Tile
from fattn_probe.verdict.diagnose.diagnosis import Element
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
    kernels = {"kernels_a": difference.kernels_a, "kernels_b": difference.kernels_b}
    likeness = {**asdict(difference.likeness), "share": difference.likeness.share}
    patterns = {"patterns": [_pattern(pattern) for pattern in difference.patterns]}
    cuts = [cut and vars(cut) | {"tiles": list(map(_tile, cut.tiles))} for cut in difference.cuts]
    rows = [{"at": row.at, "a": _placed(row.a), "b": _placed(row.b)} for row in difference.worst]
    document: dict[str, Any] = plain(names | kernels | likeness | patterns | {"cuts": cuts, "rows": rows})
    return document


def _tile(tile: Tile | None) -> dict[str, int] | None:
    return None if tile is None else dict(zip(("sequence", "z_KV", "zt_gqa", "jt"), tile, strict=True))


def _placed(one: Side | Element) -> dict[str, Any]:
    placed: dict[str, Any] = plain(vars(one) | {"tile": _tile(one.tile)})
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
