"""The native runner as a process that runs one case after another."""

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fattn_probe.errors import BuildError, LostError
from fattn_probe.launch.record import LaunchRecord, Names, Types
from fattn_probe.process import Completed, kill_group
from fattn_probe.run.execute import LAUNCHES_ENV, outcome_of, read_launches
from fattn_probe.run.outcome import Missing, RunOutcome, missing_symbol
from fattn_probe.scratch import scratch

READY, DONE = "fattn-runner: ready", "fattn-runner: done"


END_SECONDS = 10.0


class RunnerEndedError(LostError):
    """The runner ended or timed out; the next case needs a new one."""


@dataclass(frozen=True)
class BatchRunner:
    """A running `fattn-runner --batch`, which has set up its GPU.

    Its output is in `folder`: `said` is its stderr, `launches` the records of the case in progress.
    """

    process: "subprocess.Popen[str]"
    folder: Path
    types: Types | None = None
    names: Names | None = None

    @property
    def alive(self) -> bool:
        """Whether it still accepts cases."""
        return self.process.poll() is None

    @property
    def said(self) -> Path:
        """The file with its stderr."""
        return self.folder / "stderr"

    @property
    def launches(self) -> Path:
        """The file of launch records."""
        return self.folder / "launches"

    def run(self, case_file: Path, out_file: Path, timeout: float, part: Path | None = None) -> RunOutcome:
        """Run one case, or the part of it that a file of `write_part` says.

        If the process ends or times out, RunnerEndedError, which is no verdict on the case; but a missing function is
        an outcome.
        """
        start = time.monotonic()
        for file in (self.said, self.launches):
            os.truncate(file, 0)  # the runner appends to both
        try:
            self.expect(
                DONE,
                timeout,
                "\t".join(map(str, (case_file, out_file) if part is None else (case_file, out_file, part))),
            )
        except RunnerEndedError:
            if symbol := self._missing(start):
                return Missing(symbol)
            raise
        done = Completed((), 0, "", self.said.read_text(errors="replace"), time.monotonic() - start)
        launches = in_order(read_launches(self.launches, types=self.types, names=self.names))
        return outcome_of(done, out_file, launches)

    def expect(self, answer: str, timeout: float, line: str = "") -> None:
        """Wait for a line of its output, after sending it a `line`; RunnerEndedError for another one."""
        found = self.ask(line, timeout)
        if found != answer:
            kill_group(self.process)  # its next line would belong to another case
            raise RunnerEndedError(f"the runner ended, or said {found!r}")

    def ask(self, line: str, timeout: float | None) -> str:
        """Send it a line, unless that is empty, and return its answer; empty if it has ended."""
        assert self.process.stdout is not None
        if line:
            self._send(line + "\n")
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            found = self.process.stdout.readline() if waiting.select(timeout) else None
        if found is None:
            kill_group(self.process)
            raise RunnerEndedError(f"no answer after {timeout:.0f} s")
        if not found:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
        return found.rstrip("\n")

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except OSError as error:
            raise RunnerEndedError(f"the runner is gone: {error.strerror}") from error

    def _missing(self, start: float) -> str | None:
        """The missing function whose call ended the process."""
        if self.alive:
            return None
        said = self.said.read_text(errors="replace")
        return missing_symbol(Completed((), self.process.returncode, "", said, time.monotonic() - start))


def in_order(launches: Sequence[LaunchRecord]) -> tuple[LaunchRecord, ...]:
    """Launches renumbered from 0, as in a fresh process."""
    return tuple(replace(launch, order=order) for order, launch in enumerate(launches))


@contextlib.contextmanager
def batch_runner(
    runner: Path,
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    types: Types | None = None,
    names: Names | None = None,
) -> Iterator[BatchRunner]:
    """Start a runner, and end it with all its child processes; RunnerEndedError if it fails to start."""
    with scratch() as folder:
        process = start([str(runner), "--batch", *args], folder, env)
        try:
            batch = BatchRunner(process, folder, types, names)
            batch.expect(READY, timeout)
            yield batch
        finally:
            kill_group(process)


def start(argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Start a program that answers lines with lines; its stderr and launch records go to files in `folder`.

    Launch records go elsewhere if `env` says so.
    """
    launches = folder / "launches"
    launches.touch()
    environment = {**os.environ, "DEBUGINFOD_URLS": "", LAUNCHES_ENV: str(launches), **env}
    try:
        with (folder / "stderr").open("a") as said:
            return subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,
            )
    except OSError as error:
        raise BuildError(f"{argv[0]} cannot be run: {error.strerror}") from error
