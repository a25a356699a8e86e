"""The names of the ways in which a run with a fault ends, in results and verdicts."""

from typing import Final, Literal

from fattn_probe.daily.regress.records import Result
from fattn_probe.verdict.judge import support
from fattn_probe.verdict.judge.judgement import Judgement

VERDICT: Final = "verdict"
"""A wrong output."""
CHECK: Final = "check"
"""A correct output that fails a check of its bits or its kernels."""
CHECKER: Final = "checker"
"""A finding of the checker's build."""
STOPPED: Final = "stopped"
"""A run that stopped without an output, or hung."""
SUPPORT: Final = "support"
"""An op that is no longer supported."""
BUILD: Final = "build"
"""A kernel that does not compile."""
KilledBy = Literal["verdict", "check", "checker", "stopped", "support", "build"]

MISSING: Final = "missing"
"""A run that stopped because the build lacks a kernel; compile it and run again."""
LOST: Final = "lost"
"""A run that stopped with an error of the worker: no verdict. Failures of cases that could not run also begin so."""
Ending = KilledBy | Literal["", "missing", "lost"]
"""The end of a run with a mutant: empty if it survives."""


def killed_by(result: Result | Judgement) -> KilledBy | Literal[""]:
    """The way in which a result kills a fault; empty if it passes, is unjudged, or is a known defect."""
    return "" if result.status in ("pass", "unjudged") or result.known else how_it_failed(result)


def how_it_failed(result: Result | Judgement) -> KilledBy:
    """How a result that does not pass shows a fault, even if it looks like a known defect."""
    if result.status == "unsupported" or result.reason.startswith(support.LOST):
        return SUPPORT
    if result.status == "lost" or result.finding is not None:
        return STOPPED
    return CHECK if any(check.fails for check in result.checks) else VERDICT
