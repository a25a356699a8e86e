"""Run a procedure with a debugger: inside it if it has Python, otherwise over MI."""

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fattn_probe
from fattn_probe.base.files import scratch
from fattn_probe.machine.debug.channel import Reply, c_string
from fattn_probe.machine.debug.protocol import Debugger, DebuggerError, Frame, Reason, StopRecord, without_parameters
from fattn_probe.machine.debug.session import DebugSession

RESUMING = {
    "run": "-exec-run",
    "continue": "-exec-continue",
    "next": "-exec-next",
    "step": "-exec-step",
    "finish": "-exec-finish",
}
REASONS: Mapping[str, Reason] = {
    "breakpoint-hit": "breakpoint",
    "signal-received": "signal",
    "exited": "exited",
    "exited-normally": "exited",
    "exited-signalled": "exited",
}
"""The kind of stop for each MI reason; any other reason is a `step`."""
HIT = re.compile(r'bkpt=\{number="(\d+)".*?times="(\d+)"')
BY_TEXT = 8192  # up to this many bytes, memory is faster to read as text than through a file
REFERENCE = re.compile("@0x[0-9a-f]+")  # MI prints only this for a reference


class OverMI(Debugger):
    """The `Debugger` protocol over MI; `patience` is the time limit in seconds for the program to stop."""

    def __init__(self, session: DebugSession, patience: float = 600.0) -> None:
        self.session = session
        self.patience = patience
        self._times: dict[int, int] = {}

    def execute(self, command: str) -> str:
        """Run a gdb console command; returns its output."""
        return self.session.execute(command, self.patience)

    def insert(self, location: str, condition: str = "") -> int:
        """Set a breakpoint, pending if its library is not loaded yet; returns its number."""
        return int(self._insert(location, condition)["number"])

    def insert_near(self, location: str, condition: str = "") -> list[int]:
        """Set breakpoints, one per address, on a line in all compilation units, because MI cannot select one unit.

        A single breakpoint would be slow: MI reports each hit with all locations, which takes 70 ms for 90 locations.
        """
        found = self._insert(location)
        places = found.get("locations", ())
        if not places:
            self.delete(int(found["number"]))
            return [self.insert(location, condition)]
        self.delete(int(found["number"]))
        commands = [_insertion(f"*{place['addr']}", condition) for place in places]
        return [int(reply.checked().results["bkpt"]["number"]) for reply in self.session.commands(commands)]

    def delete(self, *numbers: int) -> None:
        """Remove breakpoints."""
        if numbers:
            self.session.command(f"-break-delete {' '.join(map(str, numbers))}")

    def resume(self, command: str) -> StopRecord:
        """Run `run`, `continue`, `next`, `step` or `finish`; returns where the program stopped.

        For a program killed by a signal, the reason is `exited`, and the detail is the signal's name.
        """
        reply = self.session.resume(RESUMING[command], self.patience)
        if reply.stopped is None:
            raise DebuggerError(f"the debugger did not report a stop after {command}")
        return self._stop(reply.stopped, reply)

    def evaluate(self, expressions: Sequence[str], level: int = 0) -> list[str | None]:
        """The values of expressions in frame `level` (0: newest), as gdb prints them; None where there is no value."""
        values = self._values(expressions, level)
        references = [at for at, value in enumerate(values) if value is not None and REFERENCE.fullmatch(value)]
        objects = self._values([f"*&({expressions[at]})" for at in references], level) if references else []
        for at, value in zip(references, objects, strict=True):
            values[at] = value
        return values

    def refusal(self, expression: str) -> str:
        """gdb's reason why an expression cannot be evaluated in the newest frame; empty if it can."""
        (reply,) = self._in_frame(0, [f"-data-evaluate-expression {c_string(expression)}"])
        return reply.error if reply.kind == "error" else ""

    def local_names(self, level: int = 0) -> set[str]:
        """The names of variables and arguments in scope in a frame."""
        (reply,) = self._in_frame(level, ["-stack-list-variables --no-values"])
        return {variable["name"] for variable in reply.checked().results["variables"]}

    def frames(self, limit: int) -> list[Frame]:
        """The newest `limit` frames."""
        stack = self.session.command(f"-stack-list-frames --no-frame-filters 0 {limit - 1}").results["stack"]
        return [Frame(*_place(frame)) for frame in stack]

    def memory(self, address: int, count: int) -> bytes:
        """Read `count` bytes of the program's host memory."""
        path = self.session.folder / "memory"
        if count > BY_TEXT and " " not in str(path):  # `dump` does not support quotes
            self.session.execute(f"dump binary memory {path} {address:#x} {address + count:#x}")
            return path.read_bytes()
        reply = self.session.command(f"-data-read-memory-bytes {address:#x} {count}")
        read = b"".join(bytes.fromhex(block["contents"]) for block in reply.results["memory"])
        if len(read) != count:
            raise DebuggerError(f"only {len(read)} of {count} bytes at {address:#x} can be read")
        return read

    def _insert(self, location: str, condition: str = "") -> Mapping[str, Any]:
        breakpoint: Mapping[str, Any] = self.session.command(_insertion(location, condition)).results["bkpt"]
        return breakpoint

    def _values(self, expressions: Sequence[str], level: int) -> list[str | None]:
        replies = self._in_frame(level, [f"-data-evaluate-expression {c_string(text)}" for text in expressions])
        return [str(reply.results["value"]) if reply.kind == "done" else None for reply in replies]

    def _in_frame(self, level: int, commands: Sequence[str]) -> list[Reply]:
        """Send commands for a frame, selecting it first, because a console command may have selected another one.

        gdb reads the number of a missing frame as an address, so the depth of the stack is checked first.
        """
        if level == 0:
            return self.session.commands(["-stack-select-frame 0", *commands])[1:]
        if int(self.session.command(f"-stack-info-depth {level + 1}").results["depth"]) <= level:
            raise DebuggerError(f"No frame at level {level}.")
        return self.session.commands([f"-stack-select-frame {level}", *commands, "-stack-select-frame 0"])[1:-1]

    def _stop(self, stopped: Mapping[str, Any], reply: Reply) -> StopRecord:
        reason = REASONS.get(stopped.get("reason", ""), "step")
        function, file, line = _place(stopped.get("frame", {}))
        numbers = set[int]()
        if reason == "breakpoint":  # every breakpoint hit: the one in the record, and those whose hit count has grown
            numbers |= {int(stopped["bkptno"])} if "bkptno" in stopped else set()
            counts = {int(match[1]): int(match[2]) for line in reply.hits if (match := HIT.search(line))}
            numbers |= {number for number, times in counts.items() if times > self._times.get(number, 0)}
            self._times.update(counts)
        detail = str(stopped.get("signal-name", ""))
        if "exit-code" in stopped:  # MI writes it in octal
            detail = str(int(stopped["exit-code"], 8))
        elif stopped.get("reason") == "exited-normally":
            detail = "0"
        return StopRecord(reason, tuple(sorted(numbers)), function, file, line, detail)


def _insertion(location: str, condition: str) -> str:
    option = f"-c {c_string(condition)} " if condition else ""
    return f"-break-insert -f {option}{c_string(location)}"


def _place(frame: Mapping[str, Any]) -> tuple[str, str, int]:
    return without_parameters(frame.get("func", "")), frame.get("file", ""), int(frame.get("line", 0))


LOAD = """
import sys
sys.path.insert(0, {root!r})
from fattn_probe.machine.debug import agent
agent.call({procedure!r}, {argument!r}, {result!r})
"""


class ProcedureError(Exception):
    """A procedure failed inside the debugger; the message is the traceback."""


def run_procedure(
    session: DebugSession, procedure: str, argument: dict[str, Any], deadline: float, inside: bool | None = None
) -> Any:  # noqa: ANN401 - JSON
    """Run `module:function(debugger, argument)` and return its JSON result; `deadline` limits the whole run (seconds).

    `inside` selects the debugger's Python (True) or MI (False); None means Python if the debugger has it, because
    Python reads 100,000 values per second. In both cases, a refused command raises DebuggerError.
    """
    if not (session.has_python() if inside is None else inside):
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
