"""The answer for people: a sentence, the evidence by layer, and what to do next."""

import io
import shlex
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from fattn_probe.console import PIPE_WIDTH
from fattn_probe.tables import Table, listed
from fattn_probe.triage.advice import Advice
from fattn_probe.triage.guilty import AsDesigned
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
        yield Text(f"{one.why}:", "dim")
        yield Text(pasted(one.command))
    if advice:
        yield Text()


def pasted(command: str) -> str:
    """A command over several short lines that a shell takes as one, so that no terminal breaks it elsewhere."""
    lines: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        if lines and len(lines[-1]) + len(word) < LINE:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}" if lines else f"  {word}")
    return " \\\n".join(lines)


def row(layer: Layer) -> tuple[str, ...]:
    """The row of a layer."""
    attention = ", ".join(f"{number} {status}" for status, number in layer.attention.items())
    others = f"{layer.ran - layer.wrong} right" + (f", {layer.wrong} wrong" if layer.wrong else "")
    nearest = f"{layer.worst} {layer.share:.1g}x" if layer.worst and layer.share else ""
    spoilt = f"{layer.spoilt} of {layer.tensors} not finite" if layer.spoilt else f"{layer.tensors} finite"
    name = "-" if layer.layer is None else str(layer.layer)
    return (name, layer.on, attention or "-", others if layer.ran else "-", nearest, spoilt if layer.tensors else "-")


def report(result: Result, advice: Sequence[Advice], provenance: Mapping[str, object]) -> str:
    """The report as Markdown, to be attached to an issue."""
    text = io.StringIO()
    Console(file=text, width=PIPE_WIDTH, color_system=None).print(Group(*evidence(result)))
    lines = [f"# {sentence(result)}", "", "```", *trimmed(text.getvalue()), "```", ""]
    for one in advice:
        lines += [f"{one.why[0].upper()}{one.why[1:]}:", "", f"    {one.command}", ""]
    lines += ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in provenance.items()), ""]
    return "\n".join(lines)


def trimmed(text: str) -> list[str]:
    """The lines of a text without spaces at their ends, and without empty lines at the end of all."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
