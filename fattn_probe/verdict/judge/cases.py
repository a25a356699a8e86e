"""Judge a case on a target: run it, compute what is expected, compare, and explain a failure.

Each step is a function of a `JudgedCase`; `judged` calls them in order and returns the `Judgement`.
"""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.arrays import F32, F64, I64, Bools, Bytes
from fattn_probe.base.errors import LostError, NoAnswerError
from fattn_probe.base.figures import first_of
from fattn_probe.cases.device import Target, is_amd
from fattn_probe.cases.op import Op
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.launch.architecture import AMD, arch_number
from fattn_probe.llama.launch.constants import Constants, known_constants, vec_adds_in_f16
from fattn_probe.llama.launch.families import VEC
from fattn_probe.llama.launch.geometry import Geometry, division_origin, geometry_of
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.base import base_of
from fattn_probe.machine.run.capture import Capture, Part, inputs_of
from fattn_probe.machine.run.command import Work, describe
from fattn_probe.machine.run.outcome import Finding, Ran, RunOutcome
from fattn_probe.machine.run.prepare import dry_launches, prepare
from fattn_probe.machine.run.session import Session, arch_of
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis, Evidence, diagnose, needs_another, with_another
from fattn_probe.verdict.judge.bitwise import Alone, Check, batch_invariance, beside, not_made, repeated, slice_of
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.expectation import bit_exact, expected_of, uses_model
from fattn_probe.verdict.judge.judgement import Judgement, attention_kernel, status_of
from fattn_probe.verdict.judge.known import UPSTREAMS, Failure, Known, known_defect
from fattn_probe.verdict.judge.origin import origin_in
from fattn_probe.verdict.judge.support import (
    LOST,
    finding_of,
    kernels,
    last_known,
    supporting,
    taken_without_patches,
    verdict_without_output,
)
from fattn_probe.verdict.measure.expected import DECIDES, Design, Expected
from fattn_probe.verdict.measure.metrics import digest_of
from fattn_probe.verdict.measure.sampled import judge_sample, rows_of_selection, sampled_of
from fattn_probe.verdict.measure.sampled import rows_of as sampled_rows
from fattn_probe.verdict.measure.verdict import Status, Verdict, few_bits, judge, upstream_says
from fattn_probe.verdict.truth.reference.adapter import check_output, fully_masked_of, operand_values, reference_of
from fattn_probe.verdict.truth.reference.sampled import Sample, sample, spaced
from fattn_probe.verdict.truth.rounding_model.dispatch import MODELLED


@dataclass
class Answers:
    """The answers for a case, computed once for all of its targets: the exact answer, and the expected outputs."""

    case: Case
    inputs: Mapping[str, Bytes]
    step: Step = quiet
    expected: dict[Hashable, Expected] = field(default_factory=dict)

    @cached_property
    def reference(self) -> tuple[F64, Bools | None]:
        """The exact answer, and the fully masked rows."""
        self.step(f"{self.case.name}: computing the exact reference")
        op = self.case.op
        return reference_of(op, self.inputs, self.case.name), fully_masked_of(op, self.inputs)


