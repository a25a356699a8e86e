"""The only code that runs programs: to completion, attached to this terminal, or as a line-based dialogue."""

import contextlib
import logging
import math
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fattn_probe.base.errors import BuildError, FattnProbeError, LostError, MachineError, TimedOutError
from fattn_probe.base.signals import deferred

log = logging.getLogger(__name__)
TAIL_LINES = 30
CHUNK = 1 << 16
END_SECONDS = 5.0
"""Seconds to wait for the output of a killed program to end."""


@dataclass(frozen=True)
class Completed:
    """The result of one program; as in `subprocess`, `code` is -N if signal N killed it."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def command(self) -> str:
        """The command line, quoted for a shell."""
        return shlex.join(self.argv)

    def describe(self) -> str:
        """The command, how it ended, and the tail of its output."""
        said = "\n".join((self.stdout + self.stderr).strip().splitlines()[-TAIL_LINES:])
        return f"{self.command}\n{describe_code(self.code)} after {self.seconds:.1f} s" + (f":\n{said}" if said else "")


def describe_code(code: int) -> str:
    """`exit status 2`, or `killed by SIGSEGV` for -11."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout: float | None = None,
    failure: type[FattnProbeError] | None = BuildError,
) -> Completed:
    """Run a program to completion and return its output.

    `env` is added to this process's environment; None removes a variable. A non-zero exit raises `failure`, or nothing
    if `failure` is None. A missing program raises BuildError; a program that cannot be started raises MachineError.
    After `timeout` seconds the whole process group is killed and TimedOutError is raised.
    """
    words = tuple(str(word) for word in argv)
    log.info("$ %s", shlex.join(words))
    start = time.monotonic()
    child: subprocess.Popen[str] | None = None
    try:
        with deferred():  # an interrupt between the program's start and this assignment would leave it running
            child = subprocess.Popen(
                words,
                cwd=cwd,
                env={name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        stdout, stderr = child.communicate(timeout=timeout)
    except FileNotFoundError as error:
        raise BuildError(f"{words[0]} is not installed (`fattn-probe doctor` says how to install it)") from error
    except OSError as error:  # no permission, wrong processor type, no memory for a process
        raise MachineError(f"{words[0]} cannot be run: {error.strerror}") from error
    except BaseException as error:
        said = "" if child is None else kill_group(child)
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimedOutError(f"timed out after {timeout:g} s: {shlex.join(words)}", said) from error
        raise
    completed = Completed(words, child.returncode, stdout, stderr, time.monotonic() - start)
    if failure is not None and completed.code != 0:
        raise failure(completed.describe())
    return completed


def run_attached(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> tuple[int, float]:
    """Run a program on this process's own terminal or files; returns its exit code, as in `Completed`, and the seconds.

    MachineError if the machine cannot start the program; TimedOutError if it is killed after `timeout` seconds.
    """
    words = [str(word) for word in argv]
    log.info("$ %s", shlex.join(words))
    start = time.monotonic()
    try:
        done = subprocess.run(words, cwd=cwd, env={**os.environ, **(env or {})}, timeout=timeout, check=False)
    except OSError as error:
        raise MachineError(f"{words[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise TimedOutError(f"timed out after {timeout:g} s: {shlex.join(words)}") from error
    return done.returncode, time.monotonic() - start


@dataclass(frozen=True)
class Dialogue:
    """A running program that answers each line with a line; its stderr goes to `said`; messages call it `name`."""

    process: subprocess.Popen[str]
    said: Path
    name: str
    unread: bytearray = field(default_factory=bytearray, repr=False, compare=False)
    """The program's output after the last answer."""

    @property
    def alive(self) -> bool:
        """Whether the program is still running."""
        return self.process.poll() is None

    def wait(self, timeout: float) -> int:
        """Wait for a program that has closed its output to exit; returns its exit code, or raises TimedOutError."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimedOutError(f"{self.name} closed its output, but did not exit within {timeout:.0f} s") from None

    def ask(self, line: str, timeout: float | None) -> str:
        """Send a line, unless it is empty, and return the program's next line of output, without the newline.

        If the complete answer takes longer than `timeout` seconds, the program is killed and TimedOutError is raised;
        LostError if the program exits before it receives the line.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if line:
            try:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            except OSError as error:
                raise LostError(f"{self.name} is gone: {error.strerror}") from error
        until = math.inf if timeout is None else time.monotonic() + timeout
        output = select.poll()
        output.register(self.process.stdout, select.POLLIN)
        while b"\n" not in self.unread:
            left = None if timeout is None else 1000 * max(0.0, until - time.monotonic())
            if not output.poll(left):
                kill_group(self.process)
                said = f"only {self.unread.decode(errors='replace')!r}" if self.unread else "no answer"
                raise TimedOutError(f"{said} after {timeout or 0:.0f} s")
            more = os.read(self.process.stdout.fileno(), CHUNK)
            if not more:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(2 * END_SECONDS)
                break
            self.unread.extend(more)
        answer, _, rest = self.unread.partition(b"\n")
        self.unread[:] = rest
        return answer.decode(errors="replace")


@contextlib.contextmanager
def dialogue(argv: Sequence[str], env: Mapping[str, str], said: Path, name: str) -> Iterator[Dialogue]:
    """Start a program that answers each line with a line; at the end, kill it and everything that it started."""
    log.info("$ %s", shlex.join(argv))
    try:
        with said.open("a") as stderr:
            process = subprocess.Popen(
                argv,
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
    except OSError as error:
        raise BuildError(f"{argv[0]} cannot be run: {error.strerror}") from error
    try:
        yield Dialogue(process, said, name)
    finally:
        kill_group(process)


def end_programs(number: int = signal.SIGTERM) -> None:
    """Send a signal to all programs that this process has started, in any thread; each one leads its own session."""
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            for pid in map(int, children.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    if os.getsid(pid) == pid:
                        os.killpg(pid, number)


def kill_group(child: subprocess.Popen[str]) -> str:
    """Kill a child process and everything it started, and reap it; returns its output."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        return "".join(text or "" for text in child.communicate(timeout=END_SECONDS))
    except subprocess.TimeoutExpired:  # a process that left the group keeps the pipes open
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        child.wait()
        return ""
