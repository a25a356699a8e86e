"""The flow of `fattn-probe fuzz`: choose cases for the GPUs of an architecture, compile, judge, until the time is up.

A kernel takes as long to compile as dozens of cases take to run. A lane therefore accepts a case with a new kernel only
while compiling, at the costs below, has used less than its share of the time; it leaves out all other cases that need a
new one. The choice depends on the seed, the source and the devices, but not on the cache or the speed of the machine.
"""

import functools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, groupby, islice

from fattn_probe.base.errors import BuildError
from fattn_probe.base.host import cores
from fattn_probe.base.process import log
from fattn_probe.base.workers import prepare_workers, threads
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.compilers import StoppedError
from fattn_probe.daily.regress.pool import Job, judged
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.results import result_of
from fattn_probe.lab.fuzz.scenarios import Settings, case_of, draw
from fattn_probe.llama.build import Build
from fattn_probe.llama.build.ninja import Progress, Report
from fattn_probe.machine.run.prepare import dry_runs, kernels_of, required_sources
from fattn_probe.machine.run.session import RunOptions, Session, arch_of
from fattn_probe.verdict.judge.checks import Checks

KERNEL_SECONDS, CASE_SECONDS = 8.0, 0.25
"""CPU seconds to compile an mma or vec kernel, and to run and judge a case."""
TILE_SECONDS = 0.45
"""Seconds to compile a tile kernel, per element of V's head size: one file has its instances for all ncols."""
FIRST_SECONDS = 80.0
"""The initial allowance of a lane for compiling kernels, in seconds."""
UNSUPPORTED_EVERY = 20
"""One in this many unsupported cases runs: they cost little and show little."""
PLANNED_A_CORE = 45
"""Cases per core that are planned at once: they share processes for their dry runs."""
FIRST_BATCH, MOST_BATCH = 60, 1000
"""The number of a target's cases between two builds: few at first, then twice as many each time."""


@dataclass(frozen=True)
class Drawn:
    """A random case for a target: its number in its seed's sequence, its settings, and the kernels it needs.

    `kernels` is None if the dry run failed: the real run shows why.
    """

    number: int
    settings: Settings
    case: Case
    target: Target
    kernels: tuple[str, ...] | None

    @property
    def left_out(self) -> bool:
        """Whether the case is unsupported and does not run."""
        return self.kernels == () and self.number % UNSUPPORTED_EVERY != 0


LaneBatch = tuple[tuple[Drawn, ...], Mapping[str, Build]]
"""Cases to run, and the builds with their kernels."""


@dataclass
class Lane:
    """The sequence of cases for the `targets` that share a build, out of `all_targets` of the run.

    Case number i is for target i modulo the number of targets. `share` is the share of time for compiling new
    kernels, `due` the total number of cases, None for no limit.
    """

    session: Session
    targets: Sequence[Target]
    all_targets: Sequence[Target]
    seed: int
    share: float
    due: int | None = None
    kernels: dict[str, float] = field(default_factory=dict)
    accepted: int = 0

    def batch(self, size: int) -> LaneBatch:
        """The next `size` cases, with their kernels compiled; a case whose kernel does not compile will be lost."""
        cases = tuple(islice(self._cases, size))
        sources = required_sources(drawn.case for drawn in cases)
        for target in self.targets:
            try:
                wanted = kernels_of(self.session, target, ["lane"], {"lane": tuple(self.kernels)})
                self.session.add_kernels(target, wanted, sources=sources)
            except BuildError as error:
                log.warning("%s", error)
                self.session.add_kernels(target, (), sources=sources)
        return cases, dict(self.session.builds)

    @property
    def next_size(self) -> int:
        """The number of cases in the next batch; 0 after the last one."""
        size = min(FIRST_BATCH * len(self.targets) + self.accepted, MOST_BATCH * len(self.targets))
        return size if self.due is None else min(size, self.due - self.accepted)

    @cached_property
    def _cases(self) -> Iterator[Drawn]:
        """The cases that are run, in order."""
        for drawn in self._planned():
            new = {name: seconds_to_compile(name) for name in drawn.kernels or () if name not in self.kernels}
            seconds = sum(self.kernels.values()) + sum(new.values())
            allowed = FIRST_SECONDS + self.share / (1 - self.share) * CASE_SECONDS * self.accepted
            if not drawn.left_out and (seconds <= allowed or not new):
                self.kernels |= new
                self.accepted += 1
                yield drawn

    def _planned(self) -> Iterator[Drawn]:
        """All cases with the kernels that they need."""
        numbers = (number for number in count() if self._target(number) in self.targets)
        while True:
            cases = {}
            for number in islice(numbers, PLANNED_A_CORE * cores()):
                settings = draw(self.seed, number)
                cases[number] = settings, case_of(settings, f"fuzz-{self.seed}-{number}")
            names = {}
            for target in self.targets:
                of_target = [case for number, (_, case) in cases.items() if self._target(number) == target]
                names[str(target)] = dry_runs(self.session, {case.op.digest: case for case in of_target}, target)
            for number, (settings, case) in cases.items():
                target = self._target(number)
                yield Drawn(number, settings, case, target, names[str(target)].get(case.op.digest))

    def _target(self, number: int) -> Target:
        return self.all_targets[number % len(self.all_targets)]


