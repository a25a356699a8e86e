"""What runs mutants in a worker process: a case is set up once, and each mutant's run is a child of one runner.

A run whose output and launches have the bits of the run without a mutant needs no judgement; the reference and the
models of the others are computed once for a case.
"""

import atexit
import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from threadpoolctl import threadpool_limits

from fattn_probe.arrays import I64
from fattn_probe.build import RUNNER, Build
from fattn_probe.compare.judge.cases import JudgedCase, known_constants, uses_model
from fattn_probe.compare.judge.checks import Checks, UseModel
from fattn_probe.compare.judge.expected import Expected
from fattn_probe.compare.judge.judgement import Judgement
from fattn_probe.detect.killed_by import CHECK, CHECKER, LOST, MISSING, STOPPED, VERDICT, Ending
from fattn_probe.detect.planted import given_away
from fattn_probe.device import Target
from fattn_probe.errors import FattnProbeError, LostError
from fattn_probe.launch.architecture import arch_number
from fattn_probe.launch.record import Names, Types
from fattn_probe.regress.results import recorded
from fattn_probe.run.capture import Capture, capture_of
from fattn_probe.run.forked import Child, ForkedRunner, forked_runner
from fattn_probe.run.inputs import FiledInputs, make_case_file
from fattn_probe.run.outcome import Missing, Ran, RunOutcome
from fattn_probe.run.part import Part, write_part
from fattn_probe.run.session import RunOptions, Session, arch_of
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario import Case
from fattn_probe.scratch import scratch
from fattn_probe.truth.rounding_model import has_model

LEAST_SECONDS = 2.0
ERRORS = (FattnProbeError, ValueError, OSError)
"""What can go wrong while a case is run and judged."""
OTHER_ORDER = "another order of warps gives other bits"
SLOWER = 20.0
"""A run that takes so many times longer than without a mutant hangs."""


@dataclass(frozen=True)
class Work:
    """An entry of a suite on a target: how its cases are run and judged.

    `upstream`: an output is right if upstream's test would say so, by its bound of the NMSE, without our models.
    Without `judge`, a case without a mutant is only run.
    """

    name: str
    options: RunOptions
    builds: Mapping[str, Build]
    target: Target
    checks: Checks
    upstream: bool = False
    judge: bool = True


@dataclass(frozen=True)
class Alone:
    """A case without a mutant: how it fails, if it does; the mutants it reaches, and those of them that it `felt`.

    A mutant that is not felt gives no other value anywhere in the case: its run would be the same. `work` is the index
    of what the case belongs to. `seconds` are those of a run, `judged` of all that its judgement takes. `launches` and
    `output` are hashes.
    """

    work: int
    case: Case
    failure: str
    seconds: float
    judged: float
    launches: str
    output: str
    reached: frozenset[int]
    felt: frozenset[int]


@dataclass(frozen=True)
class Trial:
    """A mutant in a case: what gives it away (`by`, empty if nothing does), and what was said.

    With MISSING, `said` is the missing symbol. `changed` is whether the launches are others.
    """

    mutant: int
    by: Ending
    said: str
    seconds: float
    changed: bool = False


@dataclass(frozen=True)
class AgainstAlone(JudgedCase):
    """A case with mutants. Its output without one stands for the rounding model, and wrong outputs are not explained.

    Without switches the two are equal in every bit. With them, g++ fuses other multiply-adds: they end basic blocks.
    `model` says when the release's routine would compute the model; `beside` is the capture without a mutant, None if
    the output is to be judged by the error model.
    """

    model: UseModel = "auto"
    beside: Capture | None = None

    def expected(self, capture: Capture, target: Target, rows: I64 | None = None) -> Expected:
        """The error model's prediction, and the output without a mutant if its kernels have a rounding model."""
        found = super().expected(capture, target, rows)
        arch, constants = arch_number(arch_of(target)), known_constants(self.session.options.tree)
        if self.beside is None or constants is None or capture.launches != self.beside.launches:
            return found
        if not uses_model(self.case, capture, arch, self.model, constants=constants, rows=rows):
            return found
        if not has_model(capture.launches, arch, constants):
            return found
        dst = self.beside.dst
        return replace(found, model=dst if rows is None else dst[tuple(rows.T)][None, :, None])

    def diagnosed(self, found: Judgement, capture: Capture, target: Target) -> Judgement:
        """The judgement as it is."""
        return found


