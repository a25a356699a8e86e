"""The connection to a debugger: a raw terminal under pexpect, a transcript, and the cleanup of its processes.

The GDB/MI records of a command are collected into one reply. pygdbmi parses a small record in 6 us and a large one at
20 MB/s, faster than gdb writes it. Unsolicited notifications (`=library-loaded` ...) are not parsed.
"""

import contextlib
import os
import re
import resource
import signal
import termios
import time
import tty
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import pexpect
from pygdbmi.gdbmiparser import parse_response

from fattn_probe.base.process import describe_code
from fattn_probe.machine.debug.protocol import DebuggerError


@dataclass(frozen=True)
class Reply:
    """The debugger's reply to one command: `kind` is done, running, error, exit or connected.

    `console` is the command's output, `log` the debugger's messages. `stopped` is the last `*stopped` record before the
    reply, and `hits` are the unparsed `=breakpoint-modified` records.
    """

    kind: str
    results: Mapping[str, Any] = field(default_factory=dict)
    console: str = ""
    log: str = ""
    stopped: Mapping[str, Any] | None = None
    hits: tuple[str, ...] = ()

    def checked(self) -> Self:
        """Return this reply, or raise DebuggerError if the command was refused."""
        if self.kind == "error":
            raise DebuggerError(self.error)
        return self

    @property
    def error(self) -> str:
        """The reason why the command was refused, with the debugger's log (perhaps a Python traceback)."""
        message = str(self.results.get("msg", "")).strip()
        log = self.log.strip()
        return message if not log or log == message else f"{message}\n{log}".strip()


def read_reply(token: int | None, lines: Iterable[str]) -> Reply:
    """Read the reply to the command `token`, up to the prompt after its result record.

    Without a token, read the debugger's greeting, which ends with the first prompt.
    """
    result: dict[str, Any] | None = {"message": "done", "payload": None} if token is None else None
    streams: dict[str, list[str]] = {"console": [], "log": []}
    mark, hits, stopped = f"{token}^", list[str](), ""
    for line in lines:
        first = line[:1]
        if first == "=":
            if line.startswith("=breakpoint-modified"):
                hits.append(line)
        elif first == "*":
            if line.startswith("*stopped"):
                stopped = line  # only the last stop counts: a procedure inside the debugger may cause hundreds
        elif line.startswith(mark):
            result = parse_response(line)
            if result["message"] == "exit":
                break
        elif line.rstrip() == "(gdb)":
            if result is not None:
                break
        else:
            record = parse_response(line)
            if record["type"] in streams:
                streams[record["type"]].append(record["payload"] or "")
    assert result is not None
    return Reply(
        result["message"],
        result["payload"] or {},
        "".join(streams["console"]),
        "".join(streams["log"]),
        (parse_response(stopped)["payload"] or {}) if stopped else None,
        tuple(hits),
    )


ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})


def c_string(text: str) -> str:
    """The text, quoted as one argument of an MI command."""
    return f'"{text.translate(ESCAPES)}"'


TAIL = 12
LONGEST = 400  # the most characters of a dialogue line that a message shows
DULL = re.compile(r"< (?:=|\(gdb\)|\d+\^done$)|> \d+-interpreter-exec console \"set ")
SLICE = 0.5  # seconds between checks that the debugger is alive


class GoneError(Exception):
    """The debugger has exited or was killed; `str()` says how."""


