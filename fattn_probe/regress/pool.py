"""Worker processes that run and judge cases, each with its own runner; a worker that dies costs only time."""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from threadpoolctl import threadpool_limits

from fattn_probe.build import Build
from fattn_probe.build.ninja import Progress, Report, silent
from fattn_probe.device import Target
from fattn_probe.device.target import picklable
from fattn_probe.process import describe_code
from fattn_probe.regress.records import Result
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.scenario import Case
from fattn_probe.scratch import scratch

Judge = Callable[[Session, Case, Target], Result]
MOST_DEATHS = 2  # of workers on the same case
END_SECONDS = 5.0
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["fattn_probe.regress.results"]


@dataclass(frozen=True)
class Job:
    """The task of all workers of a run; `folder` is for their files."""

    judge: Judge
    options: RunOptions
    builds: Mapping[str, Build]
    target: Target
    folder: str = ""


def work(connection: "Connection[Result | Progress, Case]", job: Job) -> None:
    """The main loop of a worker: receive a case, send its result, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when it ends
    heed_interrupts()  # for the programs that it starts
    tempfile.tempdir = job.folder or None
    session = Session(job.options, connection.send, dict(job.builds))
    with contextlib.suppress(EOFError, OSError), threadpool_limits(1, "blas"), session.persistent_runner():
        while True:
            connection.send(result_or_loss(job, session, connection.recv()))


def result_or_loss(job: Job, session: Session, case: Case) -> Result:
    """The result of a case; any exception makes it lost."""
    try:
        return job.judge(session, case, job.target)
    except Exception as error:  # noqa: BLE001 (the boundary of a process: the other cases go on)
        said = f"{type(error).__name__}: {error}"
        return Result(case.name, case.digest, "lost", said.splitlines()[0], failure=traceback.format_exc())


@dataclass
class Worker:
    """A worker process as its parent sees it; `case` is the one in flight."""

    process: BaseProcess
    connection: "Connection[Case, Result | Progress]"
    case: Case | None = None

    @classmethod
    def start(cls, job: Job) -> "Worker":
        """Start a worker without a case."""
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=work, args=(theirs, job), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def end(self) -> str:
        """Kill the worker and its runner; returns how it ended, in words."""
        self.connection.close()
        self.process.join(END_SECONDS if self.case is None else 0)
        self.process.kill()
        self.process.join()
        return describe_code(self.process.exitcode or 0)


@dataclass
class Pool:
    """Workers, and the cases that still wait for one, longest first."""

    job: Job
    workers: list[Worker] = field(default_factory=list)
    left: deque[Case] = field(default_factory=deque)
    deaths: Counter[str] = field(default_factory=Counter)

    def give(self, worker: Worker) -> None:
        """Send a worker its next case, if there is one."""
        worker.case = self.left.popleft() if self.left else None
        if worker.case is not None:
            with contextlib.suppress(OSError):  # it has died; its end of the pipe will show that
                worker.connection.send(worker.case)

    def results(self, progress: Report) -> Iterator[Result]:
        """The results as they arrive."""
        while busy := {worker.connection: worker for worker in self.workers if worker.case is not None}:
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                try:
                    said = worker.connection.recv()
                except (EOFError, OSError):
                    yield from self._died(worker)
                    continue
                if isinstance(said, Progress):
                    progress(said)
                    continue
                self.give(worker)
                yield said

    def _died(self, worker: Worker) -> Iterator[Result]:
        case, how = worker.case, worker.end()
        self.workers.remove(worker)
        assert case is not None
        self.deaths[case.name] += 1
        if self.deaths[case.name] < MOST_DEATHS:
            self.left.appendleft(case)
        else:
            said = f"it ended {MOST_DEATHS} workers, the last one {how}"
            yield Result(case.name, case.digest, "lost", said, failure=said)
        if self.left:
            fresh = Worker.start(self.job)
            self.workers.append(fresh)
            self.give(fresh)


def prepare() -> None:
    """Start the server that workers are forked from, so that it imports while the cases are made.

    It and its workers inherit that interrupts wait: a terminal sends Ctrl-C to every process, and the parent decides.
    """
    CONTEXT.set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()  # which would let them through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def heed_interrupts() -> None:
    """Let interrupts through again, in a process that such a server forked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def judged(job: Job, cases: Sequence[Case], workers: int, progress: Report = silent) -> Generator[Result]:
    """The results of cases, each as soon as it is known, from at most `workers` processes.

    A worker that dies is replaced, and its case runs again; a case that kills several workers is lost. Closing the
    iterator kills the workers and their runners.
    """
    if not cases:
        return
    prepare()
    with scratch() as folder:
        job = replace(job, target=picklable(job.target), folder=str(folder))
        pool = Pool(job, left=deque(sorted(cases, key=lambda case: -case.op.sizes.flop)))
        try:
            for _ in range(min(workers, len(cases))):
                worker = Worker.start(job)
                pool.workers.append(worker)
                pool.give(worker)
            yield from pool.results(progress)
        finally:
            for worker in pool.workers:
                worker.end()


def cores() -> int:
    """The number of processes that can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
