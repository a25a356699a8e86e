"""Runs inside gdb: the `Debugger` protocol in gdb's own Python, for reading many values without a dialogue.

gdb's Python loads this module, so it uses only the standard library. The entry point is `call`: it runs a function of
this package with the debugger and a JSON document, and writes a JSON document.
"""

import importlib
import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

import gdb

from fattn_probe.machine.debug.lines import Lines, StopPoint, function_at
from fattn_probe.machine.debug.live import shorten_backtraces
from fattn_probe.machine.debug.protocol import (
    Advance,
    Debugger,
    DebuggerError,
    Frame,
    Hit,
    StopRecord,
    without_parameters,
)

FRAMES = 8  # the number of frames to search: launch_fattn and its callers
HEADERS = (".h", ".hpp", ".cuh")


class InProcess(Debugger):
    """The `Debugger` protocol inside gdb."""

    def __init__(self) -> None:
        self._last = StopRecord("exited")
        self._points: dict[int, StopPoint] = {}
        # cuda-gdb: a stop may be in a GPU thread, whose function and line are known only from a frame
        self._has_kernels = "cuda" in gdb.execute("show version", to_string=True).partition("\n")[0].lower()
        self._host = ""  # the architecture of host code, where the program starts
        self._in_kernel = False  # whether cuda-gdb's focus is on a GPU thread
        self._selected = False  # whether a command may have selected a frame other than the newest
        gdb.execute("set print frame-arguments presence")
        shorten_backtraces()
        gdb.execute("set breakpoint always-inserted on")
        gdb.events.stop.connect(self._on_stop)
        gdb.events.exited.connect(self._on_exit)

    def _on_stop(self, event: gdb.StopEvent) -> None:
        if isinstance(event, gdb.BreakpointEvent):
            self._last = StopRecord("breakpoint", tuple(point.number for point in event.breakpoints))
        elif isinstance(event, gdb.SignalEvent):
            self._last = StopRecord("signal", detail=event.stop_signal)
        else:
            self._last = StopRecord("step")

    def _on_exit(self, event: gdb.ExitedEvent) -> None:
        self._last = StopRecord("exited", detail=str(getattr(event, "exit_code", "")))

    def execute(self, command: str) -> str:
        """Run a gdb console command; returns its output."""
        self._in_kernel = self._in_kernel or command.startswith("cuda ")
        self._selected = True
        with _refusals():
            return str(gdb.execute(command, to_string=True))

    def insert(self, location: str, condition: str = "") -> int:
        """Set a breakpoint, pending if its library is not loaded yet; returns its number."""
        with _refusals():
            point = StopPoint(location)
            if condition:
                point.condition = condition
        self._points[point.number] = point
        return int(point.number)

    def insert_near(self, location: str, condition: str = "") -> list[int]:
        """Set breakpoints on `file:line` in the compilation units of the frames on the stack; returns their numbers."""
        file, _, line = location.rpartition(":")
        pcs: set[int] = set()
        for table in filter(None, (frame.find_sal().symtab for frame in _frames(FRAMES))):
            if PurePosixPath(table.filename).name == file:
                # the code of the line, or of the next line with code, because a call's code may begin at its arguments
                lines = table.linetable()
                behind = {entry.line for entry in lines if entry.line >= int(line)}
                pcs |= {entry.pc for entry in lines.line(min(behind)) or ()} if behind else set()
            if not table.filename.endswith(HEADERS):  # this is the unit's source file: callers are in other units
                break
        starts: dict[str, int] = {}
        for pc in pcs:
            function = function_at(pc)
            starts[function] = min(pc, starts.get(function, pc))
        return [self.insert(f"*{pc:#x}", condition) for pc in starts.values()]

    def delete(self, *numbers: int) -> None:
        """Remove breakpoints."""
        for number in numbers:
            self._points.pop(number).delete()

    def resume(self, command: str) -> StopRecord:
        """Run `run`, `continue`, `next`, `step` or `finish`; returns where the program stopped."""
        self._selected = False
        with _refusals():
            gdb.execute(command, to_string=True)
        if self._last.reason == "exited":
            return self._last
        if self._has_kernels:
            architecture = gdb.newest_frame().architecture().name()
            self._host = self._host or architecture
            self._in_kernel = architecture != self._host
        here = _described(gdb.newest_frame()) if self._has_kernels else _here()
        return replace(self._last, function=here.function, file=here.file, line=here.line)

    def walk(self, stop: StopRecord, advance: Advance) -> StopRecord:
        """Resume from `stop` with the command that `advance` returns for each stop; returns the last stop."""
        if self._has_kernels:
            return super().walk(stop, advance)
        lines, command = Lines(advance), advance(stop)
        try:
            while command:
                if command == "next":
                    stop, command = lines.next(stop, self.resume)
                else:
                    stop = self.resume(command)
                    command = advance(stop)
            return stop
        finally:
            lines.delete()

    def sweep(self, readings: Mapping[int, Sequence[str]]) -> tuple[list[Hit], StopRecord]:
        """Continue past these breakpoints, reading values at each; returns the hits and the first stop elsewhere."""
        hits: list[Hit] = []

        def read(number: int) -> bool:
            frame = gdb.newest_frame()
            hits.append(Hit(number, [_text(frame, expression) for expression in readings[number]]))
            return True

        for number in readings:
            self._points[number].pass_if(partial(read, number))
        try:
            return hits, self.resume("continue")
        finally:
            for number in readings:
                del self._points[number].stop

    def evaluate(self, expressions: Sequence[str], level: int = 0) -> list[str | None]:
        """The values of expressions in frame `level`, as gdb prints them; None where there is no value."""
        if level == 0 and (self._in_kernel or not self._selected):
            # without creating a `gdb.Frame` (see `_here`), which would take 2 ms on a GPU
            return [_text(None, expression) for expression in expressions]
        with _frame(level) as frame:
            return [_text(None if self._in_kernel else frame, expression) for expression in expressions]

    def refusal(self, expression: str) -> str:
        """gdb's reason why an expression cannot be evaluated in the newest frame; empty if it can."""
        try:
            gdb.parse_and_eval(expression).format_string(deref_refs=True)
        except (gdb.error, gdb.MemoryError) as error:
            return str(error)
        return ""

    def local_names(self, level: int = 0) -> set[str]:
        """The names of variables and arguments in scope in a frame."""
        with _frame(level) as frame:
            block: gdb.Block | None = frame.block()
            names: set[str] = set()
            while block is not None and not block.is_static and not block.is_global:
                names |= {symbol.name for symbol in block}
                block = block.superblock
        return names

    def frames(self, limit: int) -> Iterator[Frame]:
        """The newest `limit` frames, each read on demand."""
        for frame in _frames(limit):
            yield _described(frame)

    def memory(self, address: int, count: int) -> bytes:
        """Read `count` bytes of the program's host memory."""
        with _refusals():
            return bytes(gdb.selected_inferior().read_memory(address, count))


