"""A procedure of the tests' own. Standard library only, as all that gdb's Python loads."""


def ask(debugger, plan):
    """Run to `location`; returns the output of each of `commands`, then the refusal of each of `refused`."""
    debugger.insert(plan["location"])
    debugger.resume("run")
    return [debugger.execute(command) for command in plan["commands"]] + list(map(debugger.refusal, plan["refused"]))
