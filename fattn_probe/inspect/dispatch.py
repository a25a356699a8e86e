"""Stepping through the dispatch in a debugger: the lines that the program took, and what it knew there.

Only the standard library is imported here, since gdb's own Python loads this module; what goes in and out is JSON.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from fattn_probe.debug.protocol import Debugger, DebuggerError, Stop

Document = dict[str, Any]
STEPS = 3000


def trace_dispatch(debugger: Debugger, plan: Mapping[str, Any], until: Collection[int]) -> tuple[list[Document], Stop]:
    """Start the program and step from the dispatch's entry to a breakpoint of `until`: the visits, and the last stop.

    Only the call under the entry counts: a backend asks for the best kernel before that too, to say what it supports.
    A visit is {function, file, line, values, after}: what the plan asks at that line, and afterwards. No visits if the
    program never came to the entry.
    """
    entry = _insert(debugger, [plan["entry"]])
    stop = debugger.resume(plan["start"])
    debugger.delete(*entry)
    if not set(entry).intersection(stop.breakpoints):
        return [], stop
    points = _insert(debugger, [function["location"] for function in plan["functions"][1:]])
    try:
        return _Trace(debugger, plan, frozenset(until)).steps(stop)
    finally:
        debugger.delete(*points)


def _insert(debugger: Debugger, locations: Sequence[str]) -> list[int]:
    numbers = []
    for location in filter(None, locations):
        try:
            numbers.append(debugger.insert(location))
        except DebuggerError:  # a file that was not compiled: the program does not get there
            continue
    return numbers


class _Trace:
    """One walk through the dispatch."""

    def __init__(self, debugger: Debugger, plan: Mapping[str, Any], until: frozenset[int]) -> None:
        self.debugger, self.plan, self.until = debugger, plan, until
        self.visits: list[Document] = []
        self.waiting: tuple[Document, Sequence[int], str] | None = None

    def steps(self, stop: Stop) -> tuple[list[Document], Stop]:
        """Step on from `stop`; where the program has left the dispatch, let it run to the next function or the end."""
        for _ in range(STEPS):
            if stop.reason in ("exited", "signal") or self.until.intersection(stop.breakpoints):
                return self.visits, stop
            stop = self.debugger.resume("next" if self.visit(stop) else "continue")
        return self.visits, self.debugger.resume("continue")

    def visit(self, stop: Stop) -> bool:
        """Record a stop; whether it is in the dispatch."""
        file = PurePosixPath(stop.file).name
        function = self.function(file, stop.line)
        if function is None:
            return False
        entered = not self.visits or self.visits[-1]["function"] != stop.function
        here: Document = {"function": stop.function, "file": file, "line": stop.line, "values": {}, "after": {}}
        self.look_back(here)
        place = f"{file}:{stop.line}"
        asks = [*self.plan["asks"].get(place, ()), *(function["constants"] if entered else ())]
        here["values"] = self.values(asks)
        self.visits.append(here)
        if place in self.plan["after"] and self.waiting is None:  # its first line comes again if it has several
            self.waiting = here, *self.plan["after"][place]
        return True

    def function(self, file: str, line: int) -> Mapping[str, Any] | None:
        """The function of the dispatch that a line is in."""
        here = (item for item in self.plan["functions"] if item["file"] == file)
        return next((item for item in here if item["lines"][0] <= line <= item["lines"][1]), None)

    def look_back(self, here: Document) -> None:
        """What a statement has put in its variables, once the program is behind it."""
        if self.waiting is None:
            return
        visit, (first, last), name = self.waiting
        if here["function"] != visit["function"]:
            self.waiting = None
        elif not first <= here["line"] <= last:
            visit["after"] = self.values([name])
            self.waiting = None

    def values(self, asks: Sequence[str]) -> dict[str, str | None]:
        """Expressions with their values."""
        return dict(zip(asks, self.debugger.evaluate(asks), strict=True)) if asks else {}
