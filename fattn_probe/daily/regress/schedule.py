"""One schedule for all entries and targets of a run: it chooses the next case to judge while kernels compile.

A case is ready when its kernels are compiled, which the threads of `compilers` report to the main thread through a
queue. Only the main thread knows which cases are ready, and hands them to the workers between answers.
"""

import functools
import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from fattn_probe.base.process import end_programs
from fattn_probe.base.workers import CONTEXT, Died, threads
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.compilers import LAST, BesideBase, Compilers, Lane, Likely, Rate
from fattn_probe.daily.regress.pool import PoolWorker, Task, pool_of
from fattn_probe.daily.regress.records import Result
from fattn_probe.machine.run.orders import ENDED, OrderDifference, Output

LONG = 1e30
"""More FLOPs than any case needs."""
CAUSES = 4
"""Number of failures to diagnose per kernel family, since diagnosis takes most of the time spent on a failure."""


@dataclass(frozen=True)
class Orders:
    """The first difference that a lane's random orders caused in each case, and the number of ops that took part.

    `missing` is the reason if there is no result, otherwise empty.
    """

    found: Mapping[str, OrderDifference]
    ops: int
    missing: str = ""


Event = Result | Orders | BesideBase
"""News about a lane."""


@dataclass
class Ordering:
    """The random orders of a lane: each case's output when run alone, and each order's differences, by seed."""

    outputs: dict[str, Output] = field(default_factory=dict)
    differences: dict[int, list[OrderDifference]] = field(default_factory=dict)
    missing: str = ""

    @property
    def expected(self) -> dict[str, Output]:
        """The outputs of the cases that take part."""
        return {name: output for name, output in self.outputs.items() if not output.startswith(ENDED)}

    @property
    def found(self) -> Orders:
        """The first difference found in each case."""
        every = [one for seed in sorted(self.differences, reverse=True) for one in reversed(self.differences[seed])]
        return Orders({one.case: one for one in every}, len(self.expected), self.missing)


@dataclass(order=True)
class Ready:
    """A task that can run: a method of `PoolWorker` and its arguments; sorts in the order of execution."""

    key: tuple[float, ...]
    method: Any = field(compare=False)
    number: int = field(compare=False)
    words: dict[str, Any] = field(compare=False)
    kernels: Sequence[str] = field(default=(), compare=False)


def families(kernels: Sequence[str]) -> frozenset[str]:
    """The families of kernels: `mma` for `mma 64,64,8,8`."""
    return frozenset(kernel.partition(" ")[0] for kernel in kernels)


