"""A runner that forks a child process for each run: a fault ends only the child, and costs no new set-up."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.errors import LostError
from fattn_probe.launch.record import Names, Types
from fattn_probe.process import Completed
from fattn_probe.run.batch import BatchRunner, batch_runner
from fattn_probe.run.execute import outcome_of, read_launches
from fattn_probe.run.outcome import Lost, RunOutcome, parse_ending
from fattn_probe.run.result import read_result

ENDED = "fattn-runner: ended "
SIGPROF = -27
QUIET = {"GGML_NO_BACKTRACE": "1", "LSAN_OPTIONS": "detect_leaks=0"}
"""No backtrace: an abort is found by its message, and gdb takes a second. No search for leaks: a child inherits objects
that its parent still has."""
GRACE = 30.0
"""Seconds beyond the limit of processor time after which a child waits for something that never comes."""


@dataclass(frozen=True)
class Child:
    """A run in a child process: its exit code (negative for a signal), its processor time, and its files."""

    code: int
    seconds: float
    out: Path
    said: Path
    launched: Path

    @property
    def output(self) -> tuple[bytes, str]:
        """The bytes of dst and the text of the launch records, for comparing runs; empty without an output."""
        if self.code != 0:
            return b"", ""
        dst = read_result(self.out).dst
        return b"" if dst is None else dst.tobytes(), self.launched.read_text()

    def outcome(self, types: Types | None, names: Names | None) -> RunOutcome:
        """What became of the run. Frames of a fault are not symbolised."""
        if self.code == SIGPROF:
            return Lost(f"timed out after {self.seconds:.1f} s of processor time")
        done = Completed((), self.code, "", self.said.read_text(errors="replace"), self.seconds)
        return parse_ending(done) or outcome_of(done, self.out, read_launches(self.launched, types=types, names=names))


@dataclass(frozen=True)
class ForkedRunner:
    """A running `fattn-runner --fork`; its children's files are in `folder`."""

    batch: BatchRunner
    folder: Path

    def run(self, case: Path, part: Path | None = None, mutant: int = 0, limit: float = 0.0) -> Child:
        """Run a case file, or a part of it, with a mutant switched on and at most `limit` seconds of processor time.

        LostError if the runner itself ends, or if the child waits for something that never comes.
        """
        out = self.folder / "out.gguf"
        out.unlink(missing_ok=True)
        for file in (self.batch.said, self.batch.launches):
            os.truncate(file, 0)  # children append to both
        words = (case, out, part or "", mutant, f"{limit:.3f}")
        answer = self.batch.ask("\t".join(map(str, words)), 4 * limit + GRACE if limit else None)
        if not answer.startswith(ENDED):
            raise LostError(f"the runner said {answer!r}")
        code, seconds = answer.removeprefix(ENDED).split()
        return Child(int(code), float(seconds), out, self.batch.said, self.batch.launches)


@contextlib.contextmanager
def forked_runner(
    runner: Path, args: Sequence[str], *, env: Mapping[str, str], folder: Path, timeout: float
) -> Iterator[ForkedRunner]:
    """Start a runner that forks, and end it with all its child processes."""
    environment = {**env, **QUIET}
    with batch_runner(runner, ("--fork", *args), env=environment, timeout=timeout) as batch:
        yield ForkedRunner(batch, folder)
