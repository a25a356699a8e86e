"""What a triage found: the answer and its evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fattn_probe.compare.judge.judgement import Judgement
from fattn_probe.compare.judge.verdict import Status
from fattn_probe.errors import ComparisonError, LostError
from fattn_probe.models.node import Node
from fattn_probe.triage.attention import AttentionOp
from fattn_probe.triage.guilty import (
    Answer,
    AsDesigned,
    AttentionOverflows,
    AttentionWrong,
    Guilty,
    Innocent,
    NotFinite,
    OtherOpWrong,
    PartsWithout,
)


@dataclass(frozen=True)
class Result:
    """The answer, the attention ops and the tensors of the run, and what ran.

    `run` is that of the index of captured ops: model, prompts, source, steps. `left_out` are ops that the budget had no
    room for. `compared`: whether there was a run without flash attention.
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
        """The positions of a sequence."""
        return int(self.run["model"].get("context", 0))

    @property
    def judgements(self) -> list[Judgement]:
        """All judgements of attention ops."""
        return [found for op in self.ops for found in op.found]

    @property
    def cases(self) -> tuple[str, ...]:
        """The names of the case files that show the answer."""
        return cases_of(self.answer.guilty, self.ops)


def cases_of(guilty: Guilty, ops: Sequence[AttentionOp]) -> tuple[str, ...]:
    """The case files that show a verdict: the guilty op's, or those of the attention in the guilty tensor's layer."""
    match guilty:
        case AttentionWrong(case=name) | AttentionOverflows(case=name):
            return (name,)
        case OtherOpWrong(node=node) | NotFinite(node=node) | PartsWithout(node=node):
            return tuple(op.case for op in ops if (op.layer, op.step, op.part) == (node.layer, node.step, node.part))
        case AsDesigned():
            return next((op.case,) for op in ops if any(found.warning for found in op.found))
        case Innocent():
            return ()


def raise_if_wrong(result: Result, sentence: str) -> None:
    """End the command by its answer; returns if nothing is wrong, and something was judged.

    Raises ComparisonError (exit 5) for a culprit, or if no target supports an op; LostError (4) if a run was lost.
    """
    if result.answer.is_wrong:
        raise ComparisonError(sentence)
    lost = [found for found in result.judgements if found.status is Status.LOST]
    if lost:
        raise LostError(f"{len(lost)} ops were lost: {lost[0].case} on {lost[0].on}: {lost[0].reason}")
    if all(found.status is Status.UNSUPPORTED for found in result.judgements):
        raise ComparisonError("no attention op was judged: none is supported on its target")
