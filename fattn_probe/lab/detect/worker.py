"""A worker process: it sets a case up once, then runs each mutant in a child of one runner.

A run with the same output and launches as the baseline run needs no judgement; other runs share the case's models.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fattn_probe.base.digest import hexdigest
from fattn_probe.base.errors import FattnProbeError, LostError
from fattn_probe.base.files import scratch
from fattn_probe.base.process import describe_code, log
from fattn_probe.base.workers import Tell
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.lab.detect.verdicts import LOST, MISSING, Ending, killed_by
from fattn_probe.llama.build import RUNNER, Build
from fattn_probe.llama.launch.record import Names, Types
from fattn_probe.machine.run.capture import Capture, capture_of, make_case_file, write_part
from fattn_probe.machine.run.outcome import Missing, Ran, RunOutcome
from fattn_probe.machine.run.runner import KILLED, SIGPROF, Child, ForkedRunner, RunnerEndedError, forked_runner
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation
from fattn_probe.verdict.judge.cases import Answers, JudgedCase, judged, judged_case
from fattn_probe.verdict.judge.checks import Checks, UseModel

LEAST_SECONDS = 2.0
ERRORS = (FattnProbeError, ValueError, OSError)
"""The errors that may occur while a case is run and judged."""
OTHER_ORDER = "a different order of warps gives different bits"
SLOWER = 20.0
"""A run that takes this many times longer than the baseline run may hang."""


class HangError(LostError):
    """A run exceeded its time limit; a second run shows whether it hangs or the machine is busy."""


@dataclass(frozen=True)
class BuiltPart:
    """An entry of a suite on a target, with its builds, and how its cases are run and judged.

    `upstream`: an output is correct if its NMSE is within the bound of upstream's test; the models are not used.
    Without `judge`, a baseline run is not judged.
    """

    name: str
    options: RunOptions
    builds: Mapping[str, Build]
    target: Target
    checks: Checks
    upstream: bool = False
    judge: bool = True


@dataclass(frozen=True)
class BaselineRun:
    """A case without a mutant: how it fails, if it does; the mutants that it reaches, and those that infect it.

    A mutant infects a case if it changes a value in it; otherwise the run cannot differ. `part` is the index of the
    case's part. `seconds` is the time of a run, `judged` the time of its judgement. `launches` and `output` are hashes.
    """

    part: int
    case: Case
    failure: str
    seconds: float
    judged: float
    launches: str
    output: str
    reached: frozenset[int]
    infected: frozenset[int]


@dataclass(frozen=True)
class Trial:
    """A mutant tried on a case: the kind of kill (`by`, empty if it survives), and the reason.

    With MISSING, `said` is the missing symbol. `changed` is whether the launches differ.
    """

    mutant: int
    by: Ending
    said: str
    seconds: float
    changed: bool = False


@dataclass
class PreparedCase:
    """A prepared case: its file, the file of the part to run, and its result without a mutant.

    `output` is that of the baseline run, `baseline` its capture if there is one.
    """

    part: BuiltPart
    judged: JudgedCase
    file: Path
    share_file: Path | None
    runners: Sequence[ForkedRunner]
    output: tuple[bytes, str] = (b"", "")
    baseline: Capture | None = None
    limit: float = 0.0

    @cached_property
    def words(self) -> tuple[Types | None, Names | None]:
        """The names of types and kernels in launch records."""
        return self.judged.session.kernel_words

    @cached_property
    def beside(self) -> JudgedCase:
        """The case with its baseline output (if any) in place of the rounding model that the suite would compute.

        Without switches, the two would be identical. Switches end basic blocks, so g++ fuses different sums.
        """
        model: UseModel = "never" if self.part.upstream else self.part.checks.model
        checks = replace(self.judged.checks, model=model)
        return self.judged if self.baseline is None else replace(self.judged, baseline=self.baseline, checks=checks)

    def child(self, mutant: int = 0, schedule: int = 0) -> Child:
        """A run with a mutant and an order of warps.

        HangError if it takes longer than its limit, LostError if another process killed it: neither is a verdict.
        """
        try:
            found = self.runners[schedule].run(self.file, self.share_file, mutant, self.limit)
        except RunnerEndedError as error:
            raise (HangError(str(error)) if error.ending is not None else LostError(str(error))) from error
        if self.limit and found.code == SIGPROF:
            raise HangError(f"timed out after {self.limit:.1f} s of CPU time, {SLOWER:.0f} times that of the case")
        if found.code in KILLED:
            raise LostError(f"the run was {describe_code(found.code)}")
        return found

    def captured(self, outcome: RunOutcome) -> Capture | RunOutcome:
        """The capture of a run with an output; any other outcome unchanged."""
        if not isinstance(outcome, Ran):
            return outcome
        provenance = self.judged.session.provenance(self.part.target, self.judged.case.seed)
        return capture_of(self.judged.case, self.judged.inputs, outcome, provenance)

    def judge(self, child: Child, subject: JudgedCase) -> tuple[Ending, str]:
        """The kind of kill in a run and the reason, judged with the baseline output or without."""
        outcome = child.outcome(*self.words)
        if isinstance(outcome, Missing):
            return MISSING, outcome.symbol
        found = judged(subject, self.captured(outcome))
        if self.part.upstream and found.upstream is not None:
            return "" if found.upstream.passes else "verdict", found.upstream.reason
        by = killed_by(found)
        checker = by == "stopped" and found.finding is not None and self.part.options.flavour == "check"
        return "checker" if checker else by, found.reason.partition("\n")[0]

    def trial(self, mutant: int) -> Trial:
        """Try a mutant on this case, with each order of warps that its suite requests."""
        seconds, first, changed = 0.0, self.output, False
        for schedule in range(len(self.runners)):
            child = self.child(mutant, schedule)
            seconds, output = seconds + child.seconds, child.output
            if output == first and child.code == 0:
                continue
            if schedule > 0 and child.code == 0 and output[0] != first[0]:
                return Trial(mutant, "check", OTHER_ORDER, seconds, changed)
            changed = changed or output[1] != self.output[1]
            by, said = self.judge(child, self.beside)
            if by:
                return Trial(mutant, by, said, seconds, changed)
            first = output
        return Trial(mutant, "", "", seconds, changed)


@dataclass
class Worker:
    """A process's runners, and the case that it ran last."""

    parts: Sequence[BuiltPart]
    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)
    runners: dict[tuple[int, int], ForkedRunner] = field(default_factory=dict)
    last: tuple[tuple[int, str], PreparedCase] | None = None

    def runner(self, number: int, schedule: int) -> ForkedRunner:
        """The runner of a part with an order of warps; a new one if the last has ended."""
        part, key = self.parts[number], (number, schedule)
        if key not in self.runners or not self.runners[key].alive:
            folder = self.folder / f"{number}-{schedule}"
            folder.mkdir(exist_ok=True)
            session = session_of(part, Simulation(schedule, threads=1, reached=folder / "reached"))
            build = session.build_for(part.target)
            env, words = session.env(part.target), ("--backend", part.target.backend)
            start = forked_runner(build.program(RUNNER), words, env=env, folder=folder, timeout=60)
            self.runners[key] = self.stack.enter_context(start)
        return self.runners[key]

    def prepared(self, number: int, case: Case) -> PreparedCase:
        """A case of a part, set up unless it is the one that ran last."""
        part = self.parts[number]
        runners = [self.runner(number, schedule) for schedule in range(part.checks.repeat)]
        if self.last is not None and self.last[0] == (number, case.digest):
            self.last[1].runners = runners
            return self.last[1]
        self.last = None
        inputs = make_case_file(case, self.folder / "case.gguf")
        checks = replace(part.checks, repeat=1, batch_invariance=0, model="never")
        subject = judged_case(session_of(part, Simulation(threads=1)), Answers(case, inputs), part.target, checks)
        share, file = subject.part, self.folder / "part.gguf"
        if share is not None:
            write_part(share, case.op.sizes, file)
        made = PreparedCase(part, subject, inputs.file, None if share is None else file, runners)
        child = made.child()
        made.output, made.limit = child.output, max(LEAST_SECONDS, SLOWER * child.seconds)
        baseline = made.captured(child.outcome(*made.words))
        if isinstance(baseline, Capture):
            made.baseline = replace(baseline, dst=baseline.dst.copy())
        self.last = (number, case.digest), made
        return made

    def trial(self, number: int, case: Case, mutant: int) -> Trial:
        """Try a mutant on a case; a hang is a kill, and after any other error the trial is lost.

        A single timeout is not a verdict, because the machine may be busy. The mutant hangs if the case finishes
        without it, and a second run with it also times out. After an error the next run gets a new runner.
        """
        try:
            return self.prepared(number, case).trial(mutant)
        except HangError as error:
            log.debug("mutant %d in %s: %s; trying again", mutant, case.name, error)
        except ERRORS as error:
            return Trial(mutant, LOST, words_of(error), 0.0)
        try:
            made = self.prepared(number, case)
            try:
                made.limit = max(made.limit, SLOWER * made.child().seconds)  # at the present load of the machine
            except HangError as error:
                raise LostError(f"hangs without the mutant too: {error}; the machine is probably busy") from error
            return made.trial(mutant)
        except HangError as error:
            return Trial(mutant, "stopped", str(error), 0.0)
        except ERRORS as error:
            return Trial(mutant, LOST, words_of(error), 0.0)

    def trials(self, number: int, case: Case, mutants: Sequence[int]) -> list[Trial]:
        """Try several mutants on a case."""
        return [self.trial(number, case, mutant) for mutant in mutants]

    def baseline(self, number: int, case: Case) -> BaselineRun:
        """Run a case without a mutant; an error makes it fail."""
        try:
            began = time.monotonic()
            made = self.prepared(number, case)
            noted = noted_in(self.folder / f"{number}-0" / "reached")
            child = made.child()
            # Judged with the error model: compared with its own output, it would always pass.
            by, said = made.judge(child, made.judged) if self.parts[number].judge else ("", "")
            if not by and any(
                made.child(0, schedule).output != made.output for schedule in range(1, len(made.runners))
            ):
                by, said = "check", OTHER_ORDER
            dst, launches = (hexdigest(text) for text in made.output)
            failure = f"{by}: {said}" if by else ""
            return BaselineRun(number, case, failure, child.seconds, time.monotonic() - began, launches, dst, *noted)
        except ERRORS as error:
            return lost_run(number, case, words_of(error))


Task = partial[Any]
"""A task for a worker: one of its methods, with all arguments except `self` bound by name."""


def session_of(part: BuiltPart, simulation: Simulation) -> Session:
    """A session for a part."""
    return Session(replace(part.options, simulation=simulation), builds=dict(part.builds))


def noted_in(file: Path) -> tuple[frozenset[int], frozenset[int]]:
    """The mutants that a run reached and those that infected it, from its notes (native/sim/mutant.cpp)."""
    lines = [line.split() for line in file.read_text().splitlines()] if file.is_file() else []
    infected = frozenset(int(number) for number, changed in lines if changed == "1")
    return frozenset(int(number) for number, _ in lines), infected


def words_of(error: Exception) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def lost_run(number: int, case: Case, said: str) -> BaselineRun:
    """The baseline run of a case that could not be run."""
    return BaselineRun(number, case, f"{LOST}: {said}", 0.0, 0.0, "", "", frozenset(), frozenset())


@contextmanager
def working(parts: Sequence[BuiltPart], tell: Tell) -> Iterator[Callable[[Task], Any]]:
    """Yield the function that runs a task with this process's worker."""
    with scratch() as folder, ExitStack() as stack:
        worker = Worker(parts, folder, stack)
        yield lambda task: task(worker)
