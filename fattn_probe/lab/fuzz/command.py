"""One run of `fattn-probe fuzz`: judge, count, keep, shrink."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import yaml

from fattn_probe.base.activity import Activity
from fattn_probe.base.figures import clock
from fattn_probe.base.files import make_folder, write_text
from fattn_probe.cases.scenario.matrix import MAX_CASES
from fattn_probe.lab.fuzz.features import Kept
from fattn_probe.lab.fuzz.report import Tally
from fattn_probe.lab.fuzz.run import Fuzzer, Judged
from fattn_probe.lab.fuzz.smallest import Smallest, SmallestFailure, shrunk

REQUIRED = ("hsk", "n_head", "n_q", "n_kv")
MOST_SHRUNK = 40
"""The most findings to shrink, so that a broken kernel does not take hours."""


def write_cases(cases: Sequence[Judged], folder: Path) -> Iterator[Path]:
    """Write `fuzz-TARGET.yaml` for each target to a folder; yields the paths. Cases are ordered by number."""
    make_folder(folder, "--keep")
    ordered = sorted(cases, key=lambda judged: (judged.on, judged.drawn.number))
    for on, group in groupby(ordered, key=lambda judged: judged.on):
        path = folder / f"fuzz-{on.removeprefix('sim:')}.yaml"
        write_text(path, text_of(list(group)[:MAX_CASES], on))
        yield path


def text_of(cases: Sequence[Judged], on: str) -> str:
    """A scenario file with a case on each line."""
    settings = cases[0].drawn.settings
    base = {
        "version": 1,
        "about": "random cases with a new pair of features",
        **{key: settings[key] for key in REQUIRED},
    }
    head = yaml.safe_dump(base | {"device": on}, sort_keys=False)
    lines = []
    for judged in cases:
        named = {"name": judged.drawn.case.name.removeprefix("fuzz-")} | judged.drawn.settings  # SEED-NUMBER
        flow = yaml.safe_dump(named, sort_keys=False, default_flow_style=True, width=10**6).strip()
        lines.append(f"  - {flow}\n")
    return f"{head}matrix:\n  include:\n{''.join(lines)}"


@dataclass
class FuzzRun:
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
        """Shrink the cheapest case of each finding, within a total time in seconds, and write them to a folder."""
        cheapest = [(kind, self.tally.cheapest[kind, on]) for kind, on in self.tally.findings[:MOST_SHRUNK]]
        failures = [
            SmallestFailure(kind, one.drawn.settings, one.result, fuzzer.jobs[one.on]) for kind, one in cheapest
        ]
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
