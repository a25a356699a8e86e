"""Readable stack frames with symbols, without parameter lists, local paths, repeated locations or machinery."""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

from fattn_probe.base.errors import BuildError, TimedOutError
from fattn_probe.base.process import run
from fattn_probe.llama.build.sources import LAUNCHES
from fattn_probe.llama.cxx.functions import BODIES, ONCE, functions
from fattn_probe.llama.cxx.tokens import draft_of, tokenize
from fattn_probe.llama.launch.name import parse_kernel_name
from fattn_probe.machine.run.outcome import Finding

FRAME = re.compile(r"^(?P<name>.*) at (?P<path>\S.*):(?P<line>\d+|\?)(?: \(discriminator \d+\))?$")
CLONE = re.compile(r" \[clone [^\]]*\]")
OVERLAY = "/overlay/"
# Frames of the simulator itself, of the C++ library (whose templates are inlined into any file), of glibc, of compiler
# intrinsics, and of sanitizers
MACHINERY = re.compile(
    r"^std::| at (\S*native/sim/|/usr/include/|\S*/include/c\+\+/|\S*/gcc/\S*/include/|\S*/libsanitizer/|\?\?"
    r"|(\.{1,2}/)*(csu|malloc|nptl|signal|stdlib|string)/|\S*\bsysdeps/)"
)
MOST_FRAMES = 8
MOST_ARGUMENTS = 40
"""Longer template arguments are not shown, because those of an mma iteration would take 15 lines."""


def short_kernel(signature: str) -> str:
    """A kernel as `flash_attn_ext_f16<64,64,8,8,false,false,false>`, from __PRETTY_FUNCTION__ or a demangled name."""
    name = parse_kernel_name(signature)
    values = ",".join(value for _, value in name.args)
    return f"{name.base}<{values}>" if values else name.base


def headline(found: Finding) -> str:
    """The finding in one line: `misaligned: a vector is accessed ...`; a sanitizer's message already has the kind."""
    named = found.kind and not found.kind.endswith("Sanitizer")
    return f"{found.kind}: {found.message}" if named else found.message


def shortened(found: Finding) -> Finding:
    """The finding with a short kernel name, and the innermost frames as `function at file:line`."""
    kernel = short_kernel(found.kernel) if found.kernel else ""
    return replace(found, kernel=kernel, frames=short_frames(found.frames), earlier=short_frames(found.earlier))


def describe_finding(found: Finding) -> str:
    """The finding as text: a line with the message, a line with kernel, block and thread, then a line per frame."""
    place = replace(shortened(found), file="").place
    return "\n  ".join([headline(found), *[f"in {place}"] * bool(place), *brief_frames(found.frames)])


def short_frames(frames: Sequence[str]) -> tuple[str, ...]:
    """The innermost frames as `function at file:line`, each location once."""
    # Inlined and recursive lambdas repeat the location of the previous frame.
    places = groupby(map(short_frame, frames), key=lambda frame: frame.rpartition(" at ")[2])
    return tuple(next(same) for _, same in places)[:MOST_FRAMES]


def brief_frames(frames: Sequence[str]) -> tuple[str, ...]:
    """The innermost frames for display, without long template arguments."""
    return tuple(map(brief_frame, short_frames(frames)))


def brief_frame(frame: str) -> str:
    """A short frame, with `<...>` in place of long template arguments."""
    name, at, place = frame.rpartition(" at ")
    start, stop = name.find("<"), name.rfind(">") + 1
    return f"{name[:start]}<...>{name[stop:]}{at}{place}" if stop - start > MOST_ARGUMENTS else frame


def short_frame(frame: str) -> str:
    """A frame of addr2line, shortened; any other text is unchanged."""
    match = FRAME.match(frame)
    if match is None:
        return frame
    return f"{short_function(match['name'])} at {short_path(match['path'])}:{match['line']}"


def place_of(frame: str) -> tuple[str, int]:
    """The file and line of a frame of addr2line; empty and 0 if unknown."""
    match = FRAME.match(frame)
    return (short_path(match["path"]), int(match["line"])) if match and match["line"] != "?" else ("", 0)


def short_path(path: str) -> str:
    """A source file's path in its tree, such as `ggml/src/ggml-cuda/common.cuh`; any other path is unchanged."""
    path = posixpath.normpath(path)
    return f"/{path}".rpartition(OVERLAY)[2] if OVERLAY in f"/{path}" else path


def short_function(name: str) -> str:
    """A function's name without return type and parameters; `lambda` for the `operator()` of a lambda."""
    name = CLONE.sub("", name)
    if name.startswith("operator()"):
        return "lambda"
    head, depth = "", 0
    for letter in name:
        depth += (letter in "<") - (letter in ">")
        if letter == "(" and depth == 0:
            break
        head += " " if letter == " " and depth else "\0" if letter == " " else letter
    return head.rpartition("\0")[2]


