"""Estimate the remaining time of a build from the times of its steps in earlier builds and so far."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CACHED_SECONDS = 0.5
"""A faster compile was a hit in ccache."""


def step_seconds(builds: Iterable[Path]) -> dict[str, float]:
    """The longest time of each step in ninja's logs of some build folders, by the step's label."""
    found: dict[str, float] = {}
    for folder in builds:
        for label, seconds in logged(folder / ".ninja_log"):
            if seconds >= CACHED_SECONDS:
                found[label] = max(seconds, found.get(label, 0.0))
    return found


def logged(log: Path) -> list[tuple[str, float]]:
    """(label, seconds) of the steps in one log; empty for a missing or damaged log."""
    try:
        rows = [line.split("\t") for line in log.read_text(errors="replace").splitlines()]
        return [(label_of(row[3]), (int(row[1]) - int(row[0])) / 1e3) for row in rows if len(row) == 5]
    except (OSError, ValueError):
        return []


def label_of(output: str) -> str:
    """The label of the step that makes a file; for an object, the name of its source."""
    return output.rpartition("/")[2].removesuffix(".o")


@dataclass
class TimeLeft:
    """The steps of a build in progress.

    `known` has seconds of earlier builds by label; an unknown step counts as average. The seconds are scaled by the
    ratio of this build's finished steps to their earlier times.
    """

    labels: set[str]
    known: Mapping[str, float]
    jobs: int
    clock: Callable[[], float] = time.monotonic
    started: dict[str, float] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)
    done: int = 0

    def see(self, done: int, label: str) -> None:
        """Process a status line of ninja: one when a step starts, and one with a higher count when it ends."""
        if done > self.done and label in self.started:
            self.finished[label] = self.clock() - self.started.pop(label)
        elif done == self.done:
            self.started[label] = self.clock()
        self.done = done

    @property
    def seconds(self) -> float | None:
        """The remaining seconds: the longest step, or all steps divided by the jobs; None if unknown."""
        expected = {**self.known, **self.finished}
        samples = [expected[label] for label in self.labels if label in expected]
        if not samples:
            return None
        average, pace = sum(samples) / len(samples), self.pace
        open_steps = self.labels - self.finished.keys()
        left = [max(0.0, pace * expected.get(label, average) - self._running(label)) for label in open_steps]
        return max([sum(left) / self.jobs, *left])

    @property
    def pace(self) -> float:
        """The ratio of this build's finished steps to their times in earlier builds."""
        both = [label for label in self.finished if label in self.known]
        before = sum(self.known[label] for label in both)
        return sum(self.finished[label] for label in both) / before if before else 1.0

    def _running(self, label: str) -> float:
        return self.clock() - self.started[label] if label in self.started else 0.0
