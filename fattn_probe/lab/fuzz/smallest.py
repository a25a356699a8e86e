"""Shrink the failures of a run, each in a separate process, and write them as scenario files."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from fattn_probe.base.errors import LostError
from fattn_probe.base.files import write_text
from fattn_probe.base.workers import Died, Tell, Workers
from fattn_probe.cases.device.target import picklable
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.pool import Job, result_or_loss
from fattn_probe.daily.regress.records import Result
from fattn_probe.lab.fuzz.findings import FindingKind, kind_of
from fattn_probe.lab.fuzz.scenarios import case_of
from fattn_probe.lab.fuzz.shapes import Settings
from fattn_probe.lab.fuzz.shrink import shrink
from fattn_probe.llama.build import RUNNER
from fattn_probe.machine.run.command import plan_cases
from fattn_probe.machine.run.required_kernels import KernelReader
from fattn_probe.machine.run.session import Session
from fattn_probe.machine.run.simulator import Simulation


@dataclass(frozen=True)
class SmallestFailure:
    """A failing case with its result, and the job that judged it. Shrinking uses only the kernels of the build."""

    kind: FindingKind
    settings: Settings
    result: Result
    job: Job


@dataclass(frozen=True)
class Smallest:
    """The smallest scenario found that fails like the case `name`, with its result, and its file if it has one."""

    kind: FindingKind
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


def shrunk(failures: Sequence[SmallestFailure], workers: int, seconds: float) -> Iterator[Smallest]:
    """The smallest scenario found for each failure, within a total time in seconds."""
    begin = functools.partial(shrinking, ends=time.monotonic() + seconds)
    sendable = [
        replace(failure, job=replace(failure.job, target=picklable(failure.job.target))) for failure in failures
    ]
    with Workers[SmallestFailure, Smallest](begin, workers) as pool:
        for failure, found in pool.answers(sendable):
            if isinstance(found, Died):
                raise LostError(f"{failure.result.name} cannot be shrunk: {found.how}")
            yield found


@contextmanager
def shrinking(tell: Tell, ends: float) -> Iterator[Callable[[SmallestFailure], Smallest]]:
    """A worker's function."""
    yield functools.partial(smallest, ends=ends)


def smallest(failure: SmallestFailure, ends: float) -> Smallest:
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

    with session.persistent_runner():
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
