"""Whether suites catch planted faults: each case as the suite runs it, cheapest first, until one is caught."""

import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from fattn_probe.compare.diagnose.diagnosis import Diagnosis
from fattn_probe.compare.judge.cases import judge_case
from fattn_probe.compare.judge.checks import Checks
from fattn_probe.compare.judge.judgement import Judgement
from fattn_probe.compare.judge.support import LOST
from fattn_probe.detect.recorded import Keep
from fattn_probe.device import Target, load_devices
from fattn_probe.device.target import parse_target, picklable
from fattn_probe.errors import BuildError, FattnProbeError
from fattn_probe.regress.entries import Given, entries_on_targets, session_for
from fattn_probe.regress.pool import Job, cores, judged
from fattn_probe.regress.records import Result
from fattn_probe.regress.results import recorded
from fattn_probe.regress.selection import select
from fattn_probe.regress.suite import Entry, Suite, load_suite
from fattn_probe.run.prepare import prepare
from fattn_probe.run.required_kernels import required_kernels
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario import Case, expand, load
from fattn_probe.shipped import folder
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
SHOWS = "shows"
"""The name of the routine that runs a fault's own case."""


@dataclass(frozen=True)
class Caught:
    """The first result that gives a fault away.

    `by` is verdict, check (a finding of the checker, or of a repeated run), stopped (the run ended without an output),
    support or build; `said` is the reason and the diagnosis; `cause` is the diagnosis's first cause, empty if it says
    none, None without a diagnosis.
    """

    on: str
    case: str
    by: str
    said: str
    cause: str | None = None


@dataclass(frozen=True)
class Tried:
    """A suite on a release with a fault: what caught it, None if nothing did; cases judged, seconds with compiling.

    `digest` is that of the patch's changes and `text` that of the suite's file; a result with others is out of date.
    """

    fault: str
    digest: str
    suite: str
    caught: Caught | None
    cases: int
    seconds: float
    text: str = ""

    def document(self) -> dict[str, Any]:
        """One line of a results file."""
        return asdict(self)


def tried_of(document: Mapping[str, Any]) -> Tried:
    """Read such a line."""
    caught = document["caught"]
    return Tried(**{**document, "caught": None if caught is None else Caught(**caught)})


@dataclass(frozen=True)
class Batch:
    """Cases that are judged together: on a target, in a build of an entry's flavour, by its checks."""

    entry: Entry
    target: Target
    cases: Sequence[Case]


class Questions(Protocol):
    """What is asked of a release with a fault."""

    options: RunOptions

    @property
    def name(self) -> str:
        """The suite's name."""

    def get_ready(self) -> None:
        """Find the cases before the faults are tried."""

    def batches(self, fault: HistoricFault) -> Iterator[Batch]:
        """The cases that the fault can change."""


@dataclass
class Showing:
    """The cases in each fault's head."""

    options: RunOptions
    name: str = SHOWS

    def get_ready(self) -> None:
        """Nothing: the cases are in the heads."""

    def batches(self, fault: HistoricFault) -> Iterator[Batch]:
        """The cases of the head's scenarios on their devices, with the checker if it must catch the fault."""
        devices = load_devices()
        entry = Entry(flavour="check" if fault.catch == "check" else "release")
        for shown in fault.shows:
            yield Batch(entry, parse_target(f"sim:{shown.device}", devices), expand(load(shown.scenario)))


def diagnosed_as(item: Tried, said: Mapping[tuple[str, str, str], str]) -> Tried:
    """A result with another first cause, given causes by fault, suite and case."""
    cause = None if item.caught is None else said.get((item.fault, item.suite, item.caught.case))
    if item.caught is None or cause is None:
        return item
    return replace(item, caught=replace(item.caught, cause=cause))


Planned = dict[str, tuple[Case, frozenset[str]]]


@dataclass
class Routine:
    """A suite, its cases by entry and target, and the families of the kernels that each case needs without a fault."""

    path: Path
    options: RunOptions
    suite: Suite = field(init=False)
    targets: list[tuple[Entry, Target]] = field(init=False)
    _planned: dict[tuple[str, str], Planned] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.suite = load_suite(self.path)
        found = entries_on_targets(self.suite, self.path.parent, Given())
        self.targets = [(entry, picklable(target)) for entry, target in found if target.engine == "sim"]

    @property
    def name(self) -> str:
        """The suite's name."""
        return self.path.stem

    def get_ready(self) -> None:
        """Find the cases of all entries and targets, and what they need."""
        for entry, target in self.targets:
            self.planned(entry, target)

    def planned(self, entry: Entry, target: Target) -> Planned:
        """By name, the cases of an entry that the release supports on a target, with the families of their kernels."""
        key = entry.name, str(target)
        if key not in self._planned:
            dry = Session(replace(self.options, simulation=Simulation(dry=True)))
            cases, _ = select(entry, self.path.parent, dry, target)
            required_kernels(dry, cases, target)  # the dry runs of all cases at once
            families = {
                case.name: frozenset(kernel.family for kernel in required_kernels(dry, [case], target))
                for case in cases
            }
            self._planned[key] = {case.name: (case, families[case.name]) for case in cases if families[case.name]}
        return self._planned[key]

    def reached(self, patch: Patch, entry: Entry, target: Target) -> list[Case]:
        """The cases of an entry that a patch can change, those with the least work first."""
        files = set(CHANGED.findall(patch.text))
        families = {BY_FILE.get(file, "") for file in files}
        cases = self.planned(entry, target).values()
        found = [case for case, own in cases if "" in families or own & families]
        return sorted(found, key=lambda case: (case.op.sizes.flop, case.name))

    def batches(self, fault: HistoricFault) -> Iterator[Batch]:
        """The cases that a fault can change, entry by entry and target by target, in batches that double.

        Most faults are caught by the first few cases, and kernels compile batch by batch.
        """
        for entry, target in self.targets:
            left = self.reached(fault.patch, entry, target)
            for power in count():
                if not left:
                    break
                yield Batch(entry, target, left[: FIRST << power])
                left = left[FIRST << power :]


