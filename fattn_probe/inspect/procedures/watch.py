"""One's own question: stop at lines that match a pattern, and print expressions there.

Standard library only, as all that gdb's own Python may load.
"""

from typing import Any

from fattn_probe.debug.protocol import Debugger

Document = dict[str, Any]


def watch(debugger: Debugger, plan: Document) -> Document:
    """Run the program and read `expressions` at each stop on one of `locations`, at most `stops` times.

    In a kernel one thread stops: `condition` holds for it alone, and `at_launch` are commands that leave other blocks
    out. Returns `stops` with function, file, line and values, and `why` there were no more, empty if there may be.
    """
    main = debugger.insert("main")
    debugger.resume("run")  # the libraries are there now: a condition can be read, and a wrong location is refused
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
        if points.intersection(stop.breakpoints):
            values = dict(zip(plan["expressions"], debugger.evaluate(plan["expressions"]), strict=True))
            stops.append({"function": stop.function, "file": stop.file, "line": stop.line, "values": values})
    debugger.execute("kill")
    return {"stops": stops, "why": ""}
