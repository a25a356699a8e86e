"""One run of `fattn-probe fuzz`: judge, count, keep, shrink."""

from dataclasses import dataclass, field
from pathlib import Path

from fattn_probe.activity import Activity
from fattn_probe.figures import clock
from fattn_probe.files import make_folder
from fattn_probe.fuzz.features import Kept
from fattn_probe.fuzz.report import Tally
from fattn_probe.fuzz.run import Fuzzer
from fattn_probe.fuzz.smallest import Failure, Smallest, shrunk

MOST_SHRUNK = 40
"""Findings that are shrunk, so that a broken kernel does not take hours."""


@dataclass
class Run:
    """The results of a run as they come."""

    tally: Tally
    kept: Kept
    smallest: list[Smallest] = field(default_factory=list)

    def judge(self, fuzzer: Fuzzer, activity: Activity) -> None:
        """Judge cases until the limits are reached, or the user interrupts."""
        try:
            for judged in fuzzer.run():
                self.tally.add(judged)
                self.kept.see(judged)
                found = self.tally.number("finding")
                activity.step(f"{self.tally.cases} cases, {found} finding{'s' * (found != 1)}, {left(fuzzer)}")
        except KeyboardInterrupt:
            self.tally.interrupted = True

    def shrink(self, fuzzer: Fuzzer, seconds: float, folder: Path, activity: Activity) -> None:
        """Shrink the cheapest case of each finding, for so many seconds in all, and write them to a folder."""
        cheapest = [(kind, self.tally.cheapest[kind, on]) for kind, on in self.tally.findings[:MOST_SHRUNK]]
        failures = [Failure(kind, one.drawn.settings, one.result, fuzzer.jobs[one.on]) for kind, one in cheapest]
        activity.step(f"shrinking {len(failures)} findings")
        try:
            for smallest in shrunk(failures, fuzzer.limits.workers, seconds):
                make_folder(folder, "--findings")
                self.smallest.append(smallest.written(folder))
                activity.note(f"wrote {self.smallest[-1].path}")
        except KeyboardInterrupt:
            self.tally.interrupted = True


def left(fuzzer: Fuzzer) -> str:
    """`3:10 left`, or `of 500`."""
    return f"{clock(max(0.0, fuzzer.left))} left" if fuzzer.limits.seconds is not None else f"of {fuzzer.limits.cases}"