class Schedule:
    """Judges the cases of lanes in `workers` processes while kernels compile; the most `likely` cases come first.

    `left` is the number of remaining tasks, `spent` the core seconds that each lane has used.
    """

    def __init__(self, lanes: Sequence[Lane], workers: int, likely: Likely) -> None:
        self.lanes, self.workers, self.compilers = lanes, workers, Compilers(lanes, likely)
        self.left = sum(len(lane.cases) + (len(lane.ordered) + lane.orders if lane.ordered else 0) for lane in lanes)
        self.spent, self.rate = defaultdict[int, float](float), Rate()
        self._compiling, self._events, self._running = (
            self.compilers.threads,
            list[tuple[int, Event]](),
            dict[Any, float](),
        )
        self._first, self._rest, self._tried = list[Ready](), list[Ready](), set[tuple[int, str]]()
        self._orders = defaultdict[int, Ordering](Ordering)
        self._causes = Counter[frozenset[str]]()

    def events(self) -> Generator[tuple[int, Event]]:
        """Yield the events of all lanes, with their numbers; closing the iterator stops workers and compilers."""
        heard, news = CONTEXT.Pipe(duplex=False)
        jobs = [lane.job for lane in self.lanes]
        with (
            heard,
            news,
            closing(self.compilers.slots),
            threads(self._compiling) as compiling,
            pool_of(jobs, self.workers) as pool,
        ):
            try:
                for _ in range(self._compiling):
                    compiling.submit(self.compilers.work, news)
                for answers in pool.rounds(self._tasks(), heard):
                    for task, answer in answers:
                        self._take(task, answer)
                    yield from self._known()
                yield from self._known()  # all cases may be lost before there is any task
            finally:
                self.compilers.stop()
                end_programs()

    def _known(self) -> list[tuple[int, Event]]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def _hear(self) -> None:
        """Process the compilers' messages."""
        while self.compilers.found:
            found = self.compilers.found.popleft()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                self._compiling -= 1
                continue
            number, known = found
            ordered = self.lanes[number].ordered
            if isinstance(known, Case):
                kernels = self.compilers.build_of(number).needs(number, known)
                key = (self.compilers.place(number, known, kernels), known.op.sizes.flop)
                heapq.heappush(self._first, Ready(key, PoolWorker.judge, number, {"case": known}, kernels))
                if any(known is one for one in ordered):
                    heapq.heappush(self._rest, Ready((-LONG,), PoolWorker.alone, number, {"case": known}))
                continue
            self._events.append((number, known))
            if isinstance(known, Result):
                self.left -= 1
                if any(known.name == one.name for one in ordered):
                    self.left -= 1
                    self._alone(number, known.name, ENDED)

    def _tasks(self) -> Iterator[Task | None]:
        """Yield the next task for a worker, or None if there is none at the moment."""
        while True:
            self._hear()
            every = self._next()
            if not every:
                if not self._compiling and not self.left:
                    return
                yield None
                continue
            tasks = list[Task]()
            for ready in every:
                words, growth = dict(ready.words), self.compilers.build_of(ready.number).growth
                if ready.method == PoolWorker.judge:
                    words["brief"] = self._causes[families(ready.kernels)] >= CAUSES
                tasks.append(functools.partial(ready.method, **words, number=ready.number, growth=growth))
            task = tasks[0] if len(tasks) == 1 else functools.partial(PoolWorker.each, tasks=tasks)
            self._running[task] = time.monotonic()
            self.compilers.judging = len(self._running)
            yield task

    def _next(self) -> list[Ready]:
        """Next: a case likely to show a change, else a kernel's smallest case, else an order, else the longest case.

        The longest case is judged in all lanes where it is ready, so that its inputs and answer are computed only once.
        """
        while self._first:
            ready = heapq.heappop(self._first)
            fresh = {(ready.number, name) for name in ready.kernels} - self._tried
            self._tried |= fresh
            if fresh or ready.key[0] < LAST - 1:
                return [ready]
            case = ready.words["case"]
            heapq.heappush(self._rest, replace(ready, key=(-case.op.sizes.flop, int(case.digest, 16))))
        found = list[Ready]()
        while self._rest and (not found or (len(found[0].key) > 1 and self._rest[0].key == found[0].key)):
            found.append(heapq.heappop(self._rest))
        return found

    def _take(self, task: Any, answer: Any) -> None:  # noqa: ANN401 (whatever the method of a task returns)
        """Process a worker's answer, or its answers to several tasks; tasks that killed the worker run again alone."""
        took = self.compilers.share * (time.monotonic() - self._running.pop(task))
        self.compilers.judging = len(self._running)
        if task.func != PoolWorker.each:
            self._take_one(task, answer, took)
            return
        tasks = task.keywords["tasks"]
        if isinstance(answer, Died):
            for one in tasks:
                words = {"case": one.keywords["case"]}
                heapq.heappush(self._rest, Ready((-LONG,), PoolWorker.judge, one.keywords["number"], words))
            return
        for one, its_own in zip(tasks, answer, strict=True):
            self._take_one(one, its_own, took / len(tasks))

    def _take_one(self, task: Any, answer: Any, took: float) -> None:  # noqa: ANN401 (as above)
        """Process an answer; a lane's orders start once the outputs of all its separate runs are known."""
        number, words, died = task.keywords["number"], task.keywords, isinstance(answer, Died)
        self.left -= 1
        self.spent[number] += took
        self.rate.add(took)
        if task.func == PoolWorker.judge:
            self._events.append((number, Result.lost(words["case"], answer.how) if died else answer))
            if not died and answer.status == "fail" and not answer.known:
                self._causes[families(self.compilers.build_of(number).needs(number, words["case"]))] += 1
            verdicts, code = self.lanes[number].verdicts, self.compilers.build_of(number).code
            if verdicts is not None and code is not None and not died:
                verdicts.keep(words["case"], code, answer)
        elif task.func == PoolWorker.alone:
            self._alone(number, words["case"].name, ENDED if died else answer)
        else:
            ordering = self._orders[number]
            ordering.missing = answer.how if died else answer if isinstance(answer, str) else ordering.missing
            ordering.differences[words["seed"]] = answer if isinstance(answer, list) else []
            if len(ordering.differences) == self.lanes[number].orders:
                self._events.append((number, ordering.found))

    def _alone(self, number: int, name: str, output: Output) -> None:
        """Store the output of a case's separate run; after a lane's last one, its orders can run."""
        lane, ordering = self.lanes[number], self._orders[number]
        ordering.outputs[name] = output
        if len(ordering.outputs) == len(lane.ordered):
            words = {"expected": ordering.expected, "cases": lane.ordered}
            for seed in range(1, lane.orders + 1):
                key = (-2 * LONG,)
                heapq.heappush(self._rest, Ready(key, PoolWorker.in_order, number, {**words, "seed": seed}))

    @property
    def seconds_left(self) -> float | None:
        """The estimated time left, in seconds; None without data about the remaining tasks."""
        judging, compiling = self.rate.of(self.left), self.compilers.seconds_left
        return None if judging is None or compiling is None else (judging + compiling) / self.compilers.cores