def _here() -> Frame:
    """The location where the program has stopped, without a `gdb.Frame`.

    For a frame, gdb would also read the debug information of its caller's unit, which takes 0.2 s for ggml-cuda.cu.
    """
    pc = int(gdb.parse_and_eval("$pc"))
    function, sal = function_at(pc), gdb.find_pc_line(pc)
    if not function:  # without debug information, use the nearest symbol
        return _described(gdb.newest_frame())
    return Frame(without_parameters(function), sal.symtab.filename if sal.symtab else "", sal.line)


def _described(frame: gdb.Frame) -> Frame:
    sal = frame.find_sal()
    return Frame(without_parameters(frame.name() or ""), sal.symtab.filename if sal.symtab else "", sal.line)


def _frames(limit: int) -> Iterator[gdb.Frame]:
    frame: gdb.Frame | None = gdb.newest_frame()
    while frame is not None and limit > 0:
        yield frame
        frame, limit = frame.older(), limit - 1


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (gdb.error, gdb.MemoryError) as error:
        raise DebuggerError(str(error)) from error


@contextmanager
def _frame(level: int) -> Iterator[gdb.Frame]:
    """Select frame `level` for the duration of the block, then the newest frame again."""
    frame = gdb.newest_frame()
    newest = frame
    for _ in range(level):
        frame = frame.older() or frame
    frame.select()
    try:
        yield frame
    finally:
        newest.select()


def _text(frame: gdb.Frame | None, expression: str) -> str | None:
    """The text of a value; a variable is first looked up in the frame, which is ten times as fast as an evaluation.

    cuda-gdb 13.0 dies with an internal error if a device frame lacks the variable, so `frame` is None in device code.
    """
    value: gdb.Value | None = None
    try:
        if frame is not None and expression.isidentifier():
            with suppress(ValueError):  # not a local variable, but perhaps a global variable
                value = frame.read_var(expression)
        value = gdb.parse_and_eval(expression) if value is None else value
        return str(value.format_string(deref_refs=True))
    except (gdb.error, gdb.MemoryError):
        return None


def call(path: str, argument_file: str, result_file: str) -> None:
    """Run `module:function(debugger, argument)`; the result file gets `result`, `refused` or `error` (a traceback)."""
    module, _, name = path.partition(":")
    argument = json.loads(Path(argument_file).read_text())
    try:
        document = {"result": getattr(importlib.import_module(module), name)(InProcess(), argument)}
    except DebuggerError as error:
        document = {"refused": str(error)}
    except Exception:  # noqa: BLE001 - the boundary with gdb, which would print the traceback and lose it
        document = {"error": traceback.format_exc()}
    Path(result_file).write_text(json.dumps(document))
