"""What a random case shows: nothing, a known defect of upstream's, or a finding; and the kind of a failure."""

import re
from dataclasses import dataclass

from fattn_probe.compare.judge.judgement import attention_kernel
from fattn_probe.launch.families import BY_KERNEL
from fattn_probe.regress.records import Result

NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
SAID = (
    ("never written", "elements are never written"),
    ("elements NaN", "NaN"),
    ("elements infinite", "infinities"),
    ("finite only in", "NaN or infinities"),
)
"""Parts of a reason, and what they mean for the output, the worst first."""
WRONG = "wrong values"
OTHER_BITS = "other bits from run to run"
FAMILIES = ("mma_f16", "tile", "vec", "other")


@dataclass(frozen=True, order=True)
class Kind:
    """The kind of a failure: two of one kind probably have one cause.

    `known` is the known defect of upstream's, empty for none; `family` the kernel's; `what` is the simulator's word and
    the function, or what is wrong with the output.
    """

    status: str
    known: str
    family: str
    what: str

    def __str__(self) -> str:
        return f"{self.known or self.what} ({self.family})"


def kind_of(result: Result) -> Kind | None:
    """The kind of a result's failure; None if it passes or is unsupported."""
    if result.status in ("pass", "unsupported"):
        return None
    return Kind(result.status, result.known, family_of(result), _what(result))


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
    if result.status == "lost":
        return NUMBER.sub("N", result.reason)[:80]
    if any(check.fails for check in result.checks):
        return OTHER_BITS
    return next((what for words, what in SAID if words in result.reason), WRONG)
