"""Read the blocks of a kernel at breakpoints: one block after the other in the simulator, many at once on a real GPU.

A GPU runs many blocks at once and stops them all when one reaches a breakpoint. So at each stop, every block whose
thread 0 is at an anchor is read. Standard library only, because gdb's own Python loads this module."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from fattn_probe.machine.debug.protocol import Debugger, Hit, StopRecord
from fattn_probe.machine.debug.values import numbers

Points = dict[int, str]
"""Anchors by breakpoint number."""
BLOCK = "_block"
"""The suffix of anchors at which a block's work is known, in kernels without stream-K."""


def block_anchors(anchors: Iterable[str]) -> list[str]:
    """The anchors where the blocks of kernels without stream-K are read."""
    return [name for name in anchors if name.endswith(BLOCK)]


def insert_near(debugger: Debugger, anchors: Mapping[str, Sequence[str]], names: Iterable[str]) -> Points:
    """Set breakpoints on all lines of some anchors, only in the compilation units of the frames on the stack."""
    found = ((name, location) for name in names for location in anchors[name])
    return {number: name for name, location in found for number in debugger.insert_near(location)}


def ended(stop: StopRecord) -> dict[str, object]:
    """Record that a kernel ended early, from a stop that is not at a breakpoint."""
    place = [stop.function, PurePosixPath(stop.file).name, stop.line]
    return {"at": "ended", "reason": stop.reason, "detail": stop.detail, "place": place}


def point_of(points: Points, stop: StopRecord) -> str:
    """The anchor where the program stopped; empty if it is not at one."""
    return next((points[number] for number in stop.breakpoints if number in points), "")


Document = dict[str, Any]

KERNEL_VARIABLES = ("iter_k", "iter_j", "iter_z_gqa", "ne12", "ne02", "ne03", "ne13", "gqa_ratio", "nbatch_fa")
TILE_VARIABLES = ("sequence", "z_KV", "zt_gqa", "zt", "jt", "kb0_start", "kb0_stop", "needs_fixup", "is_fixup")
# KV_max exists for a scanned mask or a sparse gather; otherwise it is a null pointer
KV_LIMIT = "KV_max[sequence*iter_j + jt] / nbatch_fa"
SPARSE_LIMIT = "(KV_max[(sequence % ne33)*iter_j + jt] + nbatch_fa - 1) / nbatch_fa"
SPLIT_VARIABLES = (
    "sequence",
    "head",
    "head0",
    "zt_gqa",
    "ic0",
    "col_Q_0",
    "k_VKQ_max",
    "nthreads",
    "nbatch_fa",
    "ne11",
)
BLOCK_INDEX = "simt::blockIdx"
OFFSET = re.compile(r" \+ (\d+) in section ")
# The return instruction by architecture: C type and value
RETURN = {"x86-64": ("unsigned char", 0xC3), "aarch64": ("unsigned int", 0xD65F03C0)}


def read_blocks(debugger: Debugger, anchors: Mapping[str, Sequence[str]], *, sparse: bool) -> Iterator[Document]:
    """Read the work of each block of the next kernel, in the block's thread 0.

    Blocks run one after another. The functions that compute a tile are made to return at once.
    """
    points = insert_near(debugger, anchors, ("kbc", "tile_call", *block_anchors(anchors), "launched"))
    debugger.execute("set var simt::focus.scout = 1")
    limit = SPARSE_LIMIT if sparse else KV_LIMIT
    names = {"kbc": ("kbc", "kbc_stop", *KERNEL_VARIABLES), "tile_call": (*TILE_VARIABLES, limit)}
    reader = BlockReader(points)
    while True:
        hits, stop = debugger.sweep(reader.known)
        yield from map(reader.record, hits)
        where = point_of(points, stop)
        if where in ("", "launched"):
            break
        yield reader.first(debugger, stop, names.get(where, SPLIT_VARIABLES))
        if where == "tile_call":  # step into the function, make a return its first instruction, and return from it
            debugger.resume("step")
            (offset,) = OFFSET.findall(debugger.execute("info symbol $pc"))
            architecture = debugger.execute("show architecture")
            kind, instruction = next(code for name, code in RETURN.items() if name in architecture)
            debugger.execute(f"set var *({kind} *)((long)$pc - {offset}) = {instruction}")
            debugger.execute("return")
        elif where != "kbc":
            debugger.execute("return")
            reader.known.pop(stop.breakpoints[0])
    debugger.delete(*points)
    if where != "launched":
        yield ended(stop)
        return
    debugger.execute("set var simt::focus.scout = 0")


class BlockReader:
    """Reads integers at stops in a kernel; asks only once for a variable that does not exist at an anchor."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self.known: dict[int, list[str]] = {}
        """The expressions to read, by breakpoint (after its first hit)."""

    def first(self, debugger: Debugger, stop: StopRecord, names: Sequence[str]) -> Document:
        """Record a breakpoint's first hit, at the current stop.

        A breakpoint in a branch that is not compiled moves to the next compiled line, which may already have one.
        """
        point = stop.breakpoints[0]
        values = zip(names, debugger.evaluate(names), strict=True)
        self.known[point] = [*(name for name, text in values if number(text) is not None), BLOCK_INDEX]
        return self.record(Hit(point, debugger.evaluate(self.known[point])))

    def record(self, hit: Hit) -> Document:
        """Record the integer variables and the block's index."""
        where = self.points[hit.breakpoint]
        *texts, block = hit.values
        values = zip(self.known[hit.breakpoint], map(number, texts), strict=False)
        return {name: value for name, value in values if value is not None} | {
            "at": "tile" if where == "tile_call" else where,
            "blockIdx": numbers(block or ""),
        }


