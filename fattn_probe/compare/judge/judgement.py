"""The judgement of a case on a target, and what judgements make of a command's exit code."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fattn_probe.arrays import F32, F64, Bools
from fattn_probe.compare.diagnose.diagnosis import Diagnosis
from fattn_probe.compare.judge.bitwise import Check
from fattn_probe.compare.judge.expected import Expected
from fattn_probe.compare.judge.finding import Finding
from fattn_probe.compare.judge.metrics import Tolerance
from fattn_probe.compare.judge.sampled import Sampled
from fattn_probe.compare.judge.verdict import Status, UpstreamSays, Verdict, judge, upstream_says
from fattn_probe.errors import ComparisonError, InputError, LostError
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.run.capture import Capture
from fattn_probe.scenario import Case
from fattn_probe.truth.reference.sampled import Sample

ATTENTION_KERNEL = re.compile(r"\bflash_attn_(ext|tile)")


@dataclass(frozen=True)
class Judgement:
    """One case on one target: what ran, and everything that was found out about it.

    `missing` says why less, or nothing, was expected of the output; `sampled` how much of it was checked exactly, None
    for all; `finding` is what ended a run without an output; `output` is the sha256 of the output's bytes and `seconds`
    the timed runs. `dst` is the output where all of it was checked.
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
    dst: F32 | None = field(default=None, repr=False, compare=False)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels launched, with template arguments, as the source writes them."""
        return tuple(launch.spelling for launch in self.launches)

    @property
    def kernel(self) -> str:
        """The spelling of the attention kernel proper; empty where none was launched."""
        return attention_kernel(self.kernels)

    @property
    def status(self) -> Status:
        """The verdict's; an output that passes but differs from run to run fails."""
        fails = self.verdict.status is Status.PASS and any(check.fails for check in self.checks)
        return Status.FAIL if fails else self.verdict.status

    @property
    def reason(self) -> str:
        """The verdict's reason, and those of the checks that failed."""
        return "; ".join([self.verdict.reason, *(check.reason for check in self.checks if check.fails)])

    @property
    def warning(self) -> str:
        """What to know about an output that is finite and passes, or is as designed: how inaccurate it is."""
        accuracy, metrics, design = self.verdict.accuracy, self.verdict.metrics, self.verdict.design
        if accuracy is None or accuracy.passes or metrics is None or not metrics.all_finite:
            return ""
        if design is None:
            return accuracy.reason if self.verdict.status is Status.PASS else ""
        return f"as designed, but {accuracy.reason}" if design.passes else ""


def attention_kernel(spellings: Iterable[str]) -> str:
    """The kernel among those launched that computes attention; empty if there is none."""
    return next((spelling for spelling in spellings if ATTENTION_KERNEL.search(spelling)), "")


def judgement_of(
    case: Case,
    on: str,
    outcome: Capture | Verdict,
    reference: F64,
    fully_masked: Bools | None = None,
    *,
    expected: Expected | None = None,
) -> Judgement:
    """Judge all of an output on one target, `sim:h200` or `cpu`, by the exact answer and by what is expected.

    `outcome` is the verdict where there is no output. For `reference` and `fully_masked` see `judge`.
    """
    if isinstance(outcome, Verdict):
        return Judgement(case.name, on, case.tolerance, outcome)
    verdict = judge(outcome.dst, reference, case.tolerance, fully_masked, expected)
    missing = "" if expected is None else expected.missing
    says = upstream_says(outcome.dst, reference)
    return Judgement(case.name, on, case.tolerance, verdict, tuple(outcome.launches), says, missing, dst=outcome.dst)


def sampled_judgement(
    case: Case, on: str, capture: Capture, sample: Sample, *, expected: Expected, verdict: Verdict
) -> Judgement:
    """The judgement of an output of which a sample was checked."""
    rows, reference = sample.of(capture.dst)[None, :, None], sample.reference[None, :, None]
    says, much = upstream_says(rows, reference), Sampled(len(sample.rows), capture.dst[..., 0].size)
    launches = tuple(capture.launches)
    return Judgement(case.name, on, case.tolerance, verdict, launches, says, expected.missing, sampled=much)


def count(found: Iterable[Judgement]) -> dict[Status, int]:
    """How many judgements have each status; every status is a key."""
    statuses = [judgement.status for judgement in found]
    return {status: statuses.count(status) for status in Status}


def raise_if_failed(found: Sequence[Judgement]) -> None:
    """End the command by its judgements; returns where at least one passed or changed and none failed or was lost.

    Raises ComparisonError (exit 5) where one failed, LostError (4) where none failed but one was lost, ComparisonError
    where nothing was compared because nothing is supported, InputError (2) where there are none.
    """
    counts = count(found)
    failed = [_in_short(row) for row in found if row.status is Status.FAIL]
    lost = [_in_short(row) for row in found if row.status is Status.LOST]
    if not found:
        raise InputError("no case to compare")
    if failed:
        raise ComparisonError(f"{len(failed)} of {len(found)} comparisons failed:\n" + "\n".join(failed))
    if lost:
        raise LostError(f"{len(lost)} of {len(found)} comparisons were lost:\n" + "\n".join(lost))
    if counts[Status.UNSUPPORTED] == len(found):
        raise ComparisonError(f"nothing was compared: all {len(found)} are unsupported where they were to run")


def _in_short(row: Judgement) -> str:
    """The reason without the stack, which the table has."""
    return f"{row.case} on {row.on}: {row.reason.partition(chr(10))[0]}"
