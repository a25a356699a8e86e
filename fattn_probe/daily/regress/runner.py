"""Run a suite: a failing case does not affect others, and every result goes to the history at once."""

import functools
import platform
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from fattn_probe.base.errors import BuildError, LostError
from fattn_probe.base.figures import number_of
from fattn_probe.base.fingerprint import Fingerprint
from fattn_probe.base.host import cores
from fattn_probe.base.process import log
from fattn_probe.base.workers import prepare_workers
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.changes import (
    ALARMS,
    NO_VERDICT,
    Change,
    ChangeKind,
    base_changes,
    changes,
    time_changes,
)
from fattn_probe.daily.regress.cluster import Cluster
from fattn_probe.daily.regress.history import History
from fattn_probe.daily.regress.night import Night
from fattn_probe.daily.regress.pool import Job, judged
from fattn_probe.daily.regress.records import ORDER, WHOLE, Identity, Result, Run, RunPart, Settings, StoredCase
from fattn_probe.daily.regress.results import OnResult, result_of, result_without_times, unseen
from fattn_probe.daily.regress.resume import take_over
from fattn_probe.daily.regress.selection import CaseSelection, matching
from fattn_probe.llama.source import kernel_cases
from fattn_probe.machine.run.base import base_of, changed
from fattn_probe.machine.run.fingerprint import fingerprint_of
from fattn_probe.machine.run.gpu import gpu_name
from fattn_probe.machine.run.kernels_by_op import op_digest
from fattn_probe.machine.run.orders import order_differences
from fattn_probe.machine.run.prepare import prepare as prepare_kernels
from fattn_probe.machine.run.provenance import driver, version
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.judge.bitwise import Check
from fattn_probe.verdict.judge.checks import Checks


@dataclass(frozen=True)
class Outcome:
    """One run of a suite on one target, compared with the baseline.

    `accepted` is the reason if it was accepted; `seconds` is the time that its cases took, without compiling.
    """

    run: Run
    results: Mapping[str, Result]
    baseline: Run | None
    changes: tuple[Change, ...]
    planned: int
    interrupted: bool = False
    accepted: str = ""
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """Number of cases by status; `not run` counts those that an interrupted run did not reach."""
        statuses = [result.status for result in self.results.values()]
        found = {status: statuses.count(status) for status in ORDER}
        return found | {"not run": self.planned - len(statuses)}

    @property
    def alarms(self) -> list[Change]:
        """The changes that are regressions."""
        return [change for change in self.changes if change.kind in ALARMS]

    @property
    def lost(self) -> float:
        """The share of the cases without a verdict."""
        gone = self.counts["lost"] + self.counts["not run"]
        missing = sum(change.kind in NO_VERDICT for change in self.changes)
        return max(gone, missing) / max(self.planned, 1)

    @property
    def unjudged(self) -> list[Result]:
        """The outputs that could not be judged, without those of the baseline."""
        if self.baseline is None:
            return [result for result in self.results.values() if result.status == "unjudged"]
        return [self.results[change.case] for change in self.changes if change.kind is ChangeKind.UNJUDGED]


