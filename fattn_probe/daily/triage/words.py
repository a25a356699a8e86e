"""Put the answer into one sentence."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from fattn_probe.daily.models.walk import Node, TensorDifference
from fattn_probe.daily.triage.guilty import (
    AsDesigned,
    AttentionOverflows,
    AttentionWrong,
    Guilty,
    Innocent,
    NotFinite,
    OtherOpWrong,
    PartsWithout,
    Unknown,
)
from fattn_probe.daily.triage.verdict import ATTENTION, MANTISSA, AttentionOp, TriageResult, allowed, is_wrong, spoils
from fattn_probe.verdict.measure.verdict import Status

LARGEST_F16 = 65504.0
MASKED = frozenset({ATTENTION, "SOFT_MAX"})
"""Ops that read a mask, whose -inf entries do no harm."""


def sentence(result: TriageResult) -> str:
    """The answer in one sentence."""
    guilty = result.answer.guilty
    if isinstance(guilty, Innocent):
        return f"Nothing is wrong: {scope(result)}."
    if isinstance(guilty, Unknown):
        return f"Nothing is known to be wrong, but {guilty.reason}."
    if isinstance(guilty, AsDesigned):
        layers = f"layer{'s' if len(guilty.warnings) > 1 else ''} {', '.join(map(str, guilty.warnings))}"
        return f"Nothing is wrong, but attention is inaccurate by design in {layers}."
    if isinstance(guilty, AttentionWrong | AttentionOverflows):
        return f"{said_of(guilty)}."
    if any(isinstance(other, AttentionWrong) for other in result.answer.others):
        return f"{said_of(guilty)}; attention is also wrong, but later."
    judged = [found for found in result.judgements if found.status is not Status.UNSUPPORTED]
    passed = [found for found in judged if found.status is Status.PASS]
    correct = f"; attention is correct in {len(passed)} of {len(judged)} judged ops" if passed else ""
    return f"{said_of(guilty)}{correct}."


def said_of(guilty: Guilty) -> str:
    """Describe the fault of a culprit, without a full stop."""
    match guilty:
        case AttentionWrong():
            places = [moment_of(guilty.layer, guilty.step, guilty.part)]
            if guilty.worst is not None:
                places.append(f"head {guilty.worst.head}, query {guilty.worst.query}")
            if guilty.tile is not None:
                places.append(f"tile {guilty.tile}")
            if guilty.finding is not None:
                places, cause = [places[0], guilty.finding.place or guilty.kernel], guilty.finding.message
            else:
                places, cause = [*places, guilty.kernel or "no attention kernel"], guilty.cause or guilty.reason
            known = f" (a known defect of llama.cpp: {guilty.known})" if guilty.known else ""
            return f"Attention is wrong on {guilty.target}: {', '.join(places)}: {cause}{known}"
        case AttentionOverflows(elements=elements, kernel=kernel, target=target):
            place = moment_of(guilty.layer, guilty.step, guilty.part)
            return (
                f"The model itself: attention in {place} exceeds the range of f16 on {target}, by the design "
                f"of {kernel}: {elements} values are not finite"
            )
        case OtherOpWrong(node=node, target=target):
            return f"The first wrong tensor is {named(node)}, on {target}: {how_wrong(guilty)}"
        case NotFinite():
            return not_finite(guilty)
        case PartsWithout(node=node, other=other):
            return (
                f"The first tensor that differs without flash attention is {named(node)}: "
                f"its largest value is {node.largest:.4g} with flash attention and {other.largest:.4g} without"
            )
    raise AssertionError("not a culprit")


def how_wrong(guilty: OtherOpWrong) -> str:
    """Describe the size of an op's error, or how the op ended."""
    found = guilty.found
    if not isinstance(found, TensorDifference):
        return found.message
    if found.nan or found.inf:
        return f"{found.nan + found.inf} values are finite on {guilty.target} or on the CPU, but not on both"
    return (
        f"NMSE {found.nmse:.2g} against the CPU on the same inputs, where a correct op has at most {guilty.allowed:.1g}"
    )


