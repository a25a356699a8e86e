"""Run a procedure on a debugger: inside it if it has Python, else over MI."""

import importlib
import json
from pathlib import Path
from typing import Any

import fattn_probe
from fattn_probe.base.files import scratch
from fattn_probe.machine.debug.protocol import DebuggerError
from fattn_probe.machine.debug.session import DebugSession

LOAD = """
import sys
sys.path.insert(0, {root!r})
from fattn_probe.machine.debug import agent
agent.call({procedure!r}, {argument!r}, {result!r})
"""


class ProcedureError(Exception):
    """A procedure failed inside the debugger; the message is its traceback."""


def run_procedure(
    session: DebugSession, procedure: str, argument: dict[str, Any], deadline: float, inside: bool | None = None
) -> Any:  # noqa: ANN401 - JSON
    """Run `module:function(debugger, argument)` and return its JSON result; `deadline` (seconds) is for all of it.

    `inside` forces the debugger's Python (True) or MI (False); None takes Python, which reads 100,000 values a second,
    if the debugger has it. A command that the debugger refuses raises DebuggerError either way.
    """
    if not (session.has_python() if inside is None else inside):
        from fattn_probe.machine.debug.mi import OverMI  # for debuggers without Python

        module, _, name = procedure.partition(":")
        function = getattr(importlib.import_module(module), name)
        return json.loads(json.dumps(function(OverMI(session, deadline), argument)))
    with scratch() as folder:
        root = Path(fattn_probe.__file__).parents[1]
        asked, answered = folder / "argument.json", folder / "result.json"
        asked.write_text(json.dumps(argument))
        said = session.python(
            LOAD.format(root=str(root), procedure=procedure, argument=str(asked), result=str(answered)), deadline
        )
        if not answered.exists():
            raise ProcedureError(f"the debugger's Python could not load fattn-probe: {said}")
        document = json.loads(answered.read_text())
        if "refused" in document:
            raise DebuggerError(document["refused"])
        if "error" in document:
            raise ProcedureError(document["error"])
        return document["result"]
