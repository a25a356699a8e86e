"""A procedure of the tests' own. Standard library only, as all that gdb's Python loads."""


def ask(debugger, plan):
    """Run to `location`; returns the output of each of `commands`, then the refusal of each of `refused`."""
    debugger.insert(plan["location"])
    debugger.resume("run")
    return [debugger.execute(command) for command in plan["commands"]] + list(map(debugger.refusal, plan["refused"]))


def sweep(debugger, plan):
    """Read `expressions` at all hits of `swept` on the way to `location`.

    Returns whose hits these are and their values, where the program then stands, and the stop after that.
    """
    start = debugger.insert("main")
    debugger.resume("run")
    debugger.delete(start)
    swept, other = debugger.insert(plan["swept"]), debugger.insert(plan["location"])
    hits, stop = debugger.sweep({swept: plan["expressions"]})
    again = debugger.resume("continue")
    return (
        [[hit.breakpoint == swept, hit.values] for hit in hits],
        stop.breakpoints == (other,),
        stop.line,
        again.reason,
    )


def selected(debugger, plan):
    """The value of an expression in the newest frame, after a command that selects another."""
    debugger.insert(plan["location"])
    debugger.resume("run")
    debugger.execute("up")
    return debugger.evaluate([plan["expression"]])


def walked(debugger, plan):
    """`next` from main on through main and work to the end: the function and line of each stop, with a value."""
    main, work = debugger.insert("main"), debugger.insert("work")
    stop = debugger.resume("run")
    debugger.delete(main)
    seen = []

    def advance(stop):
        if stop.reason == "exited":
            return ""
        seen.append([stop.function, stop.line, debugger.evaluate(["s"])[0]])
        if stop.line == plan["end"]:
            return "continue"
        return "next" if len(seen) < plan["most"] else ""

    last = debugger.walk(stop, advance)
    debugger.delete(work)
    return seen, last.reason, last.reason == "exited" or debugger.resume("continue").reason