@dataclass
class Place:
    """A case in its place on a bench: its file, its part if only one is run, and how it ends without a mutant.

    `alone` is the output without a mutant, `without` its capture if it ended with one.
    """

    work: Work
    judged: AgainstAlone
    file: Path
    part: Part | None
    part_file: Path | None
    runners: Sequence[ForkedRunner]
    words: tuple[Types | None, Names | None]
    alone: tuple[bytes, str] = (b"", "")
    without: Capture | None = None
    limit: float = 0.0

    @cached_property
    def beside(self) -> AgainstAlone:
        """The case judged beside its own output."""
        return replace(self.judged, beside=self.without)

    def child(self, mutant: int = 0, schedule: int = 0) -> Child:
        """A run with a mutant and an order of warps."""
        return self.runners[schedule].run(self.file, self.part_file, mutant, self.limit)

    def captured(self, outcome: RunOutcome) -> Capture | RunOutcome:
        """The capture of a run with an output; what became of any other."""
        if not isinstance(outcome, Ran):
            return outcome
        provenance = self.judged.session.provenance(self.judged.case, self.work.target)
        return capture_of(self.judged.case, self.judged.inputs, outcome, provenance)

    def judge(self, child: Child, judged: AgainstAlone) -> tuple[Ending, str]:
        """What gives a run away, judged beside the case's own output or not, and what is said of it."""
        outcome = child.outcome(*self.words)
        if isinstance(outcome, Missing):
            return MISSING, outcome.symbol
        found = judged.judged(self.captured(outcome), self.work.target, self.part)
        if self.work.upstream and found.upstream is not None:
            return "" if found.upstream.passes else VERDICT, found.upstream.reason
        by = given_away(recorded(found, timed=False))
        checker = by == STOPPED and found.finding is not None and self.work.options.flavour == "check"
        return CHECKER if checker else by, found.reason.partition("\n")[0]

    def tried(self, mutant: int) -> Trial:
        """A mutant in this case, with each order of warps that its suite asks for."""
        seconds, first, changed = 0.0, self.alone, False
        for schedule in range(len(self.runners)):
            child = self.child(mutant, schedule)
            seconds, output = seconds + child.seconds, child.output
            if output == first and child.code == 0:
                continue
            if schedule > 0 and child.code == 0 and output[0] != first[0]:
                return Trial(mutant, CHECK, OTHER_ORDER, seconds, changed)
            changed = changed or output[1] != self.alone[1]
            by, said = self.judge(child, self.beside)
            if by:
                return Trial(mutant, by, said, seconds, changed)
            first = output
        return Trial(mutant, "", "", seconds, changed)


