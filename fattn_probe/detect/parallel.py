"""Try several faults at once, each with its share of the cores."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.detect.planted import Tried, try_fault
from fattn_probe.detect.routine import Questions
from fattn_probe.errors import FattnProbeError
from fattn_probe.regress.pool import CONTEXT, heed_interrupts, prepare
from fattn_probe.source.faults import HistoricFault

OVERLAP = 1.5
"""Shares overlap by this factor, since a job often waits for its slowest compiler."""
Task = tuple[HistoricFault, Questions]


@dataclass(frozen=True)
class Limits:
    """How tasks run: `jobs` at once; none starts after `until`, a time of `time.time`; wrong outputs go to `keep`."""

    jobs: int
    until: float
    keep: Path | None = None


def tried(tasks: Sequence[Task], limits: Limits) -> Iterator[Tried]:
    """The results as they arrive."""
    numbers = CONTEXT.Queue()
    for number in range(limits.jobs):
        numbers.put(number)
    with ProcessPoolExecutor(limits.jobs, CONTEXT, begin, (numbers, limits.jobs)) as pool:
        for done in as_completed([pool.submit(run, task, limits) for task in tasks]):
            if (found := done.result()) is not None:
                yield found


def begin(numbers: "CONTEXT.Queue[int]", jobs: int) -> None:  # type: ignore[name-defined]
    """Restrict a worker, and all that it starts, to its cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share(sorted(os.sched_getaffinity(0)), numbers.get(), jobs))
    heed_interrupts()
    prepare()


def share(all_cores: Sequence[int], number: int, jobs: int) -> list[int]:
    """The cores of one of several jobs: consecutive ones, around the end."""
    size = min(len(all_cores), max(1, round(OVERLAP * len(all_cores) / jobs)))
    first = number * len(all_cores) // jobs
    return [all_cores[(first + at) % len(all_cores)] for at in range(size)]


def run(task: Task, limits: Limits) -> Tried | None:
    """Try one fault; None if it is too late, or if it could not be tried, which stderr explains."""
    fault, asked = task
    if time.time() > limits.until:
        return None
    try:
        return try_fault(fault, asked, limits.keep)
    except FattnProbeError as error:
        print(f"{fault.patch.name}: {asked.name}: {error}", file=sys.stderr)
        return None