def not_finite(guilty: NotFinite) -> str:
    """Describe the first tensor that is not finite, with the reason if its inputs show it."""
    node = guilty.node
    number = " and ".join(f"{count} {name}" for count, name in ((node.nan, "NaN"), (node.inf, "infinities")) if count)
    words = f"The model itself: {named(node)} is the first tensor that is not finite, with {number}"
    reach = guilty.inputs_largest
    if node.inputs_nan or (node.inputs_inf and node.op not in MASKED):
        words += "; its inputs, which the graph does not compute, are not finite either"
    elif node.type in MANTISSA and reach is not None and reach > LARGEST_F16:
        words += f"; its inputs reach {reach:.3g}, and the largest f16 is {LARGEST_F16:.0f}"
    elif node.op == ATTENTION:
        words += "; the CPU sums V in f16"
    if guilty.finite_without:
        words += "; without flash attention it is finite"
    return words


def scope(result: TriageResult) -> str:
    """List the results that are correct."""
    judged = [found for found in result.judgements if found.status is Status.PASS]
    compared = sum(isinstance(found, TensorDifference) for node in result.nodes for found in node.on.values())
    words = [f"{many(len(judged), 'attention op')} correct on {' and '.join(result.targets)}"]
    if compared:
        words.append("so is 1 other op" if compared == 1 else f"so are {compared} other ops")
    if result.nodes:
        words.append(f"and {many(len(result.nodes), 'tensor')} finite")
    return ", ".join(words)


def many(number: int, noun: str) -> str:
    """`1 attention op is`, `4 attention ops are`."""
    return f"1 {noun} is" if number == 1 else f"{number} {noun}s are"


def moment_of(layer: int | None, step: int, part: int) -> str:
    """`layer 3, step 1`."""
    words = [] if layer is None else [f"layer {layer}"]
    return ", ".join([*words, f"step {step}", *([f"part {part}"] if part else [])])


def named(node: Node) -> str:
    """A tensor in words: `Qcur-0 (ROPE, f32, layer 0, step 0)`."""
    return f"{node.name} ({node.op}, {node.type}, {moment_of(node.layer, node.step, node.part)})"


def layers_of(result: TriageResult) -> Iterator[dict[str, Any]]:
    """The layers in order, each on all targets; at the end, tensors that belong to no layer."""
    numbers = {node.layer for node in result.nodes} | {op.layer for op in result.ops}
    for layer in sorted(numbers, key=lambda number: (number is None, number or 0)):
        ops = [op for op in result.ops if op.layer == layer]
        nodes = [node for node in result.nodes if node.layer == layer]
        for target in result.targets:
            yield layer_of(layer, target, ops, nodes, result.positions)


def layer_of(
    layer: int | None, on: str, ops: Sequence[AttentionOp], nodes: Sequence[Node], positions: int
) -> dict[str, Any]:
    """The results in a layer `on` a target; `layer` is None for the tensors before the first and after the last.

    `attention` counts ops by status (`unjudged` if inputs are not finite), `ran` are the other ops that the target
    computed, `wrong` the wrong ones among these; `worst` is the op closest to its limit, `share` its NMSE / limit.
    `left` are the ops that only the CPU ran. `spoilt` counts tensors of the CPU's run that are not finite.
    """
    statuses = [found.status.value for op in ops for found in op.found if found.on == on]
    statuses += ["unjudged" for op in ops if op.unjudged]
    others = [node for node in nodes if node.op != ATTENTION]
    ran = [(node, found) for node in others if (found := node.on.get(on)) is not None]
    shares = [
        (found.nmse / allowed(node, positions), f"{node.op} {node.name}")
        for node, found in ran
        if isinstance(found, TensorDifference)
    ]
    share, worst = max(shares, default=(0.0, ""))
    return {
        "layer": layer,
        "on": on,
        "attention": dict(Counter(statuses)),
        "ran": len(ran),
        "wrong": sum(is_wrong(node, found, positions) for node, found in ran),
        "worst": worst,
        "share": share,
        "left": len(others) - len(ran),
        "tensors": len(nodes),
        "spoilt": sum(spoils(node) for node in nodes),
    }
