"""The progress of a run: its time, the blocks that the simulator has done, and an estimate of the time left."""

import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fattn_probe.base.cache import Kind, read_document, write_document
from fattn_probe.cases.op import Sizes
from fattn_probe.machine.run.outcome import Ran, RunOutcome

RATES = Kind("rates", "the rate of earlier runs")
BLOCKS_ENV = "FATTN_PROBE_BLOCKS"
COUNTS = struct.Struct("=QQ")  # as native/sim/launch.cpp writes them: blocks done, blocks in all
POLL_SECONDS = 1.0
LEAST_SECONDS = 2.0
"""Shorter runs do not count for the rate, since they tell little about longer ones."""


@dataclass(frozen=True)
class RunProgress:
    """A run in progress: its name, the op's sizes, seconds since its start, and blocks of the launch in progress.

    `blocks` is 0 if unknown. `left` is the estimated number of remaining seconds, None if unknown.
    """

    name: str
    sizes: Sizes
    seconds: float
    done: int = 0
    blocks: int = 0
    left: float | None = None
    ended: bool = False


Report = Callable[[RunProgress], None]


def rate_of(kind: str) -> float | None:
    """The rate of the last long run on a kind of target, in flop per second; None if there was none."""
    try:
        rate = float(read_document(RATES, kind) or 0)
    except ValueError:
        return None
    return rate if 0 < rate < float("inf") else None


class BlockProgress:
    """The simulator's count of blocks, in a file without a name."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("fattn-probe-blocks")
        self.path = Path(f"/proc/{os.getpid()}/fd/{self.descriptor}")

    def reset(self) -> None:
        """Forget the last run."""
        os.ftruncate(self.descriptor, 0)

    def read(self) -> tuple[int, int]:
        """The blocks done and the total of the launch in progress; (0, 0) before the first launch."""
        counts = os.pread(self.descriptor, COUNTS.size, 0)
        done, blocks = COUNTS.unpack(counts) if len(counts) == COUNTS.size else (0, 0)
        return done, blocks

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass
class LaunchProgress:
    """The launch in progress: its earliest possible start, and its last known state."""

    began: float = 0.0
    seen: float = 0.0
    blocks: int = 0
    done: int = 0

    def left(self, seconds: float, done: int, blocks: int) -> float | None:
        """The estimated seconds for the remaining blocks, at the rate so far; None until one block is done."""
        if blocks != self.blocks or done < self.done:
            self.began, self.blocks = self.seen, blocks
        self.seen, self.done = seconds, done
        return (seconds - self.began) * (blocks - done) / done if done else None


@dataclass
class Watch:
    """Watches runs, and reports about once a second."""

    report: Report
    blocks: BlockProgress = field(default_factory=BlockProgress)

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that make a simulator report its blocks."""
        return {BLOCKS_ENV: str(self.blocks.path)}

    def run(self, name: str, kind: str, sizes: Sizes, runs: float, execute: Callable[[], RunOutcome]) -> RunOutcome:
        """Execute an op `runs` times, 0.1 for a tenth of it, and watch it.

        `kind` says what it runs on, for the rate of later runs.
        """
        self.blocks.reset()
        rate = rate_of(kind)
        expected = sizes.flop * runs / rate if rate else None
        start, ended = time.monotonic(), threading.Event()

        def poll() -> None:
            launch = LaunchProgress()
            while not ended.wait(POLL_SECONDS):
                seconds = time.monotonic() - start
                done, blocks = self.blocks.read()
                left = launch.left(seconds, done, blocks)
                if left is None and expected is not None and expected > seconds:
                    left = expected - seconds
                self.report(RunProgress(name, sizes, seconds, done, blocks, left))

        self.report(RunProgress(name, sizes, 0.0, left=expected))
        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            outcome = execute()
        finally:
            ended.set()
            thread.join()
            self.report(RunProgress(name, sizes, time.monotonic() - start, ended=True))
        if isinstance(outcome, Ran) and outcome.wall_seconds >= LEAST_SECONDS:
            write_document(RATES, kind, f"{sizes.flop * runs / outcome.wall_seconds:.6g}\n".encode())
        return outcome
