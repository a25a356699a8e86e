"""The fault that stopped a kernel, and its place: a finding of the simulator or a sanitizer, or ggml's abort."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fattn_probe.run.frames import headline, short_frames, short_kernel, short_path
from fattn_probe.run.outcome import Failed, Fault, Index

PLACE = re.compile(r"(?:^| at )(?P<file>[^\s:]+):(?P<line>\d+)(?=:|$)", re.MULTILINE)
CUDA_ERROR = "CUDA error"


@dataclass(frozen=True)
class Finding:
    """Why a run ended before its output.

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


def finding_of(outcome: object) -> Finding | None:
    """The finding of a run that ended with a fault or ggml's abort; None for any other outcome."""
    match outcome:
        case Fault(kind=kind, file=file, line=line, block=block, thread=thread):
            kernel = short_kernel(outcome.kernel) if outcome.kernel else ""
            return Finding(kind, headline(outcome), kernel, file, line, block, thread, short_frames(outcome.frames))
        case Failed(message=message, stack=stack):
            found = PLACE.search(message)
            file, line = (short_path(found["file"]), int(found["line"])) if found else ("", 0)
            kind = CUDA_ERROR if CUDA_ERROR in message else "abort"
            return Finding(kind, message.partition("\n")[0], file=file, line=line, frames=short_frames(stack))
    return None


def finding_from(document: Mapping[str, Any] | None) -> Finding | None:
    """The finding in a JSON document made by `dataclasses.asdict`."""
    if document is None:
        return None
    lists = {name: tuple(document[name]) for name in ("block", "thread", "frames") if document[name] is not None}
    return Finding(**{**document, **lists})
