"""Run the native runner on one case file, and classify its ending."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fattn_probe.errors import BuildError, TimedOutError
from fattn_probe.launch.record import LaunchRecord, Names, Types, parse_launches
from fattn_probe.process import Completed, run
from fattn_probe.run.frames import place_of
from fattn_probe.run.outcome import Fault, Lost, Ran, RunOutcome, Unsupported, parse_ending
from fattn_probe.run.result import read_result

LAUNCHES_ENV = "FATTN_PROBE_LAUNCHES"
# Frames of the simulator itself, of the C++ library (its templates are inlined into any file) and of glibc, of the
# compiler's intrinsics, of a sanitizer
MACHINERY = re.compile(
    r"^std::| at (\S*native/sim/|/usr/include/|\S*/include/c\+\+/|\S*/gcc/\S*/include/|\S*/libsanitizer/|\?\?)"
)


def execute(
    runner: Path,
    case_file: Path,
    out_file: Path,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    args: Sequence[str] = (),
    part: Path | None = None,
    types: Types | None = None,
    names: Names | None = None,
) -> RunOutcome:
    """Run `runner case_file out_file *args` and read its results; `part` is a file of `write_part`.

    Launch records go to `out_file` + `.launches`; `types` and `names` are passed to `parse_launches`. A runner that
    cannot be started raises BuildError; everything else is an outcome.
    """
    launches = out_file.with_name(out_file.name + ".launches")
    for stale in (launches, out_file):
        stale.unlink(missing_ok=True)
    environment = {"DEBUGINFOD_URLS": "", **(env or {}), LAUNCHES_ENV: str(launches)}
    selected = () if part is None else ("--select", part)
    try:
        done = run([runner, case_file, out_file, *args, *selected], env=environment, timeout=timeout, failure=None)
    except TimedOutError as error:
        return Lost(str(error))
    ending = parse_ending(done)
    if isinstance(ending, Fault):
        return symbolised(ending)
    if ending is not None:
        return ending
    return outcome_of(done, out_file, read_launches(launches, types=types, names=names))


def outcome_of(done: Completed, out_file: Path, launches: tuple[LaunchRecord, ...]) -> RunOutcome:
    """The outcome in the result file of a runner that exited with 0."""
    result = read_result(out_file)
    if result.unsupported:
        return Unsupported(result.unsupported)
    return Ran(result, launches, done.stderr, done.seconds)


def read_launches(path: Path, *, types: Types | None = None, names: Names | None = None) -> tuple[LaunchRecord, ...]:
    """The launches of the first run; none if the backend launches no kernels (the CPU's)."""
    return parse_launches(path.read_text(), types=types, names=names) if path.exists() else ()


def symbolised(fault: Fault) -> Fault:
    """The fault with symbolised frames (function and line), from the kernel's line outwards."""
    if not fault.frames:
        return fault
    frames = kernel_frames(symbolise(fault.frames))
    file, line = place_of(frames[0])
    return dataclasses.replace(fault, frames=frames, file=file or fault.file, line=line or fault.line)


def symbolise(frames: Sequence[str]) -> tuple[str, ...]:
    """Turn `module+0xoffset` into `function at file:line`, with inlined functions, if addr2line finds it."""
    addresses = defaultdict(list)
    for frame in frames:
        module, plus, offset = frame.rpartition("+0x")
        if plus and Path(module).is_file():
            addresses[module].append(f"0x{offset}")
    known: dict[str, tuple[str, ...]] = {}
    for module, offsets in addresses.items():
        known |= {f"{module}+{offset}": said for offset, said in _addr2line(module, offsets)}
    return tuple(line for frame in frames for line in known.get(frame, (frame,)))


def kernel_frames(frames: Sequence[str]) -> tuple[str, ...]:
    """The frames from the kernel's line outwards to the kernel; all frames if none is a kernel's."""
    own = [index for index, frame in enumerate(frames) if " at " in frame and not MACHINERY.search(frame)]
    return tuple(frames[own[0] : own[-1] + 1]) if own else tuple(frames)


def _addr2line(module: str, offsets: list[str]) -> Iterable[tuple[str, tuple[str, ...]]]:
    try:
        done = run(["addr2line", "-aCfpie", module, *offsets], timeout=60, failure=None)
    except (BuildError, TimedOutError):  # no binutils, or addr2line takes too long: keep the raw frame
        return ()
    return parse_addr2line(offsets, done.stdout)


def parse_addr2line(offsets: Sequence[str], text: str) -> list[tuple[str, tuple[str, ...]]]:
    """(offset, frames from the innermost outwards) in the output of `addr2line -aCfpi`, without unknown places."""
    groups: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("0x"):
            groups.append([line.partition(": ")[2]])
        elif groups:
            groups[-1].append(line.strip().removeprefix("(inlined by) "))
    pairs = zip(offsets, groups, strict=False)
    return [(offset, tuple(group)) for offset, group in pairs if not group[0].startswith("?? ")]
