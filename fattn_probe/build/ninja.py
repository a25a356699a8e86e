"""Run ninja: live progress while it works, the first errors and the place of the log when it fails."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ninja

from fattn_probe.errors import BuildError
from fattn_probe.process import log

STATUS = re.compile(r"@(\d+)/(\d+)@ (.*)")
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
ERROR = re.compile(r"\b(?:fatal )?error\b|undefined reference|cannot find|Killed|Traceback", re.IGNORECASE)
SHOWN_ERRORS = 12
LOG_TAIL = 15
GIB = 2**30
GIB_A_COMPILE = 1.5  # what nvcc takes for the heaviest kernel instances


@dataclass(frozen=True)
class Progress:
    """How far a build is: steps done of all, the step begun last, seconds since the start."""

    done: int
    total: int
    label: str
    seconds: float


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Report nothing."""


def default_jobs() -> int:
    """As many compiles as there are processors, and memory for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / GIB_A_COMPILE)))


def parse_status(line: str) -> tuple[int, int, str] | None:
    """(done, total, label) of a line that NINJA_STATUS marked, else None."""
    match = STATUS.fullmatch(line)
    return (int(match.group(1)), int(match.group(2)), match.group(3)) if match else None


def first_errors(output: str) -> list[str]:
    """What a failed build's log says that a person needs: the lines with errors, or its tail."""
    lines = [line for line in output.splitlines() if line.strip() and not parse_status(line)]
    errors = [line for line in lines if ERROR.search(line) and not line.startswith("FAILED: ")]
    return errors[:SHOWN_ERRORS] or lines[-LOG_TAIL:]


def failed_step(output: str) -> str:
    """The output that the first failed step should have made."""
    match = re.search(r"^FAILED: (?:\[code=\d+\] )?(\S+)", output, re.MULTILINE)
    return match.group(1) if match else "a step"


def run_ninja(folder: Path, report: Report = silent, jobs: int | None = None) -> None:
    """Build everything that build.ninja in `folder` names.

    The whole output is in build.log there. Ninja runs on a terminal of its own, because only there it says which
    step it begins. A failed step raises BuildError; an interrupt ends ninja and its compilers first.
    """
    argv = [str(Path(ninja.BIN_DIR) / "ninja"), "-C", str(folder), "-j", str(jobs or default_jobs())]
    log.info("$ %s", " ".join(argv))
    start, lines = time.monotonic(), []
    with spawned(argv) as (child, terminal):
        for line in read_lines(terminal):
            status = parse_status(line)
            if status:
                report(Progress(*status, time.monotonic() - start))
            lines.append(line)
        code = child.wait()
    output = "\n".join(lines)
    (folder / "build.log").write_text(output + "\n")
    if code != 0:
        errors = "\n".join(first_errors(output))
        raise BuildError(f"{failed_step(output)} was not built:\n{errors}\nThe whole log: {folder / 'build.log'}")


@contextlib.contextmanager
def spawned(argv: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program on a wide terminal of its own; it does not outlive the block, nor this process if that is killed.

    The terminal controls the program's session: when this end of it is closed, the kernel hangs up.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 4000, 0, 0))
    env = {**os.environ, "NINJA_STATUS": "@%f/%t@ ", "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=env,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call, which needs no lock
    )
    os.close(theirs)
    try:
        yield child, ours
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait()
        os.close(ours)


def read_lines(terminal: int) -> Iterator[str]:
    """The lines that a terminal shows, without control sequences.

    Ninja overwrites its status line by \\r, and leaves it without an end while a step runs: it is given at once.
    """
    pending = ""
    while chunk := read_chunk(terminal):
        *lines, pending = re.split(r"[\r\n]+", CONTROL.sub("", pending + chunk.decode(errors="replace")))
        if parse_status(pending):
            lines, pending = [*lines, pending], ""
        yield from (line for line in lines if line)
    if pending:
        yield pending


def read_chunk(terminal: int) -> bytes:
    """The next bytes, none at the end (which Linux reports as EIO)."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
