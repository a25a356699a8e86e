"""Runs inside gdb: a `next` several times as fast as gdb's own, and breakpoints that act without stopping."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import gdb

from fattn_probe.machine.debug.protocol import Advance, StopRecord


class StopPoint(gdb.Breakpoint):
    """A breakpoint that is internal, because MI reports every hit of other breakpoints with all of their locations."""

    def __init__(self, location: str) -> None:
        super().__init__(location, internal=True)

    def pass_if(self, act: Callable[[], bool]) -> None:
        """At each hit, call `act`, which may read values but not resume; if it returns True, the program continues.

        This takes a fifth of the time of a real stop, which gdb reports as text and over MI. `del stop` undoes this.
        """
        self.stop = lambda: not act()  # type: ignore[method-assign]  # gdb calls `stop` if it exists


def function_block(pc: int) -> gdb.Block | None:
    """The block of the function that contains an address; None without debug information."""
    try:
        block = gdb.block_for_pc(pc)
    except RuntimeError:  # "Cannot locate object file for block."
        return None
    while block is not None and block.function is None:
        block = block.superblock
    return block


def function_at(pc: int) -> str:
    """The name of the function that contains an address; empty without debug information."""
    block = function_block(pc)
    return str(block.function) if block is not None else ""


@dataclass
class Place:
    """A function in which `next` is used: the line of the last stop in the function, and the addresses of its lines."""

    function: str
    file: str
    line: int
    rows: list[tuple[int, int]]
    """Pairs of address and line."""


class Lines:
    """Breakpoints at the lines of functions; each hit calls `advance`, and stops unless `advance` returns `next`.

    gdb's own `next` steps single instructions, and takes 1 ms per line. Like `next`, this passes over further code of
    the current line, unless a called function returns to the line's first instruction.
    """

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._points: dict[int, StopPoint] = {}
        self._places: dict[int, Place] = {}
        self._command = ""
        self._active = False

    def next(self, stop: StopRecord, resume: Callable[[str], StopRecord]) -> tuple[StopRecord, str]:
        """Continue from `stop` as long as `advance` returns `next`; returns the last stop and its command."""
        self._enter(stop)
        self._active, self._command = True, "next"
        stop = resume("continue")
        self._active = False
        if self._command == "next":  # the program has stopped for another reason
            return stop, self._advance(stop)
        return replace(stop, reason="step", breakpoints=()), self._command

    def delete(self) -> None:
        """Remove all breakpoints."""
        for point in self._points.values():
            point.delete()

    def _enter(self, stop: StopRecord) -> None:
        """Set breakpoints in the current function, unless they are already set."""
        pc = int(gdb.parse_and_eval("$pc"))
        block = function_block(pc)
        if block is None:
            return
        known = self._places.get(block.start)
        if known is not None:
            known.line = stop.line
            return
        table = gdb.find_pc_line(pc).symtab.linetable()
        rows = sorted((entry.pc, entry.line) for entry in table if block.start <= entry.pc < block.end)
        place = self._places[block.start] = Place(stop.function, stop.file, stop.line, rows)
        for (_, before), (start, line) in pairwise(rows):
            if line != before and start != pc:
                self._insert(start, place, line)
        try:  # a breakpoint at the return address too, if a line starts there in a caller where `next` is used
            gdb.execute("select-frame 1")  # not a `gdb.Frame`: gdb would read the caller's unit
        except gdb.error:  # the outermost function
            return
        pc = int(gdb.parse_and_eval("$pc"))
        gdb.execute("select-frame 0")
        block = function_block(pc)
        caller = self._places.get(block.start) if block is not None else None
        if caller is not None and (beginning := dict(caller.rows).get(pc)) is not None:
            self._insert(pc, caller, beginning, returned=True)

    def _insert(self, pc: int, place: Place, line: int, returned: bool = False) -> None:
        def act() -> bool:
            if not self._active or (line == place.line and not returned):
                return True
            place.line = line
            self._command = self._advance(StopRecord("step", (), place.function, place.file, line))
            return self._command == "next"

        self._points[pc] = self._points.get(pc) or StopPoint(f"*{pc:#x}")
        self._points[pc].pass_if(act)
