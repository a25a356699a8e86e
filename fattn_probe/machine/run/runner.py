"""The native runner: one process per case, one process for many cases, or one that forks a child for each run.

All of these take the files of a run and return its outcome.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fattn_probe.base.errors import LostError, TimedOutError
from fattn_probe.base.files import scratch
from fattn_probe.base.process import Completed, Dialogue, dialogue, kill_group, run
from fattn_probe.llama.build import Build, replacing_lock
from fattn_probe.llama.launch.record import LaunchRecord, Names, Types, parse_launches
from fattn_probe.machine.run.frames import kernel_frames, symbolise, symbolised
from fattn_probe.machine.run.outcome import (
    Ending,
    Failed,
    Finding,
    Lost,
    Missing,
    Ran,
    RunOutcome,
    Unsupported,
    parse_ending,
    read_result,
)

LAUNCHES_ENV = "FATTN_PROBE_LAUNCHES"
READY, DONE, ENDED = "fattn-runner: ready", "fattn-runner: done", "fattn-runner: ended "
KILLED = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of a process that was killed from outside, for example by the system when memory runs out."""
SIGPROF = -27
NO_GDB = {"DEBUGINFOD_URLS": ""}
"""When ggml aborts, it starts gdb, which must not look for debug information on the network."""
NO_BACKTRACE = {"GGML_NO_BACKTRACE": "1"}
"""For many cases in a process: gdb would print to stdout, which is for answers, and take a second."""
NO_LEAKS = {"LSAN_OPTIONS": "detect_leaks=0"}
"""Turns off leak detection: a child inherits objects that its parent still owns."""
GRACE = 30.0
"""Seconds beyond the limit on CPU time after which a child is assumed to hang."""


class RunnerEndedError(LostError):
    """The runner ended or timed out; the next case needs a new runner.

    `ending` is the outcome of the case in progress. A crash or a hang counts as a failure, because earlier cases may
    have caused it. It is Lost if the runner was killed from outside, and None if no case was in progress.
    """

    def __init__(self, said: str, ending: Ending | None = None) -> None:
        super().__init__(said)
        self.ending = ending


@dataclass(frozen=True)
class RunFiles:
    """The files of a run: the case, the result, and optionally the part to run (`write_part`)."""

    case: Path
    out: Path
    part: Path | None = None


@dataclass(frozen=True)
class Command:
    """A runner with its arguments, and the time limit per case in seconds.

    `types` and `names` are for `parse_launches`. The `build` is locked against linking while the runner loads it.
    """

    program: Path
    words: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    timeout: float | None = None
    types: Types | None = None
    names: Names | None = None
    build: Build | None = None

    @contextlib.contextmanager
    def no_builders(self) -> Iterator[None]:
        """Prevent other processes from replacing the build's libraries; compiling is still allowed."""
        with replacing_lock(self.build.folder) if self.build and self.build.request else contextlib.nullcontext():
            yield

    def run(self, files: RunFiles) -> RunOutcome:
        """Run one case in a separate process; BuildError if the runner cannot be started.

        Launch records go to a file named after the result file, with `.launches` appended.
        """
        with self.no_builders():
            pass
        launches = files.out.with_name(files.out.name + ".launches")
        for stale in (launches, files.out):
            stale.unlink(missing_ok=True)
        env = {**NO_GDB, **(self.env or {}), LAUNCHES_ENV: str(launches)}
        selected = () if files.part is None else ("--select", files.part)
        argv = [self.program, files.case, files.out, *self.words, *selected]
        try:
            done = run(argv, env=env, timeout=self.timeout, failure=None)
        except TimedOutError as error:
            return Lost(str(error))
        return ending_of(done) or outcome_of(done, files.out, self.launches(launches))

    def launches(self, path: Path) -> tuple[LaunchRecord, ...]:
        """Read the launches from a file of launch records."""
        return read_launches(path, types=self.types, names=self.names)

    @contextlib.contextmanager
    def started(self) -> Iterator["BatchRunner"]:
        """Start the runner for many cases, and stop it with its children at the end; RunnerEndedError on failure."""
        with scratch() as folder:
            launches = folder / "launches"
            launches.touch()
            env = {**NO_GDB, **NO_BACKTRACE, LAUNCHES_ENV: str(launches), **(self.env or {})}
            with contextlib.ExitStack() as stack:
                with self.no_builders():
                    argv = [str(self.program), "--batch", *self.words]
                    running = stack.enter_context(dialogue(argv, env, folder / "stderr", "the runner"))
                    batch = BatchRunner(self, running, launches)
                    batch.expect(READY)
                yield batch


