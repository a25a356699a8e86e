"""The result of a triage: the answer and its evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fattn_probe.base.errors import ComparisonError, LostError
from fattn_probe.daily.models.walk import Node
from fattn_probe.daily.triage.guilty import (
    Answer,
    AsDesigned,
    AttentionOverflows,
    AttentionWrong,
    Innocent,
    NotFinite,
    OtherOpWrong,
    PartsWithout,
    Unknown,
)
from fattn_probe.daily.triage.verdict import AttentionOp
from fattn_probe.verdict.judge.judgement import Judgement


@dataclass(frozen=True)
class TriageResult:
    """The answer, the attention ops and tensors of the run, and a description of the run.

    `run` is that of the index of captured ops: model, prompts, source, steps. `left_out` are ops that exceeded the
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
        """The positions of a sequence."""
        return int(self.run["model"].get("context", 0))

    @property
    def judgements(self) -> list[Judgement]:
        """All judgements of attention ops."""
        return [found for op in self.ops for found in op.found]

    @property
    def cases(self) -> tuple[str, ...]:
        """The case files for the answer: that of the wrong op, or those of attention in the tensor's layer."""
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
    """Raise the error for the exit code of the answer; returns if nothing is wrong.

    Raises ComparisonError (exit 5) for a culprit, or if no attention op was judged; LostError (4) if a run was lost.
    """
    if isinstance(answer.guilty, Unknown) and answer.guilty.lost:
        raise LostError(sentence)
    if answer.is_wrong or isinstance(answer.guilty, Unknown):
        raise ComparisonError(sentence)
