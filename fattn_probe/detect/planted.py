"""Whether suites catch planted faults: each case as the suite runs it, cheapest first, until one is caught."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from fattn_probe.compare.diagnose.diagnosis import Diagnosis
from fattn_probe.compare.judge.cases import judge_case
from fattn_probe.compare.judge.checks import Checks
from fattn_probe.device import Target, load_devices, parse_targets
from fattn_probe.errors import BuildError, FattnProbeError
from fattn_probe.regress.pool import Job, cores, judged
from fattn_probe.regress.records import Result
from fattn_probe.regress.results import recorded
from fattn_probe.regress.selection import select
from fattn_probe.regress.suite import Suite, load_suite
from fattn_probe.run.prepare import prepare
from fattn_probe.run.required_kernels import required_kernels
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario import Case
from fattn_probe.source.faults import HistoricFault
from fattn_probe.source.patches import Patch

BY_FILE = {
    "fattn-mma-f16.cuh": "mma",
    "fattn-tile.cuh": "tile",
    "fattn-tile.cu": "tile",
    "fattn-vec.cuh": "vec",
}
"""Files of one family of kernels: a change in them changes no case of another family."""
CHANGED = re.compile(r"^\+\+\+ b/\S*?([\w.-]+)$", re.MULTILINE)
FIRST = 8  # cases of the first batch; each batch has twice the cases of the one before
SMALL = frozenset({"a", "an", "and", "of", "the", "that", "some", "in", "into", "to"})
"""Words of a cause that a diagnosis need not repeat."""


@dataclass(frozen=True)
class Caught:
    """The first result that gives a fault away.

    `by` is verdict, check (a finding of the checker, or of a repeated run), stopped (the run ended without an output),
    support or build; `said` is the reason and the diagnosis; `named` whether that names the fault's cause.
    """

    on: str
    case: str
    by: str
    said: str
    named: bool


@dataclass(frozen=True)
class Tried:
    """A suite on a release with a fault: what caught it, None if nothing did; cases judged, seconds with compiling."""

    fault: str
    digest: str
    suite: str
    caught: Caught | None
    cases: int
    seconds: float

    def document(self) -> dict[str, Any]:
        """One line of a results file."""
        return asdict(self)


def tried_of(document: Mapping[str, Any]) -> Tried:
    """Read such a line."""
    caught = document["caught"]
    return Tried(**{**document, "caught": None if caught is None else Caught(**caught)})


@dataclass
class Routine:
    """A suite, its cases on each target, and the families of the kernels that each case needs without a fault."""

    path: Path
    options: RunOptions
    suite: Suite = field(init=False)
    targets: tuple[Target, ...] = field(init=False)
    _planned: dict[str, dict[str, tuple[Case, frozenset[str]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.suite = load_suite(self.path)
        self.targets = tuple(parse_targets(",".join(self.suite.on), load_devices()))

    def planned(self, target: Target) -> Mapping[str, tuple[Case, frozenset[str]]]:
        """By name, the cases that the release supports on a target, with the families of their kernels."""
        if str(target) not in self._planned:
            dry = Session(replace(self.options, simulation=Simulation(dry=True)))
            cases, _ = select(self.suite, self.path.parent, dry, target)
            required_kernels(dry, cases, target)  # the dry runs of all cases at once
            families = {
                case.name: {kernel.family for kernel in required_kernels(dry, [case], target)} for case in cases
            }
            self._planned[str(target)] = {
                case.name: (case, frozenset(families[case.name])) for case in cases if families[case.name]
            }
        return self._planned[str(target)]

    def reached(self, patch: Patch, target: Target) -> list[Case]:
        """The cases that a patch can change, those with the least work first."""
        files = set(CHANGED.findall(patch.text))
        families = {BY_FILE.get(file, "") for file in files}
        cases = self.planned(target).values()
        found = [case for case, own in cases if "" in families or own & families]
        return sorted(found, key=lambda case: (case.op.sizes.flop, case.name))

    def batches(self, patch: Patch) -> Iterator[tuple[Target, Sequence[Case]]]:
        """The cases that a patch can change, target by target, in batches that double.

        Most faults are caught by the first few cases, and kernels compile batch by batch.
        """
        for target in self.targets:
            left = self.reached(patch, target)
            for power in count():
                if not left:
                    break
                yield target, left[: FIRST << power]
                left = left[FIRST << power :]


def judged_in_words(session: Session, case: Case, target: Target, checks: Checks) -> Result:
    """Judge a case as the suite does; the failure's text has the diagnosis too."""
    judgement = judge_case(session, case, target, checks)
    words = "" if judgement.diagnosis is None else "; " + "; ".join(words_of(judgement.diagnosis))
    return replace(recorded(judgement, timed=False), failure=judgement.reason + words)


