"""Run cases on targets, and judge each output by the exact reference and by the kernel's expected output."""

import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fattn_probe.activity import Step, quiet
from fattn_probe.arrays import F32, F64, I64, Bools, Bytes
from fattn_probe.compare.diagnose.diagnosis import Evidence, diagnose
from fattn_probe.compare.judge.agreement import digest_of
from fattn_probe.compare.judge.bitwise import (
    Alone,
    Check,
    batch_invariance,
    beside,
    chosen_queries,
    not_made,
    repeated,
    slice_of,
)
from fattn_probe.compare.judge.checks import Checks, UseModel
from fattn_probe.compare.judge.choice import kernels
from fattn_probe.compare.judge.expected import Expected
from fattn_probe.compare.judge.finding import finding_of
from fattn_probe.compare.judge.judgement import Judgement, attention_kernel, judgement_of, sampled_judgement
from fattn_probe.compare.judge.known import Failure, known_defect
from fattn_probe.compare.judge.outcome import verdict_without_output
from fattn_probe.compare.judge.sampled import judge_sample, rows_of_selection, sampled_of
from fattn_probe.compare.judge.sampled import rows_of as sampled_rows
from fattn_probe.compare.judge.support import LOST, last_known, supporting
from fattn_probe.compare.judge.verdict import Status, Verdict, few_bits
from fattn_probe.device import Target
from fattn_probe.errors import LostError
from fattn_probe.launch.architecture import arch_number
from fattn_probe.launch.constants import SHIPPED, Constants, constants_of
from fattn_probe.launch.geometry import Geometry, geometry_of
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.op import Op
from fattn_probe.run.capture import Capture
from fattn_probe.run.command import Work
from fattn_probe.run.inputs import inputs_of
from fattn_probe.run.outcome import Ran, RunOutcome
from fattn_probe.run.part import Part
from fattn_probe.run.prepare import dry_launches
from fattn_probe.run.session import Session, arch_of
from fattn_probe.scenario import Case
from fattn_probe.source import Tree
from fattn_probe.truth.error_model import LargeValuesError, predict, predict_rows
from fattn_probe.truth.reference.adapter import check_output, fully_masked_of, operand_values, reference_of
from fattn_probe.truth.reference.sampled import sample
from fattn_probe.truth.rounding_model import MEASURED_ARCHS, by_row, model_of

MODEL_FLOP = 4e9
"""Operations of a case above which `auto` skips the rounding model, since it takes too long."""


def judge_cases(session: Session, work: Work, checks: Checks | None = None, step: Step = quiet) -> Iterator[Judgement]:
    """Judge each case on each of its targets; yields each judgement as soon as it is known.

    `step` is told what is being done.
    """
    with session.persistent_runner():
        for case, targets in work:
            with inputs_of(case) as inputs:
                judged = JudgedCase(session, case, inputs, checks or Checks(), step)
                yield from map(judged.on, targets)


def judge_case(session: Session, case: Case, target: Target, checks: Checks | None = None) -> Judgement:
    """Run one case on one target, and judge it."""
    with inputs_of(case) as inputs:
        return JudgedCase(session, case, inputs, checks or Checks()).on(target)


