"""Run a model, judge its attention ops, walk through its tensors, and name the guilty."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fattn_probe.activity import Activity
from fattn_probe.compare.judge.cases import JudgedCase
from fattn_probe.compare.judge.checks import Checks
from fattn_probe.device import Target
from fattn_probe.errors import InputError
from fattn_probe.models.capture import ModelCapture
from fattn_probe.models.index import Entry, Index
from fattn_probe.models.program import CPU
from fattn_probe.models.request import Request
from fattn_probe.models.walk import Nodes, walk
from fattn_probe.op.ggml_types import is_quantized
from fattn_probe.run.inputs import inputs_of
from fattn_probe.run.prepare import prepare
from fattn_probe.run.session import Session
from fattn_probe.scenario.files import recorded_case
from fattn_probe.triage.attention import AttentionOp
from fattn_probe.triage.result import Result
from fattn_probe.triage.verdict import verdict_of
from fattn_probe.truth.reference.adapter import check_inputs


@dataclass(frozen=True)
class Triage:
    """A triage: the run of a model, the targets of its ops, and the folder for the recorded ops."""

    session: Session
    request: Request
    targets: Sequence[Target]
    folder: Path
    activity: Activity

    def run(self) -> Result:
        """Record, walk, judge, and answer."""
        index = ModelCapture(self.session, self.request, CPU, self.folder, self.activity.note, self.activity.step).run()
        nodes = walk(self.session, self.request, self.targets, self.activity.step)
        without = self.without()
        ops = self.judged(index)
        result_of = verdict_of(ops, nodes, without, index.run["model"].get("context", 0))
        names = [str(target) for target in self.targets]
        return Result(result_of, ops, nodes, names, index.run, index.left_out, compared=bool(without))

    def without(self) -> Nodes:
        """The tensors of the run without flash attention; none if its V cannot be of the request's type."""
        if is_quantized(self.request.type_V):
            return ()
        return walk(self.session, replace(self.request, flash_attn=False), (), self.activity.step)

    def judged(self, index: Index) -> list[AttentionOp]:
        """The recorded ops with their judgements on all targets."""
        cases = [recorded_case(self.folder / entry.file) for entry in index.entries]
        self.activity.step("finding the kernels that the ops need")
        prepare(self.session, [(case, list(self.targets)) for case in cases])
        self.activity.total = len(index.entries) * len(self.targets)
        with self.session.persistent_runner():
            return [self.judged_op(entry) for entry in index.entries]

    def judged_op(self, entry: Entry) -> AttentionOp:
        """One op with its judgements; without, if its inputs are not finite."""
        case, offer = recorded_case(self.folder / entry.file), entry.offer
        op = AttentionOp(offer.layer, offer.step, offer.part, offer.phase, case.name, ())
        with inputs_of(case) as inputs:
            try:
                check_inputs(case.op, inputs, case.name)
            except InputError as error:
                return replace(op, unjudged=str(error))
            judged = JudgedCase(self.session, case, inputs, Checks(), self.activity.step)
            found = tuple(self.activity.each(map(judged.on, self.targets), lambda one: one.status.value))
        return replace(op, found=found)
