"""One's own question: stop at lines that match a pattern, and print expressions there.

Standard library only, as all that gdb's own Python may load.
"""

from typing import Any

from fattn_probe.debug.protocol import Debugger

Document = dict[str, Any]


def watch(debugger: Debugger, plan: Document) -> Document:
    """Run the program and read `expressions` at each stop on one of `locations`, at most `stops` times.

    In a kernel one thread stops: `condition` holds for it alone. Returns `stops` with function, file, line and values,
    and `ended`: why there were no more, empty if there may be.
    """
    main = debugger.insert("main")
    debugger.resume("run")  # the libraries are there now: a condition can be read, and a wrong location is refused
    debugger.delete(main)
    for setting in plan["settings"]:
        debugger.execute(setting)
    for location in plan["locations"]:
        debugger.insert(location, plan["condition"])
    stops: list[Document] = []
    while len(stops) < plan["stops"]:
        stop = debugger.resume("continue")
        if stop.reason != "breakpoint":
            return {"stops": stops, "ended": f"{stop.reason} {stop.detail}"}
        values = dict(zip(plan["expressions"], debugger.evaluate(plan["expressions"]), strict=True))
        stops.append({"function": stop.function, "file": stop.file, "line": stop.line, "values": values})
    debugger.execute("kill")
    return {"stops": stops, "ended": ""}