@dataclass(frozen=True)
class JudgedCase:
    """A case with its inputs, run by a session and judged by some checks."""

    session: Session
    case: Case
    inputs: Mapping[str, Bytes]
    options: Checks
    step: Step = quiet
    _expected: dict[Hashable, Expected] = field(default_factory=dict, init=False, repr=False, compare=False)

    def on(self, target: Target) -> Judgement:
        """Run the case on a target, and judge the result."""
        part = self.part(target)
        share = "" if part is None or target.engine != "sim" else f" {100 * part.share:.2g} % of its blocks"
        self.step(f"{self.case.name} on {target}: running{share}")
        result = self.capture(target, part)
        found = replace(self.judged(result, target, part), digest=self.case.digest)
        known = self.known(found, result, target, part) if found.status is Status.FAIL else ""
        return replace(found, known=known)

    def known(self, found: Judgement, result: Capture | RunOutcome, target: Target, part: Part | None) -> str:
        """The known defect of upstream's that a failure is; empty if it is none, or if a wrong output fails checks."""
        checks = tuple(check.name for check in found.checks if check.fails)
        if checks and (found.verdict.status is Status.FAIL or target.engine != "sim"):
            return ""
        once = replace(self.options, repeat=1, batch_invariance=0)

        def right_for(op: Op) -> bool:
            other = replace(self, case=replace(self.case, op=op), options=once)
            return isinstance(result, Capture) and other.judged(result, target, part).verdict.status is Status.PASS

        number = self.session.build_for(target).manifest.build_number
        return known_defect(
            Failure(
                self.case.op,
                self.cc(target),
                number,
                found.finding.kernel if found.finding else found.kernel,
                found.finding,
                found.verdict.only_masked_nan,
                checks,
                right_for,
            )
        )

    def capture(self, target: Target, part: Part | None, session: Session | None = None) -> Capture | RunOutcome:
        """Run the case, or a part of it."""
        return (session or self.session).capture(self.case, self.inputs, target, part)

    def part(self, target: Target) -> Part | None:
        """The part of the case to run and to judge; None for all of it."""
        if target.engine == "cpu" or not self.options.may_take_part(self.case):
            return None
        self.step(f"{self.case.name} on {target}: choosing what to run")
        launches = dry_launches(self.session, self.case, target)
        geometry = self.geometry(launches, target)
        return None if geometry is None else self.options.part(self.case, geometry, launches, target)

    def judged(self, result: Capture | RunOutcome, target: Target, part: Part | None = None) -> Judgement:
        """The judgement of one run, with or without an output."""
        if isinstance(result, Capture):
            check_output(self.case.op, result.dst, self.case.name)
            checks = tuple(self.checks(result, target, part))
            if part is not None or self.options.samples(self.case):
                found = self.sampled(result, target, part)
            else:
                found = self.whole(result, target)
            if found.verdict.status is Status.PASS:
                checks += tuple(self.of_right(found, result, target))
            output = digest_of(result.dst if part is None else result.dst[tuple(part.rows.T)])
            return replace(found, checks=checks, output=output, seconds=result.seconds)
        if isinstance(result, Ran):
            raise LostError(f"{self.case.name} ran without an output")
        verdict = verdict_without_output(result)
        found = Judgement(self.case.name, str(target), self.case.tolerance, verdict, finding=finding_of(result))
        return self.refused(found, target) if verdict.status is Status.UNSUPPORTED and target.engine != "cpu" else found

    def refused(self, found: Judgement, target: Target) -> Judgement:
        """The judgement of an op that is refused: it fails if an earlier release is known to support it on this GPU."""
        number, reason = self.session.build_for(target).manifest.build_number, found.verdict.reason
        if last_known(self.case.op, number) is None:
            unknown = not_made("support", "whether earlier releases take this op is not known")
            return replace(found, checks=(unknown,))
        last = supporting(self.case.op, self.cc(target), number)
        if last is None:
            return found
        said = f"{LOST}: b{last} supports this op on compute capability {self.cc(target)}: {reason}"
        return replace(found, verdict=Verdict(Status.FAIL, said))

    def cc(self, target: Target) -> str:
        """The compute capability of a target, such as 9.0."""
        major, minor = divmod(arch_number(arch_of(target)), 10)
        return f"{major}.{minor}"

    @functools.cached_property
    def reference(self) -> tuple[F64, Bools | None]:
        """The exact answer, and the fully masked rows."""
        self.step(f"{self.case.name}: computing the exact reference")
        op = self.case.op
        return reference_of(op, self.inputs, self.case.name), fully_masked_of(op, self.inputs)

    def whole(self, capture: Capture, target: Target) -> Judgement:
        """Judge the whole output."""
        reference, masked = self.reference
        expected = self.expected(capture, target)
        found = judgement_of(self.case, str(target), capture, reference, masked, expected=expected)
        return self.diagnosed(found, capture, target)

    def sampled(self, capture: Capture, target: Target, part: Part | None) -> Judgement:
        """Judge a sample of an output's rows exactly, and the others that were computed for being plausible."""
        case, geometry = self.case, self.geometry(capture.launches, target)
        if part is None or geometry is None:
            rows = sampled_rows(case, geometry, self.options.number_of_rows)
        else:
            rows = rows_of_selection(case, geometry, part.selection, self.options.number_of_rows)
        self.step(f"{case.name}: computing the exact reference of {len(rows)} rows")
        found = sample(case, rows, operand_values(case.op, self.inputs), all_heads=part is None)
        expected = self.expected(capture, target, rows)
        verdict = judge_sample(case, capture.dst, found, expected, among=None if part is None else part.rows)
        much = sampled_of(case, rows, part, target)
        judgement = sampled_judgement(case, str(target), capture, found, expected=expected, verdict=verdict, much=much)
        if verdict.deviation is None or not verdict.deviation.wrong.any():
            return judgement
        dst = found.of(capture.dst)[None, :, None]
        evidence = Evidence(case, self.inputs, dst, verdict.deviation, geometry, rows)
        return replace(judgement, diagnosis=diagnose(evidence))

    def geometry(self, launches: Sequence[LaunchRecord], target: Target) -> Geometry | None:
        """The launches' division of the output."""
        if not launches:
            return None
        constants = known_constants(self.session.options.tree) or SHIPPED
        return geometry_of(self.case.op, launches, arch_number(arch_of(target)), constants)

    def expected(self, capture: Capture, target: Target, rows: I64 | None = None) -> Expected:
        """The expected output of the kernels that ran, for some rows or all."""
        if not capture.launches:
            return Expected(missing="ggml's CPU backend has no error model: the scenario's tolerance decides")
        arch = arch_number(arch_of(target))
        key = (arch, tuple(launch.key for launch in capture.launches), None if rows is None else rows.tobytes())
        if key not in self._expected:
            self.step(f"{self.case.name} on {target}: computing the error model and the rounding model")
            constants, model = known_constants(self.session.options.tree), self.options.model
            self._expected[key] = expected_of(
                self.case, self.inputs, capture, arch, model, constants=constants, rows=rows
            )
        found = self._expected[key]
        return replace(found, bit_exact=self.bit_exact(capture, target))

    def diagnosed(self, found: Judgement, capture: Capture, target: Target) -> Judgement:
        """The judgement with a diagnosis, if the output is wrong."""
        deviation = found.verdict.deviation
        if found.verdict.status is not Status.FAIL or deviation is None:
            return found
        self.step(f"{self.case.name} on {target}: finding what is wrong")
        evidence = Evidence(self.case, self.inputs, capture.dst, deviation, self.geometry(capture.launches, target))
        return replace(found, diagnosis=diagnose(evidence))

    def checks(self, capture: Capture, target: Target, part: Part | None) -> Iterator[Check]:
        """The bitwise checks."""
        if self.options.repeat > 1:
            yield self._repeated(capture, target, part)
        if self.options.batch_invariance and part is not None:
            yield not_made("batch invariant", "only a part of the output was computed or read")
        elif self.options.batch_invariance:
            yield self._batch_invariance(capture, target)

    def of_right(self, found: Judgement, capture: Capture, target: Target) -> Iterator[Check]:
        """The checks that only a right output needs."""
        if self.options.roundings:
            yield self._roundings(found, capture, target)
        if self.options.kernels and target.engine != "cpu":
            number = self.session.build_for(target).manifest.build_number
            yield kernels(self.case.op, self.cc(target), number, capture.launches)

    def _roundings(self, found: Judgement, capture: Capture, target: Target) -> Check:
        """Whether the kernel rounds as the rounding model does, if that is computed and known to have its bits."""
        name, design = "roundings", found.verdict.design
        exact = self.bit_exact(capture, target)
        if design is None or design.equal_bits is None or not exact:
            return not_made(name, "no rounding model that has the bits of this build on this GPU")
        few = few_bits(design, bit_exact=exact)
        return Check(name, not few, bool(few), few or f"{100 * design.equal_bits:.4g} % of the bits are the model's")

    def bit_exact(self, capture: Capture, target: Target) -> bool:
        """Whether a correct kernel usually equals the rounding model in every bit."""
        return not self.session.options.sanitize and bit_exact(capture.provenance, arch_number(arch_of(target)))

    def _repeated(self, capture: Capture, target: Target, part: Part | None) -> Check:
        """Run again; on a simulator with another order of warps each time, as happens on a GPU."""
        others = []
        for number in range(1, self.options.repeat):
            simulation = replace(self.session.options.simulation, schedule=number)
            options = replace(self.session.options, simulation=simulation)
            again = replace(self.session, options=options)
            found = self.capture(target, part, again)
            if not isinstance(found, Capture):
                return Check(
                    "deterministic", False, True, f"run {number + 1} did not end: {type(found).__name__.lower()}"
                )
            others.append(_read(found.dst, part))
        return repeated(
            _read(capture.dst, part), others, " with different orders of warps" if target.engine == "sim" else ""
        )

    def _batch_invariance(self, capture: Capture, target: Target) -> Check:
        alone: list[Alone] = []
        for query in chosen_queries(self.case.op.sizes.n_q, self.options.batch_invariance):
            single, inputs = slice_of(self.case, self.inputs, query)
            found = self.session.capture(single, inputs, target)
            if isinstance(found, Capture):
                kernels = tuple(launch.spelling for launch in found.launches)
                alone.append(beside(query, found.dst, capture.dst, kernels))
        names = {row.query: attention_kernel(row.kernels) or "the CPU" for row in alone}
        batch = attention_kernel(launch.spelling for launch in capture.launches) or "the CPU"
        return batch_invariance(alone, batch, names)


