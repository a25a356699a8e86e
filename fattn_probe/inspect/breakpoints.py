"""What is looked at besides the facts: tensors' values, one's own breakpoints."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.arrays import Bytes
from fattn_probe.build import RUNNER
from fattn_probe.device import Target
from fattn_probe.errors import InputError
from fattn_probe.inspect.inspector import Ended, Inspector
from fattn_probe.scenario import Case
from fattn_probe.scenario.schema import Trace
from fattn_probe.source.features import CUDA

WATCH = "fattn_probe.inspect.procedures.watch:watch"
THREAD = "simt::self == 0 || (simt::self->warp->index == {warp} && simt::self->lane == {lane})"


@dataclass(frozen=True)
class Watch:
    """`--break 'PATTERN@FILE' --print EXPR`: expressions to read at lines that match, at most `stops` times."""

    pattern: str
    file: str
    expressions: tuple[str, ...]
    stops: int = 1


@dataclass(frozen=True)
class Watched:
    """One stop: where, and each expression's value as the debugger prints it; None if it cannot be evaluated."""

    function: str
    file: str
    line: int
    values: Mapping[str, str | None]


@dataclass(frozen=True)
class WatchResult:
    """The stops, and why there were no more of them; empty if there may be."""

    stops: tuple[Watched, ...]
    why: str


def parse_watch(text: str, expressions: Sequence[str], stops: int) -> Watch:
    """`PATTERN@FILE`: a regular expression, and a file of ggml-cuda/; InputError if it is not that."""
    pattern, at, file = text.rpartition("@")
    if not at or not pattern or "/" in file:
        raise InputError(f"--break {text!r} is not PATTERN@FILE, such as 'float KQ_max_new@fattn-mma-f16.cuh'")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InputError(f"--break {text!r}: {pattern!r} is no regular expression: {error}") from error
    return Watch(pattern, file, tuple(expressions), stops)


def watch(
    inspector: Inspector, case: Case, inputs: Mapping[str, Bytes], target: Target, wanted: Watch
) -> WatchResult | Ended:
    """Stop where `wanted` says; in a kernel in one thread alone, that of the case's `inspect.trace`."""
    at = case.inspect.trace or Trace()
    locations = lines_of(inspector.source(inspector.session.build_for(target, RUNNER)), wanted)
    simulated = target.engine == "sim"
    plan = {
        "locations": [f"{wanted.file}:{line}" for line in locations],
        "expressions": list(wanted.expressions),
        "stops": wanted.stops,
        "condition": THREAD.format(warp=at.warp, lane=at.lane or 0) if simulated else "",
        "at_launch": [f"set var simt::focus.block = {at.block}"] if simulated else [],
        "thread": [] if simulated else [at.block, at.warp, at.lane or 0],
    }
    with inspector.place(case, inputs) as folder:
        found = inspector.procedure(WATCH, plan, folder, target)
    if not isinstance(found, dict):
        return found
    return WatchResult(tuple(Watched(**stop) for stop in found["stops"]), found["why"])


def lines_of(root: Path, wanted: Watch) -> list[int]:
    """The lines of the file that match, from 1 on; InputError if there is no such file or line."""
    path = root / CUDA / wanted.file
    if not path.is_file():
        raise InputError(f"--break: this source has no {CUDA / wanted.file}")
    lines = path.read_text(errors="replace").splitlines()
    found = [number for number, line in enumerate(lines, 1) if re.search(wanted.pattern, line)]
    if not found:
        raise InputError(f"--break: no line of {CUDA / wanted.file} matches {wanted.pattern!r}")
    return found
