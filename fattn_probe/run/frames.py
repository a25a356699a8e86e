"""Readable stack frames and kernel names: no parameter lists, no local paths, no repeated places."""

import posixpath
import re
from collections.abc import Iterable, Sequence

from fattn_probe.launch.name import parse_kernel_name
from fattn_probe.run.outcome import Fault

FRAME = re.compile(r"^(?P<name>.*) at (?P<path>\S.*):(?P<line>\d+|\?)(?: \(discriminator \d+\))?$")
CLONE = re.compile(r" \[clone [^\]]*\]")
OVERLAY = "/overlay/"


def short_kernel(signature: str) -> str:
    """`flash_attn_ext_f16<64,64,8,8,false,false,false>`, from __PRETTY_FUNCTION__ or a demangled name."""
    name = parse_kernel_name(signature)
    values = ",".join(value for _, value in name.args)
    return f"{name.base}<{values}>" if values else name.base


def headline(fault: Fault) -> str:
    """The fault in one line: `misaligned: a vector is accessed ...`; a sanitizer's message includes its kind."""
    named = fault.kind and not fault.kind.endswith("Sanitizer")
    return f"{fault.kind}: {fault.message}" if named else fault.message


def describe_fault(fault: Fault) -> str:
    """The fault, then kernel, block and thread, then the stack, one line each."""
    named = [short_kernel(fault.kernel)] if fault.kernel else []
    indices = (("block", fault.block), ("thread", fault.thread))
    named += [f"{name} ({', '.join(map(str, index))})" for name, index in indices if index is not None]
    place = [f"in {', '.join(named)}"] if named else []
    return "\n  ".join([headline(fault), *place, *short_frames(fault.frames)])


def short_frames(frames: Sequence[str], most: int = 8) -> tuple[str, ...]:
    """The innermost frames as `function at file:line`, each place once."""
    return tuple(once(map(short_frame, frames)))[:most]


def short_frame(frame: str) -> str:
    """One frame of addr2line; any other text stays as it is."""
    match = FRAME.match(frame)
    if match is None:
        return frame
    return f"{short_function(match['name'])} at {short_path(match['path'])}:{match['line']}"


def place_of(frame: str) -> tuple[str, int]:
    """The file and line of one frame of addr2line; empty and 0 if it has none."""
    match = FRAME.match(frame)
    return (short_path(match["path"]), int(match["line"])) if match and match["line"] != "?" else ("", 0)


def short_path(path: str) -> str:
    """A source file's path in its tree, `ggml/src/ggml-cuda/common.cuh`; any other path unchanged."""
    path = posixpath.normpath(path)
    return f"/{path}".rpartition(OVERLAY)[2] if OVERLAY in f"/{path}" else path


def short_function(name: str) -> str:
    """A function without return type and parameters; a lambda's `operator()` stays a lambda."""
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


def once(frames: Iterable[str]) -> Iterable[str]:
    """Drop frames with the same place as the one before, which inlined and recursive lambdas repeat."""
    last = ""
    for frame in frames:
        place = frame.rpartition(" at ")[2]
        if place != last:
            yield frame
        last = place
