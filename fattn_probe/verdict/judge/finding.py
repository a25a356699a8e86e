"""The verdict on a run without an output, and the fault that stopped it."""

import re
from dataclasses import dataclass

from fattn_probe.machine.run.frames import (
    brief_frames,
    describe_fault,
    headline,
    short_frames,
    short_kernel,
    short_path,
)
from fattn_probe.machine.run.outcome import DEVICE_ERROR, Failed, Fault, Index, Lost, Missing, Unsupported
from fattn_probe.verdict.measure.verdict import Status, Verdict

PLACE = re.compile(r"(?:^| at )(?P<file>[^\s:]+):(?P<line>\d+)(?=:|$)", re.MULTILINE)
CUDA_ERROR = "CUDA error"
"""The kind of ggml's CUDA errors, and of its ROCm errors on AMD GPUs."""


@dataclass(frozen=True)
class Finding:
    """The fault that stopped a run before its output.

    `kind` is the simulator's word (`out-of-bounds`, `race`), the sanitizer's name, `CUDA error` or `abort`; `kernel` is
    written as in the source; `block` and `thread` are (x, y, z); `frames` start with the innermost. Unknown values are
    empty, 0 or None.
    """

    kind: str
    message: str
    kernel: str = ""
    file: str = ""
    line: int = 0
    block: Index | None = None
    thread: Index | None = None
    frames: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """`KERNEL, block (0, 0, 0), thread (23, 2, 0), FILE:LINE`, without unknown parts."""
        indices = (("block", self.block), ("thread", self.thread))
        known = [f"{name} ({', '.join(map(str, index))})" for name, index in indices if index is not None]
        source = [f"{self.file}:{self.line}"] if self.file else []
        return ", ".join([*([self.kernel] if self.kernel else []), *known, *source])


def verdict_without_output(outcome: Unsupported | Missing | Fault | Failed | Lost) -> Verdict:
    """The verdict on a run without an output; an unexplained crash or a missing function is `lost`.

    The reason is the message of the checker, the sanitizer or ggml; the stack, if there is one, follows on separate
    lines, innermost first.
    """
    match outcome:
        case Unsupported(reason):
            return Verdict(Status.UNSUPPORTED, reason)
        case Missing(symbol):
            return Verdict(Status.LOST, f"the build lacks a function that was called: {symbol}")
        case Fault():
            return Verdict(Status.FAIL, describe_fault(outcome))
        case Failed(message, stack) | Lost(message, stack):
            status = Status.FAIL if isinstance(outcome, Failed) else Status.LOST
            return Verdict(status, "\n".join([message, *(f"  {frame}" for frame in brief_frames(stack))]))


def finding_of(outcome: object) -> Finding | None:
    """The finding of a run that ended with a fault or ggml's abort; None for any other outcome."""
    match outcome:
        case Fault(kind=kind, file=file, line=line, block=block, thread=thread):
            kernel = short_kernel(outcome.kernel) if outcome.kernel else ""
            return Finding(kind, headline(outcome), kernel, file, line, block, thread, short_frames(outcome.frames))
        case Failed(message=message, stack=stack):
            found = PLACE.search(message)
            file, line = (short_path(found["file"]), int(found["line"])) if found else ("", 0)
            kind = CUDA_ERROR if DEVICE_ERROR.search(message) else "abort"
            return Finding(kind, message.partition("\n")[0], file=file, line=line, frames=short_frames(stack))
    return None
