"""Determine whether suites catch the faults in the corpus: run cases as the suite does, until one catches the fault."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from fattn_probe.base.console import NOTES
from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document
from fattn_probe.base.errors import BuildError, FattnProbeError, LostError
from fattn_probe.base.host import cores
from fattn_probe.base.workers import Died, Tell, Workers, threads
from fattn_probe.cases.device import Target, is_amd, load_devices
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.shipped import folder
from fattn_probe.daily.regress.entries import Given, own_cases, session_for
from fattn_probe.daily.regress.pool import Job, judged
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.results import recorded
from fattn_probe.daily.regress.suite import Entry, load_suite
from fattn_probe.lab.detect.measure import on_simulated
from fattn_probe.lab.detect.verdicts import KilledBy, decisive, how_it_failed, judgement_of, killed_by, weaker
from fattn_probe.llama.source.faults import HistoricFault
from fattn_probe.machine.run.base import base_of, changed
from fattn_probe.machine.run.orders import ENDED, alone, differences
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.session import Session, arch_of
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis
from fattn_probe.verdict.judge.cases import judge_case
from fattn_probe.verdict.judge.checks import Checks
from maintain.fault_cases import CaseBatch, SuiteCases, batches_of
from maintain.outputs import Keep

LAUNCH: Final = "launch"
"""The kind for launches that the fault changes; `regress --patch` reports these although the output is correct."""
OVERLAP = 1.5
"""The jobs' shares of the cores add up to this multiple of all cores, as a job often waits for its last compiler."""


@dataclass(frozen=True)
class Caught:
    """The first result that catches a fault; `by` is LAUNCH only if no result fails.

    `said` is the reason and the diagnosis; `cause` is the first cause in the diagnosis, empty if it has none, and None
    without a diagnosis.
    """

    on: str
    case: str
    by: KilledBy | Literal["launch"]
    said: str
    cause: str | None = None


@dataclass(frozen=True)
class Tried:
    """A suite on a release with a fault: the result that `caught` it, or None; cases judged; seconds, with compiling.

    `digest` is the digest of the patch's changes, `text` that of the suite's file, and `killer` the hash of the case
    that caught the fault and of its judgement. A result is out of date if the patch has changed. It is also out of date
    if the fault was not caught and the suite's file has changed, or if the fault was caught and the suite no longer has
    the case that caught it.
    """

    fault: str
    digest: str
    suite: str
    caught: Caught | None
    cases: int
    seconds: float
    text: str = ""
    killer: str = ""


TRIED = Document("a result for a fault", Tried)
"""One line of a results file."""


@dataclass(frozen=True)
class Diagnosed(Result):
    """A result whose `failure` includes the diagnosis; `cause` is as in Caught."""

    cause: str | None = None


def diagnosed(checks: Checks, keep: Keep | None, session: Session, case: Case, target: Target) -> Result:
    """Judge a case as a suite does, and diagnose it; after an error, the case is lost; wrong outputs are kept."""
    try:
        judgement = judge_case(session, case, target, checks)
    except FattnProbeError as error:
        return Result.lost(case, str(error))
    if keep is not None:
        keep.add(judgement)
    found, words = judgement.diagnosis, [judgement.reason]
    if found is not None:
        words += [*(str(said.cause) for said in found.causes), *map(str, found.patterns)]
    plain = vars(recorded(judgement, timed=False))
    return Diagnosed(**{**plain, "failure": "; ".join(words)}, cause=first_cause(found))


def first_cause(diagnosis: Diagnosis | None) -> str | None:
    """The kind of a diagnosis's first cause, empty if it has none."""
    if diagnosis is None:
        return None
    return diagnosis.causes[0].cause.kind if diagnosis.causes else ""


def try_faults(
    faults: Iterable[HistoricFault], suite: SuiteCases, jobs: int, until: float, keep: Path | None
) -> Iterator[Tried]:
    """Try several faults at once, each with its share of the cores; yields the results as they arrive.

    No fault starts after `until`, a time of `time.time`; wrong outputs go to `keep`. A fault whose worker process ends
    has no result; LostError at the end names these faults.
    """
    lost, begin = [], partial(trying, suite=suite, until=until, keep=keep)
    share = max(1, round(OVERLAP * cores() / jobs))
    with Workers[HistoricFault, Tried | None](begin, jobs, threads=share) as pool:
        for fault, found in pool.answers(faults):
            if isinstance(found, Died):
                lost.append(f"{fault.patch.name} ({suite.name}: {found.how})")
            elif found is not None:
                yield found
    if lost:
        raise LostError(f"no result for {', '.join(lost)}")


@contextmanager
def trying(
    tell: Tell, suite: SuiteCases, until: float, keep: Path | None
) -> Iterator[Callable[[HistoricFault], Tried | None]]:
    """Provide a worker's function: None after `until`, or if a fault could not be tried, which stderr explains."""

    def tried(fault: HistoricFault) -> Tried | None:
        if time.time() > until:
            return None
        try:
            return try_fault(fault, suite, keep)
        except FattnProbeError as error:
            NOTES.print(f"{fault.patch.name}: {suite.name}: {error}", soft_wrap=True)
            return None

    yield tried


