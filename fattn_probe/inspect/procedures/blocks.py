"""Read the blocks of a simulated kernel, which run one after another. Standard library only."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fattn_probe.debug.protocol import Debugger, Stop
from fattn_probe.inspect.procedures.points import Points, block_anchors, ended, insert_near, point_of

Document = dict[str, Any]

KERNEL_VARIABLES = ("iter_k", "iter_j", "iter_z_gqa", "ne12", "ne02", "ne03", "ne13", "gqa_ratio", "nbatch_fa")
TILE_VARIABLES = ("sequence", "z_KV", "zt_gqa", "zt", "jt", "kb0_start", "kb0_stop", "needs_fixup", "is_fixup")
# For a scanned mask, and for a sparse gather; not readable (null pointer) if neither was done
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


def read_blocks(debugger: Debugger, anchors: Mapping[str, Sequence[str]], *, sparse: bool) -> Iterator[Document]:
    """The work of each block of the next kernel, read in the block's thread 0.

    Blocks run one after another. Each tile's call returns as soon as its arguments are read: nothing is computed.
    """
    points = insert_near(debugger, anchors, ("kbc", "tile_call", *block_anchors(anchors), "launched"))
    debugger.execute("set var simt::focus.scout = 1")
    reader = BlockReader(debugger)
    limit = SPARSE_LIMIT if sparse else KV_LIMIT
    while (where := point_of(points, stop := debugger.resume("continue"))) not in ("", "launched"):
        if where == "kbc":
            yield reader.read(where, ("kbc", "kbc_stop", *KERNEL_VARIABLES))
            continue
        if where == "tile_call":
            points[enter(debugger, stop, points)] = "tile"
        if where in ("tile_call", "tile"):
            yield reader.read("tile", (*TILE_VARIABLES, limit), level=1)
        else:
            yield reader.read(where, SPLIT_VARIABLES)
        debugger.execute("return")
    debugger.delete(*points)
    if where != "launched":
        yield ended(stop)
        return
    debugger.execute("set var simt::focus.scout = 0")


def enter(debugger: Debugger, stop: Stop, points: Points) -> int:
    """Step from a line into the function that it calls, and move the breakpoint there; returns its number."""
    debugger.delete(*stop.breakpoints)
    for number in stop.breakpoints:
        points.pop(number)
    debugger.resume("step")
    return debugger.insert(f"*{debugger.evaluate(['(long)$pc'])[0]}")


class BlockReader:
    """Reads integers at stops in a kernel; asks only once for a variable that a kind of stop lacks."""

    def __init__(self, debugger: Debugger) -> None:
        self.debugger = debugger
        self.address = int(debugger.evaluate(["(long)&simt::blockIdx"])[0] or 0)
        self.known: dict[str, tuple[str, ...]] = {}

    def read(self, where: str, names: Sequence[str], level: int = 0) -> Document:
        """Those of the variables that are integers, and the block's index."""
        names = self.known.get(where, tuple(names))
        values = [number(text) for text in self.debugger.evaluate(names, level)]
        found: Document = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        self.known.setdefault(where, tuple(found))
        block = struct.unpack("<3I", self.debugger.memory(self.address, 12))
        return found | {"at": where, "blockIdx": list(block)}


def number(text: str | None) -> int | None:
    """An integer from gdb's text of an integer or bool; None for anything else."""
    if text in ("true", "false"):
        return int(text == "true")
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
