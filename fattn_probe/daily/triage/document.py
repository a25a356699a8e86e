"""The answer as a JSON document."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fattn_probe.base.documents import plain
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import is_folder, make_folder, read_text, whole_folder
from fattn_probe.daily.triage.advice import Advice
from fattn_probe.daily.triage.result import TriageResult
from fattn_probe.daily.triage.verdict import AttentionOp
from fattn_probe.daily.triage.words import layers_of, sentence
from fattn_probe.machine.run.capture import read_capture, write_capture
from fattn_probe.verdict.present.document import rows_as_json

VERSION = 1


def document_of(result: TriageResult, advice: Sequence[Advice], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The document of verdict.json.

    Keys: version, verdict, sentence, guilty, others (each with `kind`), targets, run, left_out, compared, layers,
    attention, next, provenance; docs/guide/triage.md explains them. NaN and infinities are null.
    """
    first, *others = (
        {"kind": type(one).__name__} | plain(one) for one in (result.answer.guilty, *result.answer.others)
    )
    found: dict[str, Any] = plain(
        {
            "version": VERSION,
            "verdict": first["kind"],
            "sentence": sentence(result),
            "guilty": first,
            "others": others,
            "targets": result.targets,
            "run": result.run,
            "left_out": result.left_out,
            "compared": result.compared,
            "layers": list(layers_of(result)),
            "attention": [row for op in result.ops for row in rows_of(op)],
            "next": advice,
            "provenance": provenance,
        }
    )
    return found


def rows_of(op: AttentionOp) -> list[dict[str, Any]]:
    """An attention op with each of its judgements, as `compare` gives them, or why there is none."""
    place = {"layer": op.layer, "step": op.step, "part": op.part, "phase": op.phase}
    rows = rows_as_json(op.found)["rows"] or [{"case": op.case, "status": "unjudged", "reason": op.unjudged}]
    return [place | row for row in rows]


VERDICT, REPORT = "verdict.json", "report.md"
MOST_BYTES = 256 << 20


def check_folder(folder: Path) -> None:
    """InputError for a folder with files that are not from a triage."""
    if not os.path.lexists(folder):
        return
    if not is_folder(folder):
        raise InputError(f"--out {folder}: not a folder")
    strange = sorted({path.name for path in folder.iterdir()} - own_files(folder))
    if strange:
        raise InputError(f"--out {folder} has other files, such as {strange[0]}: choose another folder")


def own_files(folder: Path) -> set[str]:
    """The files of a triage in a folder, according to its verdict; none if there is no verdict."""
    path = folder / VERDICT
    if not path.is_file():
        return set()
    try:
        found = json.loads(read_text(path, "the verdict", MOST_BYTES))
        return set(found["files"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return set()


def write_folder(folder: Path, document: Mapping[str, Any], report: str, files: Iterable[Path]) -> None:
    """Write verdict, report and case files completely or not at all, in place of an earlier triage."""
    check_folder(folder)
    make_folder(folder.absolute().parent, "--out")
    listed = list(files)
    names = [VERDICT, REPORT, *(path.name for path in listed)]
    with whole_folder(folder, over=True) as made:
        for path in listed:
            write_capture(read_capture(path), made / path.name)  # complete, without the blocks of its folder
        (made / REPORT).write_text(report, encoding="utf-8")
        (made / VERDICT).write_text(json.dumps({**document, "files": names}, indent=1) + "\n", encoding="utf-8")
