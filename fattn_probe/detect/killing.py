"""Which mutants are killed: each is run by the cases that reach it, until one gives it away.

The next case of a mutant is the one that killed most for its seconds so far; workers take many mutants of one case at
once, so that the case is set up once.
"""

import math
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fattn_probe.detect.bench import Alone, Trial, Work, run_alone, run_mutants, start
from fattn_probe.detect.killed_by import LOST
from fattn_probe.device.target import picklable
from fattn_probe.regress.pool import cores
from fattn_probe.scenario import Case

CONTEXT = multiprocessing.get_context("forkserver")
SET_UP = 0.05
"""Seconds that a run takes in addition to its kernels."""
TURN = 3.0
"""Seconds of runs that a worker is given at once."""
MOST_AT_ONCE = 128
"""Mutants under way for each worker: those of a run that is stopped are begun anew."""


@contextmanager
def workers(works: Sequence[Work]) -> Iterator[ProcessPoolExecutor]:
    """Processes with a bench each."""
    works = [replace(work, target=picklable(work.target)) for work in works]
    with ProcessPoolExecutor(cores(), CONTEXT, start, (works,)) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def alone(pool: ProcessPoolExecutor, cases: Iterable[tuple[int, Case]]) -> Iterator[Alone]:
    """Every case without a mutant, as it is done; those with most work first."""
    ordered = sorted(cases, key=lambda item: -item[1].op.sizes.flop)
    futures = {pool.submit(run_alone, *item) for item in ordered}
    while futures:
        done, futures = wait(futures, return_when=FIRST_COMPLETED)
        yield from (future.result() for future in done)


def cheapest(cases: Iterable[int], baseline: Sequence[Alone], most: int) -> list[int]:
    """Of cases that launch the same kernels in the same grids, the fastest `most` of each kind (0: all)."""
    kinds: dict[tuple[int, str], list[int]] = defaultdict(list)
    for case in cases:
        kinds[baseline[case].work, baseline[case].launches].append(case)
    chosen = (sorted(kind, key=lambda case: baseline[case].judged)[: most or None] for kind in kinds.values())
    return sorted(case for kind in chosen for case in kind)


@dataclass
class Hunt:
    """Mutants by number, the cases that each is `left` to be tried by, and the mutants `waiting` for each case.

    With `to_end`, a mutant that is killed is tried by the other cases too.
    """

    cases: Sequence[Alone]
    to_end: bool = False
    runs: list[int] = field(init=False)
    kills: list[int] = field(init=False)
    left: dict[int, set[int]] = field(default_factory=dict)
    waiting: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.runs, self.kills = ([0] * len(self.cases) for _ in range(2))

    def worth(self, case: int) -> float:
        """The kills of a case that a second can be expected to give."""
        return (1 + self.kills[case]) / (2 + self.runs[case]) / (self.cases[case].seconds + SET_UP)

    def add(self, mutant: int, cases: Iterable[int]) -> None:
        """A mutant to be tried by some cases, at least one."""
        self.left[mutant] = set(cases)
        self.queue(mutant)

    def queue(self, mutant: int) -> None:
        """Let a mutant wait for its next case."""
        left = self.left[mutant]
        case = max(left, key=lambda case: (self.worth(case), -case))
        left.remove(case)
        self.waiting[case].append(mutant)

    def turn(self, processes: int) -> tuple[int, list[int]]:
        """The next case and mutants for a worker: the case that most mutants wait for."""
        case = max(self.waiting, key=lambda case: len(self.waiting[case]) * self.worth(case))
        waiting = self.waiting[case]
        fair = math.ceil(sum(map(len, self.waiting.values())) / processes)
        number = max(1, min(len(waiting), fair, int(TURN / (self.cases[case].seconds + SET_UP))))
        taken, self.waiting[case] = waiting[:number], waiting[number:]
        if not self.waiting[case]:
            del self.waiting[case]
        return case, taken

    def tell(self, case: int, trial: Trial) -> bool:
        """Take a trial into account; whether the mutant's hunt is over. A lost trial kills nothing."""
        killed = trial.by not in ("", LOST)
        self.runs[case] += 1
        self.kills[case] += killed
        if (killed and not self.to_end) or not self.left[trial.mutant]:
            del self.left[trial.mutant]
            return True
        self.queue(trial.mutant)
        return False

    def trials(
        self, pool: ProcessPoolExecutor, mutants: Iterable[tuple[int, Sequence[int]]], until: float = math.inf
    ) -> Iterator[tuple[int, Trial, bool]]:
        """Each trial as (case, trial, whether it was the mutant's last); starts none after a time (`monotonic`)."""
        fresh, processes = iter(mutants), cores()
        running: dict[Future[list[Trial]], int] = {}
        while True:
            over = time.monotonic() > until
            while not over and len(self.left) < MOST_AT_ONCE * processes and (item := next(fresh, None)) is not None:
                self.add(*item)
            while not over and self.waiting and len(running) < processes:
                case, taken = self.turn(processes)
                running[pool.submit(run_mutants, self.cases[case].work, self.cases[case].case, taken)] = case
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                case = running.pop(future)
                for trial in future.result():
                    yield case, trial, self.tell(case, trial)
