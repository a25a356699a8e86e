"""Breakpoints by the anchors that they stand on. Standard library only, as all that gdb's Python loads."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from fattn_probe.debug.protocol import Debugger, Stop

Points = dict[int, str]
"""Anchor by breakpoint number."""
BLOCK = "_block"
"""The end of an anchor's name where a block of a kernel without stream-K knows its work."""


def block_anchors(anchors: Iterable[str]) -> list[str]:
    """The anchors at which the blocks of kernels without stream-K are read."""
    return [name for name in anchors if name.endswith(BLOCK)]


def insert_near(debugger: Debugger, anchors: Mapping[str, Sequence[str]], names: Iterable[str]) -> Points:
    """Breakpoints on all lines of some anchors, near the frames above; anchor by breakpoint number."""
    found = ((name, location) for name in names for location in anchors[name])
    return {number: name for name, location in found for number in debugger.insert_near(location)}


def ended(stop: Stop) -> dict[str, object]:
    """The record of a kernel's end in the midst of it, at a stop that no breakpoint made."""
    place = [stop.function, PurePosixPath(stop.file).name, stop.line]
    return {"at": "ended", "reason": stop.reason, "detail": stop.detail, "place": place}


def point_of(points: Points, stop: Stop) -> str:
    """The anchor at which the program stopped, empty if at none."""
    return next((points[number] for number in stop.breakpoints if number in points), "")
