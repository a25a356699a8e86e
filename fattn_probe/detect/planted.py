"""Whether suites catch planted faults: each case as the suite runs it, until one is caught."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fattn_probe.compare.diagnose.diagnosis import Diagnosis
from fattn_probe.compare.judge.cases import judge_case
from fattn_probe.compare.judge.checks import Checks
from fattn_probe.compare.judge.judgement import Judgement
from fattn_probe.compare.judge.support import LOST
from fattn_probe.detect.killed_by import BUILD, CHECK, STOPPED, SUPPORT, VERDICT, KilledBy
from fattn_probe.detect.measure import on_simulated
from fattn_probe.detect.recorded import Keep
from fattn_probe.detect.routine import Batch, Questions
from fattn_probe.detect.verdicts import decisive, judgement_of, weaker
from fattn_probe.device import Target
from fattn_probe.errors import BuildError, FattnProbeError
from fattn_probe.regress.entries import Given, own_cases, session_for
from fattn_probe.regress.pool import Job, cores, judged
from fattn_probe.regress.records import Result
from fattn_probe.regress.results import recorded
from fattn_probe.regress.suite import Entry, load_suite
from fattn_probe.run.prepare import prepare
from fattn_probe.run.session import Session
from fattn_probe.scenario import Case
from fattn_probe.shipped import folder
from fattn_probe.source.faults import HistoricFault


@dataclass(frozen=True)
class Caught:
    """The first result that gives a fault away.

    `said` is the reason and the diagnosis; `cause` is the diagnosis's first cause, empty if
    it says none, None without a diagnosis.
    """

    on: str
    case: str
    by: KilledBy
    said: str
    cause: str | None = None


@dataclass(frozen=True)
class Tried:
    """A suite on a release with a fault: what caught it, None if nothing did; cases judged, seconds with compiling.

    `digest` is that of the patch's changes; a result with another is out of date. So is that of a fault that is not
    caught with another `text`, the digest of the suite's file; of one that is caught, if the suite no longer has the
    case with its judgement, whose hash is `killer`.
    """

    fault: str
    digest: str
    suite: str
    caught: Caught | None
    cases: int
    seconds: float
    text: str = ""
    killer: str = ""

    def document(self) -> dict[str, Any]:
        """One line of a results file."""
        return asdict(self)


def tried_of(document: Mapping[str, Any]) -> Tried:
    """Read such a line."""
    caught = document["caught"]
    return Tried(**{**document, "caught": None if caught is None else Caught(**caught)})


def diagnosed_as(item: Tried, said: Mapping[tuple[str, str, str], str]) -> Tried:
    """A result with another first cause, given causes by fault, suite and case."""
    cause = None if item.caught is None else said.get((item.fault, item.suite, item.caught.case))
    if item.caught is None or cause is None:
        return item
    return replace(item, caught=replace(item.caught, cause=cause))


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
    killer = ""
    if caught is not None:
        case = next(case for case in batch.cases if case.name == caught.case)
        killer = killer_of(batch.entry, batch.target, case, decisive(batch.entry.check.checks, caught.by))
    return Tried(name, fault.patch.changes, asked.name, caught, tried, seconds, text_of(asked.name), killer)


def killer_of(entry: Entry, target: Target, case: Case, checks: Checks) -> str:
    """A hash of a case and of how it is run and judged."""
    text = json.dumps([judgement_of(entry, target, checks), case.digest])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def killers_of(suite: str) -> frozenset[str]:
    """The hashes of all cases of a shipped suite on its simulated GPUs, with their checks or weaker ones."""
    path = folder("suite") / f"{suite}.yaml"
    if not path.is_file():
        return frozenset()
    loaded = load_suite(path)
    cases = {entry.name: own_cases(entry, path.parent) for entry in loaded.parts}
    return frozenset(
        killer_of(entry, target, case, checks)
        for entry, target in on_simulated("faults", path, Given())
        for case in cases[entry.name]
        for checks in weaker(entry.check.checks)
    )


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
        return Caught(str(target), batch.cases[0].name, BUILD, str(error).splitlines()[0]), 0
    simulation = replace(session.options.simulation, threads=1)
    job = Job(judge, replace(session.options, simulation=simulation), session.builds, target)
    with closing(judged(job, batch.cases, cores(), session.progress)) as results:
        for result in results:
            done += 1
            by = given_away(result)
            if result.known and passes(next(case for case in batch.cases if case.name == result.name), plain, target):
                by = how_it_failed(result)
            if by:
                cause = result.cause if isinstance(result, Diagnosed) and by == VERDICT else None
                return Caught(str(target), result.name, by, result.failure or result.reason, cause), done
    return None, done


def passes(case: Case, session: Session, target: Target) -> bool:
    """Whether a case passes."""
    prepare(session, [(case, [target])])
    return judge_case(session, case, target).status == "pass"


def given_away(result: Result) -> KilledBy | Literal[""]:
    """How a result shows that something is wrong; empty if it does not. A known defect of upstream's is no news."""
    return "" if result.status == "pass" or result.known else how_it_failed(result)


def how_it_failed(result: Result) -> KilledBy:
    """How a result that does not pass shows that something is wrong, even if it looks like a known defect."""
    if result.status == "unsupported" or result.reason.startswith(LOST):
        return SUPPORT
    if result.status == "lost" or result.finding is not None:
        return STOPPED
    return CHECK if any(check.fails for check in result.checks) else VERDICT