@dataclass(frozen=True)
class JudgedCase:
    """A case for a target and the build of a session, and how it is judged.

    `arch` is nvcc's number for the architecture. `constants` are those of the source's kernels, None if unknown. `part`
    is the part of the case to run and to judge, None for the whole case. `geometry` is the launches' division of the
    output, None before a run and for unknown kernels. `baseline` is a correct run on the same target: its output
    replaces the rounding model. Failures with a baseline are not diagnosed, nor are those with `diagnosed` False.
    """

    session: Session
    answers: Answers
    target: Target
    checks: Checks
    arch: int
    constants: Constants | None
    part: Part | None = None
    geometry: Geometry | None = None
    baseline: Capture | None = None
    diagnosed: bool = True

    @property
    def case(self) -> Case:
        """The case."""
        return self.answers.case

    @property
    def inputs(self) -> Mapping[str, Bytes]:
        """The bytes of the case's roots."""
        return self.answers.inputs

    def step(self, what: str) -> None:
        """Report the current step on the target."""
        self.answers.step(f"{self.case.name} on {self.target}: {what}")

    @property
    def cc(self) -> str:
        """The compute capability, such as 9.0, or AMD's architecture, such as gfx906."""
        if self.arch >= AMD:
            return f"gfx{self.arch - AMD:x}"
        major, minor = divmod(self.arch, 10)
        return f"{major}.{minor}"

    def launched(self, launches: Sequence[LaunchRecord]) -> "JudgedCase":
        """A copy with the geometry of these launches."""
        return replace(self, geometry=geometry_of(self.case.op, launches, self.arch, self.constants))

    def run(self, number: int = 0) -> Capture | RunOutcome:
        """Run the case, or its part; on a simulated GPU, each repeat uses a different order of warps."""
        if number:
            return self.session.reordered(number).capture(self.case, self.inputs, self.target, self.part)
        some = self.part is not None and self.target.engine == "sim"
        share = f" {100 * self.part.share:.2g} % of its blocks" if some and self.part is not None else ""
        self.step(f"running{share}")
        return self.session.capture(self.case, self.inputs, self.target, self.part)

    def digest_of(self, capture: Capture) -> str:
        """The digest of the rows that a run computed."""
        return digest_of(capture.dst if self.part is None else capture.dst[tuple(self.part.rows.T)])


def judged_case(session: Session, answers: Answers, target: Target, checks: Checks) -> JudgedCase:
    """Prepare a case for a target; for a large case, a dry run shows how the launch divides it, to choose a part."""
    case, arch, constants = answers.case, arch_number(arch_of(target)), known_constants(session.options.tree)
    made = JudgedCase(session, answers, target, checks, arch, constants)
    if target.engine == "cpu" or not checks.may_take_part(case):
        return made
    made.step("choosing what to run")
    launches = dry_launches(session, case, target)
    made = made.launched(launches)
    return made if made.geometry is None else replace(made, part=checks.part(case, made.geometry, launches, target))


def judge_cases(session: Session, work: Work, checks: Checks | None = None, step: Step = quiet) -> Iterator[Judgement]:
    """Judge each case on each of its targets; yields each judgement as soon as it is known."""
    with session.persistent_runner():
        for case, targets in work:
            with inputs_of(case) as inputs:
                answers = Answers(case, inputs, step)
                yield from (judge_on(session, answers, target, checks) for target in targets)


def judge_case(session: Session, case: Case, target: Target, checks: Checks | None = None) -> Judgement:
    """Run one case on one target, and judge it."""
    with inputs_of(case) as inputs:
        return judge_on(session, Answers(case, inputs), target, checks)


def judge_on(session: Session, answers: Answers, target: Target, checks: Checks | None = None) -> Judgement:
    """Run a case with known inputs on a target, and judge it."""
    subject = judged_case(session, answers, target, checks or Checks())
    return judged(subject, subject.run())


def judged(subject: JudgedCase, result: Capture | RunOutcome) -> Judgement:
    """The judgement of one run, with or without an output."""
    if isinstance(result, Capture):
        return judged_output(subject, result)
    case, target, checks = subject.case, subject.target, tuple[Check, ...]()
    if isinstance(result, Ran):
        raise LostError(f"{case.name} ran without an output")
    verdict, finding = verdict_without_output(result), finding_of(result)
    if verdict.status is Status.UNSUPPORTED and target.engine != "cpu":
        verdict, checks = refused(subject, verdict)
    known = as_in_base(subject, known_of(subject, verdict, finding=finding), finding)
    return Judgement(
        case=case.name,
        on=str(target),
        tolerance=case.tolerance,
        verdict=verdict,
        checks=checks,
        finding=finding,
        digest=case.digest,
        known=known.id,
        doubt=known.doubt,
    )


