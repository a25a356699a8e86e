"""The report of a run of `test-backend-ops`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fattn_probe.base.errors import BuildError, ComparisonError, FattnProbeError, LostError, TimedOutError
from fattn_probe.daily.ops.parse import OpResult, OpsSummary


@dataclass(frozen=True)
class OpsReport:
    """The results in order of completion; `stopped` is the reason why the program ended early.

    `timed_out`: the overall timeout stopped the program. `backends` are those that the program lists, `description` is
    that of the backend it ran on. `crashes` are the reasons of crashes after which the program was restarted for the
    remaining cases. `missing` is the mangled name of a function that the build lacks. `finding` is the report of the
    simulator's checker. `tail` has the last lines of output of a run that stopped.
    """

    command: tuple[str, ...]
    results: tuple[OpResult, ...]
    summary: OpsSummary | None
    description: str
    seconds: float
    stopped: str = ""
    backends: tuple[str, ...] = ()
    missing: str | None = None
    finding: dict[str, Any] | None = None
    tail: tuple[str, ...] = ()
    crashes: tuple[str, ...] = ()
    timed_out: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """The number of cases by status."""
        counted = Counter(result.status for result in self.results)
        return {status: counted[status] for status in ("ok", "fail", "not-supported", "lost")}

    @property
    def failures(self) -> tuple[OpResult, ...]:
        """The cases that failed or were lost."""
        return tuple(result for result in self.results if result.status in ("fail", "lost"))

    def problem(self) -> FattnProbeError | None:
        """The exception for this report, or None if all cases passed."""
        if self.missing:
            return BuildError(f"the build lacks {self.missing}")
        first = "".join(f"\n  {result.case}: {result.message or result.status}" for result in self.failures[:10])
        if any(result.status == "fail" for result in self.results):
            return ComparisonError(f"{self.counts['fail']} of {len(self.results)} cases failed{first}")
        if self.stopped or self.counts["lost"]:
            error = TimedOutError if self.timed_out else LostError
            return error(f"{self.stopped}{first}\n" + "\n".join(self.tail[-12:]))
        return None

    def as_dict(self) -> dict[str, Any]:
        """The data of `ops --json`."""
        return {**asdict(self), "counts": self.counts}


def first_without_result(expected: Sequence[str], results: Sequence[OpResult]) -> str | None:
    """The first expected case without a result: with one worker, the case in progress."""
    seen = Counter(result.case for result in results)
    for case in expected:
        if not seen[case]:
            return case
        seen[case] -= 1
    return None
