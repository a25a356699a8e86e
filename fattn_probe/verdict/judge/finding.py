"""The verdict on a run without an output, and the finding that stopped it."""

import re
from dataclasses import replace

from fattn_probe.machine.run.frames import (
    brief_frames,
    describe_finding,
    headline,
    short_frames,
    short_path,
    shortened,
)
from fattn_probe.machine.run.outcome import DEVICE_ERROR, Failed, Finding, Lost, Missing, Unsupported
from fattn_probe.verdict.measure.verdict import Status, Verdict

PLACE = re.compile(r"(?:^| at )(?P<file>[^\s:]+):(?P<line>\d+)(?=:|$)", re.MULTILINE)
CUDA_ERROR = "CUDA error"
"""The kind of ggml's CUDA errors, and of its ROCm errors on AMD GPUs."""


def verdict_without_output(outcome: Unsupported | Missing | Finding | Failed | Lost) -> Verdict:
    """The verdict on a run without an output; an unexplained crash or a missing function is `lost`.

    The reason is the message of the checker, the sanitizer or ggml; the stack, if there is one, follows on separate
    lines, innermost first.
    """
    match outcome:
        case Unsupported(reason):
            return Verdict(Status.UNSUPPORTED, reason)
        case Missing(symbol):
            return Verdict(Status.LOST, f"the build lacks a function that was called: {symbol}")
        case Finding():
            return Verdict(Status.FAIL, describe_finding(outcome))
        case Failed(message, stack) | Lost(message, stack):
            status = Status.FAIL if isinstance(outcome, Failed) else Status.LOST
            return Verdict(status, "\n".join([message, *(f"  {frame}" for frame in brief_frames(stack))]))


def finding_of(outcome: object) -> Finding | None:
    """The finding that stopped a run, shortened for people, or that of ggml's abort; None for any other outcome."""
    match outcome:
        case Finding():
            return replace(shortened(outcome), message=headline(outcome))
        case Failed(message=message, stack=stack):
            found = PLACE.search(message)
            file, line = (short_path(found["file"]), int(found["line"])) if found else ("", 0)
            kind = CUDA_ERROR if DEVICE_ERROR.search(message) else "abort"
            return Finding(kind, message.partition("\n")[0], file=file, line=line, frames=short_frames(stack))
    return None
