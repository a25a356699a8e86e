"""Which mutants a suite kills: each is run by the cases that reach it, the fastest first, until one gives it away."""

import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from typing import Any

from threadpoolctl import threadpool_limits

from fattn_probe.build import Build
from fattn_probe.compare.judge.cases import judge_case
from fattn_probe.compare.judge.checks import Checks
from fattn_probe.detect.mutants import Mutant
from fattn_probe.detect.planted import given_away
from fattn_probe.device import Target
from fattn_probe.device.target import picklable
from fattn_probe.errors import FattnProbeError
from fattn_probe.regress.pool import cores
from fattn_probe.regress.records import Result
from fattn_probe.regress.results import recorded
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario import Case
from fattn_probe.scratch import scratch

CONTEXT = multiprocessing.get_context("forkserver")
LEAST_SECONDS = 20.0
SLOWER = 20.0
"""A run that takes so many times longer than without a mutant hangs."""


@dataclass(frozen=True)
class Work:
    """What every run of a target needs."""

    options: RunOptions
    builds: Mapping[str, Build]
    target: Target
    checks: Checks


@dataclass(frozen=True)
class Alone:
    """A case without a mutant: its result, its seconds, and the numbers of the mutants that it reaches."""

    case: Case
    result: Result
    seconds: float
    reached: frozenset[int]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: killed `by` what, in which case, or a survivor (`by` empty) of `cases` that reach it."""

    mutant: Mutant
    on: str
    by: str
    case: str
    said: str
    cases: int
    seconds: float

    @property
    def fate(self) -> str:
        """Killed, survived or not reached."""
        return "killed" if self.by else "survived" if self.cases else "not reached"

    def document(self) -> dict[str, Any]:
        """The verdict for JSON."""
        return asdict(self) | {"fate": self.fate}


def run_alone(work: Work, case: Case) -> Alone:
    """Judge a case with every switch off."""
    with scratch() as folder, threadpool_limits(1, "blas"):
        file = folder / "reached"
        began = time.monotonic()
        result = judged(work, case, Simulation(threads=1, reached=file))
        seconds = time.monotonic() - began
        reached = frozenset(map(int, file.read_text().split())) if file.is_file() else frozenset()
    return Alone(case, result, seconds, reached)


def judged(work: Work, case: Case, simulation: Simulation) -> Result:
    """Judge a case in a runner of its own; an error on the way makes it lost."""
    options = replace(work.options, simulation=simulation)
    try:
        return recorded(
            judge_case(Session(options, builds=dict(work.builds)), case, work.target, work.checks), timed=False
        )
    except FattnProbeError as error:
        return Result(case.name, case.digest, "lost", str(error), failure=str(error))


def try_mutant(work: Work, mutant: Mutant, cases: Sequence[Alone]) -> Verdict:
    """Run the cases that reach a mutant, the fastest first, until one gives it away."""
    began = time.monotonic()
    with threadpool_limits(1, "blas"):
        for done, alone in enumerate(cases, 1):
            limited = replace(work, options=replace(work.options, timeout=max(LEAST_SECONDS, SLOWER * alone.seconds)))
            result = judged(limited, alone.case, Simulation(threads=1, mutant=mutant.id))
            if by := given_away(result):
                seconds = time.monotonic() - began
                return Verdict(mutant, str(work.target), by, result.name, result.reason, done, round(seconds, 1))
    return Verdict(mutant, str(work.target), "", "", "", len(cases), round(time.monotonic() - began, 1))


def alone(work: Work, cases: Sequence[Case]) -> Iterator[Alone]:
    """Every case without a mutant, as it is done."""
    work = replace(work, target=picklable(work.target))
    with ProcessPoolExecutor(cores(), CONTEXT) as pool:
        for future in as_completed([pool.submit(run_alone, work, case) for case in cases]):
            yield future.result()


def verdicts(work: Work, mutants: Sequence[Mutant], baseline: Sequence[Alone]) -> Iterator[Verdict]:
    """What becomes of each mutant, as it is known. Only cases that pass without a mutant can kill."""
    work = replace(work, target=picklable(work.target))
    passing = sorted((item for item in baseline if item.result.status == "pass"), key=lambda item: item.seconds)
    with ProcessPoolExecutor(cores(), CONTEXT) as pool:
        futures = [
            pool.submit(try_mutant, work, mutant, [item for item in passing if mutant.id in item.reached])
            for mutant in mutants
        ]
        for future in as_completed(futures):
            yield future.result()