def _read(dst: F32, part: Part | None) -> F32:
    """The rows of an output that were read, (1, rows, 1, hsv); all of it without a part."""
    found: F32 = dst if part is None else dst[tuple(part.rows.T)][None, :, None]
    return found


@functools.cache
def known_constants(tree: Tree | None) -> Constants | None:
    """The step sizes and offsets of a source's kernels; None if they cannot be read (other kernels, or no source)."""
    try:
        return constants_of(tree) if tree is not None else None
    except (OSError, KeyError, ValueError):
        return None


def bit_exact(provenance: Mapping[str, str], arch: int) -> bool:
    """Whether a correct kernel of a build usually equals the rounding model in every bit.

    False for debug builds, which fuse no multiply-adds (80 % of the elements of `gqa` are equal), and for real GPUs
    whose special functions were not measured (with correctly rounded exponentials, 12 to 65 % are equal).
    """
    measured = provenance.get("engine") == "sim" or arch in MEASURED_ARCHS
    return measured and provenance.get("flavour") == "release"


def expected_of(
    case: Case,
    inputs: Mapping[str, Bytes],
    capture: Capture,
    arch: int,
    model: UseModel,
    *,
    constants: Constants | None = SHIPPED,
    rows: I64 | None = None,
) -> Expected:
    """The expected output for the launches of a run; says what is missing and why.

    `constants` are those of the source that ran, which the model needs; None if unknown. With `rows` (sequence, query,
    head), the result is for these rows: (1, rows, 1, hsv).
    """
    values = operand_values(case.op, inputs)
    known = constants or SHIPPED
    try:
        if rows is None:
            prediction = predict(case.op, values, capture.launches, arch, constants=known)
        else:
            prediction = predict_rows(case.op, values, capture.launches, arch, rows, constants=known)
    except LargeValuesError as error:
        return Expected(missing=f"{error}: the scenario's tolerance decides")
    if prediction is None:
        return Expected(missing="there is no error model of this kernel: the scenario's tolerance decides")
    if not uses_model(case, capture, arch, model, constants=constants, rows=rows):
        return Expected(prediction, missing="the rounding model was skipped (--model always computes it)")
    if constants is None:
        return Expected(prediction, missing="the rounding model lacks the configurations of this source's kernels")
    found = _model(case, inputs, capture, arch, constants=constants, rows=rows)
    return Expected(prediction, found, "" if found is not None else "there is no rounding model of this kernel")


