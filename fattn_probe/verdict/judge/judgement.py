"""The judgement of a case on a target, and the exit code that follows from judgements."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fattn_probe.base.arrays import F32
from fattn_probe.base.errors import ComparisonError, InputError, LostError, UnjudgedError
from fattn_probe.base.figures import first_of
from fattn_probe.cases.device import Origin
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis
from fattn_probe.verdict.judge.bitwise import Check
from fattn_probe.verdict.measure.sampled import Sampled
from fattn_probe.verdict.measure.verdict import Status, UpstreamSays, Verdict

NAMED = 5
"""The largest number of cases that a message names."""
ATTENTION_KERNEL = re.compile(r"\bflash_attn_(ext|tile)")


@dataclass(frozen=True)
class Judgement:
    """One case on one target: what ran, and all results.

    `missing` says which expectations were unavailable, and why. `sampled` is the extent of the exact check, None for
    all rows. `finding` is the fault that stopped the run without an output. `output` is the sha256 of the output's
    bytes, `seconds` are the timed runs. `known` is the id of the known defect that caused a failure, or empty; `doubt`
    says why a known defect may not be the cause. `dst` is the output if all of it was checked. `division` is the origin
    of the occupancy that determines how blocks divide the KV rows, None if occupancy plays no role.
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
    doubt: str = ""
    dst: F32 | None = field(default=None, repr=False, compare=False)
    division: Origin | None = None

    @property
    def kernels(self) -> tuple[str, ...]:
        """The launched kernels with template arguments, written as in the source."""
        return tuple(launch.spelling for launch in self.launches)

    @property
    def kernel(self) -> str:
        """The attention kernel with template arguments; empty if none was launched."""
        return attention_kernel(self.launches)

    @property
    def status(self) -> Status:
        """The verdict's status; fail if the output passes but differs from run to run."""
        return status_of(self.verdict, self.checks)

    @property
    def reason(self) -> str:
        """A doubt about a known defect, then the failed checks of an output that passes, then the verdict's reason."""
        failed = [check.reason for check in self.checks if check.fails]
        if not failed or self.verdict.status is not Status.PASS:
            reasons = "; ".join([self.verdict.reason, *(one for one in failed if one not in self.verdict.reason)])
        elif self.verdict.accuracy is not None and self.verdict.accuracy.reason in failed:
            reasons = "; ".join(failed)
        else:
            reasons = "; ".join([*failed, f"apart from that, {self.verdict.reason}"])
        return f"{self.doubt}: {reasons}" if self.doubt else reasons

    @property
    def warning(self) -> str:
        """The accuracy warning for an output that passes or is as designed; empty if a failure's reason contains it."""
        accuracy, metrics, design = self.verdict.accuracy, self.verdict.metrics, self.verdict.design
        if accuracy is None or accuracy.passes or metrics is None or not metrics.all_finite:
            return ""
        if self.status is Status.FAIL and accuracy.reason in self.reason:
            return ""
        if design is None:
            return accuracy.reason if self.verdict.status is Status.PASS else ""
        return f"as designed, but {accuracy.reason}" if design.passes else ""


def status_of(verdict: Verdict, checks: Iterable[Check]) -> Status:
    """The status of an output: fail if it passes but fails a check."""
    fails = verdict.status is Status.PASS and any(check.fails for check in checks)
    return Status.FAIL if fails else verdict.status


def attention_kernel(launches: Iterable[LaunchRecord], finding: Finding | None = None) -> str:
    """The launched attention kernel, otherwise the kernel that a fault stopped; empty if there is neither."""
    found = (one.spelling for one in launches if one.family or ATTENTION_KERNEL.search(one.spelling))
    launched = next(found, "")
    return launched or (finding.kernel if finding else "")


def count(found: Iterable[Judgement]) -> dict[Status, int]:
    """The number of judgements by status; every status is a key."""
    statuses = [judgement.status for judgement in found]
    return {status: statuses.count(status) for status in Status}


def raise_if_failed(found: Sequence[Judgement]) -> None:
    """Raise the error for the exit code; returns if at least one passed or changed, and the others are unsupported.

    Raises ComparisonError (exit 5) if one failed, else LostError (4) if one was lost, else UnjudgedError (7) if one
    could not be judged; ComparisonError if all are unsupported, and InputError (2) if there are none. The message names
    the judgements; the report on stdout has their reasons.
    """
    if not found:
        raise InputError("no case to compare")
    counts = count(found)
    if number := counts[Status.FAIL]:
        raise ComparisonError(f"{number} of {len(found)} comparisons failed: {_named(found, Status.FAIL)}")
    if number := counts[Status.LOST]:
        raise LostError(f"{number} of {len(found)} comparisons were lost: {_named(found, Status.LOST)}")
    if number := counts[Status.UNJUDGED]:
        raise UnjudgedError(f"{number} of {len(found)} outputs could not be judged: {_named(found, Status.UNJUDGED)}")
    if counts[Status.UNSUPPORTED] == len(found):
        raise ComparisonError("nothing was compared: no target supports its case")


def _named(found: Sequence[Judgement], status: Status) -> str:
    """The cases with a status and their targets, unknown failures first; the first few of many."""
    rows = sorted((row for row in found if row.status is status), key=lambda row: bool(row.known))
    return first_of([f"{row.case} on {row.on}" for row in rows], NAMED)
