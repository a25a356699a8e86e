"""Run a program to its end, with a timeout; the only place that does so."""

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.errors import BuildError, FattnProbeError, MachineError, TimedOutError

log = logging.getLogger(__name__)
TAIL_LINES = 30


@dataclass(frozen=True)
class Completed:
    """The result of one program; `code` is negative for a signal, as in `subprocess`."""

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
        """How it ended, in words, with the tail of its output."""
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
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    failure: type[FattnProbeError] | None = BuildError,
) -> Completed:
    """Run a program to its end and return its output.

    `env` is added to this process's environment. A non-zero exit raises `failure`, or nothing if `failure` is None. A
    missing program raises BuildError; one that the machine refuses to start raises MachineError. After `timeout`
    seconds the whole process group is killed and TimedOutError is raised.
    """
    words = tuple(str(word) for word in argv)
    log.info("$ %s", shlex.join(words))
    start = time.monotonic()
    try:
        child = subprocess.Popen(
            words,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise BuildError(f"{words[0]} is not on this machine (`fattn-probe doctor` names what to install)") from error
    except OSError as error:  # no permission, of another processor, no memory for a process
        raise MachineError(f"{words[0]} cannot be run: {error.strerror}") from error
    try:
        stdout, stderr = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        said = kill_group(child)
        raise TimedOutError(f"timed out after {timeout:g} s: {shlex.join(words)}", said) from error
    except BaseException:
        kill_group(child)
        raise
    completed = Completed(words, child.returncode, stdout, stderr, time.monotonic() - start)
    if failure is not None and completed.code != 0:
        raise failure(completed.describe())
    return completed


def run_attached(
    argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, timeout: float | None = None
) -> tuple[int, float]:
    """Run a program on this process's own terminal or files; returns its exit code, as `Completed`, and the seconds.

    A program that the machine refuses to start raises MachineError, one that is killed after `timeout` seconds
    TimedOutError.
    """
    words = [str(word) for word in argv]
    log.info("$ %s", shlex.join(words))
    start = time.monotonic()
    try:
        done = subprocess.run(words, env={**os.environ, **(env or {})}, timeout=timeout, check=False)
    except OSError as error:
        raise MachineError(f"{words[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise TimedOutError(f"timed out after {timeout:g} s: {shlex.join(words)}") from error
    return done.returncode, time.monotonic() - start


def kill_group(child: subprocess.Popen[str]) -> str:
    """Kill a child process and everything it started, and reap it; returns its output."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return "".join(text or "" for text in child.communicate())
