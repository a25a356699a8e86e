"""The debugger operations that an inspection needs, implemented both in gdb's Python and, from outside, over MI.

This module and the procedures import only the standard library, because gdb's own Python loads them too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Reason = Literal["breakpoint", "step", "signal", "exited"]


@dataclass(frozen=True)
class StopRecord:
    """The reason for a stop, and its location; `detail` is a signal's name or an exit code."""

    reason: Reason
    breakpoints: tuple[int, ...] = ()
    function: str = ""
    file: str = ""
    line: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Frame:
    """One frame of the call stack: `function` without parameters, `file` as it was passed to the compiler."""

    function: str
    file: str
    line: int


@dataclass(frozen=True)
class Hit:
    """A breakpoint hit, and the values of the breakpoint's expressions; None for one that cannot be evaluated."""

    breakpoint: int
    values: list[str | None]


Advance = Callable[[StopRecord], str]
"""Returns the command with which to resume after a stop; empty to remain stopped."""


class DebuggerError(Exception):
    """The debugger refused a command, for the reason in its message."""


class Debugger(Protocol):
    """A debugger with one program."""

    def execute(self, command: str) -> str:
        """Run a gdb console command; returns its output."""

    def insert(self, location: str, condition: str = "") -> int:
        """Set a breakpoint, pending if its library is not loaded yet; returns its number."""

    def insert_near(self, location: str, condition: str = "") -> list[int]:
        """Set breakpoints on `file:line` in the compilation units of the frames on the stack; returns their numbers.

        A line of a template is in as many units as the template has instances, and finding all of them takes seconds. A
        debugger that cannot select a unit sets breakpoints in all units.
        """

    def delete(self, *numbers: int) -> None:
        """Remove breakpoints."""

    def resume(self, command: str) -> StopRecord:
        """Run `run`, `continue`, `next`, `step` or `finish`; returns where the program stopped."""

    def walk(self, stop: StopRecord, advance: Advance) -> StopRecord:
        """Resume from `stop` with the command that `advance` returns for each stop; returns the last stop.

        `advance` may only evaluate expressions: inside the debugger, the program continues when `advance` returns.
        """
        while command := advance(stop):
            stop = self.resume(command)
        return stop

    def sweep(self, readings: Mapping[int, Sequence[str]]) -> tuple[list[Hit], StopRecord]:
        """Continue past these breakpoints, reading values at each; returns the hits and the first stop elsewhere.

        `readings` has the expressions of each breakpoint. Inside the debugger, this is several times faster than stops.
        """
        hits: list[Hit] = []
        while (stop := self.resume("continue")).breakpoints and readings.keys() >= set(stop.breakpoints):
            hits += [Hit(number, self.evaluate(readings[number])) for number in stop.breakpoints]
        return hits, stop

    def evaluate(self, expressions: Sequence[str], level: int = 0) -> list[str | None]:
        """The values of expressions in frame `level` (0: newest), as gdb prints them; None where there is no value."""

    def refusal(self, expression: str) -> str:
        """The debugger's reason why an expression cannot be evaluated in the newest frame; empty if it can."""

    def local_names(self, level: int = 0) -> set[str]:
        """The names of variables and arguments in scope in a frame; other names that `evaluate` finds are global."""

    def frames(self, limit: int) -> Iterable[Frame]:
        """The newest `limit` frames; inside the debugger, each is read on demand."""

    def memory(self, address: int, count: int) -> bytes:
        """Read `count` bytes of the program's host memory."""


OPERATORS = ("()", "[]", "<=>", "->*", "<<=", ">>=", "<<", ">>", "<=", ">=", "->", "<", ">")
"""Operators whose `<`, `>` and `(` are not brackets; longer ones precede their prefixes."""


def without_parameters(name: str) -> str:
    """The name without its parameter list: `launch_fattn<64, 8, 8>` for `launch_fattn<64, 8, 8>(ctx&, int)`."""
    depth = 0
    at = 0
    while at < len(name):
        character = name[at]
        if name.startswith("operator", at) and not name[at - 1 : at].isidentifier():
            at += len("operator")
            at += next((len(symbol) for symbol in OPERATORS if name.startswith(symbol, at)), 0)
            continue
        if name.startswith("(anonymous namespace)", at):
            at += len("(anonymous namespace)")
            continue
        if character == "(" and depth == 0:
            return name[:at].rstrip()
        depth += (character in "<{(") - (character in ">})")
        at += 1
    return name
