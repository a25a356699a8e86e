"""The evidence of a triage by layer and target."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fattn_probe.daily.models.walk import Node, TensorDifference
from fattn_probe.daily.triage.result import TriageResult
from fattn_probe.daily.triage.verdict import ATTENTION, AttentionOp, allowed, is_wrong, spoils


@dataclass(frozen=True)
class Layer:
    """The results in a layer on a target; `layer` is None for the tensors before the first and after the last.

    `attention` counts ops by status (`unjudged` if inputs are not finite), `ran` are the other ops that the target
    computed, `wrong` those of them that are wrong; `worst` is the op closest to its limit, `share` its NMSE / limit.
    `left` are the ops that only the CPU ran. `spoilt` counts tensors of the CPU's run that are not finite.
    """

    layer: int | None
    on: str
    attention: Mapping[str, int]
    ran: int
    wrong: int
    worst: str
    share: float
    left: int
    tensors: int
    spoilt: int


def layers_of(result: TriageResult) -> Iterator[Layer]:
    """The layers in order, each on all targets; at the end, tensors that belong to no layer."""
    numbers = {node.layer for node in result.nodes} | {op.layer for op in result.ops}
    for layer in sorted(numbers, key=lambda number: (number is None, number or 0)):
        ops = [op for op in result.ops if op.layer == layer]
        nodes = [node for node in result.nodes if node.layer == layer]
        for target in result.targets:
            yield layer_of(layer, target, ops, nodes, result.positions)


def layer_of(layer: int | None, on: str, ops: Sequence[AttentionOp], nodes: Sequence[Node], positions: int) -> Layer:
    """The results in one layer on one target."""
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
    return Layer(
        layer=layer,
        on=on,
        attention=dict(Counter(statuses)),
        ran=len(ran),
        wrong=sum(is_wrong(node, found, positions) for node, found in ran),
        worst=worst,
        share=share,
        left=len(others) - len(ran),
        tensors=len(nodes),
        spoilt=sum(spoils(node) for node in nodes),
    )
