"""Running a procedure against a debugger: inside it where it has Python, over MI where it has none."""

import importlib
import json
from pathlib import Path
from typing import Any

import fattn_probe
from fattn_probe.debug.mi import OverMI
from fattn_probe.debug.protocol import DebuggerError
from fattn_probe.debug.session import Session
from fattn_probe.scratch import scratch

LOAD = """
import sys
sys.path.insert(0, {root!r})
from fattn_probe.debug import agent
agent.call({procedure!r}, {argument!r}, {result!r})
"""


class ProcedureError(Exception):
    """A procedure failed inside the debugger; the text is its traceback."""


def run_procedure(
    session: Session, procedure: str, argument: dict[str, Any], deadline: float, inside: bool | None = None
) -> Any:  # noqa: ANN401 - JSON
    """Run `module:function(debugger, argument)` and return its JSON answer; `deadline` in seconds is for all of it.

    A command that the debugger refuses raises DebuggerError, inside it as over MI.

    `inside` forces one way or the other; None takes the debugger's own Python where there is one, which reads a hundred
    thousand values a second, and MI where there is not.
    """
    if not (session.has_python() if inside is None else inside):
        module, _, name = procedure.partition(":")
        function = getattr(importlib.import_module(module), name)
        return json.loads(json.dumps(function(OverMI(session, deadline), argument)))
    with scratch() as folder:
        return _inside(session, procedure, argument, deadline, folder)


def _inside(session: Session, procedure: str, argument: dict[str, Any], deadline: float, folder: Path) -> Any:  # noqa: ANN401
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
