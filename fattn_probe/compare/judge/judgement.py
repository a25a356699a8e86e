"""The judgement of a case on a target, and the exit code that follows from judgements."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fattn_probe.arrays import F32, F64, Bools
from fattn_probe.compare.diagnose.diagnosis import Diagnosis
from fattn_probe.compare.judge.bitwise import Check
from fattn_probe.compare.judge.expected import Expected
from fattn_probe.compare.judge.finding import Finding
from fattn_probe.compare.judge.known import by_defect
from fattn_probe.compare.judge.metrics import Tolerance
from fattn_probe.compare.judge.sampled import Sampled
from fattn_probe.compare.judge.verdict import Status, UpstreamSays, Verdict, judge, upstream_says
from fattn_probe.errors import ComparisonError, InputError, LostError
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.run.capture import Capture
from fattn_probe.scenario import Case
from fattn_probe.truth.reference.sampled import Sample

ATTENTION_KERNEL = re.compile(r"\bflash_attn_(ext|tile)")


class Computed(Protocol):
    """What a kernel computed: a capture, or the output of another kernel than llama.cpp's."""

    @property
    def dst(self) -> F32:
        """The output, (n_seq, n_q, n_head, hsv)."""

    @property
    def launches(self) -> tuple[LaunchRecord, ...]:
        """The launched kernels."""


@dataclass(frozen=True)
class Judgement:
    """One case on one target: what ran, and all results.

    `missing` says which expectations were not available and why. `sampled` says how much was checked exactly, None for
    all. `finding` is the fault that ended a run without an output. `output` is the sha256 of the output's bytes,
    `seconds` are the timed runs. `known` is the id of the known defect of upstream's that a failure is, empty if it is
    none. `dst` is the output if all of it was checked.
    """

    case: str
    on: str
    tolerance: Tolerance
    verdict: Verdict
    launches: tuple[LaunchRecord, ...] = ()
    upstream: UpstreamSays | None = None
    missing: str = ""
    diagnosis: Diagnosis | None = None
    checks: tuple[Check, ...] = ()
    sampled: Sampled | None = None
    finding: Finding | None = None
    digest: str = ""
    output: str | None = None
    seconds: tuple[float, ...] = ()
    known: str = ""
    dst: F32 | None = field(default=None, repr=False, compare=False)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The launched kernels with template arguments, written as in the source."""
        return tuple(launch.spelling for launch in self.launches)

    @property
    def kernel(self) -> str:
        """The attention kernel with template arguments; empty if none was launched."""
        return attention_kernel(self.kernels)

    @property
    def status(self) -> Status:
        """The verdict's status; fail if the output passes but differs from run to run."""
        fails = self.verdict.status is Status.PASS and any(check.fails for check in self.checks)
        return Status.FAIL if fails else self.verdict.status

    @property
    def reason(self) -> str:
        """The reasons of the verdict and of the failed checks."""
        return "; ".join([self.verdict.reason, *(check.reason for check in self.checks if check.fails)])

    @property
    def warning(self) -> str:
        """The accuracy warning of an output that is finite and passes, or is as designed; empty without one."""
        accuracy, metrics, design = self.verdict.accuracy, self.verdict.metrics, self.verdict.design
        if accuracy is None or accuracy.passes or metrics is None or not metrics.all_finite:
            return ""
        if design is None:
            return accuracy.reason if self.verdict.status is Status.PASS else ""
        return f"as designed, but {accuracy.reason}" if design.passes else ""


def attention_kernel(spellings: Iterable[str]) -> str:
    """The launched kernel that computes attention; empty if there is none."""
    return next((spelling for spelling in spellings if ATTENTION_KERNEL.search(spelling)), "")


def judgement_of(
    case: Case,
    on: str,
    outcome: Computed | Verdict,
    reference: F64,
    fully_masked: Bools | None = None,
    *,
    expected: Expected | None = None,
) -> Judgement:
    """Judge a whole output on one target, `sim:h200` or `cpu`, by the exact answer and the expected output.

    `outcome` is the verdict if there is no output. For `reference` and `fully_masked` see `judge`.
    """
    if isinstance(outcome, Verdict):
        return Judgement(case.name, on, case.tolerance, outcome)
    verdict = judge(outcome.dst, reference, case.tolerance, fully_masked, expected)
    missing = "" if expected is None else expected.missing
    says = upstream_says(outcome.dst, reference)
    return Judgement(case.name, on, case.tolerance, verdict, tuple(outcome.launches), says, missing, dst=outcome.dst)


def sampled_judgement(
    case: Case, on: str, capture: Capture, sample: Sample, *, expected: Expected, verdict: Verdict, much: Sampled
) -> Judgement:
    """The judgement of an output from the verdict on its sample."""
    rows, reference = sample.of(capture.dst)[None, :, None], sample.reference[None, :, None]
    says = upstream_says(rows, reference)
    launches = tuple(capture.launches)
    return Judgement(case.name, on, case.tolerance, verdict, launches, says, expected.missing, sampled=much)


def count(found: Iterable[Judgement]) -> dict[Status, int]:
    """The number of judgements by status; every status is a key."""
    statuses = [judgement.status for judgement in found]
    return {status: statuses.count(status) for status in Status}


def raise_if_failed(found: Sequence[Judgement]) -> None:
    """End the command by its judgements; returns if one passed or changed, and none failed or was lost.

    Raises ComparisonError (exit 5) if one failed, LostError (4) if none failed but one was lost, ComparisonError if all
    are unsupported, and InputError (2) if there are none.
    """
    counts = count(found)
    failed = [_in_short(row) for row in found if row.status is Status.FAIL and not row.known]
    known = by_defect(row.known for row in found)
    lost = [_in_short(row) for row in found if row.status is Status.LOST]
    if not found:
        raise InputError("no case to compare")
    if failed or known:
        number = counts[Status.FAIL]
        raise ComparisonError(f"{number} of {len(found)} comparisons failed:\n" + "\n".join([*failed, *known]))
    if lost:
        were = "was" if len(lost) == 1 else "were"
        raise LostError(f"{len(lost)} of {len(found)} comparisons {were} lost:\n" + "\n".join(lost))
    if counts[Status.UNSUPPORTED] == len(found):
        raise ComparisonError("nothing was compared: no case is supported on its target")


def _in_short(row: Judgement) -> str:
    """The reason without the stack, which the table shows."""
    return f"{row.case} on {row.on}: {row.reason.partition(chr(10))[0]}"
