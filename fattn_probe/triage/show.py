"""The answer for people: a sentence, the evidence by layer, and what to do next."""

import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from rich.console import Console, Group, RenderableType
from rich.text import Text

from fattn_probe.compare.present.tables import render as compared
from fattn_probe.console import PIPE_WIDTH
from fattn_probe.tables import Table, listed
from fattn_probe.triage.advice import Advice
from fattn_probe.triage.guilty import AsDesigned, AttentionOverflows, AttentionWrong
from fattn_probe.triage.layers import Layer, layers_of
from fattn_probe.triage.result import Result
from fattn_probe.triage.words import said_of, sentence, warnings_in_words

COLUMNS = ("layer", "on", "attention", "other ops", "nearest to its limit", "tensors")
LINE = 74


def render(result: Result, advice: Sequence[Advice], folder: str) -> RenderableType:
    """All of the answer."""
    style = "bold red" if result.answer.is_wrong else "bold"
    return Group(Text(sentence(result), style), Text(), *evidence(result), *next_steps(advice), Text(f"in {folder}"))


def evidence(result: Result) -> Iterator[RenderableType]:
    """The layers, then what else was found."""
    yield Table(COLUMNS, tuple(row(layer) for layer in layers_of(result)), heading=("layer", "on"))
    yield Text()
    said = [f"also: {said_of(other)}" for other in result.answer.others]
    if isinstance(result.answer.guilty, AsDesigned):
        said += warnings_in_words(result.answer.guilty)
    said += remarks(result)
    if said:
        yield listed(said)
        yield Text()


def remarks(result: Result) -> Iterator[str]:
    """What was not judged, and why."""
    reasons = dict.fromkeys(op.unjudged for op in result.ops if op.unjudged)
    yield from (f"not judged: {reason}" for reason in reasons)
    refused = {f"{one.on}: {one.reason}" for one in result.judgements if one.status.value == "unsupported"}
    yield from (f"runs on the CPU instead of {reason}" for reason in sorted(refused))
    if result.left_out:
        yield f"{len(result.left_out)} attention ops did not fit --budget, from {result.left_out[0]} on"
    if not result.compared:
        yield "not compared with a run without flash attention, which cannot have a quantised V"


def next_steps(advice: Sequence[Advice]) -> Iterator[RenderableType]:
    """The commands to paste, each on a line of its own."""
    for one in advice:
        yield Text(f"{one.why}:" if one.command else one.why, "dim")
        if one.command:
            yield Text(pasted(one.command))
    if advice:
        yield Text()


def pasted(command: str) -> str:
    """A command over several short lines that a shell takes as one, so that no terminal breaks it elsewhere."""
    lines: list[str] = []
    for words in with_values(shlex.split(command)):
        if lines and len(lines[-1]) + len(words) < LINE:
            lines[-1] += f" {words}"
        else:
            lines.append(f"    {words}" if lines else f"  {words}")
    return " \\\n".join(lines)


def with_values(words: Sequence[str]) -> list[str]:
    """The words of a command, quoted, each option with its value."""
    found: list[str] = []
    for before, word in pairwise(["", *words]):
        if before.startswith("--") and not word.startswith("--"):
            found[-1] += f" {shlex.quote(word)}"
        else:
            found.append(shlex.quote(word))
    return found


def row(layer: Layer) -> tuple[str, ...]:
    """The row of a layer."""
    attention = ", ".join(f"{number} {status}" for status, number in layer.attention.items())
    others = f"{layer.ran - layer.wrong} right" + (f", {layer.wrong} wrong" if layer.wrong else "")
    nearest = f"{layer.worst} {layer.share:.1g}x" if layer.worst and layer.share else ""
    spoilt = f"{layer.spoilt} of {layer.tensors} not finite" if layer.spoilt else f"{layer.tensors} finite"
    name = "-" if layer.layer is None else str(layer.layer)
    return (name, layer.on, attention or "-", others if layer.ran else "-", nearest, spoilt if layer.tensors else "-")


def report(result: Result, advice: Sequence[Advice], provenance: Mapping[str, object]) -> str:
    """The report as Markdown, to be attached to an issue; with what `compare` says of a guilty attention op."""
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
    """The lines of a block of Markdown with what the terminal shows."""
    text = io.StringIO()
    Console(file=text, width=PIPE_WIDTH, color_system=None, emoji=False).print(shown)
    return ["```", *trimmed(text.getvalue()), "```", ""]


def trimmed(text: str) -> list[str]:
    """The lines of a text without spaces at their ends, and without empty lines at the end of all."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