def lanes(session: Session, targets: Sequence[Target], seed: int, share: float, total: int | None = None) -> list[Lane]:
    """A lane for each architecture of the targets, with a part of the `total` cases in proportion to its targets."""
    by_arch: dict[str, list[Target]] = {}
    for target in targets:
        by_arch.setdefault(arch_of(target), []).append(target)
    found, before = list[Lane](), 0
    for same in by_arch.values():
        after = before + len(same)
        due = None if total is None else after * total // len(targets) - before * total // len(targets)
        found.append(Lane(Session(session.options, session.progress), same, targets, seed, share, due))
        before = after
    return found


def seconds_to_compile(kernel: str) -> float:
    """The CPU seconds to compile a kernel case, `tile 576,512` or `mma 64,64,8,8`."""
    family, _, arguments = kernel.partition(" ")
    return TILE_SECONDS * int(arguments.split(",")[1]) if family == "tile" else KERNEL_SECONDS


CORES_A_BUILDER = 4


@dataclass(frozen=True)
class Judged:
    """A random case and its result."""

    drawn: Drawn
    result: Result

    @property
    def on(self) -> str:
        """The target."""
        return str(self.drawn.target)


@dataclass
class Fuzzer:
    """Judges random cases on simulated GPUs. `seed` and `share` are as in `Lane`; `jobs` has each target's latest job.

    It stops after `seconds` seconds or `cases` cases, whichever comes first; None for no limit.
    """

    options: RunOptions
    targets: Sequence[Target]
    seed: int
    share: float
    checks: Checks
    progress: Report
    seconds: float | None = None
    cases: int | None = None
    workers: int = field(default_factory=cores)
    began: float = field(default_factory=time.monotonic)
    jobs: dict[str, Job] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def left(self) -> float:
        """Seconds until the time is up."""
        return float("inf") if self.seconds is None else self.began + self.seconds - time.monotonic()

    def run(self) -> Iterator[Judged]:
        """The results as they arrive. Lanes take turns: one is judged while others plan and compile."""
        prepare_workers(__name__)
        session = Session(self.options, self._report)
        with threads(max(1, cores() // CORES_A_BUILDER)) as builders:
            waiting: dict[Future[LaneBatch], Lane] = {}

            def submit(lane: Lane) -> None:
                if size := lane.next_size:
                    waiting[builders.submit(lane.batch, size)] = lane

            try:
                for lane in lanes(session, self.targets, self.seed, self.share, self.cases):
                    submit(lane)
                while waiting and self.left > 0:
                    done, _ = wait(waiting, None if self.seconds is None else self.left, FIRST_COMPLETED)
                    for future in done:
                        lane = waiting.pop(future)
                        yield from self._judged(*future.result())
                        submit(lane)
            finally:
                self._stop.set()
                builders.shutdown(wait=False, cancel_futures=True)

    def _report(self, progress: Progress) -> None:
        """Pass on a build's progress, or stop the build."""
        if self._stop.is_set():
            raise StoppedError
        self.progress(progress)

    def _judged(self, drawn_cases: Sequence[Drawn], builds: Mapping[str, Build]) -> Iterator[Judged]:
        simulation = replace(self.options.simulation, threads=1)
        judge = functools.partial(result_of, checks=self.checks, timed=False)
        ordered = sorted(drawn_cases, key=lambda drawn: str(drawn.target))
        for on, cases in groupby(ordered, key=lambda drawn: str(drawn.target)):
            by_name = {drawn.case.name: drawn for drawn in cases}
            drawn = next(iter(by_name.values()))
            job = Job(judge, replace(self.options, simulation=simulation), builds, drawn.target)
            self.jobs[on] = job
            with closing(judged(job, [drawn.case for drawn in by_name.values()], self.workers)) as results:
                for result in results:
                    yield Judged(by_name[result.name], result)
                    if self.left <= 0:
                        return
