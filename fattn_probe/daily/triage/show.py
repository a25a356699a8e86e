"""The answer for people: a sentence, the evidence by layer, and what to do next."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.console import PIPE_WIDTH, text_of
from fattn_probe.base.tables import Table, listed
from fattn_probe.daily.triage.advice import Advice
from fattn_probe.daily.triage.guilty import AsDesigned, AttentionOverflows, AttentionWrong
from fattn_probe.daily.triage.result import TriageResult
from fattn_probe.daily.triage.words import Layer, layers_of, said_of, sentence, warnings_in_words
from fattn_probe.verdict.measure.verdict import Status
from fattn_probe.verdict.present.tables import render as compared

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
    """The layers, then other results."""
    yield Table(COLUMNS, tuple(row(layer) for layer in layers_of(result)), heading=("layer", "on"))
    yield Text()
    said = [f"also: {said_of(other)}" for other in result.answer.others]
    if isinstance(result.answer.guilty, AsDesigned):
        said += warnings_in_words(result.answer.guilty)
    said += remarks(result)
    if said:
        yield listed(said)
        yield Text()


def remarks(result: TriageResult) -> Iterator[str]:
    """The unjudged ops, and why."""
    reasons = dict.fromkeys(op.unjudged for op in result.ops if op.unjudged)
    yield from (f"not judged: {reason}" for reason in reasons)
    unjudged = [one for one in result.judgements if one.status is Status.UNJUDGED]
    yield from dict.fromkeys(f"not judged: {one.case} on {one.on}: {one.reason}" for one in unjudged)
    refused = {f"{one.on}: {one.reason}" for one in result.judgements if one.status is Status.UNSUPPORTED}
    yield from (f"runs on the CPU instead of {reason}" for reason in sorted(refused))
    if result.left_out:
        yield f"{len(result.left_out)} attention ops did not fit --budget, from {result.left_out[0]} on"
    if not result.compared:
        yield "not compared with a run without flash attention, which cannot have a quantised V"


def pasted(command: str) -> str:
    """A command on several short lines that a shell joins, so that no terminal breaks it in the wrong place."""
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


def row(layer: Layer) -> tuple[str, ...]:
    """The row of a layer."""
    attention = ", ".join(f"{number} {status}" for status, number in layer.attention.items())
    others = f"{layer.ran - layer.wrong} right" + (f", {layer.wrong} wrong" if layer.wrong else "")
    nearest = f"{layer.worst} {layer.share:.1g}x" if layer.worst and layer.share else ""
    spoilt = f"{layer.spoilt} of {layer.tensors} not finite" if layer.spoilt else f"{layer.tensors} finite"
    name = "-" if layer.layer is None else str(layer.layer)
    return (name, layer.on, attention or "-", others if layer.ran else "-", nearest, spoilt if layer.tensors else "-")


def report(result: TriageResult, advice: Sequence[Advice], provenance: Mapping[str, object]) -> str:
    """The report as Markdown, to attach to an issue; with the judgement of a wrong attention op."""
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
    """The lines of a Markdown block with the terminal's output, without trailing spaces and empty lines."""
    return ["```", *(line.rstrip() for line in text_of(shown, PIPE_WIDTH).rstrip().splitlines()), "```", ""]
