"""Present the answer as text (a sentence, evidence by layer, commands to paste) and as a JSON document."""

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.console import PIPE_WIDTH, text_of
from fattn_probe.base.documents import plain
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import check_place, is_folder, make_folder, read_text, whole_folder
from fattn_probe.base.tables import Table, listed
from fattn_probe.cases.scenario.cases import RECORDED
from fattn_probe.daily.triage.guilty import (
    AsDesigned,
    AttentionOverflows,
    AttentionWrong,
    Innocent,
    NotFinite,
    OtherOpWrong,
    PartsWithout,
    Unknown,
)
from fattn_probe.daily.triage.verdict import AttentionOp, TriageResult
from fattn_probe.daily.triage.words import layers_of, said_of, sentence
from fattn_probe.machine.run.capture import read_capture, write_capture
from fattn_probe.verdict.measure.verdict import Status
from fattn_probe.verdict.present.tables import render as compared
from fattn_probe.verdict.present.tables import rows_as_json


@dataclass(frozen=True)
class Advice:
    """One piece of advice: the reason, and a command if one applies."""

    why: str
    command: str = ""


def advice_of(result: TriageResult, folder: Path, flags: Sequence[str]) -> list[Advice]:
    """The advice for a result, most useful first; its case files are in `folder`."""
    files = [str(folder / f"{case}{RECORDED}") for case in result.cases]
    guilty, out = result.answer.guilty, ("--out", f"{folder}-reproduced")
    match guilty:
        case AttentionWrong(target=target):
            return [
                fattn("see what is wrong, and where", "compare", files, target, flags),
                fattn("see what the kernel does", "inspect", files, target, flags),
                fattn("write a reproduction for a maintainer", "reproduce", files, target, flags, *out),
            ]
        case AttentionOverflows(target=target):
            return [
                fattn("see the error model's explanation", "compare", files, target, flags),
                fattn("see where the first value leaves the range", "inspect", files, target, flags, "--find-nan"),
            ]
        case OtherOpWrong(node=node):
            return [Advice("let upstream's own test judge this op", f"test-backend-ops test -o {node.op}")]
        case NotFinite() | PartsWithout():
            found = []  # examine the model, and the attention of the layer
            if isinstance(guilty, NotFinite):
                found.append(Advice("look at the model: its values leave the range of a type, however attention runs"))
            else:
                found.append(Advice("look at the graph: the inputs of attention, with and without flash attention"))
            if any(op.found for op in result.ops if op.case in result.cases):
                found.append(fattn("judge the layer's attention", "compare", files[:1], result.targets[0], flags))
            return found
        case AsDesigned():
            target = next(found.on for found in result.judgements if found.warning)
            return [fattn("see the error that the kernel's arithmetic causes", "compare", files, target, flags)]
        case Innocent() | Unknown():
            return []


def fattn(why: str, command: str, files: Sequence[str], target: str, flags: Sequence[str], *rest: str) -> Advice:
    """A fattn-probe command for case files and a target."""
    return Advice(why, shlex.join(["fattn-probe", command, *files, "--on", target, *flags, *rest]))


COLUMNS = ("layer", "on", "attention", "other ops", "nearest to its limit", "tensors")
LINE = 74


def render(result: TriageResult, advice: Sequence[Advice], folder: str) -> RenderableType:
    """The complete answer, with the commands to paste, each on a separate line."""
    style = "bold red" if result.answer.is_wrong else "bold"
    steps: list[RenderableType] = []
    for one in advice:
        steps.append(Text(f"{one.why}:" if one.command else one.why, "dim"))
        steps += [Text(pasted(one.command))] if one.command else []
    steps += [Text()] if advice else []
    return Group(Text(sentence(result), style), Text(), *evidence(result), *steps, Text(f"in {folder}"))


def evidence(result: TriageResult) -> Iterator[RenderableType]:
    """The table of layers, then other results, and the unjudged ops with the reason."""
    yield Table(COLUMNS, tuple(row(layer) for layer in layers_of(result)), heading=("layer", "on"))
    yield Text()
    said = [f"also: {said_of(other)}" for other in result.answer.others]
    if isinstance(result.answer.guilty, AsDesigned):
        warnings = result.answer.guilty.warnings
        said += [f"layer {layer}, {words}" for layer, found in warnings.items() for words in found]
    said += [f"not judged: {reason}" for reason in dict.fromkeys(op.unjudged for op in result.ops) if reason]
    unjudged = [one for one in result.judgements if one.status is Status.UNJUDGED]
    said += dict.fromkeys(f"not judged: {one.case} on {one.on}: {one.reason}" for one in unjudged)
    refused = {f"{one.on}: {one.reason}" for one in result.judgements if one.status is Status.UNSUPPORTED}
    said += [f"runs on the CPU instead of {reason}" for reason in sorted(refused)]
    if result.left_out:
        said.append(f"{len(result.left_out)} attention ops did not fit in --budget, starting with {result.left_out[0]}")
    if not result.compared:
        said.append("not compared with a run without flash attention, which cannot have a quantised V")
    if said:
        yield listed(said)
        yield Text()


