"""The classification of a random case: correct, a known defect of llama.cpp, or a finding of some kind."""

import re
from dataclasses import dataclass

from fattn_probe.daily.regress.records import Result
from fattn_probe.llama.launch.families import BY_KERNEL
from fattn_probe.verdict.judge.judgement import attention_kernel

NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
NOT_FINITE = {"unwritten": "elements are never written", "nan": "NaN", "inf": "infinities"}
"""The metrics that count non-finite elements, the worst first, and their descriptions."""
WRONG = "wrong values"
OTHER_BITS = "other bits from run to run"
FAILS = {"deterministic": OTHER_BITS}
"""Descriptions of failing checks; others appear with their names."""
FAMILIES = ("mma_f16", "tile", "vec", "other")


@dataclass(frozen=True, order=True)
class FindingKind:
    """The kind of a failure: failures of the same kind probably have the same cause.

    `known` is the known defect of llama.cpp, or empty; `family` the kernel's family; `what` is the simulator's word and
    the function, or the fault of the output.
    """

    status: str
    known: str
    family: str
    what: str

    def __str__(self) -> str:
        return f"{self.known or self.what} ({self.family})"


def kind_of(result: Result) -> FindingKind | None:
    """The kind of a result's failure; None if it passes or is unsupported."""
    if result.status in ("pass", "unsupported"):
        return None
    return FindingKind(result.status, result.known, family_of(result), _what(result))


def family_of(result: Result) -> str:
    """The family of the attention kernel that was launched or stopped; `other` for none."""
    kernel = attention_kernel(launch.spelling for launch in result.kernels)
    if not kernel and result.finding is not None:
        kernel = result.finding.kernel
    family = BY_KERNEL.get(kernel.partition("<")[0])
    return family.name if family else "other"


def _what(result: Result) -> str:
    finding = result.finding
    if finding is not None:
        place = finding.frames[0].partition(" at ")[0] if finding.frames else finding.file
        return f"{finding.kind} in {place.partition('<')[0] or finding.kernel.partition('<')[0] or 'an unknown place'}"
    if result.status in ("lost", "unjudged"):
        return NUMBER.sub("N", result.reason)[:80]
    failing = next((check.name for check in result.checks if check.fails), "")
    if failing:
        return FAILS.get(failing, f"fails {failing}")
    return next((what for name, what in NOT_FINITE.items() if result.metrics.get(name)), WRONG)