def uses_model(
    case: Case,
    capture: Capture,
    arch: int,
    model: UseModel,
    *,
    constants: Constants | None = SHIPPED,
    rows: I64 | None = None,
) -> bool:
    """Whether the rounding model is computed for a run, as far as its time matters."""
    return model == "always" or (model == "auto" and _model_flop(case, capture, arch, constants, rows) <= MODEL_FLOP)


def _model_flop(case: Case, capture: Capture, arch: int, constants: Constants | None, rows: I64 | None) -> float:
    """The operations of the rounding model, without the conversion of K and V; infinite if these are huge."""
    if any(root.period is not None for root in case.op.roots.values()):
        return float("inf")
    if rows is None or constants is None or not by_row(capture.launches, arch, constants):
        return case.op.sizes.flop
    return case.op.sizes.flop / (case.op.sizes.n_seq * case.op.sizes.n_q * case.op.sizes.n_head) * len(rows)


def _model(
    case: Case, inputs: Mapping[str, Bytes], capture: Capture, arch: int, *, constants: Constants, rows: I64 | None
) -> F32 | None:
    """The rounding model's output, for some rows or all."""
    wanted, at = None, () if rows is None else tuple(rows.T)
    if rows is not None:
        wanted = np.zeros((case.op.sizes.n_seq, case.op.sizes.n_q, case.op.sizes.n_head), np.bool_)
        wanted[at] = True
    found = model_of(case, dict(inputs), capture.launches, arch, constants=constants, wanted=wanted)
    return found if found is None or rows is None else found[at][None, :, None]
