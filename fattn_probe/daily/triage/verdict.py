"""The result: the culprit is the first suspect in the order of computation, because it may cause all later errors."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from fattn_probe.base.errors import ComparisonError, LostError
from fattn_probe.daily.models.walk import Node, TensorDifference
from fattn_probe.daily.triage.guilty import (
    Answer,
    AsDesigned,
    AttentionOverflows,
    AttentionWrong,
    Culprit,
    Innocent,
    NotFinite,
    OtherOpWrong,
    PartsWithout,
    Unknown,
)
from fattn_probe.machine.run.outcome import Failed, Finding
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.verdict import Status


@dataclass(frozen=True)
class AttentionOp:
    """A recorded attention op: its place in the run, its case file, and its judgements, one for each target.

    `unjudged` is the reason if there are no judgements: its inputs are not finite.
    """

    layer: int
    step: int
    part: int
    phase: str
    case: str
    found: Sequence[Judgement]
    unjudged: str = ""


def suspect_of(op: AttentionOp, found: Judgement) -> AttentionWrong | AttentionOverflows | None:
    """An op's fault according to a judgement, with its place and cause; None if it passes or is not judged."""
    if found.status is not Status.FAIL:
        return None
    said, metrics, finding, design = found.diagnosis, found.verdict.metrics, found.finding, found.verdict.design
    reason = found.reason.partition("\n")[0]
    by_design = design is not None and design.by == "model" and design.passes and found.verdict.status is Status.FAIL
    if by_design and metrics is not None and not metrics.all_finite and metrics.unwritten == 0:
        # the only failure is a non-finite output that the kernel's arithmetic itself produces
        bad = metrics.nan + metrics.inf
        return AttentionOverflows(op.layer, op.step, op.part, found.on, op.case, found.kernel, bad, reason)
    worst = said.worst[0] if said and said.worst else None
    causes = [one.cause for one in said.causes] if said else []
    cause = causes[0] if causes else (worst.cause if worst else None)
    return AttentionWrong(
        layer=op.layer,
        step=op.step,
        part=op.part,
        target=found.on,
        case=op.case,
        kernel=found.kernel or (finding.kernel if finding else ""),
        reason=reason,
        cause=str(cause or ""),
        worst=worst.at if worst else (metrics.first_bad or metrics.worst if metrics else None),
        tile=worst.tile if worst else None,
        blocks=worst.blocks if worst else (),
        finding=finding,
        known=found.known,
    )


DEFAULT = 1e-7
"""`test_case::max_nmse_err`."""
BY_OP = {
    "SOFT_MAX": 1e-6,
    "MUL_MAT": 5e-4,
    "MUL_MAT_ID": 5e-4,
    "OUT_PROD": 5e-4,
    "SSM_SCAN": 2e-7,
    "RWKV_WKV7": 5e-3,
    "CONV_2D": 5e-4,
    "CONV_TRANSPOSE_2D": 5e-4,
    "UNARY": 2**-20,
    "GLU": 2**-20,
}
"""Ops whose limit is larger. UNARY and GLU allow a step of f16, because the CPU uses an f16 table for gelu."""
LARGE_POSITIONS, ROPE_AT_LARGE_POSITIONS = 8192, 1e-5
"""Upstream's bound for ROPE from this position on, because the error in an angle grows with the position."""
MANTISSA = {"f16": 10, "bf16": 7}
"""Bits after the binary point: one step is at most 2^-bits of a value."""
LEVELS = {"q8_0": 127, "q5_1": 16, "q5_0": 16, "q4_1": 8, "q4_0": 8, "iq4_nl": 8}
"""Steps between 0 and the largest value of a block."""
CREST = 3.0
"""The largest of 32 values, divided by their root mean square; 2.1 on average for a normal distribution."""


def step_nmse(type_: str) -> float:
    """The NMSE of an output in which each element is off by one step of its type; 0 for f32 and integers."""
    if type_ in MANTISSA:
        return math.ldexp(1.0, -2 * MANTISSA[type_])
    return (CREST / LEVELS[type_]) ** 2 if type_ in LEVELS else 0.0


def allowed(node: Node, positions: int = 0) -> float:
    """The largest NMSE that a correct device can have for an op, in a run with `positions` positions."""
    arithmetic = BY_OP.get(node.op, DEFAULT)
    if node.op == "ROPE" and positions > LARGE_POSITIONS:
        arithmetic = ROPE_AT_LARGE_POSITIONS
    return arithmetic + step_nmse(node.type)


def is_wrong(node: Node, found: TensorDifference | Finding | Failed, positions: int = 0) -> bool:
    """Whether a device computes an op wrongly, or crashes."""
    if not isinstance(found, TensorDifference):
        return True
    return found.nan > 0 or found.inf > 0 or not found.nmse <= allowed(node, positions)


