"""Shrink the failures of a run, each in a process of its own, and write them as scenario files."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from threadpoolctl import threadpool_limits

from fattn_probe.build import RUNNER
from fattn_probe.device.target import picklable
from fattn_probe.files import write_text
from fattn_probe.fuzz.findings import Kind, kind_of
from fattn_probe.fuzz.scenarios import case_of
from fattn_probe.fuzz.shapes import Settings
from fattn_probe.fuzz.shrink import shrink
from fattn_probe.regress.pool import CONTEXT, Job, heed_interrupts, result_or_loss
from fattn_probe.regress.records import Result
from fattn_probe.run.command import plan_cases
from fattn_probe.run.required_kernels import KernelReader
from fattn_probe.run.session import Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario import Case


@dataclass(frozen=True)
class Failure:
    """A failing case with its result, and the job that judged it. Shrinking stays among the kernels of the build."""

    kind: Kind
    settings: Settings
    result: Result
    job: Job


@dataclass(frozen=True)
class Smallest:
    """The smallest scenario found that fails as the case `name` did, with its result, and its file if it has one."""

    kind: Kind
    on: str
    name: str
    settings: Settings
    result: Result
    path: Path | None = None

    @property
    def text(self) -> str:
        """The scenario file."""
        about = f"found by fuzz ({self.name}): {self.kind}"
        document = {"version": 1, "about": about[:200], **self.settings, "device": self.on}
        return yaml.safe_dump(document, sort_keys=False, width=120)

    def written(self, folder: Path) -> "Smallest":
        """Write the scenario file to a folder."""
        path = folder / f"{self.name}.yaml"
        write_text(path, self.text)
        return replace(self, path=path)


def shrunk(failures: Sequence[Failure], workers: int, seconds: float) -> Iterator[Smallest]:
    """The smallest scenario of each failure that is found in so many seconds for all."""
    if not failures:
        return
    ends = time.monotonic() + seconds
    with ProcessPoolExecutor(min(workers, len(failures)), CONTEXT, heed_interrupts) as pool:
        try:
            for future in as_completed([pool.submit(smallest, sendable(failure), ends) for failure in failures]):
                yield future.result()
        finally:
            # Waits: as it exits, Python 3.11 writes to the pipes of all pools, also to one that is just being closed.
            pool.shutdown(wait=True, cancel_futures=True)


def sendable(failure: Failure) -> Failure:
    """A failure that another process can be given."""
    return replace(failure, job=replace(failure.job, target=picklable(failure.job.target)))


def smallest(failure: Failure, ends: float) -> Smallest:
    """Shrink one failure until the machine's monotonic clock shows `ends`."""
    job, name = failure.job, failure.result.name
    session = Session(job.options, builds=dict(job.builds))
    last = [failure.result]

    def fails(settings: Settings) -> bool:
        case = case_of(settings, name)
        if time.monotonic() > ends or not is_built(job, case):
            return False
        result = result_or_loss(job, session, case)
        if kind_of(result) != failure.kind:
            return False
        last[0] = result
        return True

    with threadpool_limits(1, "blas"), session.persistent_runner():
        settings = shrink(failure.settings, fails)
    return Smallest(failure.kind, str(job.target), name, settings, last[0])


def is_built(job: Job, case: Case) -> bool:
    """Whether the build has all kernels that a case needs; true if its dry run fails, as its real run will."""
    build, tree = job.builds[f"{job.target}/{RUNNER}"], job.options.tree
    assert tree is not None
    simulation = Simulation(dry=True, skip_kernels=True, threads=1)
    dry = Session(replace(job.options, simulation=simulation), builds=dict(job.builds))
    (done,) = plan_cases(dry, [(case, [job.target])])
    names = KernelReader(tree).names(done)
    return names is None or set(names) <= set(build.manifest.contents.kernels)