@dataclass(frozen=True)
class BatchRunner:
    """A running `fattn-runner --batch`, which has set up its GPU; `launches` has the last case's launch records."""

    command: Command
    running: Dialogue
    launches: Path

    def run(self, files: RunFiles) -> RunOutcome:
        """Run one case.

        RunnerEndedError if the process exits or times out. That is not a verdict on the case, because an earlier case
        may be the reason. A missing function, however, is an outcome.
        """
        start, alive = time.monotonic(), self.running.alive
        self.forget()
        try:
            self.expect(DONE, "\t".join(str(file) for file in (files.case, files.out, files.part) if file))
        except RunnerEndedError as error:
            ending = error.ending or self._ending(start)
            if isinstance(ending, Missing):
                return ending
            raise RunnerEndedError(str(error), ending if alive else None) from error
        done = Completed((), 0, "", self.said, time.monotonic() - start)
        launches = enumerate(self.command.launches(self.launches))  # numbered as in a separate process
        return outcome_of(done, files.out, tuple(replace(launch, order=order) for order, launch in launches))

    @property
    def said(self) -> str:
        """The runner's stderr since the case began."""
        return self.running.said.read_text(errors="replace")

    def forget(self) -> None:
        """Empty the files of the last case, because the runner appends to them."""
        for file in (self.running.said, self.launches):
            os.truncate(file, 0)

    def expect(self, answer: str, line: str = "") -> None:
        """Send a `line`, unless it is empty, and wait for this answer; RunnerEndedError for a different one."""
        found = self.ask(line, self.command.timeout)
        if found != answer:
            kill_group(self.running.process)  # the next line would belong to a different case
            said = f"the runner ended, or said {found!r}"
            raise RunnerEndedError(said, Failed(f"the runner said {found!r}", ()) if found else None)

    def ask(self, line: str, timeout: float | None) -> str:
        """The runner's answer to a line; RunnerEndedError if it does not answer."""
        try:
            return self.running.ask(line, timeout)
        except TimedOutError as error:
            raise RunnerEndedError(str(error), Failed(str(error), ())) from error
        except LostError as error:
            raise RunnerEndedError(str(error)) from error

    def _ending(self, start: float) -> Ending:
        """The outcome of the case in progress when the process ended."""
        code = self.running.process.wait()
        ending = ending_of(Completed((), code, "", self.said, time.monotonic() - start))
        if isinstance(ending, Lost) and code not in KILLED:
            return Failed(ending.message, ending.stack)
        return ending or Failed("the runner ended", ())


class SharedRunner(contextlib.ExitStack):
    """A runner that is reused as long as the command stays the same; `last` is the case that it ran last."""

    command: Command | None = None
    batch: BatchRunner | None = None
    last: str = ""

    def runner(self, command: Command) -> BatchRunner:
        """The runner for a command; RunnerEndedError if it cannot be started."""
        if self.batch is None or not self.batch.running.alive or self.command != command:
            self.close()
            self.command, self.batch, self.last = command, None, ""
            self.batch = self.enter_context(command.started())
        return self.batch

    def run(self, command: Command, files: RunFiles, name: str) -> RunOutcome:
        """Run the case called `name`; if it crashes the runner, run it again in a separate process."""
        last = ""
        try:
            runner = self.runner(command)
            last, self.last = self.last, name
            return runner.run(files)
        except RunnerEndedError as ended:
            return beside_others(command.run(files), ended, last)


PASSES_ALONE, FAILED_ONCE = "passes alone, fails after", "fails in one run, passes in the next"


