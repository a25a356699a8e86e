"""Run a model, judge its attention ops, walk through its tensors, and name the wrong op."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fattn_probe.base.activity import Activity
from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.op.op import is_quantized
from fattn_probe.cases.scenario.cases import recorded_case
from fattn_probe.daily.models.capture import ModelCapture
from fattn_probe.daily.models.program import CPU, Request
from fattn_probe.daily.models.recorded_op import Index
from fattn_probe.daily.models.walk import Nodes, walk
from fattn_probe.daily.triage.verdict import AttentionOp, TriageResult, verdict_of
from fattn_probe.machine.run.capture import inputs_of
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.judge.cases import Answers, judge_on
from fattn_probe.verdict.truth.reference.adapter import check_inputs


@dataclass(frozen=True)
class Triage:
    """A triage: the run of a model, the targets that replay its ops, and the folder for the recorded ops."""

    session: Session
    request: Request
    targets: Sequence[Target]
    folder: Path
    activity: Activity

    def run(self) -> TriageResult:
        """Record the ops, walk through the graph, judge, and return the result."""
        index = ModelCapture(self.session, self.request, CPU, self.folder, self.activity.note, self.activity.step).run()
        nodes = walk(self.session, self.request, self.targets, self.activity.step)
        without: Nodes = ()
        if not is_quantized(self.request.type_V):  # attention without flash attention cannot read a quantised V
            without = walk(self.session, replace(self.request, flash_attn=False), (), self.activity.step)
        ops = self.judged(index)
        result_of = verdict_of(ops, nodes, without, index.run["model"].get("context", 0))
        names = [str(target) for target in self.targets]
        return TriageResult(result_of, ops, nodes, names, index.run, index.left_out, compared=bool(without))

    def judged(self, index: Index) -> list[AttentionOp]:
        """The recorded ops with their judgements on all targets; an op with non-finite inputs has no judgements."""
        ops: list[AttentionOp] = []
        cases = [recorded_case(self.folder / entry.file) for entry in index.entries]
        self.activity.step("finding the kernels that the ops need")
        prepare(self.session, [(case, list(self.targets)) for case in cases])
        self.activity.total = len(index.entries) * len(self.targets)
        with self.session.persistent_runner():
            for entry, case in zip(index.entries, cases, strict=True):
                offer = entry.offer
                op = AttentionOp(offer.layer, offer.step, offer.part, offer.phase, case.name, ())
                with inputs_of(case) as inputs:
                    try:
                        check_inputs(case.op, inputs, case.name)
                    except InputError as error:
                        ops.append(replace(op, unjudged=str(error)))
                        continue
                    answers = Answers(case, inputs, self.activity.step)
                    judged = (judge_on(self.session, answers, target) for target in self.targets)
                    ops.append(replace(op, found=tuple(self.activity.each(judged, lambda one: one.status.value))))
        return ops
