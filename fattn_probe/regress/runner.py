"""Run a suite: a failing case does not affect others, and every result goes to the history at once."""

import functools
import platform
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from fattn_probe.compare.judge.checks import Checks
from fattn_probe.device import Target
from fattn_probe.errors import BuildError
from fattn_probe.process import log
from fattn_probe.regress.changes import ALARMS, UNJUDGED, Change, changes, time_changes
from fattn_probe.regress.cluster import Cluster
from fattn_probe.regress.history import History
from fattn_probe.regress.night import Night
from fattn_probe.regress.pool import Job, cores, judged, prepare
from fattn_probe.regress.records import WHOLE, Identity, Part, Result, Run, Settings, StoredCase
from fattn_probe.regress.results import OnResult, result_of, result_without_times, unseen
from fattn_probe.regress.selection import matching
from fattn_probe.run.gpu import gpu_name
from fattn_probe.run.prepare import prepare as prepare_kernels
from fattn_probe.run.provenance import driver, version
from fattn_probe.run.session import Session
from fattn_probe.scenario import Case
from fattn_probe.source import kernel_cases


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
        found = {status: statuses.count(status) for status in ("pass", "fail", "unsupported", "lost")}
        return found | {"not run": self.planned - len(statuses)}

    @property
    def alarms(self) -> list[Change]:
        """The changes that are regressions."""
        return [change for change in self.changes if change.kind in ALARMS]

    @property
    def lost(self) -> float:
        """The share of the cases without a verdict."""
        unjudged = self.counts["lost"] + self.counts["not run"]
        missing = sum(change.kind in UNJUDGED for change in self.changes)
        return max(unjudged, missing) / max(self.planned, 1)


@dataclass(frozen=True)
class SuiteRunner:
    """Runs cases on targets into a history; `resume` continues the last run that did not finish.

    `workers` is the number of processes, None for one per core; with several on one GPU no times are stored. `checks`
    say how each case is judged. `only` is this run's filter, a regular expression over names; the baseline is reduced
    to the matching cases too.
    """

    history: History
    session: Session
    suite: str
    resume: bool = False
    on_result: OnResult = unseen
    workers: int | None = None
    part: Part = WHOLE
    cluster: Cluster | None = None
    checks: Checks = field(default_factory=Checks)
    only: str = ""

    def run(self, cases: Sequence[Case], target: Target, settled: Sequence[Result] = ()) -> Outcome:
        """Run all cases on one target, and store the `settled` results, which need no run.

        After an interruption the results so far are in the history, and the run can be resumed.
        """
        if self.cluster is None:
            self._prepare(cases, target)
        identity = self.part.of(self._identity(target))
        planned = len(cases) + len(settled)
        settings = Settings(self.checks, self.only)
        new = functools.partial(self.history.begin, identity, self.suite, self.part, planned, settings=settings)
        run = (self._unfinished(identity) if self.resume and not self.part.night else None) or new()
        self.history.know(map(StoredCase.of, cases), identity, kernel_names(self.session))
        baseline = self.history.baseline(identity.line, self.suite)
        there = self._of_shard(self.history.results(run))
        known = {name for name, result in there.items() if result.status != "lost"}
        done = len(known)
        fresh = [result for result in settled if result.name not in known]
        left = [case for case in cases if case.name not in known]
        interrupted, began = False, time.monotonic()
        try:
            with closing(self._results(fresh, left, target)) as results:
                for result in results:
                    self.history.add(run, result)
                    done += 1
                    self.on_result(result, done, planned)
        except KeyboardInterrupt:
            interrupted = True
        else:
            self.history.end(run, self.part.shard)
        seconds = time.monotonic() - began
        names = [*(case.name for case in cases), *(result.name for result in settled)]
        return replace(in_order(self.outcome(run, baseline, planned), names), interrupted=interrupted, seconds=seconds)

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

    def _identity(self, target: Target) -> Identity:
        if self.cluster is None:
            return identity_of(self.session, target)
        return replace(self.cluster.ask(self._task(target), identity_of), machine="cluster")

    def workers_on(self, target: Target) -> int:
        """Number of processes for a target: one if a GPU's repeats are timed."""
        timed = target.engine == "cuda" and self.session.options.repeat > 1
        return self.workers or (1 if timed else cores())

    def outcome(self, run: Run, baseline: Run | None, planned: int) -> Outcome:
        """A run compared with the baseline that was current at its start."""
        after, before = ({} if one is None else self._of_shard(self.history.results(one)) for one in (run, baseline))
        before = matching(before, self.only)
        found = changes(before, after, complete=len(after) >= planned) if baseline else ()
        return Outcome(run, after, baseline, (*found, *self._time_changes(run, after)), planned)

    def _of_shard(self, results: Mapping[str, Result]) -> dict[str, Result]:
        return {name: result for name, result in results.items() if self.part.shard.has(result.digest)}

    def _time_changes(self, run: Run, after: Mapping[str, Result]) -> Iterator[Change]:
        """Changes between the last two levels of each case's times; a level spans several runs."""
        timed = any(result.seconds for result in after.values())
        nights = self.history.nights(run.identity.line, self.suite)
        return time_changes(self.history.cells(nights), after) if timed else iter(())

    def _unfinished(self, identity: Identity) -> Run | None:
        runs = [run for run in self.history.runs(identity.line, self.suite) if run.identity == identity]
        same = runs and runs[-1].ended is None and runs[-1].settings.only == self.only
        return runs[-1] if same else None


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
    )


def outcome_of(night: Night) -> Outcome:
    """The outcome of a run in the history, compared with its baseline."""
    planned = max(night.run.planned, len(night.results))
    return Outcome(night.run, night.results, night.baseline, night.changes, planned)


Select = Callable[[Target], tuple[Sequence[Case], Sequence[Result]] | None]
"""Selects the cases for a target, and the results that need no run; None to leave the target out."""


def outcomes(runner: SuiteRunner, select: Select, targets: Sequence[Target]) -> Iterator[Outcome]:
    """One outcome per target that is not left out, until one is interrupted."""
    prepare()
    for target in targets:
        selected = select(target)
        if selected is None:
            continue
        cases, settled = selected
        outcome = runner.run(cases, target, settled)
        yield outcome
        if outcome.interrupted:
            return