def judged_output(subject: JudgedCase, capture: Capture) -> Judgement:
    """The judgement of a run with an output."""
    case, part, dst, device = subject.case, subject.part, capture.dst, subject.target.device
    check_output(case.op, dst, case.name)
    checks, subject = bitwise_checks(subject, capture), subject.launched(capture.launches)
    verdict, expected, sampled = verdict_of(subject, capture)
    upstream = diagnosis = None
    if expected is not None:
        own = dst if sampled is None else sampled.of(dst)[None, :, None]
        reference = subject.answers.reference[0] if sampled is None else sampled.reference[None, :, None]
        upstream = upstream_says(own, reference)
        diagnosis = explained(subject, verdict, own, None if sampled is None else sampled.rows)
    if verdict.status is Status.PASS:
        checks += checks_of_correct(subject, capture, verdict.design)
    known = as_in_base(subject, known_of(subject, verdict, checks, capture=capture))
    if known.id and diagnosis is not None:  # the defect is the cause
        diagnosis = replace(diagnosis, causes=(), worst=tuple(replace(one, cause=None) for one in diagnosis.worst))
    return Judgement(
        case=case.name,
        on=str(subject.target),
        tolerance=case.tolerance,
        verdict=verdict,
        launches=capture.launches,
        upstream=upstream,
        missing="" if expected is None else expected.missing,
        diagnosis=diagnosis,
        checks=checks,
        sampled=None if sampled is None else sampled_of(case, sampled.rows, part, subject.target),
        digest=case.digest,
        output=subject.digest_of(capture),
        seconds=capture.seconds,
        known=known.id,
        doubt=known.doubt,
        dst=None if expected is None or sampled is not None else dst,
        division=None
        if device is None
        else division_origin(capture.launches, device, None if subject.constants is None else subject.geometry),
    )


def verdict_of(subject: JudgedCase, capture: Capture) -> tuple[Verdict, Expected | None, Sample | None]:
    """The verdict on an output, the expected output, and the checked rows (None for all).

    If the op has no exact answer, the verdict is unjudged, and there is no expected output.
    """
    case, part, number = subject.case, subject.part, subject.checks.number_of_rows
    try:
        if part is None and not subject.checks.samples(case):
            reference, masked = subject.answers.reference
            expected = expect(subject, capture)
            predictions = subject.checks.predictions
            found = judge(capture.dst, reference, case.tolerance, masked, expected, predictions=predictions)
            return found, expected, None
        if part is None or subject.geometry is None:
            rows = sampled_rows(case, subject.geometry, number)
        else:
            rows = rows_of_selection(case, subject.geometry, part.selection, number)
        subject.answers.step(f"{case.name}: computing the exact reference for {len(rows)} rows")
        sampled = sample(case, rows, operand_values(case.op, subject.inputs), all_heads=part is None)
        expected = expect(subject, capture, rows)
        among = None if part is None else part.rows
        return judge_sample(case, capture.dst, sampled, expected, among=among), expected, sampled
    except NoAnswerError as error:
        return Verdict(Status.UNJUDGED, str(error)), None, None


def expect(subject: JudgedCase, capture: Capture, rows: I64 | None = None) -> Expected:
    """The expected output of the kernel that ran, for all rows or those given."""
    case, arch, tree, baseline = subject.case, subject.arch, subject.session.options.tree, subject.baseline
    kernel = None if subject.geometry is None else subject.geometry.kernel
    if not capture.launches:
        return Expected(missing=f"ggml's CPU backend has no error model: {DECIDES}")
    if kernel is None and any(launch.family for launch in capture.launches):
        return Expected(missing=f"this kernel's configuration is not known from the source: {DECIDES}")
    if kernel is None:
        names = first_of(sorted({launch.kernel for launch in capture.launches}), 3)
        return Expected(missing=f"none of the launched kernels is known ({names}): {DECIDES}, and small errors pass")
    if kernel.family is VEC and tree is not None and vec_adds_in_f16(tree, arch):
        found = Expected(missing=f"{VEC.kernel} of this source adds V in f16, which no error model covers: {DECIDES}")
    else:
        made, model = subject.answers.expected, subject.checks.model if baseline is None else "never"
        launched = tuple(launch.key for launch in capture.launches)
        key = (tree, arch, model, launched, None if rows is None else rows.tobytes())
        if key not in made:
            subject.step("computing the error model and the rounding model")
            made[key] = expected_of(
                case, subject.inputs, subject.geometry, arch, model, constants=subject.constants, rows=rows
            )
        found = replace(made[key], bit_exact=is_bit_exact(subject, capture))
    if baseline is None or subject.constants is None or capture.launches != baseline.launches:
        return found
    if kernel.family not in MODELLED or not uses_model(case, kernel, subject.checks.model, rows):
        return found
    return replace(found, model=baseline.dst if rows is None else baseline.dst[tuple(rows.T)][None, :, None])


