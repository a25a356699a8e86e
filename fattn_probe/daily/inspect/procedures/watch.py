"""User breakpoints: stop at lines that match a pattern, and print expressions there.

Standard library only, because gdb's own Python loads this module.
"""

import difflib
import re
from pathlib import PurePosixPath
from typing import Any

from fattn_probe.machine.debug.protocol import Debugger, DebuggerError, StopRecord

Document = dict[str, Any]
UNKNOWN = re.compile(r'No symbol "([^"]+)" in')
NEAR = 6  # similar names offered for an unknown one


def watch(debugger: Debugger, plan: Document) -> Document:
    """Run the program and read `expressions` at each stop on one of `locations`, at most `stops` times.

    In a kernel only one thread stops: `condition` is true only for that thread, and the commands `at_launch` skip the
    other blocks. On a GPU, `thread` (linear block, warp, lane) must be at the stop. Returns `stops` (function, file,
    line, `values`, and `refusals` of expressions without a value) and `why` the program ended, empty if it did not.
    """
    main = debugger.insert("main")
    debugger.resume("run")  # the libraries are loaded now, so gdb can parse conditions and refuse wrong locations
    debugger.delete(main)
    launches = {debugger.insert(location) for location in plan["anchors"]["launch"]}
    points = {debugger.insert(location, plan["condition"]) for location in plan["locations"]}
    stops: list[Document] = []
    while len(stops) < plan["stops"]:
        stop = debugger.resume("continue")
        if stop.reason != "breakpoint":
            return {"stops": stops, "why": f"{stop.reason} {stop.detail}".strip()}
        if launches.intersection(stop.breakpoints):
            for command in plan["at_launch"]:
                debugger.execute(command)
        if points.intersection(stop.breakpoints) and (not plan["thread"] or _counts(debugger, plan, stop)):
            stops.append({"function": stop.function, "file": stop.file, "line": stop.line} | _read(debugger, plan))
    debugger.execute("kill")
    return {"stops": stops, "why": ""}


def _read(debugger: Debugger, plan: Document) -> Document:
    """The values of the expressions, and `refusals` of those without: `reason`, `near`, `names` (see `Refusal`)."""
    values = dict(zip(plan["expressions"], debugger.evaluate(plan["expressions"]), strict=True))
    refused = (expression for expression, value in values.items() if value is None)
    return {"values": values, "refusals": {expression: _refusal(debugger, expression) for expression in refused}}


def _refusal(debugger: Debugger, expression: str) -> Document:
    reason = debugger.refusal(expression)
    unknown = UNKNOWN.search(reason)
    names = sorted(debugger.local_names()) if unknown else []
    near = difflib.get_close_matches(unknown[1], names, NEAR, 0.5) if unknown else []
    return {"reason": " ".join(reason.split()), "near": near, "names": names}


def _counts(debugger: Debugger, plan: Document, stop: StopRecord) -> bool:
    """Whether the requested thread is at a stop on a GPU; if so, it gets the focus.

    A breakpoint condition on a thread does not work, because gdb would refuse it in host code, and a pattern may match
    both. Before a kernel is loaded, a breakpoint on its line is on the next line of host code; stops there do not
    count.
    """
    extents = debugger.evaluate(["gridDim.x", "gridDim.y"])
    if None in extents:
        return f"{PurePosixPath(stop.file).name}:{stop.line}" in plan["locations"]
    block, warp, lane = plan["thread"]
    width, height = (int(extent or 1) for extent in extents)
    at = f"{block % width},{block // width % height},{block // width // height}"
    try:
        debugger.execute(f"cuda block ({at}) thread ({lane},{warp},0)")
    except DebuggerError:  # its block has ended or not yet started
        return False
    (frame,) = debugger.frames(1)
    return (frame.file, frame.line) == (stop.file, stop.line)
