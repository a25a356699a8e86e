"""`compare --kernel`: several attention kernels on the same cases and targets, judged alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fattn_probe.activity import Step, quiet
from fattn_probe.compare.diagnose.diagnosis import Evidence, diagnose
from fattn_probe.compare.judge.agreement import digest_of
from fattn_probe.compare.judge.cases import JudgedCase
from fattn_probe.compare.judge.checks import Checks, is_huge
from fattn_probe.compare.judge.expected import Expected
from fattn_probe.compare.judge.finding import finding_of
from fattn_probe.compare.judge.judgement import Judgement, judgement_of
from fattn_probe.compare.judge.outcome import verdict_without_output
from fattn_probe.compare.judge.verdict import Status
from fattn_probe.device import Device, Target
from fattn_probe.errors import TimedOutError
from fattn_probe.kernels.contender import Contender, How, Outcome, Output, Question
from fattn_probe.kernels.names import LLAMA
from fattn_probe.op import Op
from fattn_probe.profile.command import device_of
from fattn_probe.run.command import Work
from fattn_probe.run.inputs import inputs_of
from fattn_probe.run.outcome import Failed, Fault, Lost, Unsupported
from fattn_probe.run.session import Session
from fattn_probe.scenario import Case
from fattn_probe.truth.error_model import LargeValuesError, predict_kernel
from fattn_probe.truth.reference.adapter import operand_values


@dataclass(frozen=True)
class Row:
    """A kernel on a case and a target: what was found. `device` has the GPU's figures; None if they are not known."""

    kernel: str
    case: Case
    target: Target
    judgement: Judgement
    device: Device | None = None

    @property
    def op(self) -> Op:
        """The case's op."""
        return self.case.op

    @property
    def ran(self) -> bool:
        """Whether the kernel computed something."""
        return self.judgement.output is not None

    @property
    def seconds(self) -> tuple[float, ...]:
        """The timed runs; none on a simulated GPU, whose times are this computer's."""
        return self.judgement.seconds if self.target.engine == "cuda" else ()

    @property
    def named(self) -> Judgement:
        """The judgement, with the kernel in the case's name."""
        return replace(self.judgement, case=f"{self.case.name} with {self.kernel}")


@dataclass(frozen=True)
class Contest:
    """Kernels that compute the same cases; None stands for llama.cpp's, which the session runs."""

    session: Session
    contenders: Sequence[Contender | None]
    how: How
    checks: Checks
    step: Step = quiet

    def rows(self, work: Work) -> Iterator[Row]:
        """Every case on each of its targets by every kernel; yields a row as soon as it is known."""
        targets = {str(target): target for _, wanted in work for target in wanted}
        gpus = {name: gpu_of(target) for name, target in targets.items()}
        timed = replace(self.session, options=self.how.timed(self.session.options))
        with self.session.persistent_runner(), timed.persistent_runner():
            for case, wanted in work:
                with inputs_of(case) as inputs:
                    here, on_gpu = (
                        JudgedCase(session, case, inputs, self.checks, self.step) for session in (self.session, timed)
                    )
                    for target in wanted:
                        judged = on_gpu if target.engine == "cuda" else here
                        for contender in self.contenders:
                            yield replace(self.row(judged, contender, target), device=gpus[str(target)])

    def row(self, judged: JudgedCase, contender: Contender | None, target: Target) -> Row:
        """One kernel on one target."""
        if contender is None:
            return Row(LLAMA, judged.case, target, self.llama(judged, target))
        self.step(f"{judged.case.name} on {target}: running {contender.name}")
        outcome = self.outcome(judged, contender, target)
        found = self.judged(judged, contender, target, outcome)
        return Row(contender.name, judged.case, target, replace(found, digest=judged.case.digest))

    def llama(self, judged: JudgedCase, target: Target) -> Judgement:
        """llama.cpp's kernels."""
        if target.device is not None and target.device.gfx:
            return ended(judged.case, target, Unsupported("llama.cpp's kernels are not compiled for AMD's GPUs here"))
        return judged.on(target)

    def outcome(self, judged: JudgedCase, contender: Contender, target: Target) -> Outcome:
        """What another kernel computes; the same question for all, which a huge op does not fit."""
        if is_huge(judged.case):
            return Unsupported("the op is too large to be computed whole")
        try:
            return contender.run(Question(judged.case, judged.inputs), target, self.how)
        except TimedOutError as error:
            return Lost(str(error))

    def judged(self, judged: JudgedCase, contender: Contender, target: Target, outcome: Outcome) -> Judgement:
        """The judgement on what another kernel computed, by the same exact answer as llama.cpp's."""
        case = judged.case
        if not isinstance(outcome, Output):
            return ended(case, target, outcome)
        reference, masked = judged.reference
        found = judgement_of(case, str(target), outcome, reference, masked, expected=expected_of(judged, contender))
        found = replace(found, output=digest_of(outcome.dst), seconds=outcome.seconds)
        deviation = found.verdict.deviation
        if found.status is not Status.FAIL or deviation is None:
            return found
        evidence = Evidence(case, judged.inputs, outcome.dst, deviation, None)
        return replace(found, diagnosis=diagnose(evidence))


def gpu_of(target: Target) -> Device | None:
    """The figures of a target's GPU; None for the CPU, and for a GPU that the catalogue lacks."""
    return None if target.engine == "cpu" else device_of(target)


def ended(case: Case, target: Target, outcome: Unsupported | Fault | Failed | Lost) -> Judgement:
    """The judgement on a kernel that computed nothing."""
    verdict, finding = verdict_without_output(outcome), finding_of(outcome)
    return Judgement(case.name, str(target), case.tolerance, verdict, finding=finding)


def expected_of(judged: JudgedCase, contender: Contender) -> Expected:
    """The error that a contender's arithmetic makes on a case, if that is known."""
    kernel = contender.arithmetic(judged.case.op)
    if kernel is None:
        return Expected(missing="there is no error model of this kernel: the scenario's tolerance decides")
    try:
        return Expected(predict_kernel(judged.case.op, operand_values(judged.case.op, judged.inputs), kernel))
    except LargeValuesError as error:
        return Expected(missing=f"{error}: the scenario's tolerance decides")