def explained(subject: JudgedCase, verdict: Verdict, dst: F32, rows: I64 | None = None) -> Diagnosis | None:
    """The diagnosis of a failing output; a second run distinguishes a race from other faults."""
    deviation = verdict.deviation
    wanted = subject.diagnosed and subject.baseline is None
    if not wanted or verdict.status is not Status.FAIL or deviation is None:
        return None
    if rows is not None and not deviation.wrong.any():
        return None
    subject.step("finding what is wrong")
    evidence = Evidence(subject.case, subject.inputs, dst, deviation, subject.geometry, rows)
    found = diagnose(evidence)
    if not needs_another(found):
        return found
    subject.step("running again, since a race may look like this")
    again = subject.run(1)
    if not isinstance(again, Capture):
        return found
    race = repeated(dst, [evidence.rows_of(again.dst)], "")
    if race.fails and known_of(subject, Verdict(Status.PASS, ""), (race,), capture=again).id:
        return found  # llama.cpp itself has this race, so it is no evidence of another fault
    return with_another(found, evidence, evidence.rows_of(again.dst))


def refused(subject: JudgedCase, verdict: Verdict) -> tuple[Verdict, tuple[Check, ...]]:
    """The verdict on a refused op: fail if the source without its patches accepts the op on this GPU.

    The op also fails if an earlier release accepts it; for a source of unknown age, this cannot be decided.
    """
    origin, op, cc = origin_in(subject.session, subject.target), subject.case.op, subject.cc
    last = None if origin.is_of_unknown_age else supporting(op, cc, origin.build_number)
    if last is not None:
        gpu = cc if is_amd(cc) else f"compute capability {cc}"
        said = f"{LOST}: b{last} supports this op on {gpu}: {verdict.reason}"
        return Verdict(Status.FAIL, said), ()
    if taken_without_patches(subject.session, subject.case, subject.target):
        said = f"{LOST}: without the patches the source supports this op: {verdict.reason}"
        return Verdict(Status.FAIL, said), ()
    if origin.is_of_unknown_age or last_known(op, cc, origin.build_number) is None:
        return verdict, (not_made("support", "it is not known whether earlier releases accept this op"),)
    return verdict, ()


def known_of(
    subject: JudgedCase,
    verdict: Verdict,
    checks: tuple[Check, ...] = (),
    *,
    finding: Finding | None = None,
    capture: Capture | None = None,
) -> Known:
    """The known defect of llama.cpp that causes or may cause a failure; none if a wrong output also fails checks."""
    failed = tuple(check.name for check in checks if check.fails)
    odd = failed and (verdict.status is Status.FAIL or subject.target.engine != "sim")
    if status_of(verdict, checks) is not Status.FAIL or odd:
        return Known()

    def right_for(op: Op, memory: Mapping[str, Bytes]) -> bool:
        if capture is None:
            return False
        answers = Answers(replace(subject.case, op=op), {**subject.inputs, **memory}, subject.answers.step)
        other = replace(subject, answers=answers, baseline=None)  # the baseline is for the case's own op
        return verdict_of(other.launched(capture.launches), capture)[0].status is Status.PASS

    kernel = attention_kernel(capture.launches) if capture is not None else ""
    failure = Failure(
        subject.case.op,
        subject.cc,
        finding.kernel if finding else kernel,
        finding,
        verdict.only_masked_nan,
        failed,
        subject.inputs,
        subject.geometry is not None and subject.geometry.kernel.scanned,
        right_for,
    )
    return known_defect(failure, origin_in(subject.session, subject.target))


