"""A debugger driven by pexpect over its machine interface (GDB/MI): one reply per command, or LostError."""

import contextlib
import itertools
import os
import re
import shlex
import shutil
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from fattn_probe.base.cache import Kind, tended
from fattn_probe.base.errors import BuildError, LostError
from fattn_probe.base.files import scratch, writing
from fattn_probe.machine.debug.channel import Channel, GoneError, Reply, c_string, read_reply
from fattn_probe.machine.debug.protocol import DebuggerError
from fattn_probe.machine.run.executed import ObjectReader

GDB_INDEX = Kind("gdb-index", "the folder of gdb's indexes")
INSTALL = "Debian and Ubuntu: apt install gdb; Fedora: dnf install gdb; cuda-gdb comes with NVIDIA's CUDA toolkit"
ENVIRONMENT = {
    "TERM": "dumb",
    "DEBUGINFOD_URLS": "",
    "LC_ALL": "C.UTF-8",
    "LANGUAGE": "C",
    "SHELL": "/bin/sh",  # gdb starts the program with this shell, so `set args` needs its quoting
}
NOT_INHERITED = ("PYTHONHOME", "PYTHONPATH")  # these are for our own Python, not for the Python in the debugger
SETTINGS = (
    "confirm off",
    "pagination off",
    "width 0",
    "height 0",
    "breakpoint pending on",
    "debuginfod enabled off",
    "debug-file-directory",  # empty: skips the separate symbols of the C library, which take 0.25 s to read
    "style enabled off",
    "host-charset UTF-8",
    "startup-with-shell on",
    "unwindonsignal on",
    "max-value-size 67108864",
    "print thread-events off",
    "print inferior-events off",
    "print static-members off",
    "print elements 20000",
    "print max-depth 100",
    "print pretty off",
    "print entry-values no",
)
"""Settings for every session; a debugger skips those that it does not know."""
PERMIT = "start a container with --cap-add=SYS_PTRACE; elsewhere, check /proc/sys/kernel/yama/ptrace_scope"
IN_FLIGHT = 3000  # bytes of unanswered commands: less than the terminal's buffer of 4096 bytes, so no write can block
LAST_WORDS = 20  # the maximum number of lines of the program's output in a message
MI_FORM = re.compile(r"\d+(-interpreter-exec console |-exec-)?")
"""The part of a command that messages omit: its token, and the MI wrapper of a console command."""


def require_debugger(command: Sequence[str]) -> None:
    """Raise BuildError if a command line's debugger is not installed; the message says how to install it."""
    if shutil.which(command[0]) is None:
        raise BuildError(f"{command[0]} is not installed. To install it: {INSTALL}")


