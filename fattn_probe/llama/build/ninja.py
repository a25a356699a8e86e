"""Run ninja with live progress; on failure report the first errors and the path of the log."""

import contextlib
import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ninja

from fattn_probe.base.errors import BuildError, MachineError
from fattn_probe.base.host import cores
from fattn_probe.base.process import log, run
from fattn_probe.llama.build.time_left import TimeLeft

STATUS = re.compile(r"@(\d+)/(\d+)@ (.*)")
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
ERROR = re.compile(r"\b(?:fatal )?error\b|undefined reference|cannot find|Killed|Traceback", re.IGNORECASE)
SHOWN_ERRORS = 12
LOG_TAIL = 15
TICK_SECONDS = 1.0
GIB = 2**30
GIB_A_COMPILE = 1.5  # memory of nvcc for the heaviest kernel instances


@dataclass(frozen=True)
class Progress:
    """The progress of a build: steps done of the total, the latest step, seconds since the start.

    `left` is the estimated number of seconds to go, None without one.
    """

    done: int
    total: int
    label: str
    seconds: float
    left: float | None = None


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Report nothing."""


def default_jobs() -> int:
    """The number of parallel compiles that processors and memory allow."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return max(1, min(cores(), int(memory / GIB_A_COMPILE)))


def parse_status(line: str) -> tuple[int, int, str] | None:
    """(done, total, label) of a status line of ninja, else None."""
    match = STATUS.fullmatch(line)
    return (int(match.group(1)), int(match.group(2)), match.group(3)) if match else None


def first_errors(output: str) -> list[str]:
    """The lines with errors of a failed build's log, or its tail."""
    lines = [line for line in output.splitlines() if line.strip() and not parse_status(line)]
    errors = [line for line in lines if ERROR.search(line) and not line.startswith("FAILED: ")]
    return errors[:SHOWN_ERRORS] or lines[-LOG_TAIL:]


def failed_step(output: str) -> str:
    """The output of the first failed step."""
    match = re.search(r"^FAILED: (?:\[code=\d+\] )?(\S+)", output, re.MULTILINE)
    return match.group(1) if match else "a step"


def run_ninja(
    folder: Path,
    report: Report = silent,
    jobs: int | None = None,
    env: Mapping[str, str] | None = None,
    known: Mapping[str, float] | None = None,
    *,
    targets: Iterable[str] = (),
) -> None:
    """Build some or all targets of build.ninja in `folder`, with `env` added to this process's environment.

    `known` are the seconds of steps in earlier builds. The complete output goes to build.log there. Ninja runs on its
    own terminal, because only then does it print the start of each step. A failed step raises BuildError; an interrupt
    first ends ninja and its compilers.
    """
    jobs = jobs or default_jobs()
    argv = [str(Path(ninja.BIN_DIR) / "ninja"), "-C", str(folder), "-j", str(jobs), *targets]
    left = TimeLeft(set(), known or {}, jobs) if report is silent else TimeLeft(steps_to_do(argv), known or {}, jobs)
    log.info("$ %s", " ".join(argv))
    start, lines, status = time.monotonic(), [], None
    with spawned(argv, env or {}) as (child, terminal):
        for line in read_lines(terminal, TICK_SECONDS):
            if line and (status := parse_status(line)):
                left.see(status[0], status[2])
            if status:
                report(Progress(*status, time.monotonic() - start, left.seconds))
            lines += [line] * bool(line)
        code = child.wait()
    output = "\n".join(lines)
    (folder / "build.log").write_text(output + "\n")
    if code != 0 and (full := os.strerror(errno.ENOSPC)) in output:
        raise MachineError(f"{folder}: {failed_step(output)} cannot be made: {full}")
    if code != 0:
        errors = "\n".join(first_errors(output))
        raise BuildError(f"building {failed_step(output)} failed:\n{errors}\nComplete log: {folder / 'build.log'}")


def steps_to_do(argv: list[str]) -> set[str]:
    """The labels of the steps that ninja would run; none if it cannot say."""
    done = run([*argv, "-n"], env={"NINJA_STATUS": "@%f/%t@ "}, failure=None)
    statuses = map(parse_status, done.stdout.splitlines())
    return {status[2] for status in statuses if status}


@contextlib.contextmanager
def spawned(argv: list[str], variables: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a program on its own wide terminal; it ends with the block, or with this process if that is killed.

    The terminal controls the program's session: when this end of it closes, the kernel sends a hangup.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 4000, 0, 0))
    env = {**os.environ, **variables, "NINJA_STATUS": "@%f/%t@ ", "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=env,
        start_new_session=True,
        preexec_fn=control_terminal,  # noqa: PLW1509 - two system calls, which need no lock
    )
    os.close(theirs)
    try:
        yield child, ours
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait()
        os.close(ours)


def control_terminal() -> None:
    """Make the terminal on stdout that of this process's session, and heed its hangup, which `nohup` ignores."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


def read_lines(terminal: int, tick: float | None = None) -> Iterator[str]:
    """The lines that a terminal shows, without control sequences; "" whenever it is silent for `tick` seconds.

    Ninja overwrites its status line with \\r and does not end it while a step runs; such a line is yielded at once.
    """
    pending = ""
    while True:
        while not select.select([terminal], [], [], tick)[0]:
            yield ""
        chunk = read_chunk(terminal)
        if not chunk:
            break
        *lines, pending = re.split(r"[\r\n]+", CONTROL.sub("", pending + chunk.decode(errors="replace")))
        if parse_status(pending):
            lines, pending = [*lines, pending], ""
        yield from (line for line in lines if line)
    if pending:
        yield pending


def read_chunk(terminal: int) -> bytes:
    """The next bytes; empty at the end, which Linux reports as EIO."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
