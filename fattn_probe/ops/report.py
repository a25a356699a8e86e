"""What one run of `test-backend-ops` came to."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fattn_probe.errors import BuildError, ComparisonError, FattnProbeError, LostError
from fattn_probe.ops.parse import OpResult, Summary


@dataclass(frozen=True)
class OpsReport:
    """The results in the order in which they came; `stopped` says why the program did not reach its end.

    `backends` are those that the program lists, `description` is that of the one it ran on.

    `crashes` are the reasons for which a program died and was started again for the cases that were left.

    `missing` is the mangled name of a function that the build left out: compile it in and run again. `finding` is what
    the simulator's checker said. `tail` holds the last lines, for people, of a run that stopped.
    """

    command: tuple[str, ...]
    results: tuple[OpResult, ...]
    summary: Summary | None
    description: str
    seconds: float
    stopped: str = ""
    backends: tuple[str, ...] = ()
    missing: str | None = None
    finding: dict[str, Any] | None = None
    tail: tuple[str, ...] = ()
    crashes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many cases ended in each status."""
        counted = Counter(result.status for result in self.results)
        return {status: counted[status] for status in ("ok", "fail", "not-supported", "lost")}

    @property
    def failures(self) -> tuple[OpResult, ...]:
        """The cases that failed or were lost."""
        return tuple(result for result in self.results if result.status in ("fail", "lost"))

    def problem(self) -> FattnProbeError | None:
        """The exception that this report is worth, or None if all is well."""
        if self.missing:
            return BuildError(f"the build lacks {self.missing}")
        first = "".join(f"\n  {result.case}: {result.message or result.status}" for result in self.failures[:10])
        if any(result.status == "fail" for result in self.results):
            return ComparisonError(f"{self.counts['fail']} of {len(self.results)} cases failed{first}")
        if self.stopped or self.counts["lost"]:
            return LostError(f"{self.stopped}{first}\n" + "\n".join(self.tail[-12:]))
        return None

    def as_dict(self) -> dict[str, Any]:
        """The data of `ops --json`."""
        return {**asdict(self), "counts": self.counts}


def first_without_result(expected: Sequence[str], results: Sequence[OpResult]) -> str | None:
    """The first expected case that has no result yet: with one worker, the one in flight."""
    seen = Counter(result.case for result in results)
    for case in expected:
        if not seen[case]:
            return case
        seen[case] -= 1
    return None