ATTENTION = "FLASH_ATTN_EXT"
ON_PURPOSE = frozenset({"FILL"})
"""Ops that write -inf on purpose, into masks."""
PASS_ON = frozenset({"CPY", "CONT", "DUP", "REPEAT", "CONCAT", "PAD", "GET_ROWS", "SET_ROWS"})
"""Ops that copy the -inf of a mask."""
LEAST_CHANGE, GROWTH = 0.05, 20.0
"""The least change in a tensor's largest magnitude that counts, as a share and as a multiple of earlier changes.

A largest magnitude changes by no more than the error in one element. The CPU sums V in f16, which at
300 rows costs 0.2 % of an element; in small models of seven architectures, with 40 and 300 tokens, no change is above
0.1 %. Only the first tensor after each attention op is suspected, because the two graphs differ only in attention.
Other changes follow from earlier ones, even if they are large, for example if a different expert is chosen.
"""
Moment = tuple[int, int, int]
"""(step, part, index in the graph)."""
Key = tuple[int, int, str, str, tuple[int, int, int, int], int]
"""(step, part, name, op, ne, number of earlier tensors that agree in all of these)"""
UNNAMED = re.compile(r"(node|leaf)_\d+.*")
Suspects = list[tuple[Moment, int, Culprit]]


def verdict_of(
    ops: Sequence[AttentionOp], nodes: Sequence[Node], without: Sequence[Node] = (), positions: int = 0
) -> Answer:
    """The verdict on a run, from its attention ops, its tensors, and the tensors of a run without flash attention.

    `positions` is the number of positions in the longest sequence. Among suspects at one op, attention comes first.
    """
    suspects: Suspects = [
        *((moment_of_op(op, nodes), 0, found) for op in ops for one in op.found if (found := suspect_of(op, one))),
        *((moment(suspect.node), 1, suspect) for suspect in wrong_ops(nodes, positions)),
        *((moment(suspect.node), 2, suspect) for suspect in not_finite(nodes, without)),
        *((moment(suspect.node), 3, suspect) for suspect in parting(nodes, without)),
    ]
    suspects.sort(key=lambda item: item[:2])
    first = {kind_of(suspect): suspect for _, _, suspect in reversed(suspects)}
    culprits = [suspect for _, _, suspect in suspects if first[kind_of(suspect)] is suspect]
    if culprits:
        return Answer(culprits[0], tuple(culprits[1:]))
    warnings: dict[int, dict[str, None]] = {}  # each once
    for op in ops:
        for one in op.found:
            if one.warning:
                warnings.setdefault(op.layer, {})[f"step {op.step} on {one.on}: {one.warning}"] = None
    by_layer = {layer: tuple(words) for layer, words in sorted(warnings.items())}
    return Answer(unknown(ops) or (AsDesigned(by_layer) if by_layer else Innocent()))


def unknown(ops: Sequence[AttentionOp]) -> Unknown | None:
    """The reason if there is no verdict (a lost run, or no judgement at all), otherwise None."""
    found = [one for op in ops for one in op.found]
    lost = [one for one in found if one.status is Status.LOST]
    if lost:
        return Unknown(f"{len(lost)} of {len(found)} runs were lost, such as {lost[0].case} on {lost[0].on}", lost=True)
    if any(one.status is Status.PASS for one in found):
        return None
    reasons = [*(op.unjudged for op in ops if op.unjudged), *(f"{one.on}: {one.reason}" for one in found)]
    return Unknown(f"no attention op was judged ({next(iter(reasons), 'there is none')})")


def kind_of(suspect: Culprit) -> tuple[type, str]:
    """The kind of a suspect and its target; the model's own run has no target."""
    return type(suspect), getattr(suspect, "target", "")


def moment(node: Node) -> Moment:
    """The moment at which a tensor is computed, for sorting."""
    return node.step, node.part, node.index


def moment_of_op(op: AttentionOp, nodes: Sequence[Node]) -> Moment:
    """The moment of an attention op: its tensor's moment; without a tensor, its layer's end, or the layer's number."""
    here = [node for node in nodes if (node.step, node.part, node.layer) == (op.step, op.part, op.layer)]
    own = [node.index for node in here if node.op == ATTENTION]
    return op.step, op.part, min(own, default=max((node.index for node in here), default=op.layer))


def wrong_ops(nodes: Sequence[Node], positions: int) -> Iterator[OtherOpWrong]:
    """The ops other than attention that a target computes wrongly from finite inputs."""
    for node in nodes:
        if node.op == ATTENTION or node.nan or node.inputs_nan:
            continue
        for target, found in node.on.items():
            if found is not None and is_wrong(node, found, positions):
                yield OtherOpWrong(node, target, found, allowed(node, positions))


