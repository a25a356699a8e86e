"""Read the blocks of a simulated kernel, which run one after another. Standard library only."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fattn_probe.daily.inspect.procedures.points import Points, block_anchors, ended, insert_near, point_of
from fattn_probe.machine.debug.protocol import Debugger, Hit, StopRecord

Document = dict[str, Any]

KERNEL_VARIABLES = ("iter_k", "iter_j", "iter_z_gqa", "ne12", "ne02", "ne03", "ne13", "gqa_ratio", "nbatch_fa")
TILE_VARIABLES = ("sequence", "z_KV", "zt_gqa", "zt", "jt", "kb0_start", "kb0_stop", "needs_fixup", "is_fixup")
# For a scanned mask or a sparse gather; otherwise not readable (null pointer)
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
AXIS = re.compile(r"\d+")
OFFSET = re.compile(r" \+ (\d+) in section ")
# A return as a function's first instruction, by architecture: type and value
RETURN = {"x86-64": ("unsigned char", 0xC3), "aarch64": ("unsigned int", 0xD65F03C0)}


def read_blocks(debugger: Debugger, anchors: Mapping[str, Sequence[str]], *, sparse: bool) -> Iterator[Document]:
    """The work of each block of the next kernel, read in the block's thread 0.

    Blocks run one after another. The functions that compute a tile return at once: nothing is computed.
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
        if where == "tile_call":
            return_at_once(debugger)
        elif where != "kbc":
            debugger.execute("return")
            reader.known.pop(stop.breakpoints[0])
    debugger.delete(*points)
    if where != "launched":
        yield ended(stop)
        return
    debugger.execute("set var simt::focus.scout = 0")


def return_at_once(debugger: Debugger) -> None:
    """Step from a line into the function that it calls, make a return its first instruction, and return from it."""
    debugger.resume("step")
    (offset,) = OFFSET.findall(debugger.execute("info symbol $pc"))
    architecture = debugger.execute("show architecture")
    kind, instruction = next(code for name, code in RETURN.items() if name in architecture)
    debugger.execute(f"set var *({kind} *)((long)$pc - {offset}) = {instruction}")
    debugger.execute("return")


class BlockReader:
    """Reads integers at stops in a kernel; asks only once for a variable that a kind of stop lacks."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self.known: dict[int, list[str]] = {}
        """The expressions to read, by breakpoint, once it has been hit."""

    def first(self, debugger: Debugger, stop: StopRecord, names: Sequence[str]) -> Document:
        """The record of a breakpoint's first hit, at the current stop.

        A breakpoint in a branch that is not compiled moves to the next compiled line, where there may be another.
        """
        point = stop.breakpoints[0]
        asked = [*names, BLOCK_INDEX]
        values = debugger.evaluate(asked)
        self.known[point] = [name for name, text in zip(names, values, strict=False) if number(text) is not None]
        self.known[point].append(BLOCK_INDEX)
        found = dict(zip(asked, values, strict=True))
        return self.record(Hit(point, [found[name] for name in self.known[point]]))

    def record(self, hit: Hit) -> Document:
        """The integer variables, and the block's index."""
        where = self.points[hit.breakpoint]
        *texts, block = hit.values
        values = zip(self.known[hit.breakpoint], map(number, texts), strict=False)
        return {name: value for name, value in values if value is not None} | {
            "at": "tile" if where == "tile_call" else where,
            "blockIdx": [int(axis) for axis in AXIS.findall(block or "")],
        }


def number(text: str | None) -> int | None:
    """An integer from gdb's text of an integer or bool; None for anything else."""
    if text in ("true", "false"):
        return int(text == "true")
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