def beside_others(alone: RunOutcome, ended: RunnerEndedError, last: str) -> RunOutcome:
    """The outcome of a case that crashed the shared runner: its outcome `alone`, unless it passes alone.

    If it passes alone, that is a failure: the `last` case has changed the runner's state, or the case is flaky.
    """
    if ended.ending is None or isinstance(ended.ending, Missing) or not isinstance(alone, Ran | Unsupported):
        return alone
    words = f"{PASSES_ALONE} {last}" if last else FAILED_ONCE
    return replace(ended.ending, message=f"{words}: {ended.ending.message}")


@dataclass(frozen=True)
class Child:
    """A run in a child process: its exit code (negative for a signal), its CPU time, and its files."""

    code: int
    seconds: float
    out: Path
    said: Path
    launched: Path

    @property
    def output(self) -> tuple[bytes, str]:
        """The bytes of dst and the text of the launch records, to compare runs; empty if there is no output."""
        if self.code != 0:
            return b"", ""
        dst = read_result(self.out).dst
        return b"" if dst is None else dst.tobytes(), self.launched.read_text()

    def outcome(self, types: Types | None, names: Names | None) -> RunOutcome:
        """The outcome of the run; a fault's frames are not symbolised."""
        if self.code == SIGPROF:
            return Lost(f"timed out after {self.seconds:.1f} s of CPU time")
        done = Completed((), self.code, "", self.said.read_text(errors="replace"), self.seconds)
        return parse_ending(done) or outcome_of(done, self.out, read_launches(self.launched, types=types, names=names))


@dataclass(frozen=True)
class ForkedRunner:
    """A running `fattn-runner --fork`: a fault stops only the child, not the runner; results go to `folder`."""

    batch: BatchRunner
    folder: Path

    @property
    def alive(self) -> bool:
        """Whether the runner still accepts runs."""
        return self.batch.running.alive

    def run(self, case: Path, part: Path | None = None, mutant: int = 0, limit: float = 0.0) -> Child:
        """Run a case file, or a part of it, with a mutant switched on, and with at most `limit` seconds of CPU time.

        LostError if the runner itself exits, or if the child hangs.
        """
        out = self.folder / "out.gguf"
        out.unlink(missing_ok=True)
        self.batch.forget()
        words = (case, out, part or "", mutant, f"{limit:.3f}")
        answer = self.batch.ask("\t".join(map(str, words)), 4 * limit + GRACE if limit else None)
        if not answer.startswith(ENDED):
            raise LostError(f"the runner said {answer!r}")
        code, seconds = answer.removeprefix(ENDED).split()
        return Child(int(code), float(seconds), out, self.batch.running.said, self.batch.launches)


@contextlib.contextmanager
def forked_runner(
    runner: Path, args: Sequence[str], *, env: Mapping[str, str], folder: Path, timeout: float
) -> Iterator[ForkedRunner]:
    """Start a runner that forks a child for each run, and stop it and its children at the end."""
    with Command(runner, ("--fork", *args), {**env, **NO_LEAKS}, timeout).started() as batch:
        yield ForkedRunner(batch, folder)


def ending_of(done: Completed) -> Ending | None:
    """The ending of a runner, with symbolised frames; None for success."""
    ending = parse_ending(done)
    if isinstance(ending, Finding):
        return symbolised(ending)
    if isinstance(ending, Lost):
        return replace(ending, stack=kernel_frames(symbolise(ending.stack)))
    return ending


def outcome_of(done: Completed, out_file: Path, launches: tuple[LaunchRecord, ...]) -> RunOutcome:
    """The outcome of a runner that exited with 0, from its result file."""
    result = read_result(out_file)
    return Unsupported(result.unsupported) if result.unsupported else Ran(result, launches, done.stderr, done.seconds)


def read_launches(path: Path, *, types: Types | None = None, names: Names | None = None) -> tuple[LaunchRecord, ...]:
    """The launches of the first run; empty for the CPU backend, which launches no kernels."""
    return parse_launches(path.read_text(), types=types, names=names) if path.exists() else ()