def number(text: str | None) -> int | None:
    """Parse an integer or bool as gdb prints it; None for anything else."""
    if text in ("true", "false"):
        return int(text == "true")
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


Extents = Sequence[int]
Block = tuple[int, int, int]

PLACE = r"\((\d+),(\d+),(\d+)\)\s+"
RANGE = re.compile(rf"^[ *]*{PLACE * 4}\d+\s+0x[0-9a-f]+\s+(\S.*?)\s+(\d+)\s*$", re.MULTILINE)
"""A row of `info cuda threads`: first and last block and thread, count, PC, file, line."""
VARIABLES: Mapping[str, Sequence[str]] = {
    "kbc": ("kbc", "kbc_stop", *KERNEL_VARIABLES, "ne33"),
    "tile_call": ("kbc", *TILE_VARIABLES),
}


def read_gpu_blocks(
    debugger: Debugger, anchors: Mapping[str, Sequence[str]], blocks_num: Extents, *, sparse: bool
) -> Iterator[Document]:
    """Read each block of the next kernel; the host's launch must return only when the kernel has finished.

    `blocks_num` is the grid (x, y, z). Each block of a stream-K kernel reports its `kbc` and `kbc_stop`. The blocks
    that are at a tile's call when the GPU first stops there also report that tile; reading every call would need one
    stop per warp. `KV_max` is the scan's result, or the number of rows that a `sparse` kernel gathers.
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
    # read the blocks that are at a tile's call at the first such stop; then the kernel runs to completion
    points = reader.insert("tile_call") if "kbc" in reader.shape else []
    stop = debugger.resume("continue")
    if not point_of(ends, stop) and stop.reason == "breakpoint":
        yield from reader.standing(stop, reader.all_blocks())
        debugger.delete(*points)
        stop = debugger.resume("continue")
    if not point_of(ends, stop):
        yield ended(stop)


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
        """Set breakpoints on lines of device code, which is loaded with the kernel; returns their numbers."""
        return [self.debugger.insert(location) for name in names for location in self.anchors[name]]

    def standing(self, stop: StopRecord, wanted: set[Block]) -> Iterator[Document]:
        """Yield the records of the requested blocks whose thread 0 is at an anchor."""
        at = self._anchor(stop.file, stop.line)
        for block, file, line in self._threads_0():
            where = at if line == stop.line else self._anchor(file, line, exact=True)
            if block in wanted and where and (record := self._read(where, block)):
                yield record

    def scanned_mask(self, sparse: bool) -> Iterator[Document]:
        """Read `KV_max` of all masks and query tiles (the focus is in a kernel); yields nothing for a null pointer."""
        if not {"ne03", "iter_j", "nbatch_fa"} <= self.shape.keys():
            return
        masks = self.shape["ne33" if sparse else "ne03"]
        pointer, values = self.debugger.evaluate(["(long)KV_max", f"*KV_max@{masks * self.shape['iter_j']}"])
        if pointer not in (None, "0") and values is not None:
            yield {"at": "KV_max", "values": values, "nbatch_fa": self.shape["nbatch_fa"], "sparse": sparse}

    def _threads_0(self) -> Iterator[tuple[Block, str, int]]:
        """The location of each block's thread 0: block, file, line."""
        for found in RANGE.finditer(self.debugger.execute("info cuda threads")):
            places = [tuple(map(int, found.groups()[at : at + 3])) for at in (0, 3, 6)]
            first, last = self._linear(places[0]) + (places[1] != (0, 0, 0)), self._linear(places[2])
            for linear in range(first, last + 1):
                rest, x = divmod(linear, self.extents[0])
                z, y = divmod(rest, self.extents[1])
                yield (x, y, z), found[13], int(found[14])

    def _linear(self, block: Sequence[int]) -> int:
        return block[0] + self.extents[0] * (block[1] + self.extents[1] * block[2])

    def _anchor(self, file: str, line: int, *, exact: bool = False) -> str:
        """The anchor of a line, empty if none; a debugger may have moved a breakpoint to the next line with code."""
        found = [
            (int(at), name)
            for name in (*self.first, "tile_call")
            for place, _, at in (location.rpartition(":") for location in self.anchors[name])
            if place == PurePosixPath(file).name and (int(at) == line if exact else int(at) <= line)
        ]
        return max(found, default=(0, ""))[1]

    def _read(self, where: str, block: Block) -> Document | None:
        """Read a block's record; None if its thread is a few instructions away, where variables cannot be read."""
        place = ",".join(map(str, block))
        self.debugger.execute(f"cuda block ({place}) thread (0,0,0)")
        # The shape of the work is the same for all blocks, so it is read only in the first one.
        known = where == "kbc" and self.shape
        names = (*(("kbc", "kbc_stop") if known else VARIABLES.get(where, SPLIT_VARIABLES)), "$smid")
        values = [number(text) for text in self.debugger.evaluate(names)]
        found: Document = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        needed = {"kbc": {"kbc", "kbc_stop"}, "tile_call": {"sequence", "jt", "kb0_start", "kb0_stop"}}
        if not needed.get(where, {"sequence"}) <= found.keys():
            return None
        self.shape = self.shape or found
        at = "tile" if where == "tile_call" else where
        return found | {"at": at, "blockIdx": list(block), "sm": found.get("$smid")}