@dataclass(frozen=True)
class SuiteRunner:
    """Runs cases on targets into a history, and takes over what the night that `part` names has of them already.

    `workers` is the number of processes, None for one per core; with several on one GPU no times are stored. `checks`
    say how each case is judged. `only` is this run's filter, a regular expression over names; the baseline is reduced
    to the matching cases too.
    """

    history: History
    session: Session
    suite: str
    on_result: OnResult = unseen
    workers: int | None = None
    part: RunPart = WHOLE
    cluster: Cluster | None = None
    checks: Checks = field(default_factory=Checks)
    only: str = ""

    def run(self, selection: CaseSelection, target: Target) -> Outcome:
        """Run all cases on one target, and store the settled results, which need no run.

        After an interruption the results so far are in the history, and the run can be resumed.
        """
        cases, settled, fingerprints = selection.cases, selection.settled, selection.fingerprints
        if self.cluster is None:
            self._prepare(cases, target)
        identity = self.part.of(self._identity(target, selection))
        planned = len(selection.names)
        settings = Settings(self.checks, self.only)
        run = self.history.begin(identity, self.suite, self.part, planned, settings=settings)
        self.history.know(map(StoredCase.of, cases), identity, kernel_names(self.session))
        baseline = self.history.baseline(identity.line, self.suite)
        known = take_over(self.history, run, fingerprints)
        done = len(known)
        fresh = [result for result in settled if result.name not in known]
        left = [case for case in cases if case.name not in known]
        interrupted, began = False, time.monotonic()
        try:
            with closing(self._results(fresh, left, target)) as results:
                of_orders, beside = self._of_orders(left, target), self._beside_base(left, target)
                for result in results:
                    judged = beside(of_orders(result))
                    self.history.add(run, replace(judged, fingerprint=fingerprints[result.name]))
                    done += 1
                    self.on_result(result, done, planned)
        except KeyboardInterrupt:
            interrupted = True
        else:
            self.history.end(run, self.part.shard)
        seconds = time.monotonic() - began
        ordered = in_order(self.outcome(run, baseline, planned), selection.names)
        return replace(ordered, interrupted=interrupted, seconds=seconds)

    def _results(self, settled: Sequence[Result], cases: Sequence[Case], target: Target) -> Generator[Result]:
        """The results as they arrive: settled ones first, then those from workers."""
        yield from settled
        if self.cluster is not None:
            yield from self.cluster.judged(self._task(target), cases)
            return
        workers = self.workers_on(target)
        threads = max(1, cores() // workers)
        options = self.session.options
        repeat = options.repeat if target.engine == "cuda" else 1  # the simulator's times are meaningless
        options = replace(options, simulation=replace(options.simulation, threads=threads), repeat=repeat)
        judge = functools.partial(result_of if workers == 1 else result_without_times, checks=self.checks)
        job = Job(judge, options, self.session.builds, target)
        with closing(judged(job, cases, workers, self.session.progress)) as results:
            yield from results

    def _of_orders(self, cases: Sequence[Case], target: Target) -> Callable[[Result], Result]:
        """Adds the check `order` to a result, if the suite asks for it."""
        small = [case for case in cases if not self.checks.may_take_part(case)]
        if not self.checks.order or self.cluster is not None or not small:
            return lambda result: result
        jobs = self.workers_on(target)
        try:
            found, number = order_differences(self.session, small, target, self.checks.order, jobs)
        except LostError as error:
            log.warning("orders of the cases in one process not compared: %s", error)
            return lambda result: result
        same = f"the same bits in {number_of(self.checks.order, 'order')} of {number_of(number, 'op')} in one process"

        def of_orders(result: Result) -> Result:
            if not result.output:
                return result
            difference = found.get(result.name)
            if difference is None:
                return replace(result, checks=(*result.checks, Check("order", True, False, same)))
            said = f"not the same in every order: {difference}"
            checks = (*result.checks, Check("order", False, True, said))
            if result.status != "pass":
                return replace(result, checks=checks)
            return replace(result, status="fail", reason=f"{result.reason}; {said}", failure=said, checks=checks)

        return of_orders

    def _beside_base(self, cases: Sequence[Case], target: Target) -> Callable[[Result], Result]:
        """Adds to a result how its launches differ from the base's; to none on a real GPU, or of a release as it is."""
        base = base_of(self.session.options) if target.engine == "sim" and self.cluster is None else None
        if base is None:
            return lambda result: result
        try:
            launches = base.launches(cases, target, self.session.progress)
        except (BuildError, LostError) as error:
            log.warning("launches not compared with those of %s: %s", base.words, error)
            return lambda result: result
        of_base = {case.name: launches.get(op_digest(case.op)) for case in cases}

        def beside(result: Result) -> Result:
            before = of_base.get(result.name)
            if before is None or not result.output:  # a run that ended early did not launch all its kernels
                return result
            words = changed(before, result.kernels)
            return replace(result, unlike_base=f"{base.words}: {words}" if words else "")

        return beside

    def _prepare(self, cases: Sequence[Case], target: Target) -> None:
        """Compile the kernels of the cases; if one does not compile, cases with other kernels still run."""
        try:
            prepare_kernels(self.session, [(case, [target]) for case in cases])
        except BuildError as error:
            log.warning("%s", error)

    def _task(self, target: Target) -> Job:
        """The job for a cluster's workers: each runs one case at a time, on one core or on its own GPU."""
        options = self.session.options
        repeat = options.repeat if target.engine == "cuda" else 1
        options = replace(options, simulation=replace(options.simulation, threads=1), repeat=repeat)
        return Job(functools.partial(result_of, checks=self.checks), options, {}, target)

    def _identity(self, target: Target, selection: CaseSelection) -> Identity:
        if self.cluster is None:
            found = identity_of(self.session, target)
        else:
            found = replace(self.cluster.ask(self._task(target), identity_of), machine="cluster")
        made = found.fingerprint or Fingerprint()
        return replace(found, fingerprint=replace(made, checks=str(self.checks), cases=selection.digest))

    def workers_on(self, target: Target) -> int:
        """Number of processes for a target: one if a GPU's repeats are timed."""
        timed = target.engine == "cuda" and self.session.options.repeat > 1
        return self.workers or (1 if timed else cores())

    def outcome(self, run: Run, baseline: Run | None, planned: int) -> Outcome:
        """A run compared with the baseline that was current at its start."""
        after, before = ({} if one is None else self._of_shard(self.history.results(one)) for one in (run, baseline))
        before = matching(before, self.only)
        found = changes(before, after, complete=len(after) >= planned) if baseline else ()
        return Outcome(run, after, baseline, (*found, *base_changes(after), *self._time_changes(run, after)), planned)

    def _of_shard(self, results: Mapping[str, Result]) -> dict[str, Result]:
        return {name: result for name, result in results.items() if self.part.shard.has(result.digest)}

    def _time_changes(self, run: Run, after: Mapping[str, Result]) -> Iterator[Change]:
        """Changes between the last two levels of each case's times; a level spans several runs."""
        timed = any(result.seconds for result in after.values())
        nights = self.history.nights(run)
        return time_changes(self.history.cells(nights), after) if timed else iter(())


def in_order(outcome: Outcome, names: Sequence[str]) -> Outcome:
    """The outcome with results and changes in the suite's order instead of the order of completion."""
    place = {name: number for number, name in enumerate(names)}
    names = sorted(outcome.results, key=lambda name: place.get(name, len(place)))
    ordered = sorted(outcome.changes, key=lambda change: place.get(change.case, len(place)))
    return replace(outcome, results={name: outcome.results[name] for name in names}, changes=tuple(ordered))


def kernel_names(session: Session) -> list[str]:
    """All kernel cases of a session's source; empty if only a build of it is available."""
    tree = session.options.tree
    return [case.name for case in kernel_cases(tree)] if tree else []


def identity_of(session: Session, target: Target) -> Identity:
    """The identity of a session's results on a target."""
    manifest = session.build_for(target).manifest
    real = target.engine == "cuda"
    return Identity(
        machine=platform.node(),
        device=gpu_name(target.gpu) if real else str(target),
        cc=f"{target.device.major}.{target.device.minor}" if target.device else manifest.arch,
        driver=(driver() or "unknown") if real else "",
        engine=target.engine,
        flavour="+".join((manifest.flavour, *manifest.sanitize)),
        source=manifest.source,
        build_number=manifest.build_number,
        patches=" ".join(manifest.patches),
        version=version("fattn-probe"),
        fingerprint=fingerprint_of(session, target),
    )


def outcome_of(night: Night) -> Outcome:
    """The outcome of a run in the history, compared with its baseline."""
    planned = max(night.run.planned, len(night.results))
    return Outcome(night.run, night.results, night.baseline, night.changes, planned)


Select = Callable[[Target], CaseSelection | None]
"""Selects the cases for a target; None to leave the target out."""


def outcomes(runner: SuiteRunner, select: Select, targets: Sequence[Target]) -> Iterator[Outcome]:
    """One outcome per target that is not left out, until one is interrupted."""
    prepare_workers(__name__)
    for target in targets:
        selected = select(target)
        if selected is None:
            continue
        outcome = runner.run(selected, target)
        yield outcome
        if outcome.interrupted:
            return
