"""The flow of `fattn-probe fuzz`: draw cases, compile, judge, until the time is over or enough cases are judged."""

import functools
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field, replace

from fattn_probe.base.host import cores
from fattn_probe.base.workers import prepare_workers, threads
from fattn_probe.cases.device import Target
from fattn_probe.daily.regress.compilers import StoppedError
from fattn_probe.daily.regress.pool import Job, judged
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.results import result_of
from fattn_probe.lab.fuzz.lanes import Drawn, Lane, LaneBatch, lanes
from fattn_probe.llama.build.ninja import Progress, Report
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.judge.checks import Checks

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


@dataclass(frozen=True)
class FuzzLimits:
    """When to stop: after so many seconds or cases, whichever comes first; None for no limit. `workers`: processes."""

    seconds: float | None = None
    cases: int | None = None
    workers: int = field(default_factory=cores)


@dataclass
class Fuzzer:
    """Judges random cases on simulated GPUs. `seed` and `share` are as in `Lane`; `jobs` are the last ones."""

    options: RunOptions
    targets: Sequence[Target]
    seed: int
    share: float
    checks: Checks
    limits: FuzzLimits
    progress: Report
    began: float = field(default_factory=time.monotonic)
    jobs: dict[str, Job] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def left(self) -> float:
        """Seconds until the time is over."""
        return float("inf") if self.limits.seconds is None else self.began + self.limits.seconds - time.monotonic()

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
                for lane in lanes(session, self.targets, self.seed, self.share, self.limits.cases):
                    submit(lane)
                while waiting and self.left > 0:
                    done, _ = wait(waiting, None if self.limits.seconds is None else self.left, FIRST_COMPLETED)
                    for future in done:
                        lane = waiting.pop(future)
                        yield from self._judged(future.result())
                        submit(lane)
            finally:
                self._stop.set()
                builders.shutdown(wait=False, cancel_futures=True)

    def _report(self, progress: Progress) -> None:
        """Pass on a build's progress, or stop the build."""
        if self._stop.is_set():
            raise StoppedError
        self.progress(progress)

    def _judged(self, batch: LaneBatch) -> Iterator[Judged]:
        simulation = replace(self.options.simulation, threads=1)
        judge = functools.partial(result_of, checks=self.checks, timed=False)
        for target, cases in batch.by_target:
            by_name = {drawn.case.name: drawn for drawn in cases}
            job = Job(judge, replace(self.options, simulation=simulation), batch.builds, target)
            self.jobs[str(target)] = job
            with closing(judged(job, [drawn.case for drawn in cases], self.limits.workers)) as results:
                for result in results:
                    yield Judged(by_name[result.name], result)
                    if self.left <= 0:
                        return
