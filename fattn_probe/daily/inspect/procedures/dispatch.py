"""Step through the dispatch in a debugger, and record the lines that the program took, with values.

Standard library only, because gdb's own Python loads this module; plan and result are JSON.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from fattn_probe.machine.debug.protocol import Debugger, DebuggerError, StopRecord

Document = dict[str, Any]
STEPS = 3000
LAUNCHER = "launch_fattn<"


def trace_dispatch(debugger: Debugger, plan: Mapping[str, Any]) -> tuple[list[Document], StopRecord]:
    """Run the program, and step from the dispatch's entry into the launching function; the visits, the last stop.

    Only the call from the entry counts: a backend chooses a kernel earlier too, to check whether it supports the op. A
    visit is {function, file, line, values, after}, with the values of the plan's expressions before and after the line.
    There are no visits if the program never reached the entry.
    """
    entry = _insert(debugger, [plan["entry"]])
    stop = debugger.resume(plan["start"])
    debugger.delete(*entry)
    if not set(entry).intersection(stop.breakpoints):
        return [], stop
    # Conditions call some functions of the entry's file. The debugger steps into those in headers instead: their lines
    # are in one compilation unit per kernel, and a search in all units takes seconds.
    first, *functions = plan["functions"]
    points = _insert(debugger, [each["location"] for each in functions if each["file"] == first["file"]])
    walk = _Walk(debugger, plan)
    try:
        stop = debugger.walk(stop, walk.advance)  # outside the dispatch: continue to its next function, or to the end
    finally:
        debugger.delete(*points)
    return walk.visits, stop


def _insert(debugger: Debugger, locations: Sequence[str]) -> list[int]:
    numbers = []
    for location in filter(None, locations):
        try:
            numbers.append(debugger.insert(location))
        except DebuggerError:  # the file was not compiled, so the program cannot get there
            continue
    return numbers


class _Walk:
    """One walk through the dispatch."""

    def __init__(self, debugger: Debugger, plan: Mapping[str, Any]) -> None:
        self.debugger, self.plan = debugger, plan
        self.visits: list[Document] = []
        self.command, self.left = "", STEPS
        self.waiting: tuple[Document, Sequence[int], str] | None = None

    def advance(self, stop: StopRecord) -> str:
        """The next command at a stop: `finish` leaves a function outside the dispatch that a step entered."""
        if self.left < 0 or stop.reason in ("exited", "signal") or stop.function.startswith(LAUNCHER):
            return ""
        self.left -= 1
        if self.left < 0:
            return "continue"
        function = self.visit(stop)
        if function is None:
            self.command = "finish" if self.command == "step" else "continue"
        else:
            self.command = "step" if stop.line in function["calls"] else "next"
        return self.command

    def visit(self, stop: StopRecord) -> Mapping[str, Any] | None:
        """Record a stop; returns the function of the dispatch that it is in, or None."""
        file = PurePosixPath(stop.file).name
        function = self.function(file, stop.line)
        if function is None:
            return None
        entered = not self.visits or self.visits[-1]["function"] != stop.function
        here: Document = {"function": stop.function, "file": file, "line": stop.line, "values": {}, "after": {}}
        self.look_back(here)
        place = f"{file}:{stop.line}"
        asks = [*self.plan["asks"].get(place, ()), *(function["constants"] if entered else ())]
        here["values"] = self.values(asks)
        self.visits.append(here)
        if place in self.plan["after"] and self.waiting is None:  # a statement of several lines revisits its first
            self.waiting = here, *self.plan["after"][place]
        return function

    def function(self, file: str, line: int) -> Mapping[str, Any] | None:
        """The function of the dispatch that contains a line; None outside the dispatch."""
        here = (item for item in self.plan["functions"] if item["file"] == file)
        return next((item for item in here if item["lines"][0] <= line <= item["lines"][1]), None)

    def look_back(self, here: Document) -> None:
        """Record the value that a statement gave its variable, once the program is past the statement."""
        if self.waiting is None:
            return
        visit, (first, last), name = self.waiting
        if here["function"] != visit["function"]:
            self.waiting = None
        elif not first <= here["line"] <= last:
            visit["after"] = self.values([name])
            self.waiting = None

    def values(self, asks: Sequence[str]) -> dict[str, str | None]:
        """The values of expressions, by expression."""
        return dict(zip(asks, self.debugger.evaluate(asks), strict=True)) if asks else {}
