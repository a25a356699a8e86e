"""The debugger operations that an inspection needs, inside gdb's Python or from outside over MI.

This module and the procedures import only the standard library, because gdb's own Python loads them too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Reason = Literal["breakpoint", "step", "signal", "exited"]


@dataclass(frozen=True)
class Stop:
    """Why the program stopped and where; `detail` is a signal's name or an exit code."""

    reason: Reason
    breakpoints: tuple[int, ...] = ()
    function: str = ""
    file: str = ""
    line: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Frame:
    """One frame of the call stack; `function` without its parameters, `file` as the compiler was given it."""

    function: str
    file: str
    line: int


class DebuggerError(Exception):
    """The debugger refused a command; the message is the debugger's."""


class Debugger(Protocol):
    """A debugger with one program in it."""

    def execute(self, command: str) -> str:
        """A command of gdb's console; what it prints."""
        ...

    def insert(self, location: str, condition: str = "") -> int:
        """Set a breakpoint, pending if its library is not loaded yet; its number."""
        ...

    def insert_near(self, location: str, condition: str = "") -> list[int]:
        """Breakpoints on `file:line` in the compilation unit of the frames above; their numbers.

        A template's line is in as many units as there are instances, and to find them all takes seconds. A debugger
        that cannot select one unit uses all of them.
        """
        ...

    def delete(self, *numbers: int) -> None:
        """Remove breakpoints."""
        ...

    def resume(self, command: str) -> Stop:
        """`run`, `continue`, `next`, `step` or `finish`; where the program stopped."""
        ...

    def evaluate(self, expressions: Sequence[str], level: int = 0) -> list[str | None]:
        """Expressions as gdb prints their values, in frame `level` (0 is the newest); None what cannot be evaluated."""
        ...

    def refusal(self, expression: str) -> str:
        """Why an expression cannot be evaluated in the newest frame, in the debugger's words; empty if it can."""
        ...

    def local_names(self, level: int = 0) -> set[str]:
        """The variables and arguments in scope in a frame; any other name that `evaluate` finds is global."""
        ...

    def frames(self, limit: int) -> list[Frame]:
        """The newest `limit` frames."""
        ...

    def memory(self, address: int, count: int) -> bytes:
        """Bytes of the program's host memory."""
        ...
