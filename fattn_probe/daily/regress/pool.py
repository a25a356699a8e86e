"""Judge cases in worker processes, each with its own runners; a worker that dies costs only time."""

import functools
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fattn_probe.base.errors import BuildError, LostError
from fattn_probe.base.workers import Died, Tell, Workers
from fattn_probe.cases.device import Target
from fattn_probe.cases.device.target import picklable
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.records import Result
from fattn_probe.llama.build import Build
from fattn_probe.llama.build.ninja import Report, silent
from fattn_probe.machine.run import orders
from fattn_probe.machine.run.session import RunOptions, Session

Judge = Callable[[Session, Case, Target], Result]


@dataclass(frozen=True)
class Job:
    """How cases are judged on a target; the judge `brief` does not search for the cause of a failure."""

    judge: Judge
    options: RunOptions
    builds: Mapping[str, Build]
    target: Target
    brief: Judge | None = None


@dataclass(frozen=True)
class Growth:
    """The builds of a job after `times` compilations, each of which adds to them."""

    times: int = 0
    builds: Mapping[str, Build] = field(default_factory=dict)


@dataclass
class PoolWorker:
    """A worker's state: a session per job, whose runner is kept while the build has all needed kernels."""

    jobs: Sequence[Job]
    tell: Tell
    stack: ExitStack
    grown: dict[int, int] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)

    def session(self, number: int, growth: Growth) -> Session:
        """The session of a job, with a build at least as complete as `growth`."""
        if number not in self.sessions:
            job = self.jobs[number]
            self.sessions[number] = Session(job.options, self.tell, dict(job.builds))
            self.stack.enter_context(self.sessions[number].persistent_runner())
        session = self.sessions[number]
        if self.grown.get(number, 0) < growth.times:
            self.grown[number] = growth.times
            session.builds |= growth.builds
        return session

    def judge(self, case: Case, number: int, growth: Growth, *, brief: bool = False) -> Result:
        """Judge a case for a job."""
        job = self.jobs[number]
        if brief and job.brief is not None:
            job = replace(job, judge=job.brief)
        return result_or_loss(job, self.session(number, growth), case)

    def each(self, tasks: "Sequence[Task]") -> list[Any]:
        """Run several tasks that judge one case in several jobs, and share its inputs and exact answer."""
        return [task(self) for task in tasks]

    def alone(self, case: Case, number: int, growth: Growth) -> orders.Output:
        """The output of a case that runs in a separate process, or the reason why it has none."""
        try:
            return orders.alone(self.session(number, growth), case, self.jobs[number].target)
        except (BuildError, LostError) as error:
            return f"{orders.ENDED} ({error})"

    def in_order(
        self, expected: Mapping[str, orders.Output], cases: Sequence[Case], seed: int, number: int, growth: Growth
    ) -> list[orders.OrderDifference] | str:
        """The cases whose output in a random order differs from the expected one, or the reason why this is unknown."""
        session = self.session(number, growth)
        try:
            return orders.differences(session, cases, self.jobs[number].target, seed, expected)
        except LostError as error:
            return str(error)


Task = Callable[[PoolWorker], Any]
"""A method of `PoolWorker` and its arguments, as a `functools.partial`."""


def pool_of(jobs: Sequence[Job], workers: int, progress: Report = silent) -> Workers[Task, Any]:
    """Start at most `workers` processes for the tasks of these jobs."""
    sendable = [replace(job, target=picklable(job.target)) for job in jobs]
    return Workers[Task, Any](functools.partial(working, sendable), workers, progress)


@contextmanager
def working(jobs: Sequence[Job], tell: Tell) -> Iterator[Callable[[Task], Any]]:
    """Yield the function that runs a task in this worker; `tell` receives the progress of builds."""
    with ExitStack() as stack:
        worker = PoolWorker(jobs, tell, stack)
        yield lambda task: task(worker)


def result_or_loss(job: Job, session: Session, case: Case) -> Result:
    """Judge a case; the result is `lost` if that raises an exception."""
    try:
        return job.judge(session, case, job.target)
    except Exception as error:  # noqa: BLE001 (the boundary of a process: the other cases go on)
        return Result.lost(case, f"{type(error).__name__}: {error}", traceback.format_exc())


def judged(job: Job, cases: Sequence[Case], workers: int, progress: Report = silent) -> Generator[Result]:
    """Yield each result as soon as it is known, from at most `workers` processes; starts the longest case first.

    A case that kills several workers is lost. Closing the iterator ends the workers and their runners.
    """
    longest_first = sorted(cases, key=lambda case: -case.op.sizes.flop)
    tasks = [functools.partial(PoolWorker.judge, case=case, number=0, growth=Growth()) for case in longest_first]
    with pool_of([job], workers, progress) as pool:
        for task, answer in pool.answers(tasks):
            case = task.keywords["case"]  # type: ignore[attr-defined]
            yield Result.lost(case, answer.how) if isinstance(answer, Died) else answer
