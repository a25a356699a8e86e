"""What is compiled next, and which case is judged next: one schedule for all entries and targets of a run.

Threads compile one build after another in growing waves of kernels, those first that are most likely to tell. A case is
ready when its kernels are there; the workers take ready cases while the rest compiles.
"""

import functools
import heapq
import os
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from fattn_probe.base.errors import BuildError, LostError
from fattn_probe.base.host import cores
from fattn_probe.base.process import end_programs, log
from fattn_probe.base.workers import CONTEXT, Died, threads
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.growing_build import HOST, LAST, GrowingBuild, Likely
from fattn_probe.daily.regress.pool import Growth, Job, PoolWorker, Task, pool_of, result_in
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.results import lost_result
from fattn_probe.llama.build import RUNNER, BuildRequest
from fattn_probe.llama.build.ninja import Progress, default_jobs
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.base import base_of
from fattn_probe.machine.run.kernels_by_op import KernelsByOp, op_digest
from fattn_probe.machine.run.orders import ENDED, OrderDifference, Output
from fattn_probe.machine.run.required_kernels import kernels_of, required_kernels, required_sources
from fattn_probe.machine.run.session import Session
from fattn_probe.machine.run.simulator import unpacked_tables

CORES_A_BUILD = 4
"""Cores that compile one build; with more, several builds compile at once."""
NICE = 3
"""Compilers leave the cores to the cases that are ready, any of which may be the first failure."""
LONG = 1e30
"""More FLOP than any case has."""


class StoppedError(Exception):
    """The run ended while something compiled."""


@dataclass(frozen=True)
class Lane:
    """Cases that are judged in the same way on one target. Those of `ordered` also run in as many random `orders`.

    `on` is the entry and the target in words.
    """

    on: str
    session: Session
    job: Job
    cases: Sequence[Case]
    orders: int = 0
    ordered: Sequence[Case] = ()


@dataclass(frozen=True)
class Orders:
    """The first difference that the orders of a lane made to each case, and the number of ops that took part.

    `missing` says why there is no answer; empty if there is one.
    """

    found: Mapping[str, OrderDifference]
    ops: int
    missing: str = ""


@dataclass(frozen=True)
class BesideBase:
    """The base's launches of a lane's cases, by name, and what it is called."""

    words: str
    launches: Mapping[str, tuple[LaunchRecord, ...]]


Event = Result | Orders | BesideBase
"""What is now known of a lane."""


@dataclass
class Ordering:
    """What the orders of a lane need and show: each case's output alone, and each order's differences by its seed."""

    outputs: dict[str, Output] = field(default_factory=dict)
    differences: dict[int, list[OrderDifference]] = field(default_factory=dict)
    missing: str = ""

    @property
    def expected(self) -> dict[str, Output]:
        """The outputs of the cases that take part."""
        return {name: output for name, output in self.outputs.items() if not output.startswith(ENDED)}

    @property
    def found(self) -> Orders:
        """The first difference of each case."""
        every = [one for seed in sorted(self.differences, reverse=True) for one in reversed(self.differences[seed])]
        return Orders({one.case: one for one in every}, len(self.expected), self.missing)


@dataclass(order=True)
class Ready:
    """A task that can run, in the order in which such tasks are given out: a method of `PoolWorker` and its words."""

    key: tuple[float, ...]
    method: Any = field(compare=False)
    number: int = field(compare=False)
    words: dict[str, Any] = field(compare=False)
    kernels: Sequence[str] = field(default=(), compare=False)


@dataclass
class Rate:
    """The core seconds that a number of things took, and the estimate for more of them."""

    number: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, number: int = 1) -> None:
        """Take some more into account."""
        self.number, self.seconds = self.number + number, self.seconds + seconds

    def of(self, number: int) -> float | None:
        """The core seconds of some more; None without experience."""
        return 0.0 if not number else number * self.seconds / self.number if self.number else None


