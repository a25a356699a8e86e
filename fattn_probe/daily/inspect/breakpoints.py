"""The user's own breakpoints: `--break` and `--print`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.errors import InputError
from fattn_probe.base.regex import bounded, compiled
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.schema import TracePlace
from fattn_probe.daily.inspect.anchors import matching, overlay_lines
from fattn_probe.daily.inspect.inspector import Ended, Inspector, wave_of
from fattn_probe.daily.inspect.procedures.warp import fiber
from fattn_probe.llama.build import RUNNER
from fattn_probe.llama.source.features import CUDA

SHOWN = 12  # the number of names in a refusal
WATCH = "fattn_probe.daily.inspect.procedures.watch:watch"
THREAD = "simt::self == 0 || ({} == {} && {} == {})"


@dataclass(frozen=True)
class BlockWatch:
    """`--break 'PATTERN@FILE' --print EXPR`: expressions to evaluate at matching lines, at most `stops` times."""

    pattern: str
    file: str
    expressions: tuple[str, ...]
    stops: int = 1


@dataclass(frozen=True)
class BreakRefusal:
    """Why an expression has no value, in the debugger's words.

    For an unknown name, `names` are the arguments and locals in scope, and `near` those with a similar spelling.
    """

    reason: str
    near: tuple[str, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        reason = f"{self.reason.rstrip('.')}."
        if self.near:
            return f"{reason} Similar names in scope: {', '.join(self.near)}"
        more = f" and {len(self.names) - SHOWN} more" if len(self.names) > SHOWN else ""
        return f"{reason} In scope: {', '.join(self.names[:SHOWN])}{more}" if self.names else reason


@dataclass(frozen=True)
class Watched:
    """One stop: its place, and each expression's value as the debugger prints it; None if it was refused."""

    function: str
    file: str
    line: int
    values: Mapping[str, str | None]
    refusals: Mapping[str, BreakRefusal]

    @property
    def place(self) -> str:
        """`flash_attn_ext_f16_iter at fattn-mma-f16.cuh:671`."""
        return f"{self.function.partition('<')[0]} at {PurePosixPath(self.file).name}:{self.line}"


@dataclass(frozen=True)
class WatchResult:
    """The stops; `why` is the reason if the program ended before the requested number of stops, otherwise empty."""

    stops: tuple[Watched, ...]
    why: str

    @property
    def never_read(self) -> Mapping[str, tuple[Watched, BreakRefusal]]:
        """Expressions that had no value at any stop, with their first stop and its refusal."""
        read = {text for stop in self.stops for text, value in stop.values.items() if value is not None}
        first = {text: (stop, why) for stop in reversed(self.stops) for text, why in stop.refusals.items()}
        return {text: found for text, found in first.items() if text not in read}


def watch_of(text: str, expressions: Sequence[str], stops: int) -> BlockWatch | None:
    """The watch that `--break PATTERN@FILE`, `--print` and `--stops` describe; InputError if they are invalid.

    PATTERN is a regular expression, FILE a file of ggml-cuda/. `--print` needs `--break`.
    """
    if expressions and not text:
        raise InputError(f"--print {expressions[0]!r} needs --break 'PATTERN@FILE', the line to print it at")
    if not text:
        return None
    pattern, _, file = text.rpartition("@")
    if not pattern or "/" in file:
        raise InputError(f"--break {text!r} is not PATTERN@FILE, such as 'float KQ_max_new@fattn-mma-f16.cuh'")
    compiled(pattern, "--break")
    return BlockWatch(pattern, file, tuple(expressions), stops)


def watch(
    inspector: Inspector, case: Case, inputs: Mapping[str, Bytes], target: Target, wanted: BlockWatch
) -> WatchResult | Ended:
    """Stop at the lines of `wanted`; in a kernel, only in the thread of the case's `inspect.trace`."""
    at = case.inspect.trace or TracePlace()
    path = inspector.source(inspector.session.build_for(target, RUNNER)) / CUDA / wanted.file
    if not path.is_file():
        raise InputError(f"--break: this source has no {CUDA / wanted.file}")
    with bounded(wanted.pattern, "--break"):
        lines = list(matching(overlay_lines(path), wanted.pattern))
    if not lines:
        raise InputError(f"--break: no line of {CUDA / wanted.file} matches {wanted.pattern!r}")
    simulated = target.engine == "sim"
    warp, lane = fiber(wave_of(target))
    plan = {
        "locations": [f"{wanted.file}:{line}" for line in lines],
        "expressions": list(wanted.expressions),
        "stops": wanted.stops,
        "condition": THREAD.format(warp, at.warp, lane, at.lane or 0) if simulated else "",
        "at_launch": [f"set var simt::focus.block = {at.block}"] if simulated else [],
        "thread": [] if simulated else [at.block, at.warp, at.lane or 0],
    }
    with inspector.place(case, inputs) as folder:
        found = inspector.procedure(WATCH, plan, folder, target)
    if not isinstance(found, dict):
        return found
    stops = []
    for stop in found["stops"]:
        refused = {
            text: BreakRefusal(said["reason"], tuple(said["near"]), tuple(said["names"]))
            for text, said in stop["refusals"].items()
        }
        stops.append(Watched(stop["function"], stop["file"], stop["line"], stop["values"], refused))
    return WatchResult(tuple(stops), found["why"])