class DebugSession:
    """A debugger with `program` loaded, for the duration of a `with` block.

    `debugger` is a command line (`["gdb"]`). `env` is added to the environment of the debugger, and thus to that of the
    program. The program runs with `args` and an empty stdin; `stdout` and `stderr` go to files. `deadline` is the time
    limit in seconds for each command without a separate limit. If the debugger exits early or a command exceeds its
    deadline, all processes are killed, and LostError is raised. Before that, the debugger has `grace` seconds to stop
    the program and report its location, and the same time again to quit, because killing a GPU's debugger should be
    avoided. `transcript` is a file for the dialogue; `folder` is temporary and belongs to the session.
    """

    def __init__(
        self,
        debugger: Sequence[str],
        program: Path,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        deadline: float = 30.0,
        grace: float = 5.0,
        transcript: Path | None = None,
    ) -> None:
        self.debugger = tuple(debugger)
        self.program = program
        self.args = tuple(args)
        self.deadline = deadline
        self.grace = grace
        inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        self._env = {**inherited, **(env or {}), **ENVIRONMENT}
        self._cwd = cwd
        self._transcript = transcript
        self._resources = contextlib.ExitStack()
        self._token = 0
        self._doing = "startup"
        self._python: bool | None = None
        self._lost: LostError | None = None
        self._said: dict[str, str] = {}

    def __enter__(self) -> Self:
        self.folder = self._resources.enter_context(scratch())
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._lost is None:
                if kind is not None:
                    self._channel.interrupt()
                self._quit()
        finally:
            self._close()

    def command(self, text: str, deadline: float | None = None) -> Reply:
        """Send one MI command; returns its reply, or raises DebuggerError if the debugger refused it."""
        return self.commands([text], deadline)[0].checked()

    def commands(self, texts: Sequence[str], deadline: float | None = None) -> list[Reply]:
        """Send many MI commands without waiting for each reply; a refused command gets a reply of kind `error`.

        A long command is sent alone.
        """
        waiting, replies = deque(texts), list[Reply]()
        while waiting:
            batch: list[str] = []
            while waiting and (not batch or sum(map(len, batch)) + len(waiting[0]) < IN_FLIGHT):
                self._token += 1
                batch.append(f"{self._token}{waiting.popleft()}")
            self._write(batch)
            for token, line in enumerate(batch, self._token - len(batch) + 1):
                text = MI_FORM.sub("", line, 1).strip('"')
                shown = f"`{text}`" if len(text) <= 80 else f"`{text[:80]} ...`"
                self._doing = "a procedure in the debugger's Python" if text.startswith("python exec(") else shown
                replies.append(self._reply(token, self.deadline if deadline is None else deadline))
        return replies

    def execute(self, text: str, deadline: float | None = None) -> str:
        """Run a console command; returns its output, after the next stop if the command resumes the program."""
        reply = self.command(f"-interpreter-exec console {c_string(text)}", deadline)
        if reply.kind != "running":
            return reply.console
        return reply.console + self._until_stopped(deadline).console

    def resume(self, text: str, deadline: float | None = None) -> Reply:
        """Send an `-exec-` command and wait for the program to stop; the reply's `stopped` has the location."""
        self.command(text, deadline)
        return self._until_stopped(deadline)

    def has_python(self) -> bool:
        """Whether the debugger has a working Python with its `gdb` module."""
        if self._python is None:
            try:
                self._python = bool(self.execute("python print(gdb.VERSION)").strip())
            except DebuggerError:
                self._python = False
        return self._python

    def python(self, code: str, deadline: float | None = None) -> str:
        """Run Python source in the debugger's `__main__`; returns its output."""
        return self.execute(f"python exec({code!r})", deadline)

    @property
    def stdout(self) -> str:
        """The program's stdout so far."""
        return self._read_output("stdout")

    @property
    def stderr(self) -> str:
        """The program's stderr so far."""
        return self._read_output("stderr")

    def _start(self) -> None:
        argv = [*self.debugger, "-nx", "-q", "-iex", "set auto-load off", "--interpreter=mi3"]
        require_debugger(self.debugger)
        transcript: IO[str] | None = None
        if self._transcript is not None:
            with writing(self._transcript):
                transcript = self._resources.enter_context(self._transcript.open("w", 1, encoding="utf-8"))
        self._channel = Channel(argv, self._env, self._cwd, transcript)
        self._resources.callback(self._channel.close)
        self._reply(None, self.deadline)
        # so that gdb indexes the symbols of a debug build once, not in every session
        settings = (*SETTINGS, f"index-cache directory {tended(GDB_INDEX)}", "index-cache enabled on")
        self.commands([f"-interpreter-exec console {c_string(f'set {setting}')}" for setting in settings])
        loaded = self.commands([f"-file-exec-and-symbols {c_string(str(self.program))}"])[0]
        if loaded.kind == "error":
            raise LostError(f"{self.debugger[0]} cannot load {self.program}: {loaded.error}")
        stdout, stderr = (shlex.quote(str(self.folder / name)) for name in ("stdout", "stderr"))
        self.execute(f"set args {shlex.join(self.args)} </dev/null >{stdout} 2>{stderr}")

    def _write(self, lines: Sequence[str]) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            self._channel.send(lines)
        except GoneError as error:
            raise self._lose(self._gone(error), self._channel.tail()) from error

    def _reply(self, token: int | None, deadline: float) -> Reply:
        try:
            reply = self._read_reply(token, deadline)
        except GoneError as error:
            raise self._lose(self._gone(error), self._channel.tail()) from error
        except TimeoutError as error:
            tail = self._channel.tail()
            raise self._lose(f"{self._doing} timed out after {deadline:g} s{self._place()}", tail) from error
        if "ptrace: Operation not permitted" in reply.log:
            raise self._lose(f"{self.debugger[0]} cannot trace a program here: {PERMIT}", self._channel.tail())
        return reply

    def _read_reply(self, token: int | None, deadline: float) -> Reply:
        limit = time.monotonic() + deadline
        return read_reply(token, (self._channel.line(limit) for _ in itertools.count()))

    def _until_stopped(self, deadline: float | None) -> Reply:
        """Wait for the program to stop: send a command, which the debugger answers only after the stop."""
        self._token += 1
        self._write([f"{self._token}-gdb-show confirm"])
        return self._reply(self._token, self.deadline if deadline is None else deadline)

    def _place(self) -> str:
        """Interrupt the program; returns its location for a message, empty if the debugger does not answer."""
        with contextlib.suppress(GoneError, TimeoutError):
            self._channel.interrupt()
            self._token += 1
            self._channel.send([f"{self._token}-stack-list-frames 0 3"])
            frames = self._read_reply(self._token, self.grace).results.get("stack", ())
            if frames:
                return "; the program was in " + ", called by ".join(map(_place, frames))
        return ""

    def _gone(self, error: GoneError) -> str:
        return f"{self.debugger[0]} ended during {self._doing}: {error}"

    def _lose(self, what: str, tail: str) -> LostError:
        """Shut down; returns the LostError, with the program's last output and the end of the dialogue."""
        try:
            self._quit()
        finally:
            self._close()
        parts = [what]
        if words := "\n".join((self.stdout + self.stderr).strip().splitlines()[-LAST_WORDS:]):
            parts.append(f"the program's last output:\n{words}")
        if tail:
            parts.append(f"the end of the dialogue with the debugger:\n{tail}")
        self._lost = LostError("\n".join(parts))
        return self._lost

    def _quit(self) -> None:
        with contextlib.suppress(GoneError):
            self._channel.send(["-gdb-exit"])
            self._channel.wait_for_end(self.grace)

    def _close(self) -> None:
        for name in ("stdout", "stderr"):
            self._said[name] = self._read_output(name)
        self._lost = self._lost or LostError(f"the session with {self.debugger[0]} has ended")
        self._resources.close()

    def _read_output(self, name: str) -> str:
        if name in self._said:
            return self._said[name]
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""


def _place(frame: Mapping[str, str]) -> str:
    function = frame.get("func", frame["addr"])
    return f"{function} at {frame['file']}:{frame['line']}" if "line" in frame else function


def require_debug_info(binary: Path) -> None:
    """Raise BuildError if a program or library was stripped, or built without `-g`."""
    try:
        names = ObjectReader(binary.read_bytes()).names
    except ValueError:  # not an ELF file
        names = []
    if not {".debug_info", ".zdebug_info"}.intersection(names):
        raise BuildError(
            f"{binary} has no debug information, so the debugger finds neither its lines nor its variables: "
            "it was stripped, or built without -g (`fattn-probe build --debug` makes one that has it)"
        )
