"""Run ninja with live progress and the estimated time left; a failure reports the first errors and the log's path."""

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
from dataclasses import dataclass, field
from pathlib import Path

import ninja

from fattn_probe.base.cache import Growth
from fattn_probe.base.errors import BuildError, MachineError
from fattn_probe.base.files import remove_tree
from fattn_probe.base.host import cores
from fattn_probe.base.process import describe_code, log, run

STATUS = re.compile(r"@(\d+)/(\d+)@ (.*)")
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
ERROR = re.compile(r"\b(?:fatal )?error\b|undefined reference|cannot find|Killed|Traceback", re.IGNORECASE)
UNKNOWN_BUILTIN = re.compile(r"\W(__builtin_amdgcn_\w+)\W was not declared|no arguments to \W(__builtin_amdgcn_\w+)")
SHOWN_ERRORS = 12
LOG_TAIL = 15
TICK_SECONDS = 1.0
CACHED_SECONDS = 0.5
"""A compile that took less than this many seconds was a ccache hit."""
RECORDS = (".ninja_log", ".ninja_deps")
"""Ninja's own files in a folder. Ninja crashes if they are damaged; if they are missing, it runs the steps again."""
CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)
GIB = 2**30
GIB_A_COMPILE = 1.5  # memory that nvcc needs for the heaviest kernel instances


@dataclass(frozen=True)
class Progress:
    """The progress of a build: finished and total steps, the current step's label, seconds since the start.

    `left` is the estimated time left in seconds, None if unknown.
    """

    done: int
    total: int
    label: str
    seconds: float
    left: float | None = None


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """A `Report` that shows nothing."""


def step_seconds(builds: Iterable[Path]) -> dict[str, float]:
    """The longest time in seconds of each step, by label, in the ninja logs of some build folders."""
    found: dict[str, float] = {}
    for folder in builds:
        for output, (start, end, *_) in logged(folder).items():
            label, seconds = output.rpartition("/")[2].removesuffix(".o"), (int(end) - int(start)) / 1e3
            if seconds >= CACHED_SECONDS:
                found[label] = max(seconds, found.get(label, 0.0))
    return found


def logged(folder: Path, *, mend: bool = False) -> dict[str, list[str]]:
    """The last row of ninja's log for each output: start and end (ms), the output's time stamp and path, a digest.

    `mend` adds a newline to an incomplete last row, so that ninja does not append its next row to it.
    """
    try:
        with (folder / ".ninja_log").open("r+" if mend else "r", errors="replace") as file:
            text = file.read()
            if mend and not text.endswith("\n"):
                file.write("\n")
    except OSError:
        return {}
    rows = (line.split("\t") for line in text.splitlines())
    return {row[3]: row for row in rows if len(row) == 5 and row[0].isdecimal() and row[1].isdecimal()}


@dataclass
class TimeLeft:
    """An estimate of the time that a build in progress still needs.

    `known` has the seconds of each step in earlier builds, by label; an unknown step counts as average. The times are
    scaled by how long this build's finished steps took, compared with earlier builds.
    """

    labels: set[str]
    known: Mapping[str, float]
    jobs: int
    clock: Callable[[], float] = time.monotonic
    started: dict[str, float] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)
    done: int = 0

    def see(self, done: int, label: str) -> None:
        """Process a status line; ninja prints one when a step starts, and one with a higher count when it ends."""
        if done > self.done and label in self.started:
            self.finished[label] = self.clock() - self.started.pop(label)
        elif done == self.done:
            self.started[label] = self.clock()
        self.done = done

    @property
    def seconds(self) -> float | None:
        """The estimated seconds left: the longest step or, if more, the total divided by the jobs; None if unknown."""
        expected = {**self.known, **self.finished}
        samples = [expected[label] for label in self.labels if label in expected]
        if not samples:
            return None
        both = self.finished.keys() & self.known.keys()
        before = sum(self.known[label] for label in both)
        pace = sum(self.finished[label] for label in both) / before if before else 1.0
        average, now, left = sum(samples) / len(samples), self.clock(), []
        for label in self.labels - self.finished.keys():
            left.append(max(0.0, pace * expected.get(label, average) - (now - self.started.get(label, now))))
        return max([sum(left) / self.jobs, *left])


class JobSlots:
    """Slots for compiles that several ninja processes share, using GNU make's jobserver protocol.

    A thread takes a slot before it runs ninja or other work that keeps a core busy; ninja takes more while slots are
    free. `begin` is called when a build's files have been written, before anything is compiled.
    """

    def __init__(self, number: int, begin: Callable[[], None] = lambda: None) -> None:
        self.number, self.begin, (self._read, self._write) = number, begin, os.pipe()
        self.give(number)

    def take(self) -> None:
        """Wait for a slot."""
        os.read(self._read, 1)

    def give(self, number: int = 1) -> None:
        """Give slots back."""
        os.write(self._write, b"+" * number)

    def close(self) -> None:
        """Close the jobserver's pipe; no ninja process may still be using it."""
        os.close(self._read)
        os.close(self._write)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that tell ninja about the slots."""
        pipe = f"/proc/{os.getpid()}/fd/{self._read}"
        return {"MAKEFLAGS": f" -j{self.number} --jobserver-auth=fifo:{pipe}"}


def default_jobs() -> int:
    """The number of parallel compiles, limited by the processors and the memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return max(1, min(cores(), int(memory / GIB_A_COMPILE)))


