"""A procedure of the tests' own. Standard library only, as all that gdb's Python loads."""


def ask(debugger, plan):
    """Run to `location`; what each of `commands` prints, then why each of `refused` has no value."""
    debugger.insert(plan["location"])
    debugger.resume("run")
    return [debugger.execute(command) for command in plan["commands"]] + list(map(debugger.refusal, plan["refused"]))
