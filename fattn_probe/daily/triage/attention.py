"""The attention ops of a model's run with their judgements, and the suspects among them."""

from collections.abc import Sequence
from dataclasses import dataclass

from fattn_probe.daily.triage.guilty import AttentionOverflows, AttentionWrong
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.verdict import Status


@dataclass(frozen=True)
class AttentionOp:
    """A recorded attention op: its place in the run, its case file, and its judgements, one for each target.

    `unjudged` is the reason if there are none: its inputs are not finite.
    """

    layer: int
    step: int
    part: int
    phase: str
    case: str
    found: Sequence[Judgement]
    unjudged: str = ""


def overflows_by_design(found: Judgement) -> bool:
    """Whether the only failure is a non-finite output that the kernel's arithmetic itself produces."""
    metrics, design = found.verdict.metrics, found.verdict.design
    return (
        found.verdict.status is Status.FAIL
        and metrics is not None
        and not metrics.all_finite
        and metrics.unwritten == 0
        and design is not None
        and design.by == "model"
        and design.passes
    )


def suspect_of(op: AttentionOp, found: Judgement) -> AttentionWrong | AttentionOverflows | None:
    """The fault of an op according to a judgement, with the place and cause of the diagnosis; None if it passes.

    Also None if there is no verdict.
    """
    if found.status is not Status.FAIL:
        return None
    said, metrics, finding = found.diagnosis, found.verdict.metrics, found.finding
    reason = found.reason.partition("\n")[0]
    if metrics is not None and overflows_by_design(found):
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


def warnings_by_layer(ops: Sequence[AttentionOp]) -> dict[int, tuple[str, ...]]:
    """The accuracy warnings of correct ops, by layer, each once."""
    found: dict[int, dict[str, None]] = {}
    for op in ops:
        for one in op.found:
            if one.warning:
                found.setdefault(op.layer, {})[f"step {op.step} on {one.on}: {one.warning}"] = None
    return {layer: tuple(words) for layer, words in sorted(found.items())}
