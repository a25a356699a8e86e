"""The answer as a JSON document."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fattn_probe.daily.triage.advice import Advice
from fattn_probe.daily.triage.attention import AttentionOp
from fattn_probe.daily.triage.guilty import Guilty
from fattn_probe.daily.triage.layers import layers_of
from fattn_probe.daily.triage.result import TriageResult
from fattn_probe.daily.triage.words import sentence
from fattn_probe.verdict.present.document import plain, rows_as_json

VERSION = 1


def document_of(result: TriageResult, advice: Sequence[Advice], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The document of verdict.json.

    Keys: version, verdict, sentence, guilty, others (each with `kind`), targets, run, left_out, compared, layers,
    attention, next, provenance; docs/guide/triage.md explains them. NaN and infinities are null.
    """
    guilty = as_json(result.answer.guilty)
    found = {
        "version": VERSION,
        "verdict": guilty["kind"],
        "sentence": sentence(result),
        "guilty": guilty,
        "others": [as_json(other) for other in result.answer.others],
        "targets": list(result.targets),
        "run": dict(result.run),
        "left_out": list(result.left_out),
        "compared": result.compared,
        "layers": [asdict(layer) for layer in layers_of(result)],
        "attention": [row for op in result.ops for row in rows_of(op)],
        "next": [asdict(one) for one in advice],
        "provenance": dict(provenance),
    }
    document: dict[str, Any] = plain(found)
    return document


def as_json(guilty: Guilty) -> dict[str, Any]:
    """A verdict: its kind (the name of its class), and its fields."""
    return {"kind": type(guilty).__name__, **asdict(guilty)}


def rows_of(op: AttentionOp) -> list[dict[str, Any]]:
    """An attention op with each of its judgements, as `compare` gives them, or why there is none."""
    place = {"layer": op.layer, "step": op.step, "part": op.part, "phase": op.phase}
    rows = rows_as_json(op.found)["rows"] or [{"case": op.case, "status": "unjudged", "reason": op.unjudged}]
    return [place | row for row in rows]
