"""`compare`: what backends left of one case to verdict rows, and rows to an exit code."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fattn_probe.arrays import F32, F64, Bools
from fattn_probe.compare.diagnose.diagnosis import Diagnosis
from fattn_probe.compare.judge.bitwise import Check
from fattn_probe.compare.judge.expected import Expected
from fattn_probe.compare.judge.metrics import Tolerance
from fattn_probe.compare.judge.sampled import Sampled
from fattn_probe.compare.judge.verdict import Status, UpstreamSays, Verdict, judge, upstream_says
from fattn_probe.errors import ComparisonError, InputError, LostError
from fattn_probe.run.capture import Capture
from fattn_probe.scenario import Case
from fattn_probe.truth.reference.sampled import Sample

ATTENTION_KERNEL = re.compile(r"\bflash_attn_(ext|tile)")


@dataclass(frozen=True)
class Row:
    """One case on one backend: what ran and what is to be said of it.

    `missing` says why nothing, or less, was expected of it; `sampled` how much of the output was checked exactly, None
    for all; `dst` is the output, where there is one and it was checked whole.
    """

    case: str
    on: str
    tolerance: Tolerance
    kernels: tuple[str, ...]
    verdict: Verdict
    upstream: UpstreamSays | None
    missing: str = ""
    diagnosis: Diagnosis | None = None
    checks: tuple[Check, ...] = ()
    sampled: Sampled | None = None
    dst: F32 | None = field(default=None, repr=False, compare=False)

    @property
    def kernel(self) -> str:
        """The spelling of the attention kernel proper; empty where none was launched."""
        return attention_kernel(self.kernels)

    @property
    def status(self) -> Status:
        """The verdict's; an output that passes but is not the same in every run fails."""
        fails = self.verdict.status is Status.PASS and any(check.fails for check in self.checks)
        return Status.FAIL if fails else self.verdict.status

    @property
    def reason(self) -> str:
        """The verdict's reason, and what checks found amiss."""
        return "; ".join([self.verdict.reason, *(check.reason for check in self.checks if check.fails)])


def attention_kernel(spellings: Iterable[str]) -> str:
    """The kernel among those launched that computes attention; empty if there is none."""
    return next((spelling for spelling in spellings if ATTENTION_KERNEL.search(spelling)), "")


def row_of(
    case: Case,
    on: str,
    outcome: Capture | Verdict,
    reference: F64,
    fully_masked: Bools | None = None,
    *,
    expected: Expected | None = None,
) -> Row:
    """The row of one backend, `sim:h200` or `cpu`, held against what is expected of it where something is.

    Where it left no output, `outcome` is the verdict on that. For `reference` and `fully_masked` see `judge`.
    """
    if isinstance(outcome, Verdict):
        return row_without_output(case, on, outcome)
    verdict = judge(outcome.dst, reference, case.tolerance, fully_masked, expected)
    kernels = tuple(launch.spelling for launch in outcome.launches)
    missing = "" if expected is None else expected.missing
    says = upstream_says(outcome.dst, reference)
    return Row(case.name, on, case.tolerance, kernels, verdict, says, missing, dst=outcome.dst)


def row_without_output(case: Case, on: str, verdict: Verdict) -> Row:
    """The row of a backend that left no output."""
    return Row(case.name, on, case.tolerance, (), verdict, None)


def sampled_row(case: Case, on: str, capture: Capture, sample: Sample, *, expected: Expected, verdict: Verdict) -> Row:
    """The row of an output of which a sample was judged."""
    kernels = tuple(launch.spelling for launch in capture.launches)
    rows, reference = sample.of(capture.dst)[None, :, None], sample.reference[None, :, None]
    says, much = upstream_says(rows, reference), Sampled(len(sample.rows), capture.dst[..., 0].size)
    return Row(case.name, on, case.tolerance, kernels, verdict, says, expected.missing, sampled=much)


def count(rows: Iterable[Row]) -> dict[Status, int]:
    """How many rows have each status, every status named."""
    found = [row.status for row in rows]
    return {status: found.count(status) for status in Status}


def raise_if_failed(rows: Sequence[Row]) -> None:
    """End the command as the rows ask for; returns where at least one passed or changed and none failed or was lost.

    Raises ComparisonError (exit 5) where one failed, LostError (4) where none failed but one was lost, ComparisonError
    where nothing was compared because nothing is supported, InputError (2) where there are no rows.
    """
    counts = count(rows)
    failed = [_in_short(row) for row in rows if row.status is Status.FAIL]
    lost = [_in_short(row) for row in rows if row.status is Status.LOST]
    if not rows:
        raise InputError("no case to compare")
    if failed:
        raise ComparisonError(f"{len(failed)} of {len(rows)} comparisons failed:\n" + "\n".join(failed))
    if lost:
        raise LostError(f"{len(lost)} of {len(rows)} comparisons were lost:\n" + "\n".join(lost))
    if counts[Status.UNSUPPORTED] == len(rows):
        raise ComparisonError(f"nothing was compared: all {len(rows)} are unsupported where they were to run")


def _in_short(row: Row) -> str:
    """A row's reason without its stack, which the table has."""
    return f"{row.case} on {row.on}: {row.reason.partition(chr(10))[0]}"
