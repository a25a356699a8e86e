"""`compare --kernel`: several attention kernels on the same cases and targets, judged in the same way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.errors import TimedOutError
from fattn_probe.cases.device import Device, Target
from fattn_probe.cases.op import Op
from fattn_probe.cases.scenario import Case
from fattn_probe.lab.kernels.contender import Contender, How, Outcome, Output, Question
from fattn_probe.lab.kernels.names import LLAMA
from fattn_probe.lab.profile.command import device_of
from fattn_probe.machine.run.command import Work
from fattn_probe.machine.run.inputs import inputs_of
from fattn_probe.machine.run.outcome import Failed, Finding, Lost, Unsupported
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.diagnose.diagnosis import Evidence, diagnose
from fattn_probe.verdict.judge.cases import Answers, judge_on
from fattn_probe.verdict.judge.checks import Checks, is_huge
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.judge.support import finding_of, verdict_without_output
from fattn_probe.verdict.measure.expected import DECIDES, Expected, with_gaps
from fattn_probe.verdict.measure.metrics import digest_of
from fattn_probe.verdict.measure.verdict import Status, judge, upstream_says
from fattn_probe.verdict.truth.error_model.predict import predict
from fattn_probe.verdict.truth.reference.adapter import operand_values


@dataclass(frozen=True)
class ContenderRow:
    """The result of a kernel on a case and a target. `device` has the GPU's figures; None if unknown."""

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
        """The timed runs; none on a simulated GPU, where times are those of this computer."""
        return self.judgement.seconds if self.target.engine == "cuda" else ()

    @property
    def named(self) -> Judgement:
        """The judgement, with the kernel in the case's name."""
        return replace(self.judgement, case=f"{self.case.name} with {self.kernel}")


@dataclass(frozen=True)
class Contest:
    """Kernels that compute the same cases; None stands for llama.cpp's own kernels, which the session runs."""

    session: Session
    contenders: Sequence[Contender | None]
    how: How
    checks: Checks
    step: Step = quiet

    def rows(self, work: Work) -> Iterator[ContenderRow]:
        """Run every case on each of its targets with every kernel; yields each row as soon as it is known."""
        targets = {str(target): target for _, wanted in work for target in wanted}
        gpus = {name: None if one.engine == "cpu" else device_of(one) for name, one in targets.items()}
        timed = replace(self.session, options=self.how.timed(self.session.options))
        with self.session.persistent_runner(), timed.persistent_runner():
            for case, wanted in work:
                with inputs_of(case) as inputs:
                    answers = Answers(case, inputs, self.step)
                    for target in wanted:
                        session = timed if target.engine == "cuda" else self.session
                        for contender in self.contenders:
                            found = self.judged(session, answers, contender, target)
                            name = LLAMA if contender is None else contender.name
                            yield ContenderRow(name, case, target, found, gpus[str(target)])

    def judged(self, session: Session, answers: Answers, contender: Contender | None, target: Target) -> Judgement:
        """The judgement on a kernel's output, always with the same exact answer."""
        case = answers.case
        if contender is None:
            return judge_on(session, answers, target, self.checks)
        self.step(f"{case.name} on {target}: running {contender.name}")
        question = Question(case, answers.inputs)
        outcome = self.outcome(question, contender, target)
        if not isinstance(outcome, Output):
            return ended(case, target, outcome)
        reference, masked = answers.reference
        expected = expected_of(question, contender)
        verdict = judge(outcome.dst, reference, case.tolerance, masked, expected)
        diagnosis = None
        if verdict.status is Status.FAIL and verdict.deviation is not None:
            diagnosis = diagnose(Evidence(case, question.inputs, outcome.dst, verdict.deviation, None))
        return Judgement(
            case=case.name,
            on=str(target),
            tolerance=case.tolerance,
            verdict=verdict,
            launches=outcome.launches,
            upstream=upstream_says(outcome.dst, reference),
            missing=expected.missing,
            diagnosis=diagnosis,
            digest=case.digest,
            output=digest_of(outcome.dst),
            seconds=outcome.seconds,
            dst=outcome.dst,
        )

    def outcome(self, question: Question, contender: Contender, target: Target) -> Outcome:
        """The output of a contender; all get the same question, which does not support huge ops."""
        if is_huge(question.case):
            return Unsupported("the op is too large to be computed whole")
        try:
            return contender.run(question, target, self.how)
        except TimedOutError as error:
            return Lost(str(error))


def ended(case: Case, target: Target, outcome: Unsupported | Finding | Failed | Lost) -> Judgement:
    """The judgement on a kernel that computed nothing."""
    verdict, finding = verdict_without_output(outcome), finding_of(outcome)
    return Judgement(case.name, str(target), case.tolerance, verdict, finding=finding)


def expected_of(question: Question, contender: Contender) -> Expected:
    """The expected error of a contender's arithmetic on a case, if known."""
    op = question.op
    kernel = contender.arithmetic(op)
    if kernel is None:
        return Expected(missing=f"there is no error model of this kernel: {DECIDES}")
    return with_gaps(Expected(predict(op, operand_values(op, question.inputs), kernel)))