def try_fault(fault: HistoricFault, suite: SuiteCases, keep: Path | None = None) -> Tried:
    """Run cases on a release with a fault until a result catches the fault; wrong outputs are kept in a folder."""
    began, tried = time.monotonic(), 0
    name, digest = fault.patch.name, fault.patch.changes
    plain = Session(suite.options)
    session = Session(replace(suite.options, patches=(fault.patch,)))
    kept = None if keep is None else Keep(keep, name, digest, suite.name)
    batches, catches = list(batches_of(suite, fault)), list[tuple[Caught, CaseBatch]]()
    for batch in batches:
        own, without = (session_for(batch.entry, one) for one in (session, plain))
        found, done = try_batch(batch, own, without, kept)
        tried += done
        catches += [(one, batch) for one in found]
        if catches and catches[-1][0].by != LAUNCH:
            break
    else:
        catches += in_random_orders(batches, session)
    caught, killer = None, ""
    if catches:
        caught, batch = next((item for item in catches if item[0].by != LAUNCH), catches[0])
        case = next(case for case in batch.cases if case.name == caught.case)
        by = "checker" if caught.by == LAUNCH else caught.by  # neither kind depends on checks of correct outputs
        killer = killer_of(batch.entry, batch.target, case, decisive(batch.entry.check.checks, by))
    seconds = round(time.monotonic() - began, 1)
    return Tried(name, digest, suite.name, caught, tried, seconds, text_of(suite.name), killer)


def try_batch(batch: CaseBatch, session: Session, plain: Session, keep: Keep | None) -> tuple[list[Caught], int]:
    """Judge some cases, up to the first failure; returns the first changed launch, the failure, and the number judged.

    `plain` is a session without the fault: an apparent known defect of llama.cpp comes from the fault if the case
    passes there.
    """
    target, done, found = batch.target, 0, list[Caught]()
    try:
        prepare(session, [(case, [target]) for case in batch.cases])
    except BuildError as error:
        return [Caught(str(target), batch.cases[0].name, "build", str(error).splitlines()[0])], 0
    base = base_of(session.options)
    before = {} if base is None else base.launches(batch.cases, target, session.progress)
    of_base = {case.name: before.get(case.op.digest) for case in batch.cases}
    options = replace(session.options, simulation=replace(session.options.simulation, threads=1))
    job = Job(partial(diagnosed, batch.entry.check.checks, keep), options, session.builds, target)
    with closing(judged(job, batch.cases, cores(), session.progress)) as results:
        for result in results:
            done += 1
            by = killed_by(result)
            if result.known:
                case = next(case for case in batch.cases if case.name == result.name)
                by = how_it_failed(result) if passes(case, plain, target, batch.entry.check.checks) else by
            launched = of_base[result.name]
            if launched is not None and result.output and not found and (words := changed(launched, result.kernels)):
                found.append(Caught(str(target), result.name, LAUNCH, words))
            if by:
                cause = result.cause if isinstance(result, Diagnosed) and by == "verdict" else None
                return [*found, Caught(str(target), result.name, by, result.failure or result.reason, cause)], done
    return found, done


def in_random_orders(batches: Iterable[CaseBatch], session: Session) -> Iterator[tuple[Caught, CaseBatch]]:
    """For each entry that checks orders, the first case whose output depends on the cases that run before it."""
    entries = dict[tuple[str, str], CaseBatch]()
    for batch in batches:
        key, checks = (batch.entry.name, str(batch.target)), batch.entry.check.checks
        cases = [case for case in batch.cases if checks.order and not checks.may_take_part(case)]
        known = {case.name: case for case in (*(entries[key].cases if key in entries else ()), *cases)}
        entries[key] = CaseBatch(batch.entry, batch.target, list(known.values()))
    for batch in (batch for batch in entries.values() if batch.cases):
        own, target = session_for(batch.entry, session), batch.target
        with threads(cores()) as pool:
            outputs = list(pool.map(lambda case, own=own, target=target: alone(own, case, target), batch.cases))
        pairs = zip(batch.cases, outputs, strict=True)
        expected = {case.name: output for case, output in pairs if not output.startswith(ENDED)}
        cases = [case for case in batch.cases if case.name in expected]
        seeds = range(1, batch.entry.check.checks.order + 1)
        found = (one for seed in seeds for one in differences(own, cases, target, seed, expected))
        for difference in islice(found, 1):
            yield Caught(str(target), difference.case, "check", f"not the same in every order: {difference}"), batch


def passes(case: Case, session: Session, target: Target, checks: Checks) -> bool:
    """Whether a case passes with these checks."""
    prepare(session, [(case, [target])])
    return judge_case(session, case, target, checks).status == "pass"


def killer_of(entry: Entry, target: Target, case: Case, checks: Checks) -> str:
    """A hash of a case and of how it is run and judged."""
    return short(json.dumps([judgement_of(entry, target, checks), case.digest]))


@cache
def killers_of(suite: str) -> frozenset[str]:
    """The hashes of all cases of a shipped suite on its simulated GPUs, with their checks or weaker ones."""
    path = folder("suite") / f"{suite}.yaml"
    if not path.is_file():
        return frozenset()
    cases = {entry.name: own_cases(entry, path.parent) for entry in load_suite(path).parts}
    return frozenset(
        killer_of(entry, target, case, checks)
        for entry, target in on_simulated("faults", path, Given())
        for case in cases[entry.name]
        for checks in weaker(entry.check.checks)
    )


def of_its_vendors(faults: Iterable[HistoricFault], suite: str) -> dict[str, HistoricFault]:
    """The faults (by name) that show on GPUs of a shipped suite's simulated vendors; all faults for other suites."""
    path, devices, vendors = folder("suite") / f"{suite}.yaml", load_devices(), {False, True}
    if path.is_file():
        vendors = {is_amd(arch_of(target)) for _, target in on_simulated("faults", path, Given())}
    shown = {fault: {is_amd(devices[one.device].arch) for one in fault.shows} for fault in faults}
    return {fault.patch.name: fault for fault, own in shown.items() if own & vendors}


def text_of(suite: str) -> str:
    """The start of the sha256 of a shipped suite's file; empty for other suites and for the faults' own cases."""
    path = folder("suite") / f"{suite}.yaml"
    return short(path.read_bytes()) if path.is_file() else ""
