"""Read the blocks of a kernel on a real GPU, under cuda-gdb.

A GPU runs many blocks at once and stops them all when one reaches a breakpoint. So at each stop, every block whose
thread 0 is at an anchor is read. Standard library only, because gdb's own Python loads this module.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from fattn_probe.daily.inspect.procedures.blocks import (
    KERNEL_VARIABLES,
    SPLIT_VARIABLES,
    TILE_VARIABLES,
    Document,
    number,
)
from fattn_probe.daily.inspect.procedures.points import Points, block_anchors, ended, insert_near, point_of
from fattn_probe.machine.debug.protocol import Debugger, StopRecord

Extents = Sequence[int]
Block = tuple[int, int, int]

PLACE = r"\((\d+),(\d+),(\d+)\)\s+"
RANGE = re.compile(rf"^[ *]*{PLACE * 4}\d+\s+0x[0-9a-f]+\s+(\S.*?)\s+(\d+)\s*$", re.MULTILINE)
"""A row of `info cuda threads`: first block and thread, last block and thread, count, PC, file, line."""
VARIABLES: Mapping[str, Sequence[str]] = {
    "kbc": ("kbc", "kbc_stop", *KERNEL_VARIABLES, "ne33"),
    "tile_call": ("kbc", *TILE_VARIABLES),
}


def read_blocks(
    debugger: Debugger, anchors: Mapping[str, Sequence[str]], blocks_num: Extents, *, sparse: bool
) -> Iterator[Document]:
    """The record of each block of the next kernel; the host's launch must return only when the kernel has finished.

    `blocks_num` is the grid (x, y, z). Each block of a stream-K kernel gives its `kbc` and `kbc_stop`. The blocks that
    are at a tile's call when the GPU first stops there also report that tile; reading every call would take a stop per
    warp. `KV_max` is the scanned mask if there is one; for a `sparse` kernel, the number of rows that it gathers.
    """
    ends = insert_near(debugger, anchors, ("launched",))
    reader = _GpuReader(debugger, anchors, blocks_num)
    unread = reader.all_blocks()
    points = reader.insert(*reader.first)
    while unread:
        stop = debugger.resume("continue")
        if point_of(ends, stop) or stop.reason != "breakpoint":
            yield ended(stop)
            return
        for record in reader.standing(stop, unread):
            unread.discard(tuple(record["blockIdx"]))
            yield record
    debugger.delete(*points)
    yield from reader.scanned_mask(sparse)
    yield from reader.first_tiles(ends)


class _GpuReader:
    """Reads variables in thread 0 of each block, at stops of the whole GPU."""

    def __init__(self, debugger: Debugger, anchors: Mapping[str, Sequence[str]], blocks_num: Extents) -> None:
        self.debugger, self.anchors, self.extents = debugger, anchors, blocks_num
        self.first = ("kbc", *block_anchors(anchors))
        self.shape: Document = {}

    def all_blocks(self) -> set[Block]:
        """Every block of the grid."""
        x, y, z = self.extents
        return {(i, j, k) for i in range(x) for j in range(y) for k in range(z)}

    def insert(self, *names: str) -> list[int]:
        """Set breakpoints on lines of device code, whose unit is loaded with the kernel; returns their numbers."""
        return [self.debugger.insert(location) for name in names for location in self.anchors[name]]

    def standing(self, stop: StopRecord, wanted: set[Block]) -> Iterator[Document]:
        """The records of the requested blocks whose thread 0 is at an anchor."""
        at = self._anchor(stop.file, stop.line)
        for block, file, line in self._threads_0():
            where = at if line == stop.line else self._anchor(file, line, exact=True)
            if block in wanted and where and (record := self._read(where, block)):
                yield record

    def scanned_mask(self, sparse: bool) -> Iterator[Document]:
        """`KV_max` of all masks and query tiles, with the focus in a kernel; nothing for a null pointer."""
        if not {"ne03", "iter_j", "nbatch_fa"} <= self.shape.keys():
            return
        masks = self.shape["ne33" if sparse else "ne03"]
        pointer, values = self.debugger.evaluate(["(long)KV_max", f"*KV_max@{masks * self.shape['iter_j']}"])
        if pointer not in (None, "0") and values is not None:
            yield {"at": "KV_max", "values": values, "nbatch_fa": self.shape["nbatch_fa"], "sparse": sparse}

    def first_tiles(self, ends: Points) -> Iterator[Document]:
        """The tiles of the blocks at a tile's call at the first such stop; then the kernel runs to its end."""
        points = self.insert("tile_call") if "kbc" in self.shape else []
        stop = self.debugger.resume("continue")
        if not point_of(ends, stop) and stop.reason == "breakpoint":
            yield from self.standing(stop, self.all_blocks())
            self.debugger.delete(*points)
            stop = self.debugger.resume("continue")
        if not point_of(ends, stop):
            yield ended(stop)

    def _threads_0(self) -> Iterator[tuple[Block, str, int]]:
        """The place of each block's thread 0: block, file, line."""
        for found in RANGE.finditer(self.debugger.execute("info cuda threads")):
            places = [tuple(map(int, found.groups()[at : at + 3])) for at in (0, 3, 6)]
            first, last = self._linear(places[0]) + (places[1] != (0, 0, 0)), self._linear(places[2])
            for linear in range(first, last + 1):
                yield self._block(linear), found[13], int(found[14])

    def _linear(self, block: Sequence[int]) -> int:
        return block[0] + self.extents[0] * (block[1] + self.extents[1] * block[2])

    def _block(self, linear: int) -> Block:
        rest, x = divmod(linear, self.extents[0])
        z, y = divmod(rest, self.extents[1])
        return x, y, z

    def _anchor(self, file: str, line: int, *, exact: bool = False) -> str:
        """The anchor of a line, empty if none; a debugger moves a breakpoint to the next line with code."""
        found = [
            (int(at), name)
            for name in (*self.first, "tile_call")
            for place, _, at in (location.rpartition(":") for location in self.anchors[name])
            if place == PurePosixPath(file).name and (int(at) == line if exact else int(at) <= line)
        ]
        return max(found, default=(0, ""))[1]

    def _names(self, where: str) -> Sequence[str]:
        """The variables to read; the shape of the work is equal for all blocks, so only the first one reads it."""
        if where == "kbc" and self.shape:
            return ("kbc", "kbc_stop")
        return VARIABLES.get(where, SPLIT_VARIABLES)

    def _read(self, where: str, block: Block) -> Document | None:
        """A block's record; None if its thread is a few instructions away, where its variables cannot be read."""
        place = ",".join(map(str, block))
        self.debugger.execute(f"cuda block ({place}) thread (0,0,0)")
        names = (*self._names(where), "$smid")
        values = [number(text) for text in self.debugger.evaluate(names)]
        found: Document = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        needed = {"kbc": {"kbc", "kbc_stop"}, "tile_call": {"sequence", "jt", "kb0_start", "kb0_stop"}}
        if not needed.get(where, {"sequence"}) <= found.keys():
            return None
        self.shape = self.shape or found
        at = "tile" if where == "tile_call" else where
        return found | {"at": at, "blockIdx": list(block), "sm": found.get("$smid")}