@dataclass
class Bench(ExitStack):
    """A worker's runners, and the case that it ran last; `here` is that of this process."""

    here: ClassVar["Bench"]
    works: Sequence[Work]
    folder: Path
    runners: dict[tuple[int, int], ForkedRunner] = field(default_factory=dict)
    last: tuple[tuple[int, str], Place] | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def runner(self, number: int, schedule: int) -> ForkedRunner:
        """The runner of some work with an order of warps; a new one if the last has ended."""
        work, key = self.works[number], (number, schedule)
        if key not in self.runners or not self.runners[key].batch.alive:
            folder = self.folder / f"{number}-{schedule}"
            folder.mkdir(exist_ok=True)
            session = self.session(work, Simulation(schedule, threads=1, reached=folder / "reached"))
            build = session.build_for(work.target)
            env, words = session.env(work.target), ("--backend", work.target.backend)
            start = forked_runner(build.program(RUNNER), words, env=env, folder=folder, timeout=60)
            self.runners[key] = self.enter_context(start)
        return self.runners[key]

    def session(self, work: Work, simulation: Simulation) -> Session:
        """A session of some work."""
        return Session(replace(work.options, simulation=simulation), builds=dict(work.builds))

    def place(self, number: int, case: Case) -> Place:
        """A case, set up unless it is the one that ran last."""
        work = self.works[number]
        runners = [self.runner(number, schedule) for schedule in range(work.checks.repeat)]
        if self.last is not None and self.last[0] == (number, case.digest):
            self.last[1].runners = runners
            return self.last[1]
        self.last = None
        inputs: FiledInputs = make_case_file(case, self.folder / "case.gguf")
        checks = replace(work.checks, repeat=1, batch_invariance=0, model="never")
        model: UseModel = "never" if work.upstream else work.checks.model
        judged = AgainstAlone(self.session(work, Simulation(threads=1)), case, inputs, checks, model=model)
        part, file = judged.part(work.target), self.folder / "part.gguf"
        if part is not None:
            write_part(part, case.op.sizes, file)
        words = judged.session.kernel_words
        bare = Place(work, judged, inputs.file, part, None if part is None else file, runners, words)
        child = bare.child()
        alone, limit = bare.captured(child.outcome(*words)), max(LEAST_SECONDS, SLOWER * child.seconds)
        without = replace(alone, dst=alone.dst.copy()) if isinstance(alone, Capture) else None
        place = replace(bare, alone=child.output, without=without, limit=limit)
        self.last = (number, case.digest), place
        return place

    def tried(self, number: int, case: Case, mutant: int) -> Trial:
        """A mutant in a case. A run that ends its runner or hangs is stopped; after any other error it is lost.

        The next mutant then gets a new runner.
        """
        try:
            place = self.place(number, case)
        except ERRORS as error:
            return Trial(mutant, LOST, words_of(error), 0.0)
        try:
            return place.tried(mutant)
        except LostError as error:
            return Trial(mutant, STOPPED, words_of(error), 0.0)
        except ERRORS as error:
            return Trial(mutant, LOST, words_of(error), 0.0)

    def run_alone(self, number: int, case: Case) -> Alone:
        """Judge a case without a mutant, by the error model: beside its own output none would be wrong."""
        began = time.monotonic()
        place = self.place(number, case)
        noted = noted_in(self.folder / f"{number}-0" / "reached")
        child = place.child()
        by, said = place.judge(child, place.judged) if self.works[number].judge else ("", "")
        if not by and any(place.child(0, schedule).output != place.alone for schedule in range(1, len(place.runners))):
            by, said = CHECK, OTHER_ORDER
        dst, launches = (hashlib.sha256(text).hexdigest() for text in (place.alone[0], place.alone[1].encode()))
        failure = f"{by}: {said}" if by else ""
        return Alone(number, case, failure, child.seconds, time.monotonic() - began, launches, dst, *noted)


def noted_in(file: Path) -> tuple[frozenset[int], frozenset[int]]:
    """The mutants that a run reached and those that it felt, from its notes (native/sim/mutant.cpp)."""
    lines = [line.split() for line in file.read_text().splitlines()] if file.is_file() else []
    return frozenset(int(number) for number, _ in lines), frozenset(
        int(number) for number, felt in lines if felt == "1"
    )


def start(works: Sequence[Work]) -> None:
    """Make this worker process's bench."""
    stack = ExitStack()
    stack.enter_context(threadpool_limits(1, "blas"))
    bench = Bench(works, stack.enter_context(scratch()))
    stack.push(bench)
    atexit.register(stack.close)
    Bench.here = bench


def run_alone(number: int, case: Case) -> Alone:
    """A case without a mutant, on this process's bench; an error on the way makes it fail."""
    try:
        return Bench.here.run_alone(number, case)
    except ERRORS as error:
        return Alone(number, case, f"{LOST}: {words_of(error)}", 0.0, 0.0, "", "", frozenset(), frozenset())


def words_of(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def run_mutants(number: int, case: Case, mutants: Sequence[int]) -> list[Trial]:
    """A case with each of some mutants, on this process's bench."""
    return [Bench.here.tried(number, case, mutant) for mutant in mutants]
