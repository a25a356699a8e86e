"""The progress of a run: the time so far, the simulator's finished blocks, the estimated time left, the display."""

import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fattn_probe.base.cache import Kind, read_document, write_document
from fattn_probe.base.console import SHOWN_AFTER, rewrite
from fattn_probe.base.figures import clock
from fattn_probe.cases.op import Sizes
from fattn_probe.machine.run.outcome import Ran, RunOutcome

RATES = Kind("rates", "the rate of earlier runs")
BLOCKS_ENV = "FATTN_PROBE_BLOCKS"
COUNTS = struct.Struct("=QQ")  # blocks done and total blocks, as native/sim/launch.cpp writes them
POLL_SECONDS = 1.0
LEAST_SECONDS = 2.0
"""Shorter runs do not update the rate, because they do not predict longer runs well."""


@dataclass(frozen=True)
class RunProgress:
    """A run in progress: its name, the op's sizes, the seconds since its start, and the current launch's blocks.

    `blocks` is 0 if unknown. `left` is the estimated time left in seconds, None if unknown.
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
    """The rate of the last long run on a kind of target, in FLOP/s; None before the first long run."""
    try:
        rate = float(read_document(RATES, kind) or 0)
    except ValueError:
        return None
    return rate if 0 < rate < float("inf") else None


class BlockProgress:
    """The simulator's count of finished blocks, in an anonymous file."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("fattn-probe-blocks")
        self.path = Path(f"/proc/{os.getpid()}/fd/{self.descriptor}")

    def reset(self) -> None:
        """Clear the counts from the last run."""
        os.ftruncate(self.descriptor, 0)

    def read(self) -> tuple[int, int]:
        """The number of finished blocks and the total, for the current launch; (0, 0) before the first launch."""
        counts = os.pread(self.descriptor, COUNTS.size, 0)
        done, blocks = COUNTS.unpack(counts) if len(counts) == COUNTS.size else (0, 0)
        return done, blocks

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass
class LaunchProgress:
    """The current launch: its earliest possible start, and its last known state."""

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
    """Watches runs, and reports their progress about once a second."""

    report: Report
    blocks: BlockProgress = field(default_factory=BlockProgress)

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that make a simulator report its blocks."""
        return {BLOCKS_ENV: str(self.blocks.path)}

    def run(self, name: str, kind: str, sizes: Sizes, runs: float, execute: Callable[[], RunOutcome]) -> RunOutcome:
        """Watch a call to `execute`, which executes an op `runs` times (0.1 means a tenth of its work).

        `kind` names the kind of target, whose rate is stored for later runs.
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


MINUTE = 60.0
LONG = 2 * MINUTE
SURE_AFTER = 5.0
"""Seconds after which an estimate from finished blocks is good enough for a warning."""


def progress_line(notes: Console) -> Report:
    """A `Report` that rewrites one line during a run, or prints a line per minute if stderr is not a terminal.

    If the estimate for a run exceeds two minutes, a note shows it once and suggests a smaller case.
    """
    warned: set[str] = set()
    minutes = 0

    def report(progress: RunProgress) -> None:
        nonlocal minutes
        sure = progress.seconds == 0 or progress.seconds >= SURE_AFTER
        if progress.left is not None and progress.left > LONG and sure and progress.name not in warned:
            warned.add(progress.name)
            text = f"{progress.name} will take about {clock(progress.seconds + progress.left)}."
            text += " `fattn-probe plan` shows its kernels without running them"
            smaller = smaller_case(progress.sizes)
            text += f"; with {smaller} in the scenario, it takes less time." if smaller else "."
            notes.print(Text(text), soft_wrap=not notes.is_terminal)
        shown = progress.seconds >= SHOWN_AFTER
        minutes = minutes if progress.seconds >= MINUTE else 0
        if notes.is_terminal and shown:
            rewrite(notes, Text("") if progress.ended else line_of(progress))
        elif not notes.is_terminal and not progress.ended and progress.seconds >= (minutes + 1) * MINUTE:
            minutes = int(progress.seconds // MINUTE)
            notes.print(line_of(progress), soft_wrap=True)

    return report


def line_of(progress: RunProgress) -> Text:
    """The progress as text: `prefill on sim:h200: 40 of 132 blocks, 1:02, about 2:20 left`."""
    parts = [f"{progress.done} of {progress.blocks} blocks"] if progress.blocks else []
    parts.append(clock(progress.seconds))
    parts += [f"about {clock(progress.left)} left"] if progress.left is not None else []
    return Text(f"{progress.name}: {', '.join(parts)}")


def smaller_case(sizes: Sizes) -> str:
    """The scenario keys for a smaller case with the same K/V length, and its share of the work."""
    if sizes.n_seq > 1:
        return f"`n_seq: 1` (1/{sizes.n_seq} of the work)"
    if sizes.n_head_kv > 1:
        group = sizes.n_head // sizes.n_head_kv
        return f"`n_head: {group}` and `n_head_kv: 1` (1/{sizes.n_head_kv} of the work)"
    return f"`n_q: {sizes.n_q // 8}` (1/8 of the work)" if sizes.n_q >= 64 else ""