def as_in_base(subject: JudgedCase, known: Known, finding: Finding | None = None) -> Known:
    """A known defect of an edited or patched source if the base also fails because of it; otherwise a doubt.

    A change may add a fault with the signs of a defect to a case that the defect does not affect.
    """
    base = base_of(subject.session.options) if known.id else None
    if base is None:
        return known
    if base.missing:
        return Known(doubt=f"maybe {known.id}, {UPSTREAMS}, but {base.words} cannot run: {base.missing}")
    subject.step(f"running {base.words}, which must fail in the same way")
    options = replace(subject.session.options, tree=base.options.tree, patches=base.options.patches, beside_base=False)
    session = Session(options, subject.session.progress)
    prepare(session, [(subject.case, [subject.target])])
    without = replace(judged_case(session, subject.answers, subject.target, subject.checks), diagnosed=False)
    found = judged(without, without.run())
    if found.known == known.id and signature(found.finding) == signature(finding):
        return known
    how = f"fails differently ({found.reason.splitlines()[0]})" if found.status is Status.FAIL else "does not fail"
    return Known(doubt=f"this looks like {known.id}, {UPSTREAMS}, but {base.words} {how}")


def signature(finding: Finding | None) -> tuple[str, ...]:
    """A finding without what an edit may change: numbers, lines, and template arguments, which have argument types."""
    if finding is None:
        return ()
    functions = (re.split("<| at ", frame)[0] for frame in finding.frames)
    return (finding.kind, re.sub(r"\d+", "", finding.message), finding.kernel, *functions)


def bitwise_checks(subject: JudgedCase, capture: Capture) -> tuple[Check, ...]:
    """Check that repeated runs, and queries computed alone, give the same bits."""
    case, part, found = subject.case, subject.part, list[Check]()

    def read(dst: F32) -> F32:  # the rows that were computed and read, (1, rows, 1, hsv)
        return dst if part is None else dst[tuple(part.rows.T)][None, :, None]

    if subject.checks.repeat > 1:
        others: list[F32] = []
        for number in range(1, subject.checks.repeat):
            again = subject.run(number)
            if not isinstance(again, Capture):
                ended, _, _ = describe(again).partition("\n")
                found.append(Check("deterministic", False, True, f"run {number + 1} did not finish: {ended}"))
                break
            others.append(read(again.dst))
        else:
            how = " with different orders of warps" if subject.target.engine == "sim" else ""
            found.append(repeated(read(capture.dst), others, how))
    if subject.checks.batch_invariance and part is not None:
        found.append(not_made("batch invariant", "only a part of the output was computed or read"))
    elif subject.checks.batch_invariance:
        alone: list[Alone] = []
        for query in spaced(np.arange(case.op.sizes.n_q), subject.checks.batch_invariance).tolist():
            single, inputs = slice_of(case, subject.inputs, query)
            one = subject.session.capture(single, inputs, subject.target)
            if isinstance(one, Capture):
                alone.append(beside(query, one.dst, capture.dst, named_kernel(one)))
        found.append(batch_invariance(alone, named_kernel(capture)))
    return tuple(found)


def named_kernel(capture: Capture) -> str:
    """The attention kernel of a run, or `the CPU`."""
    return attention_kernel(capture.launches) or "the CPU"


def checks_of_correct(subject: JudgedCase, capture: Capture, design: Design | None) -> tuple[Check, ...]:
    """The checks that only a correct output needs: are its roundings and its kernels as expected?"""
    found: list[Check] = []
    if subject.checks.roundings:
        exact = is_bit_exact(subject, capture)
        if design is None or design.equal_bits is None or not exact:
            found.append(not_made("roundings", "no rounding model reproduces the bits of this build on this GPU"))
        else:
            few = few_bits(design, bit_exact=exact)
            words = few or f"{100 * design.equal_bits:.4g} % of the bits equal the model"
            found.append(Check("roundings", not few, bool(few), words))
    if subject.checks.kernels and subject.target.engine != "cpu":
        number = subject.session.build_for(subject.target).manifest.build_number
        found.append(kernels(subject.case.op, subject.cc, number, capture.launches))
    return tuple(found)


def is_bit_exact(subject: JudgedCase, capture: Capture) -> bool:
    """Whether a correct kernel usually matches the rounding model bit for bit."""
    return not subject.session.options.sanitize and bit_exact(capture.provenance, subject.arch)
