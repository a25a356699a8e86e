"""The verdict on a run that left no output."""

from typing import Any

from fattn_probe.compare.verdict import Status, Verdict
from fattn_probe.run.frames import headline, short_frames, short_kernel
from fattn_probe.run.outcome import Failed, Fault, Lost, Missing, Unsupported


def verdict_without_output(outcome: Unsupported | Missing | Fault | Failed | Lost) -> Verdict:
    """What can be said without an output; a crash that nothing explains and a missing function are no verdict (`lost`).

    The reason is the checker's, the sanitizer's or ggml's own message; the stack, if there is one, follows on lines of
    its own, innermost first.
    """
    match outcome:
        case Unsupported(reason):
            return Verdict(Status.UNSUPPORTED, reason)
        case Missing(symbol):
            return Verdict(Status.LOST, f"the build left out a function that was called: {symbol}")
        case Fault(_, finding, frames):
            return Verdict(Status.FAIL, _with_stack(f"{headline(outcome)}{_place(finding)}", frames))
        case Failed(message, stack):
            return Verdict(Status.FAIL, _with_stack(message, stack))
        case Lost(message):
            return Verdict(Status.LOST, message)


def _place(finding: dict[str, Any]) -> str:
    """The kernel, block and thread of a finding, as far as it names them."""
    named = [short_kernel(finding["kernel"])] if finding.get("kernel") else []
    named += [f"{key} ({', '.join(map(str, finding[key]))})" for key in ("block", "thread") if finding.get(key)]
    return f"\n  in {', '.join(named)}" if named else ""


def _with_stack(message: str, frames: tuple[str, ...]) -> str:
    return "\n".join([message, *(f"  {frame}" for frame in short_frames(frames))])