def pasted(command: str) -> str:
    """A command on several short lines that a shell joins, so that the terminal does not wrap it."""
    found: list[str] = []  # the words, quoted, each option with its value
    for before, word in pairwise(["", *shlex.split(command)]):
        if before.startswith("--") and not word.startswith("--"):
            found[-1] += f" {shlex.quote(word)}"
        else:
            found.append(shlex.quote(word))
    lines: list[str] = []
    for words in found:
        if lines and len(lines[-1]) + len(words) < LINE:
            lines[-1] += f" {words}"
        else:
            lines.append(f"    {words}" if lines else f"  {words}")
    return " \\\n".join(lines)


def row(of: Mapping[str, Any]) -> tuple[str, ...]:
    """The table row for a layer."""
    attention = ", ".join(f"{number} {status}" for status, number in of["attention"].items())
    others = f"{of['ran'] - of['wrong']} correct" + (f", {of['wrong']} wrong" if of["wrong"] else "")
    nearest = f"{of['worst']} {of['share']:.1g}x" if of["worst"] and of["share"] else ""
    spoilt = f"{of['spoilt']} of {of['tensors']} not finite" if of["spoilt"] else f"{of['tensors']} finite"
    name = "-" if of["layer"] is None else str(of["layer"])
    return (name, of["on"], attention or "-", others if of["ran"] else "-", nearest, spoilt if of["tensors"] else "-")


def report(result: TriageResult, advice: Sequence[Advice], provenance: Mapping[str, object]) -> str:
    """The report as Markdown, to attach to an issue; includes the judgement of a wrong attention op."""
    lines = [f"# {sentence(result)}", "", *block(Group(*evidence(result)))]
    guilty = result.answer.guilty
    if isinstance(guilty, AttentionWrong | AttentionOverflows):
        found = next(one for one in result.judgements if (one.case, one.on) == (guilty.case, guilty.target))
        lines += [f"The judgement of {guilty.case}:", "", *block(compared([found], maps=False))]
    for one in advice:
        why = f"{one.why[0].upper()}{one.why[1:]}"
        lines += [f"{why}:", "", f"    {one.command}", ""] if one.command else [f"{why}.", ""]
    lines += ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in provenance.items()), ""]
    return "\n".join(lines)


def block(shown: RenderableType) -> list[str]:
    """The lines of a Markdown block with the terminal's output, without trailing spaces or empty lines."""
    return ["```", *(line.rstrip() for line in text_of(shown, PIPE_WIDTH).rstrip().splitlines()), "```", ""]


VERSION = 1


def document_of(result: TriageResult, advice: Sequence[Advice], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The content of verdict.json.

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
    """An attention op with each judgement in the form that `compare` uses, or the reason why it has none."""
    place = {"layer": op.layer, "step": op.step, "part": op.part, "phase": op.phase}
    rows = rows_as_json(op.found)["rows"] or [{"case": op.case, "status": "unjudged", "reason": op.unjudged}]
    return [place | row for row in rows]


VERDICT, REPORT = "verdict.json", "report.md"
MOST_BYTES = 256 << 20


def check_folder(folder: Path) -> None:
    """Raise InputError for a folder with files that are not from a triage, MachineError if it cannot be written."""
    check_place(folder)
    if not os.path.lexists(folder):
        return
    if not is_folder(folder):
        raise InputError(f"--out {folder}: not a folder")
    own = set[str]()  # the files of a triage, according to its verdict
    if (folder / VERDICT).is_file():
        with contextlib.suppress(json.JSONDecodeError, KeyError, TypeError):
            own = set(json.loads(read_text(folder / VERDICT, "the verdict", MOST_BYTES))["files"])
    strange = sorted({path.name for path in folder.iterdir()} - own)
    if strange:
        raise InputError(f"--out {folder} has files not from a triage, such as {strange[0]}: choose another folder")


def write_folder(folder: Path, document: Mapping[str, Any], report: str, files: Iterable[Path]) -> None:
    """Write verdict, report and case files completely or not at all; replaces an earlier triage."""
    check_folder(folder)
    make_folder(folder.absolute().parent, "--out")
    listed = list(files)
    names = [VERDICT, REPORT, *(path.name for path in listed)]
    with whole_folder(folder, over=True) as made:
        for path in listed:
            write_capture(read_capture(path), made / path.name)  # complete: it needs no blocks from its old folder
        (made / REPORT).write_text(report, encoding="utf-8")
        (made / VERDICT).write_text(json.dumps({**document, "files": names}, indent=1) + "\n", encoding="utf-8")