def words_of(diagnosis: Diagnosis) -> Iterator[str]:
    """A diagnosis: the causes, best first, then the patterns."""
    yield from (f"{cause.words} ({cause.detail})" if cause.detail else cause.words for cause, _ in diagnosis.causes)
    yield from map(str, diagnosis.patterns)


def names(said: str, cause: str) -> bool:
    """Whether a text has every word of a cause but the small ones."""
    words = re.findall(r"[\w./-]+", said.lower())
    return all(word in words for word in re.findall(r"[\w./-]+", cause.lower()) if word not in SMALL)


def try_fault(fault: HistoricFault, routine: Routine, say: Callable[[str], None]) -> Tried:
    """Run a suite on a release with a fault until a result gives it away."""
    began, tried = time.monotonic(), 0
    caught = None
    session = Session(replace(routine.options, patches=(fault.patch,)))
    for target, batch in routine.batches(fault.patch):
        say(f"{fault.patch.name}: {routine.path.stem} on {target}, {tried} cases so far")
        caught, done = try_batch(batch, target, session, routine.suite.check.checks, fault.cause)
        tried += done
        if caught is not None:
            break
    seconds = round(time.monotonic() - began, 1)
    return Tried(fault.patch.name, fault.patch.digest, routine.path.stem, caught, tried, seconds)


def try_batch(
    cases: Sequence[Case], target: Target, session: Session, checks: Checks, cause: str
) -> tuple[Caught | None, int]:
    """Judge some cases; the first that gives a fault away, and the number that were judged."""
    try:
        prepare(session, [(case, [target]) for case in cases])
    except BuildError as error:
        said = str(error)
        return Caught(str(target), cases[0].name, "build", said.splitlines()[0], names(said, cause)), 0
    simulation = replace(session.options.simulation, threads=1)
    judge = Judge(checks)
    job = Job(judge, replace(session.options, simulation=simulation), session.builds, target)
    done = 0
    with closing(judged(job, cases, cores(), session.progress)) as results:
        for result in results:
            done += 1
            if by := given_away(result):
                said = result.failure or result.reason
                return Caught(str(target), result.name, by, said, names(said, cause)), done
    return None, done


@dataclass(frozen=True)
class Judge:
    """`judged_in_words` with a suite's checks, for a worker process."""

    checks: Checks

    def __call__(self, session: Session, case: Case, target: Target) -> Result:
        """Judge a case; an error on the way makes it lost."""
        try:
            return judged_in_words(session, case, target, self.checks)
        except FattnProbeError as error:
            return Result(case.name, case.digest, "lost", str(error), failure=str(error))


def given_away(result: Result) -> str:
    """How a result shows that something is wrong; empty if it does not. A known defect of upstream's is no news."""
    if result.status == "pass" or result.known:
        return ""
    if result.status == "unsupported":
        return "support"
    if result.status == "lost" or result.finding is not None:
        return "stopped"
    return "check" if any(check.fails for check in result.checks) else "verdict"
