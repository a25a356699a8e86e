"""`compare --kernel`: several attention kernels on the same cases and targets, judged in the same way."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.errors import TimedOutError
from fattn_probe.base.tables import Table
from fattn_probe.cases.device import Device, Target
from fattn_probe.cases.op.op import row_size
from fattn_probe.cases.scenario import Case
from fattn_probe.lab.kernels.contender import Contender, How, Outcome, Output, Question
from fattn_probe.lab.kernels.names import LLAMA, Package
from fattn_probe.lab.profile.command import device_of
from fattn_probe.lab.profile.roofline import Point, roof_of
from fattn_probe.machine.run.capture import inputs_of
from fattn_probe.machine.run.command import Work
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
from fattn_probe.verdict.present.tables import STYLES, by_design, explanations, rows_as_json
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
    def ran(self) -> bool:
        """Whether the kernel produced an output."""
        return self.judgement.output is not None

    @property
    def seconds(self) -> tuple[float, ...]:
        """The timed runs; empty on a simulated GPU, where the times would be those of this computer."""
        return self.judgement.seconds if self.target.engine == "cuda" else ()

    @property
    def point(self) -> Point:
        """The median of the timed runs on the roofline.

        Operations: both matrix products without regard to the mask, as in test-backend-ops. Bytes: all tensors, once.
        """
        op = self.case.op
        operands = sum(math.prod(view.ne[1:]) * row_size(view.type, view.ne[0]) for view in op.operands.values())
        median = statistics.median(self.seconds) if self.seconds else None
        return Point(self.kernel, op.sizes.flop, operands + 4 * math.prod(op.sizes.dst), median)

    @property
    def share(self) -> float | None:
        """The speed as a fraction of the roofline for tensor cores and memory, even without tensor-core instructions.

        None if the GPU's figures are unknown or there are no timed runs.
        """
        roof = None if self.device is None else roof_of(self.device, tensor=True)
        return None if roof is None else self.point.share(roof)

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
        warmup, repeats = self.how.timing
        timed = replace(self.session, options=replace(self.session.options, warmup=warmup, repeat=repeats))
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
        """The output of a contender; all contenders get the same question, which cannot hold a huge op."""
        if is_huge(question.case):
            return Unsupported("the op is too large to be computed in full")
        try:
            return contender.run(question, target, self.how)
        except TimedOutError as error:
            return Lost(str(error))


def ended(case: Case, target: Target, outcome: Unsupported | Finding | Failed | Lost) -> Judgement:
    """The judgement on a kernel that produced no output."""
    verdict, finding = verdict_without_output(outcome), finding_of(outcome)
    return Judgement(case.name, str(target), case.tolerance, verdict, finding=finding)


def expected_of(question: Question, contender: Contender) -> Expected:
    """The expected error of a contender's arithmetic on a case, if known."""
    op = question.op
    kernel = contender.arithmetic(op)
    if kernel is None:
        return Expected(missing=f"there is no error model for this kernel: {DECIDES}")
    return with_gaps(Expected(partial(predict, op, operand_values(op, question.inputs), kernel)))


CONFIDENCE = 0.95
COLUMNS = ("case\non", "kernel", "NMSE\nmax error", "by design", "bits")
TIMED = ("time\ninterval", "TFLOP/s\nGB/s", "of the\nroofline")
NUMBERS = frozenset(TIMED)
DIGITS = 8
"""Digits of an output's sha256 in the table: the same digits mean the same bits."""


def interval(seconds: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, from order statistics; the extremes for too few runs."""
    ordered, n = sorted(seconds), len(seconds)
    # the probability that fewer than r of n runs are below the median
    below = [sum(math.comb(n, k) for k in range(r)) / 2**n for r in range(n // 2 + 1)]
    rank = max((r for r, probability in enumerate(below) if probability <= (1 - CONFIDENCE) / 2), default=0)
    return ordered[max(0, rank - 1)], ordered[min(n - 1, n - rank)]


def render(rows: Sequence[ContenderRow], contenders: Sequence[Contender | None], *, maps: bool) -> RenderableType:
    """A table of the rows, with times if some were timed, then explanations."""
    timed = TIMED if any(row.seconds for row in rows) else ()
    columns = (*COLUMNS, *timed, "verdict")
    pairs = zip(rows, [None, *rows], strict=False)
    cells = tuple(tuple(cells_of(row, before, timed=bool(timed))) for row, before in pairs)
    table = Table(columns, cells, NUMBERS & set(columns), heading=("case\non", "kernel"))
    explained = explanations([row.named for row in rows], maps)
    return Group(table, Text(), *notes(rows, contenders, timed=bool(timed)), *explained)


def cells_of(row: ContenderRow, before: ContenderRow | None, *, timed: bool) -> Iterator[Text]:
    """A row's cells; case and target appear once, for several kernels."""
    verdict = row.judgement.verdict
    metrics = verdict.metrics
    same = before is not None and (before.case, before.target) == (row.case, row.target)
    yield Text("" if same else f"{row.case.name}\n{row.target}")
    yield Text(row.kernel)
    yield Text("-" if metrics is None else f"{metrics.nmse:.2e}\n{metrics.max_abs:.2e}")
    yield Text(by_design(verdict.design))
    yield Text((row.judgement.output or "-")[:DIGITS])
    if timed and not row.seconds:
        yield from (Text("-") for _ in TIMED)
    elif timed:
        low, high = (1e6 * seconds for seconds in interval(row.seconds))
        median = statistics.median(row.seconds)
        yield Text(f"{1e6 * median:.4g} µs\n{low:.4g} to {high:.4g}")
        yield Text(f"{row.point.flops / median / 1e12:.3g}\n{row.point.bytes / median / 1e9:.3g}")
        yield Text("-" if row.share is None else f"{100 * row.share:.2g} %")
    yield Text(row.judgement.status.value, STYLES[row.judgement.status])


def notes(rows: Sequence[ContenderRow], contenders: Sequence[Contender | None], *, timed: bool) -> Iterator[Text]:
    """The meaning of the columns, and further commands."""
    if len({row.judgement.output for row in rows if row.judgement.output}) > 1:
        yield Text("bits: the start of the output's sha256, the same for identical outputs", "dim")
    if timed:
        yield Text("time: the median and its 95 % interval; FLOP/s include the masked part", "dim")
        yield Text("roofline: of the GPU's tensor cores and memory, for a kernel that reads each operand once", "dim")
    for one in contenders:
        if not isinstance(one, Package) or not one.off_gpu:
            continue
        if any(row.kernel == one.name and row.ran and row.target.engine != "cuda" for row in rows):
            yield Text(f"{one.name}: {one.off_gpu}", "dim")
    for algorithm in dict.fromkeys(one.algorithm for one in contenders if one is not None and one.algorithm):
        names = [one.name for one in contenders if one is not None and one.algorithm == algorithm]
        case = rows[0].case.name.partition("/")[0]
        yield Text(f"algorithm of {', '.join(names)}: fattn-probe study {case} --algorithm {algorithm}", "dim")


def document(rows: Sequence[ContenderRow]) -> dict[str, Any]:
    """The JSON document of `compare`, with kernel, launches, seconds, flop and bytes in each row."""
    found = rows_as_json([row.judgement for row in rows])
    for row, item in zip(rows, found["rows"], strict=True):
        item |= {"contender": row.kernel, "launches": [launch.document() for launch in row.judgement.launches]}
        item |= {"seconds": list(row.seconds), "flop": row.point.flops, "bytes": row.point.bytes}
        item["roofline_share"] = row.share
    return found