def parse_status(line: str) -> tuple[int, int, str] | None:
    """(done, total, label) from a status line of ninja; None for any other line."""
    match = STATUS.fullmatch(line)
    return (int(match.group(1)), int(match.group(2)), match.group(3)) if match else None


def first_errors(output: str) -> list[str]:
    """The error lines in a failed build's log, and AMD's functions that g++ lacks; without errors, the log's tail."""
    lines = [line for line in output.splitlines() if line.strip() and not parse_status(line)]
    errors = [line for line in lines if ERROR.search(line) and not line.startswith("FAILED: ")]
    lacking = dict.fromkeys("".join(names) for line in errors for names in UNKNOWN_BUILTIN.findall(line))
    notes = [f"The simulator does not have {name}; clang may have it for this AMD GPU." for name in lacking]
    return [*errors[:SHOWN_ERRORS], *notes] or lines[-LOG_TAIL:]


def failed_step(output: str) -> str:
    """The output file of the first failed step."""
    match = re.search(r"^FAILED: (?:\[code=\d+\] )?(\S+)", output, re.MULTILINE)
    return match.group(1) if match else "a step"


def run_ninja(
    growth: Growth,
    report: Report = silent,
    jobs: int | JobSlots | None = None,
    env: Mapping[str, str] | None = None,
    known: Mapping[str, float] | None = None,
    *,
    targets: Iterable[str] = (),
) -> None:
    """Build some or all targets of build.ninja in a folder, with `env` added to this process's environment.

    The files that the steps write are recorded in `growth`. At most `jobs` steps run in parallel; with `JobSlots`, one
    in the caller's slot and one in each free slot. `known` has the seconds of steps in earlier builds. The complete
    output goes to build.log. Ninja runs on its own terminal, because only then does it print the start of each step. A
    failed step raises BuildError; an interrupt first stops ninja and its compilers.
    """
    folder, variables = growth.folder, dict(env or {})
    before = logged(folder, mend=True)
    records = [path for path in map(folder.joinpath, RECORDS) if path.exists()]
    argv = [str(Path(ninja.BIN_DIR) / "ninja"), "-C", str(folder), *targets]
    if isinstance(jobs, JobSlots):
        number, variables = jobs.number, variables | jobs.variables
    else:
        number = jobs or default_jobs()
        argv[1:1] = ["-j", str(number)]
    left = TimeLeft(set() if report is silent else steps_to_do(argv), known or {}, number)
    log.info("$ %s", " ".join(argv))
    start, lines, status = time.monotonic(), [], None
    try:
        with spawned(argv, variables) as (child, terminal):
            for line in read_lines(terminal, TICK_SECONDS):
                if line and (status := parse_status(line)):
                    left.see(status[0], status[2])
                if status:
                    report(Progress(*status, time.monotonic() - start, left.seconds))
                lines += [line] * bool(line)
            code = child.wait()
    finally:
        for output, row in logged(folder).items():
            if before.get(output) != row:
                growth.changed.update((output, f"{output}.log", f"{output.removesuffix('.o')}.gcno"))
    if code in CRASHES and records:
        log.warning("%s: ninja was %s: removing its damaged records and trying again", folder, describe_code(code))
        for path in records:
            remove_tree(path)
        return run_ninja(growth, report, jobs, env, known, targets=targets)
    output = "\n".join(lines)
    (folder / "build.log").write_text(output + "\n")
    if code != 0 and (full := os.strerror(errno.ENOSPC)) in output:
        raise MachineError(f"{folder}: {failed_step(output)} cannot be built: {full}")
    if code != 0:
        errors = "\n".join(first_errors(output)) if code > 0 else f"ninja was {describe_code(code)}"
        raise BuildError(f"building {failed_step(output)} failed:\n{errors}\nComplete log: {folder / 'build.log'}")


def steps_to_do(argv: list[str]) -> set[str]:
    """The labels of the steps that ninja would run; empty if ninja fails."""
    done = run([*argv, "-n"], env={"NINJA_STATUS": "@%f/%t@ "}, failure=None)
    statuses = map(parse_status, done.stdout.splitlines())
    return {status[2] for status in statuses if status}


@contextlib.contextmanager
def spawned(argv: list[str], variables: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a program on its own wide terminal; stop it at the end of the block, or if this process is killed.

    The terminal controls the program's session: when our end of it closes, the kernel sends SIGHUP.
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
    """Make stdout this session's controlling terminal, and reset SIGHUP, which `nohup` sets to be ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


def read_lines(terminal: int, tick: float | None = None) -> Iterator[str]:
    """The lines that a terminal shows, without control sequences; "" whenever it is silent for `tick` seconds.

    Ninja overwrites its status line with \\r and leaves it unfinished while a step runs; this line is yielded at once.
    """
    pending = ""
    while True:
        while not select.select([terminal], [], [], tick)[0]:
            yield ""
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # on Linux, the end of the output
            chunk = b""
        if not chunk:
            break
        *lines, pending = re.split(r"[\r\n]+", CONTROL.sub("", pending + chunk.decode(errors="replace")))
        if parse_status(pending):
            lines, pending = [*lines, pending], ""
        yield from (line for line in lines if line)
    if pending:
        yield pending
