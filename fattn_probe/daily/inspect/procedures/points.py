"""Breakpoints and their anchors. Standard library only, because gdb's own Python loads this module."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from fattn_probe.machine.debug.protocol import Debugger, StopRecord

Points = dict[int, str]
"""Anchors by breakpoint number."""
BLOCK = "_block"
"""The suffix of anchors where a block of a kernel without stream-K has computed its work."""


def block_anchors(anchors: Iterable[str]) -> list[str]:
    """The anchors where the blocks of kernels without stream-K are read."""
    return [name for name in anchors if name.endswith(BLOCK)]


def insert_near(debugger: Debugger, anchors: Mapping[str, Sequence[str]], names: Iterable[str]) -> Points:
    """Set breakpoints on all lines of some anchors, in the compilation units of the frames above."""
    found = ((name, location) for name in names for location in anchors[name])
    return {number: name for name, location in found for number in debugger.insert_near(location)}


def ended(stop: StopRecord) -> dict[str, object]:
    """The record of a kernel that ended early, from a stop that is not at a breakpoint."""
    place = [stop.function, PurePosixPath(stop.file).name, stop.line]
    return {"at": "ended", "reason": stop.reason, "detail": stop.detail, "place": place}


def point_of(points: Points, stop: StopRecord) -> str:
    """The anchor where the program stopped; empty if it is not at one."""
    return next((points[number] for number in stop.breakpoints if number in points), "")