@dataclass
class Schedule:
    """Judges the cases of lanes in `workers` processes, while their kernels compile, the most `likely` to tell first.

    `left` is the number of tasks to do, `spent` the core seconds of each lane's.
    """

    lanes: Sequence[Lane]
    workers: int
    likely: Likely = field(default_factory=Likely)
    builds: list[GrowingBuild] = field(default_factory=list)
    left: int = 0
    spent: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    _cores: int = 1  # reading the limits of cgroups takes a millisecond
    _most_jobs: int = 1
    _judging: Rate = field(default_factory=Rate)
    _compiling: Rate = field(default_factory=Rate)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _stopped: bool = False
    _compilers: int = 0
    _error: BaseException | None = None
    _events: list[tuple[int, Event]] = field(default_factory=list)
    _bases: list[int] = field(default_factory=list)
    _first: list[Ready] = field(default_factory=list)
    _rest: list[Ready] = field(default_factory=list)
    _tried: set[tuple[int, str]] = field(default_factory=set)
    _running: dict[Any, float] = field(default_factory=dict)
    _orders: dict[int, Ordering] = field(default_factory=lambda: defaultdict(Ordering))
    _news: Any = None

    def events(self) -> Generator[tuple[int, Event]]:
        """All that becomes known of the lanes, by their numbers; closing the iterator ends workers and compilers."""
        self._begin()
        self._compilers = max(1, min(self._cores // CORES_A_BUILD, len(self.builds)))
        heard, self._news = CONTEXT.Pipe(duplex=False)
        jobs = [lane.job for lane in self.lanes]
        with heard, self._news, threads(self._compilers) as compilers, pool_of(jobs, self.workers) as pool:
            try:
                for _ in range(self._compilers):
                    compilers.submit(self._compile)
                for answers in pool.rounds(self._tasks(), heard):
                    for task, answer in answers:
                        self._take(task, answer)
                    yield from self._news_of_lanes()
                yield from self._news_of_lanes()  # all may be lost before there is a task
            finally:
                self._stopped = True
                end_programs()

    def _news_of_lanes(self) -> list[tuple[int, Event]]:
        """What has become known since the last call."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def _begin(self) -> None:
        """Find out which lanes share a build, and which kernels their cases are likely to need."""
        self._cores, self._most_jobs = cores(), default_jobs()
        by_request: dict[BuildRequest | int, GrowingBuild] = {}
        for number, lane in enumerate(self.lanes):
            options, target = lane.session.options, lane.job.target
            self.left += len(lane.cases) + (len(lane.ordered) + lane.orders if lane.ordered else 0)
            self._bases += [number] if target.engine == "sim" and lane.cases else []
            if options.build is not None or options.tree is None:
                for case in lane.cases:
                    self._make_ready(number, case, ())
            elif lane.cases:
                key = number if target.engine == "cpu" else lane.session.request_for(target)
                build = by_request.setdefault(key, GrowingBuild([]))
                build.lanes.append(number)
                build.waiting += [(number, case) for case in lane.cases]
                known = [KernelsByOp.similar(options, target), KernelsByOp.of(options, target)]
                if self.likely.base is not None:
                    known.insert(0, KernelsByOp.of(replace(options, tree=self.likely.base, patches=()), target))
                names = {digest: kernels for one in known for digest, kernels in one.read().items()}
                kernels = kernels_of(lane.session, target, [op_digest(case.op) for case in lane.cases], names)
                build.kernels |= {kernel.name: kernel for kernel in kernels}
                build.names |= {(number, digest): kernels for digest, kernels in names.items()}
        self.builds = list(by_request.values())

    # What follows runs in the main thread, between the workers' answers.

    def _tasks(self) -> Iterator[Task | None]:
        """The next task for a worker, None if there is none at the moment."""
        while True:
            with self._lock:
                if self._error is not None:
                    raise self._error
                ready = self._next()
                if ready is None and not self._compilers and not self.left:
                    return
            if ready is None:
                yield None
                continue
            growth = next((build.growth for build in self.builds if ready.number in build.lanes), Growth())
            task = functools.partial(ready.method, **ready.words, number=ready.number, growth=growth)
            self._running[task] = time.monotonic()
            yield task

    def _next(self) -> Ready | None:
        """The task to do next: what is likely to tell; the smallest case of each kernel; orders; the longest cases."""
        while self._first:
            ready = heapq.heappop(self._first)
            fresh = {(ready.number, name) for name in ready.kernels} - self._tried
            self._tried |= fresh
            if fresh or ready.key[0] < LAST - 1:
                return ready
            heapq.heappush(self._rest, replace(ready, key=(-ready.words["case"].op.sizes.flop,)))
        return heapq.heappop(self._rest) if self._rest else None

    def _place(self, number: int, case: Case, kernels: Iterable[str]) -> int:
        return self.likely.place(self.lanes[number].on, case, kernels)

    def _make_ready(self, number: int, case: Case, kernels: Sequence[str]) -> None:
        """Let a case be judged, and run alone if it takes part in orders."""
        key = (self._place(number, case, kernels), case.op.sizes.flop)
        heapq.heappush(self._first, Ready(key, PoolWorker.judge, number, {"case": case}, kernels))
        if any(case is one for one in self.lanes[number].ordered):
            heapq.heappush(self._rest, Ready((-LONG,), PoolWorker.alone, number, {"case": case}))

    def _take(self, task: Any, answer: Any) -> None:  # noqa: ANN401 (whatever the method of a task returns)
        """Take an answer of a worker into account; orders of a lane run when each case's output alone is known."""
        number, words, died = task.keywords["number"], task.keywords, isinstance(answer, Died)
        lane, share = self.lanes[number], self._share()
        with self._lock:
            self.left -= 1
            took = share * (time.monotonic() - self._running.pop(task))
            self.spent[number] += took
            self._judging.add(took)
            if task.func == PoolWorker.judge:
                self._events.append((number, result_in(words["case"], answer)))
                return
            ordering = self._orders[number]
            if task.func == PoolWorker.in_order:
                ordering.missing = answer.how if died else answer if isinstance(answer, str) else ordering.missing
                ordering.differences[words["seed"]] = answer if isinstance(answer, list) else []
                if len(ordering.differences) == lane.orders:
                    self._events.append((number, ordering.found))
                return
            self._alone(number, words["case"], ENDED if died else answer)

    def _alone(self, number: int, case: Case, output: Output) -> None:
        """Take note of a case's output alone; the last one of a lane lets its orders run."""
        lane, ordering = self.lanes[number], self._orders[number]
        ordering.outputs[case.name] = output
        if len(ordering.outputs) == len(lane.ordered):
            words = {"expected": ordering.expected, "cases": lane.ordered}
            for seed in range(1, lane.orders + 1):
                key = (-2 * LONG,)
                heapq.heappush(self._rest, Ready(key, PoolWorker.in_order, number, {**words, "seed": seed}))

    # What follows runs in the threads that compile.

    def _compile(self) -> None:
        """Compile what the cases need, build after build; then find how the base launches its kernels."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)  # of this thread and its programs
        try:
            if any(lane.job.target.engine == "sim" for lane in self.lanes):
                unpacked_tables()  # a full disk ends the run here, not each case
            while (build := self._next_build()) is not None:
                try:
                    self._grow(build)
                finally:
                    build.busy = False
                self._settle(build)
            while (number := self._next_base()) is not None:
                self._compare_with_base(number)
        except StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 (raised in the main thread)
            self._error = self._error or error
        finally:
            with self._lock:
                self._compilers -= 1
                self._tell()

    def _tell(self) -> None:
        """Wake the main thread."""
        with suppress(OSError), self._lock:  # it has ended
            self._news.send_bytes(b"news")

    def _report(self, progress: Progress) -> None:
        """End a build that nothing waits for any longer."""
        if self._stopped:
            raise StoppedError

    @property
    def _jobs(self) -> int:
        """Compiles side by side in one build."""
        return max(1, self._most_jobs // max(1, sum(build.busy for build in self.builds)))

    def _next_build(self) -> GrowingBuild | None:
        """The build whose next step is worth most; None if no build is left for this thread."""
        with self._lock:
            free = [build for build in self.builds if not build.done and not build.busy]
            if self._stopped or not free:
                return None
            best = max(free, key=lambda build: build.worth(self._place, self._jobs))
            best.busy = True
            return best

    def _grow(self, build: GrowingBuild) -> None:
        """Do the next step of a build: a wave of kernels, the first one with the host code; after it, dry runs."""
        lanes = [self.lanes[number] for number in build.lanes]
        first, target = lanes[0], lanes[0].job.target
        session = Session(first.session.options, self._report, first.session.builds)
        if target.engine == "cpu":
            made, build.exact = session.build_for(target), True
            build.growth = Growth(1, {key: made for key in session.builds})
            return
        if build.growth.times and not build.exact:
            self._find_names(build, session)
            return
        (_, wave), began = build.wave(self._place, self._jobs), time.monotonic()
        sources = required_sources(case for lane in lanes for case in lane.cases)
        try:
            session.add_kernels(target, [build.kernels[name] for name in wave], sources=sources, jobs=self._jobs)
        except BuildError as error:
            self._failed(build, wave, error)
            return
        with self._lock:
            made = session.builds[f"{target}/{RUNNER}"]
            contents = made.manifest.contents
            new = set(build.kernels if contents.full else contents.kernels) - build.has
            build.has |= new
            build.suspects = [name for name in build.suspects if name not in wave]
            builds = {f"{lane.job.target}/{RUNNER}": made for lane in lanes}
            for lane in lanes:
                lane.session.builds.update(builds)
            if wave and made.objects is not None:  # something was compiled
                self._compiling.add((time.monotonic() - began) * self._jobs * self._share(), len(wave))
            build.growth = Growth(build.growth.times + 1, builds)

    def _failed(self, build: GrowingBuild, wave: Sequence[str], error: BuildError) -> None:
        """Find out which kernel of a wave does not compile; without any, the host code does not."""
        if self._stopped:
            raise StoppedError
        with self._lock:
            if not wave:
                build.broken = error
            elif len(wave) == 1 and build.growth.times:
                build.failed[wave[0]] = error
                build.suspects = [name for name in build.suspects if name != wave[0]]
            else:
                build.suspects = list(wave)

    def _find_names(self, build: GrowingBuild, session: Session) -> None:
        """Find the kernels that the cases need, instead of those that they are likely to need."""
        kernels: dict[str, Any] = {}
        names: dict[tuple[int, str], tuple[str, ...]] = {}
        for number in build.lanes:
            lane, target = self.lanes[number], self.lanes[number].job.target
            found = required_kernels(session, lane.cases, target)
            kernels |= {kernel.name: kernel for kernel in found}
            known = KernelsByOp.of(session.options, target).read()
            names |= {(number, digest): words for digest, words in known.items()}
        with self._lock:
            build.kernels, build.names, build.exact = kernels, names, True
            build.suspects = [name for name in build.suspects if name in kernels]

    def _settle(self, build: GrowingBuild) -> None:
        """Let cases be judged whose kernels are there; those are lost whose kernels do not compile."""
        with self._lock:
            waiting, build.waiting = build.waiting, []
            for number, case in waiting:
                known = build.exact or (number, op_digest(case.op)) in build.names
                kernels = build.needs(number, case)
                error = build.broken or next((build.failed[name] for name in kernels if name in build.failed), None)
                if error is not None:
                    self.left -= 1
                    self._events.append((number, lost_result(case, error)))
                    if any(case is one for one in self.lanes[number].ordered):
                        self.left -= 1
                        self._alone(number, case, ENDED)
                elif build.growth.times and known and build.has.issuperset(kernels):
                    self._make_ready(number, case, kernels)
                else:
                    build.waiting.append((number, case))
            self._tell()

    def _next_base(self) -> int | None:
        with self._lock:
            return self._bases.pop(0) if self._bases and not self._stopped else None

    def _compare_with_base(self, number: int) -> None:
        """Find the launches of a lane's base; none of a release as it is."""
        lane = self.lanes[number]
        base = base_of(lane.session.options)
        if base is None:
            return
        try:
            launches = base.launches(lane.cases, lane.job.target, self._report)
        except (BuildError, LostError) as error:
            log.warning("launches not compared with those of %s: %s", base.words, error)
            return
        by_name = {case.name: launches[op_digest(case.op)] for case in lane.cases if op_digest(case.op) in launches}
        with self._lock:
            self._events.append((number, BesideBase(base.words, by_name)))
            self._tell()

    # What the bar shows.

    def _share(self) -> float:
        """The part of a core that each running thing has."""
        busy = len(self._running) + sum(build.busy for build in self.builds) * self._jobs
        return min(1.0, self._cores / max(1, busy))

    @property
    def compiled(self) -> str:
        """`12 of 57 kernels compiled`, or what comes before or after it; empty if all is compiled."""
        if all(build.done for build in self.builds):
            return ""
        there = sum(len(build.kernels) - len(build.pending) for build in self.builds)
        every, more = sum(len(build.kernels) for build in self.builds), not all(build.exact for build in self.builds)
        return f"compiled {there} of {every}{' or more' if more else ''} kernels"

    @property
    def seconds_left(self) -> float | None:
        """The estimated time left; None without experience of what is left."""
        with self._lock:
            host = sum(HOST for build in self.builds if not build.growth.times and not build.done)
            kernels = 0 if all(build.done for build in self.builds) else host + sum(len(b.pending) for b in self.builds)
            judging, compiling = self._judging.of(self.left), self._compiling.of(kernels)
        return None if judging is None or compiling is None else (judging + compiling) / self._cores