class Channel:
    """A process in its own terminal session, with line-based input and output.

    `transcript` receives the dialogue as it happens, with `> ` before each line sent and `< ` before each line
    received. FileNotFoundError if the program does not exist.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path | None, transcript: IO[str] | None
    ) -> None:
        try:
            self._child: pexpect.spawn[bytes] = pexpect.spawn(
                argv[0], list(argv[1:]), env=env, cwd=cwd, echo=False, maxread=65536, preexec_fn=prepare
            )
        except pexpect.ExceptionPexpect as error:
            raise FileNotFoundError(str(error).splitlines()[0]) from error
        self._child.delaybeforesend = None
        self._child.delayafterread = None
        self._child.ptyproc.delayafterclose = 0  # type: ignore[attr-defined]  # types-pexpect leaves it out
        self._transcript = transcript
        self._lines: deque[bytes] = deque()
        self._partial: list[bytes] = []
        self._tail: deque[str] = deque(maxlen=TAIL)

    def send(self, lines: Sequence[str]) -> None:
        """Send lines; with more than 4096 bytes, this may block until the other side reads."""
        for line in lines:
            self._note("> ", line)
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            while data:
                data = data[self._child.send(data) :]
        except OSError as error:
            raise GoneError(self._ending()) from error

    def line(self, limit: float) -> str:
        """The next line, without the newline; TimeoutError when the monotonic clock passes `limit`."""
        while not self._lines:
            left = limit - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._read(min(left, SLICE))
        line = self._lines.popleft().decode(errors="replace").rstrip("\r")
        self._note("< ", line)
        return line

    def tail(self) -> str:
        """The last lines of the dialogue, without prompts, notifications, settings and empty answers."""
        return "\n".join(line if len(line) <= LONGEST else line[:LONGEST] + " ..." for line in self._tail)

    def interrupt(self) -> None:
        """Interrupt the foreground program, as Ctrl-C in the terminal does."""
        with contextlib.suppress(OSError):
            os.killpg(os.tcgetpgrp(self._child.child_fd), signal.SIGINT)

    def wait_for_end(self, seconds: float) -> bool:
        """Wait for the debugger to exit; returns whether it did so in time."""
        limit = time.monotonic() + seconds
        try:
            while True:
                self.line(limit)
        except TimeoutError:
            return False
        except GoneError:
            return True

    def close(self) -> None:
        """Kill everything in the terminal's session, including the debugged program.

        A process that a driver blocks in the kernel cannot be killed; `close` gives up on it after 5 seconds.
        """
        if not self._child.closed:
            if self._child.pid is not None:
                # Kill every process of the terminal session.
                limit = time.monotonic() + 5.0
                while (alive := list(members(self._child.pid))) and time.monotonic() < limit:
                    for pid in alive:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    time.sleep(0.005)
            with contextlib.suppress(pexpect.ExceptionPexpect):
                self._child.close()

    def _read(self, seconds: float) -> None:
        try:
            data = self._child.read_nonblocking(65536, seconds)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF as error:
            raise GoneError(self._ending()) from error
        first, *others = data.split(b"\n")
        self._partial.append(first)
        if others:
            self._lines.append(b"".join(self._partial))
            self._lines.extend(others[:-1])
            self._partial = [others[-1]]

    def _note(self, mark: str, line: str) -> None:
        if not DULL.match(mark + line):
            self._tail.append(mark + line)
        if self._transcript is not None:
            self._transcript.write(f"{mark}{line}\n")

    def _ending(self) -> str:
        """A description of how the process ended, after its terminal is closed."""
        if rest := b"".join(self._partial).decode(errors="replace").strip():
            self._note("< ", rest)
        limit = time.monotonic() + 1.0
        while self._child.isalive() and time.monotonic() < limit:
            time.sleep(0.01)
        if self._child.isalive():
            return "closed its terminal"
        code = -self._child.signalstatus if self._child.signalstatus else self._child.exitstatus or 0
        return describe_code(code)


def prepare() -> None:
    """Set up the child process: a raw terminal, and no core files.

    Raw mode means no echo, no limit of 4096 bytes per line, and no translation of `\\n` to `\\r\\n`.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # including the hard limit, because gdb raises the soft limit
    tty.setraw(0, termios.TCSANOW)


def members(leader: int) -> Iterator[int]:
    """The ids of the live processes in a session."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state not in "ZX":
                    yield int(folder.name)