def not_finite(nodes: Sequence[Node], without: Sequence[Node] = ()) -> Iterator[NotFinite]:
    """The first tensor that is not finite, except for the -inf of masks."""
    node = next(filter(spoils, nodes), None)
    if node is not None:
        reach = [other.largest for other in inputs_of(node, nodes)]
        keys = [key for key, one in by_key(nodes).items() if one is node]
        other = next((found for key in keys if (found := by_key(without).get(key))), None)
        yield NotFinite(node, max(reach, default=None), None if other is None else not (other.nan or other.inf))


def spoils(node: Node) -> bool:
    """Whether a tensor has NaN or infinities, other than the -inf of a mask."""
    by_mask = node.op in ON_PURPOSE or (node.op in PASS_ON and node.inputs_inf > 0)
    return node.nan > 0 or (node.inf > 0 and not by_mask)


def inputs_of(node: Node, nodes: Sequence[Node]) -> list[Node]:
    """The tensors of the graph that an op reads, directly or through views, each as last computed before it."""
    before = {tensor_of(one.name): one for one in takewhile(lambda one: one is not node, nodes)}
    return [before[tensor_of(name)] for name in node.inputs if tensor_of(name) in before]


def tensor_of(name: str) -> str:
    """The name of the viewed tensor: `Vcur-1` for `Vcur-1 (view) (permuted)`."""
    return name.partition(" (")[0]


def by_key(nodes: Sequence[Node]) -> dict[Key, Node]:
    """The tensors of a run by a key that is the same in other runs, without those that ggml named `node_N` or `leaf_N`.

    The name alone is not enough: llama.cpp gives a projection, its sum with the bias and its rotation the same name,
    and does the same for the norms of a layer. So the key includes the number of earlier tensors of the same name.
    """
    found, seen = dict[Key, Node](), Counter[Key]()
    for node in nodes:
        if not UNNAMED.fullmatch(node.name):
            key = (node.step, node.part, node.name, node.op, node.ne, 0)
            found[(*key[:5], seen[key])] = node
            seen[key] += 1
    return found


def parting(nodes: Sequence[Node], without: Sequence[Node]) -> Iterator[PartsWithout]:
    """The first finite tensor after an attention op, in the first step, that differs from its counterpart in `without`.

    Later steps are left out, because they may have different tokens.
    """
    first = min((node.step for node in nodes), default=0)
    others, keys = by_key(without), {id(node): key for key, node in by_key(nodes).items()}
    before, follows = 0.0, False
    for node in takewhile(lambda node: node.step == first, nodes):
        follows = follows or node.op == ATTENTION
        other = others.get(keys[id(node)]) if id(node) in keys else None
        if other is None or spoils(node) or spoils(other):
            continue
        change = abs(node.largest - other.largest) / (max(node.largest, other.largest) or 1.0)
        if follows and change > max(LEAST_CHANGE, GROWTH * before):
            yield PartsWithout(node, other, change, before)
            return
        before, follows = max(before, change), False


@dataclass(frozen=True)
class TriageResult:
    """The answer, the attention ops and tensors of the run, and a description of the run.

    `run` is copied from the index of captured ops: model, prompts, source, steps. `left_out` are ops that exceeded the
    budget. `compared`: whether there was a run without flash attention.
    """

    answer: Answer
    ops: Sequence[AttentionOp]
    nodes: Sequence[Node]
    targets: Sequence[str]
    run: Mapping[str, Any]
    left_out: Sequence[str] = ()
    compared: bool = True

    @property
    def positions(self) -> int:
        """Number of positions in a sequence."""
        return int(self.run["model"].get("context", 0))

    @property
    def judgements(self) -> list[Judgement]:
        """All judgements of attention ops."""
        return [found for op in self.ops for found in op.found]

    @property
    def cases(self) -> tuple[str, ...]:
        """Case files to examine: the wrong op's file, or the files of attention in the wrong tensor's layer."""
        match self.answer.guilty:
            case AttentionWrong(case=name) | AttentionOverflows(case=name):
                return (name,)
            case OtherOpWrong(node=node) | NotFinite(node=node) | PartsWithout(node=node):
                here = (node.layer, node.step, node.part)
                return tuple(op.case for op in self.ops if (op.layer, op.step, op.part) == here)
            case AsDesigned():
                return next((op.case,) for op in self.ops if any(found.warning for found in op.found))
            case Innocent() | Unknown():
                return ()


def raise_if_wrong(answer: Answer, sentence: str) -> None:
    """Raise the error with the answer's exit code; returns if nothing is wrong.

    Raises ComparisonError (exit 5) for a culprit, or if no attention op was judged; LostError (4) if a run was lost.
    """
    if isinstance(answer.guilty, Unknown) and answer.guilty.lost:
        raise LostError(sentence)
    if answer.is_wrong or isinstance(answer.guilty, Unknown):
        raise ComparisonError(sentence)