@dataclass(frozen=True)
class Diagnosed(Result):
    """A result whose `failure` has the diagnosis too; `cause` is as in Caught."""

    cause: str | None = None


@dataclass(frozen=True)
class Judge:
    """Judges cases as a suite does, for a worker process; wrong outputs are kept."""

    checks: Checks
    keep: Keep | None = None

    def __call__(self, session: Session, case: Case, target: Target) -> Result:
        """Judge a case; an error on the way makes it lost."""
        try:
            judgement = judge_case(session, case, target, self.checks)
        except FattnProbeError as error:
            return Result(case.name, case.digest, "lost", str(error), failure=str(error))
        if self.keep is not None:
            self.keep.add(judgement)
        return diagnosed(judgement)


def diagnosed(judgement: Judgement) -> Diagnosed:
    """A judgement as a result with its diagnosis."""
    found, plain = judgement.diagnosis, recorded(judgement, timed=False)
    said = judgement.reason if found is None else "; ".join([judgement.reason, *words_of(found)])
    return Diagnosed(**{**vars(plain), "failure": said}, cause=headline(found))


def words_of(diagnosis: Diagnosis) -> Iterator[str]:
    """A diagnosis: the causes, best first, then the patterns."""
    yield from (str(said.cause) for said in diagnosis.causes)
    yield from map(str, diagnosis.patterns)


def headline(diagnosis: Diagnosis | None) -> str | None:
    """The first cause of a diagnosis, empty if it says none."""
    if diagnosis is None:
        return None
    return diagnosis.causes[0].cause.kind if diagnosis.causes else ""


def try_fault(fault: HistoricFault, asked: Questions, keep: Path | None = None) -> Tried:
    """Run cases on a release with a fault until a result gives it away; wrong outputs are kept in a folder."""
    began, tried = time.monotonic(), 0
    caught, name = None, fault.patch.name
    plain = Session(asked.options)
    session = Session(replace(asked.options, patches=(fault.patch,)))
    kept = None if keep is None else Keep(keep, name, fault.patch.changes, asked.name)
    for batch in asked.batches(fault):
        judge = Judge(batch.entry.check.checks, kept)
        own, right = (session_for(batch.entry, one) for one in (session, plain))
        caught, done = try_batch(batch, own, right, judge)
        tried += done
        if caught is not None:
            break
    seconds = round(time.monotonic() - began, 1)
    return Tried(name, fault.patch.changes, asked.name, caught, tried, seconds, text_of(asked.name))


def text_of(suite: str) -> str:
    """The start of the sha256 of a shipped suite's file; empty for another, and for the faults' own cases."""
    path = folder("suite") / f"{suite}.yaml"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def try_batch(batch: Batch, session: Session, plain: Session, judge: Judge) -> tuple[Caught | None, int]:
    """Judge some cases; the first that gives a fault away, and the number that were judged.

    `plain` is a session without the fault: what looks like a known defect of upstream's is news if it passes there.
    """
    target, done = batch.target, 0
    try:
        prepare(session, [(case, [target]) for case in batch.cases])
    except BuildError as error:
        return Caught(str(target), batch.cases[0].name, "build", str(error).splitlines()[0]), 0
    simulation = replace(session.options.simulation, threads=1)
    job = Job(judge, replace(session.options, simulation=simulation), session.builds, target)
    with closing(judged(job, batch.cases, cores(), session.progress)) as results:
        for result in results:
            done += 1
            by = given_away(result)
            if result.known and passes(next(case for case in batch.cases if case.name == result.name), plain, target):
                by = "verdict"
            if by:
                cause = result.cause if isinstance(result, Diagnosed) and by == "verdict" else None
                return Caught(str(target), result.name, by, result.failure or result.reason, cause), done
    return None, done


def passes(case: Case, session: Session, target: Target) -> bool:
    """Whether a case passes."""
    prepare(session, [(case, [target])])
    return judge_case(session, case, target).status == "pass"


def given_away(result: Result) -> str:
    """How a result shows that something is wrong; empty if it does not. A known defect of upstream's is no news."""
    if result.status == "pass" or result.known:
        return ""
    if result.status == "unsupported" or result.reason.startswith(LOST):
        return "support"
    if result.status == "lost" or result.finding is not None:
        return "stopped"
    return "check" if any(check.fails for check in result.checks) else "verdict"