def symbolised(found: Finding) -> Finding:
    """The finding with symbolised frames (function and line), from the kernel's line outwards.

    If the finding has `earlier` frames, the message ends with their location.
    """
    if not found.frames:
        return found
    frames = kernel_frames(symbolise(found.frames))
    file, line = place_of(frames[0])
    earlier = kernel_frames(symbolise(found.earlier))
    there = place_of(earlier[0]) if earlier else ("", 0)
    message = f"{found.message} at {there[0]}:{there[1]}" if there[0] else found.message
    return replace(
        found, message=message, frames=frames, file=file or found.file, line=line or found.line, earlier=earlier
    )


def symbolise(frames: Sequence[str]) -> tuple[str, ...]:
    """Turn `module+0xoffset` into `function at file:line`, with inlined functions, if addr2line finds them.

    Builds with `g++ -g1` lack the names of inlined functions, and addr2line prints the enclosing function's name
    instead; the correct name is taken from the source.
    """
    addresses = defaultdict(list)
    for frame in frames:
        module, plus, offset = frame.rpartition("+0x")
        if plus and Path(module).is_file():
            addresses[module].append(f"0x{offset}")
    known: dict[str, tuple[str, ...]] = {}
    for module, offsets in addresses.items():
        try:
            said = run(["addr2line", "-aCfpie", module, *offsets], timeout=60, failure=None).stdout
        except (BuildError, TimedOutError):  # no binutils, or addr2line is too slow: keep the raw frames
            continue
        folder = Path(module).parents[1]  # paths in debug information are relative to it
        for offset, lines in parse_addr2line(offsets, said):
            known[f"{module}+{offset}"] = tuple(named_by_source(line, folder) for line in lines)
    return tuple(whole_kernels(line for frame in frames for line in known.get(frame, (frame,))))


def named_by_source(frame: str, folder: Path) -> str:
    """A frame of addr2line, renamed after the function that contains its line in the source, if that differs."""
    match = FRAME.match(frame)
    if match is None or match["line"] == "?" or MACHINERY.search(frame):
        return frame
    name, line = short_function(match["name"]), int(match["line"])
    path = folder / match["path"]
    # If a header's kernels are compiled separately, its own lines are in the launching version, after a #line.
    whole = lines_of(path.parent / LAUNCHES / path.name)
    around = [function for first, last, function in whole if first <= line + 1 <= last]
    if not around:
        there = {function for _, _, function in whole}
        spans = [span for span in lines_of(path) if span[2] not in there]
        around = [function for first, last, function in spans if first <= line <= last]
    plain = name.partition("<")[0].rpartition("::")[2]
    return f"{around[0]} at {match['path']}:{line}" if around and plain not in ("lambda", *around) else frame


@cache
def lines_of(path: Path) -> tuple[tuple[int, int, str], ...]:
    """The first line, last line and name of each function that a CUDA file defines; empty if the file is missing."""
    if path.suffix not in (".cu", ".cuh") or not path.is_file():
        return ()
    draft = draft_of(tokenize(path.read_text(errors="replace")))
    return tuple((draft.lines[one.at], draft.lines[one.stop], one.name) for one in functions(draft))


def whole_kernels(frames: Iterable[str]) -> Iterator[str]:
    """The frames, with kernel bodies named as in the source, and without the functions that only call a body."""
    inner = ""
    for frame in frames:
        function = short_function(frame.partition(" at ")[0]).partition("<")[0]
        if inner not in (f"{BODIES}::{function}", f"{ONCE}{function}"):
            yield frame.replace(f"{BODIES}::", "").replace(ONCE, "")
        inner = function


def kernel_frames(frames: Sequence[str]) -> tuple[str, ...]:
    """The frames from the innermost to the outermost one outside the machinery; all frames if there is none."""
    own = [index for index, frame in enumerate(frames) if " at " in frame and not MACHINERY.search(frame)]
    return tuple(frames[own[0] : own[-1] + 1]) if own else tuple(frames)


def parse_addr2line(offsets: Sequence[str], text: str) -> list[tuple[str, tuple[str, ...]]]:
    """(offset, frames from the innermost outwards) from the output of `addr2line -aCfpi`, without unknown locations."""
    groups: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("0x"):
            groups.append([line.partition(": ")[2]])
        elif groups:
            groups[-1].append(line.strip().removeprefix("(inlined by) "))
    pairs = zip(offsets, groups, strict=False)
    return [(offset, tuple(group)) for offset, group in pairs if not group[0].startswith("?? ")]
