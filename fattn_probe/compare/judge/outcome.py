"""The verdict on a run without an output."""

from fattn_probe.compare.judge.verdict import Status, Verdict
from fattn_probe.run.frames import describe_fault, short_frames
from fattn_probe.run.outcome import Failed, Fault, Lost, Missing, Unsupported


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
        case Failed(message, stack):
            return Verdict(Status.FAIL, _with_stack(message, stack))
        case Lost(message):
            return Verdict(Status.LOST, message)


def _with_stack(message: str, frames: tuple[str, ...]) -> str:
    return "\n".join([message, *(f"  {frame}" for frame in short_frames(frames))])
