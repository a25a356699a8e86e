"""Cases judged by worker processes, each with its own runner; a worker that dies costs only time."""

import functools
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fattn_probe.base.workers import Died, Tell, Workers
from fattn_probe.cases.device import Target
from fattn_probe.cases.device.target import picklable
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.records import Result
from fattn_probe.llama.build import Build
from fattn_probe.llama.build.ninja import Report, silent
from fattn_probe.machine.run.session import RunOptions, Session

Judge = Callable[[Session, Case, Target], Result]


@dataclass(frozen=True)
class Job:
    """The task of all workers of a run."""

    judge: Judge
    options: RunOptions
    builds: Mapping[str, Build]
    target: Target


@contextmanager
def judging(job: Job, tell: Tell) -> Iterator[Callable[[Case], Result]]:
    """A worker's function, which tells the progress of builds."""
    session = Session(job.options, tell, dict(job.builds))
    with session.persistent_runner():
        yield functools.partial(result_or_loss, job, session)


def result_or_loss(job: Job, session: Session, case: Case) -> Result:
    """The result of a case; any exception makes it lost."""
    try:
        return job.judge(session, case, job.target)
    except Exception as error:  # noqa: BLE001 (the boundary of a process: the other cases go on)
        said = f"{type(error).__name__}: {error}"
        return Result(case.name, case.digest, "lost", said.splitlines()[0], failure=traceback.format_exc())


def judged(job: Job, cases: Sequence[Case], workers: int, progress: Report = silent) -> Generator[Result]:
    """The results of cases, each as soon as it is known, from at most `workers` processes; the longest case first.

    A case that kills several workers is lost. Closing the iterator ends the workers and their runners.
    """
    job = replace(job, target=picklable(job.target))
    longest_first = sorted(cases, key=lambda case: -case.op.sizes.flop)
    with Workers[Case, Result](functools.partial(judging, job), workers, progress) as pool:
        for case, answer in pool.answers(longest_first):
            if isinstance(answer, Died):
                yield Result(case.name, case.digest, "lost", answer.how, failure=answer.how)
            else:
                yield answer
