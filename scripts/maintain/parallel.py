"""Try several faults at once, each with its share of the cores."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fattn_probe.base.console import NOTES
from fattn_probe.base.errors import FattnProbeError, LostError
from fattn_probe.base.host import cores
from fattn_probe.base.workers import Died, Tell, Workers
from fattn_probe.llama.source.faults import HistoricFault
from maintain.fault_cases import SuiteCases
from maintain.faults import Tried, try_fault

OVERLAP = 1.5
"""The jobs' shares of the cores add up to this multiple of all cores, as a job often waits for its last compiler."""
Task = tuple[HistoricFault, SuiteCases]


def tried(tasks: Sequence[Task], jobs: int, until: float, keep: Path | None = None) -> Iterator[Tried]:
    """The results as they arrive; no task starts after `until`, a time of `time.time`; wrong outputs go to `keep`.

    A fault whose worker process ends has no result; LostError at the end names these faults.
    """
    lost = []
    begin = functools.partial(trying, until=until, keep=keep)
    with Workers[Task, Tried | None](begin, jobs, threads=max(1, round(OVERLAP * cores() / jobs))) as pool:
        for (fault, suite), found in pool.answers(tasks):
            if isinstance(found, Died):
                lost.append(f"{fault.patch.name} ({suite.name}: {found.how})")
            elif found is not None:
                yield found
    if lost:
        raise LostError(f"no result for {', '.join(lost)}")


@contextmanager
def trying(tell: Tell, until: float, keep: Path | None) -> Iterator[Callable[[Task], Tried | None]]:
    """Provide a worker's function, which tries one fault."""
    yield functools.partial(run, until=until, keep=keep)


def run(task: Task, until: float, keep: Path | None) -> Tried | None:
    """Try one fault; None after `until`, or if the fault could not be tried, which stderr explains."""
    fault, suite = task
    if time.time() > until:
        return None
    try:
        return try_fault(fault, suite, keep)
    except FattnProbeError as error:
        NOTES.print(f"{fault.patch.name}: {suite.name}: {error}", soft_wrap=True)
        return None
