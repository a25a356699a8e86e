"""Run all entries of a suite together; a failing case does not affect others, and every result goes to the history."""

import platform
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

from fattn_probe.base.figures import clock, number_of
from fattn_probe.base.fingerprint import Fingerprint
from fattn_probe.base.host import cores
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.ops.render import short
from fattn_probe.daily.regress.changes import NO_VERDICT, Change, ChangeKind, base_changes, changes, time_changes
from fattn_probe.daily.regress.cluster import Cluster
from fattn_probe.daily.regress.compilers import BesideBase, Lane, Likely
from fattn_probe.daily.regress.history import History
from fattn_probe.daily.regress.night import Night
from fattn_probe.daily.regress.pool import Job
from fattn_probe.daily.regress.records import ORDER, WHOLE, Identity, Result, Run, RunPart, Settings, StoredCase
from fattn_probe.daily.regress.results import LastAnswers, result_of
from fattn_probe.daily.regress.resume import take_over
from fattn_probe.daily.regress.schedule import Event, Orders, Schedule
from fattn_probe.daily.regress.selection import CaseSelection, matching
from fattn_probe.daily.regress.verdicts import Verdicts
from fattn_probe.llama.source import kernel_cases
from fattn_probe.machine.run.base import changed
from fattn_probe.machine.run.provenance import driver, version
from fattn_probe.machine.run.session import Session, fingerprint_of, gpu_name
from fattn_probe.verdict.judge.bitwise import Check, not_made
from fattn_probe.verdict.judge.checks import Checks

Stopped = Literal["", "interrupted", "at the first failure"]
"""Why a `regress` command ended before all cases were judged; empty if it did not."""


@dataclass(frozen=True)
class Outcome:
    """One run of a suite on one target, compared with the baseline.

    `accepted` is the reason given if the run was accepted; `stopped` is why it is incomplete, empty if it is complete;
    `seconds` is the time that its cases would have taken alone on all cores, without compiling.
    """

    run: Run
    results: Mapping[str, Result]
    baseline: Run | None
    changes: tuple[Change, ...]
    planned: int
    stopped: Stopped = ""
    accepted: str = ""
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """The number of cases by status; `not run` counts those that a stopped run did not reach."""
        statuses = [result.status for result in self.results.values()]
        return {status: statuses.count(status) for status in ORDER} | {"not run": self.planned - len(statuses)}

    @property
    def alarms(self) -> list[Change]:
        """The changes that are regressions."""
        return [change for change in self.changes if change.alarm]

    @property
    def failing(self) -> set[str]:
        """The cases whose failure counts: all that fail, or those that the baseline does not have."""
        return {change.case for change in self.alarms} if self.baseline else set(self.results)

    @property
    def lost(self) -> float:
        """The share of cases lost by accident: neither skipped after the first failure, nor refused by a compiler."""
        first = self.stopped == "at the first failure"
        uncompiled = sum(result.uncompiled for result in self.results.values())
        gone = self.counts["lost"] - uncompiled + (0 if first else self.counts["not run"])
        kinds = NO_VERDICT - {ChangeKind.NOT_RUN} if first else NO_VERDICT
        return max(gone, sum(change.kind in kinds for change in self.changes)) / max(self.planned, 1)

    @property
    def unjudged(self) -> list[Result]:
        """The outputs that could not be judged, except those that the baseline could not judge either."""
        if self.baseline is None:
            return [result for result in self.results.values() if result.status == "unjudged"]
        return [self.results[change.case] for change in self.changes if change.kind is ChangeKind.UNJUDGED]


@dataclass(frozen=True)
class Planned:
    """A suite's entry on one target: the names of suite and entry, its cases, and the checks that judge them."""

    suite: str
    session: Session
    target: Target
    selection: CaseSelection
    checks: Checks = field(default_factory=Checks)

    @property
    def on(self) -> str:
        """The entry and the target: `few-sms on sim:h200-5`, or only the target for the suite's own cases."""
        entry = self.suite.partition("/")[2]
        return f"{entry} on {self.target}" if entry else str(self.target)


@dataclass
class EntryRun:
    """A planned entry and its run in the history.

    `before` are the results of the baseline, `left` the cases that this command must run. `results` are their results
    as first judged, `stored` the same results with the additions from `orders` and `base`.
    """

    planned: Planned
    run: Run
    baseline: Run | None
    before: Mapping[str, Result]
    left: Sequence[Case]
    results: dict[str, Result] = field(default_factory=dict)
    stored: dict[str, Result] = field(default_factory=dict)
    orders: Orders | None = None
    base: BesideBase | None = None
    seconds: float = 0.0

    @cached_property
    def ordered(self) -> dict[str, Case]:
        """The cases that the check `order` applies to, by name."""
        checks = self.planned.checks
        return {case.name: case for case in self.left if not checks.may_take_part(case)} if checks.order else {}

    @property
    def complete(self) -> bool:
        """Whether all cases of the run are judged."""
        return len(self.results) == len(self.left) and not (self.ordered and self.orders is None)

    def settled(self, result: Result) -> Result:
        """Add what is known so far; the fingerprint only after all orders, so that a resumed run rejudges the case."""
        if result.name in self.ordered and result.output:
            if self.orders is None:
                return result
            result = with_orders(result, self.orders, self.planned.checks.order)
        if self.base is not None and result.output:  # a run that ended early did not launch all its kernels
            before = self.base.launches.get(result.name)
            words = "" if before is None else changed(before, result.kernels)
            result = replace(result, unlike_base=f"{self.base.words}: {words}" if words else "")
        return replace(result, fingerprint=self.planned.selection.fingerprints[result.name])

    def fails(self, result: Result) -> bool:
        """Whether this result alone is enough for the exit code of a failure or a regression."""
        if self.baseline is None:
            return result.uncompiled or (result.status == "fail" and not result.known)
        before = {name: one for name, one in self.before.items() if name == result.name}
        return any(change.alarm for change in changes(before, {result.name: result}))


def with_orders(result: Result, orders: Orders, number: int) -> Result:
    """Add the check `order` to a result; `number` is the number of orders."""
    same = f"the same bits in {number_of(number, 'order')} of {number_of(orders.ops, 'op')} in one process"
    difference = orders.found.get(result.name)
    if difference is None:
        found = not_made("order", orders.missing) if orders.missing else Check("order", True, False, same)
        return replace(result, checks=(*result.checks, found))
    said = f"not the same in every order: {difference}"
    checks = (*result.checks, Check("order", False, True, said))
    if result.status != "pass":
        return replace(result, checks=checks)
    reason = f"{said}; apart from that, {result.reason}"
    return replace(result, status="fail", reason=reason, failure=said, checks=checks)


@dataclass
class Standing:
    """The progress of a command, for the progress bar; the schedule supplies compilation progress and the time left."""

    cases: int = 0
    judged: int = 0
    reused: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    last: str = ""
    schedule: Schedule | None = None
    began: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        """`compiled 12 of 57 kernels, judged 34 of 860 cases, 2 fail, 32 pass, 0:41, about 4:08 left: gqa`."""
        compiled, left = (str(self.schedule.compilers), self.schedule.seconds_left) if self.schedule else ("", None)
        words = [compiled] * bool(compiled) + [f"judged {self.judged} of {self.cases} cases"]
        words += [f"{self.reused} reused"] if self.reused else []
        order = ("fail", "known to fail", *ORDER[2:], "pass")
        words += [f"{self.statuses[status]} {status}" for status in order if self.statuses[status]]
        words += [clock(time.monotonic() - self.began)]
        words += [f"about {clock(left)} left"] if left else []
        return ", ".join(words) + (f": {short(self.last)}" if self.last else "")


Say = Callable[[str, str], None]
"""A callback that receives a line about a result, and the result's status."""


def say_nothing(words: str, status: str) -> None:
    """Print nothing."""


@dataclass(frozen=True)
class SuiteRunner:
    """Runs all entries of a suite into a history, and reuses the results of the night that `part` names.

    `workers` is the number of processes, None for one per core; with several on one GPU, no times are stored. `only` is
    a filter, a regular expression over names; the baseline is also reduced to the matching cases. `say` is called for
    each failure as soon as it is known; `exit_first` ends the command at the first. `fresh`: no verdict is reused.
    """

    history: History
    session: Session
    suite: str
    say: Say = say_nothing
    workers: int | None = None
    part: RunPart = WHOLE
    cluster: Cluster | None = None
    only: str = ""
    exit_first: bool = False
    fresh: bool = False
    likely: Likely = field(default_factory=Likely)
    standing: Standing = field(default_factory=Standing)

    def outcomes(self, planned: Sequence[Planned]) -> list[Outcome]:
        """Run all cases; also stores the settled results, which need no run.

        After an interruption, the history has the results so far, and the run can be resumed.
        """
        runs = [self._begun(one) for one in planned]
        self.standing.statuses.clear()
        self.standing.cases = sum(len(one.selection.names) for one in planned)
        self.standing.judged = self.standing.cases - sum(len(run.left) for run in runs)
        reason: Stopped = ""
        try:
            with closing(self._events(runs)) as events:
                for run, event in events:
                    if self._heard(run, event) and self.exit_first:
                        reason = "at the first failure"
                        break
        except KeyboardInterrupt:
            reason = "interrupted"
        for run in runs:
            if run.complete:
                self.history.end(run.run, self.part.shard)
        return [self._outcome(run, "" if run.complete else reason) for run in runs]

    def _begun(self, planned: Planned) -> EntryRun:
        """Begin a run in the history, and determine which of its cases need not run."""
        selection = planned.selection
        if self.cluster is None:
            identity = identity_of(planned.session, planned.target)
        else:
            identity = replace(self.cluster.ask(self._job(planned), identity_of), machine="cluster")
        fingerprint = identity.fingerprint or Fingerprint()
        fingerprint = replace(fingerprint, checks=str(planned.checks), cases=selection.digest)
        identity = self.part.of(replace(identity, fingerprint=fingerprint))
        settings = Settings(planned.checks, self.only)
        run = self.history.begin(identity, planned.suite, self.part, len(selection.names), settings=settings)
        tree = planned.session.options.tree  # the user may give a build without its source
        kernels = [case.name for case in kernel_cases(tree)] if tree else []
        self.history.know(map(StoredCase.of, selection.cases), identity, kernels)
        baseline = self.history.baseline(identity.line, planned.suite)
        known = take_over(self.history, run, selection.fingerprints)
        for result in selection.settled:
            if result.name not in known:
                self.history.add(run, replace(result, fingerprint=selection.fingerprints[result.name]))
        left = [case for case in selection.cases if case.name not in known]
        before = {} if baseline is None else matching(self._of_shard(self.history.results(baseline)), self.only)
        return EntryRun(planned, run, baseline, before, left)

    def _events(self, runs: Sequence[EntryRun]) -> Generator[tuple[EntryRun, Event]]:
        """Yield events of the runs. Timed runs on a real GPU come last, one case at a time."""
        if self.cluster is not None:
            for run in runs:
                with closing(self.cluster.judged(self._job(run.planned), run.left)) as results:
                    yield from ((run, result) for result in results)
            return
        alone = [run for run in runs if run.planned.target.engine == "cuda" and self.workers_on(run.planned) == 1]
        groups = [[run for run in runs if run not in alone], *([run] for run in alone)]
        for group in filter(None, groups):
            workers = min(self.workers_on(run.planned) for run in group)
            kept = LastAnswers()  # each worker has one copy for all lanes
            lanes = [self._lane(run, workers, kept) for run in group]
            schedule = self.standing.schedule = Schedule(lanes, workers, self.likely)
            with closing(schedule.events()) as events:
                yield from ((group[number], event) for number, event in events)
            for number, run in enumerate(group):
                run.seconds = schedule.spent[number] / cores()

    def _heard(self, run: EntryRun, event: Event) -> bool:
        """Store what an event adds to the results; returns whether it shows a failure."""
        if isinstance(event, Result):
            run.results[event.name] = event
            self.standing.judged += 1
            self.standing.reused += event.reused
            self.standing.statuses["known to fail" if event.known else event.status] += 1
            self.standing.last = event.name
            return self._store(run, event)
        if isinstance(event, Orders):
            run.orders = event
        else:
            run.base = event
        return any([self._store(run, result) for result in run.results.values()])

    def _store(self, run: EntryRun, result: Result) -> bool:
        """Store a result if it has changed; returns whether it is a failure. Reports each failure once."""
        before, now = run.stored.get(result.name), run.settled(result)
        if now == before:
            return False
        run.stored[result.name] = now
        self.history.add(run.run, now)
        fails = run.fails(now) and not (before is not None and run.fails(before))
        lost = [one.reason for one in run.stored.values() if one.status == "lost"] if now.status == "lost" else []
        if fails or lost.count(now.reason) == 1:  # many cases are lost together if a file does not compile
            self.say(f"{now.status} {now.name} on {run.run.place}: {now.explained}{now.place}", now.status)
        return fails

    def _job(self, planned: Planned, workers: int | None = None) -> Job:
        """The job with which workers, local or in a cluster, judge an entry's cases, one case at a time per worker."""
        options, target = planned.session.options, planned.target
        repeat = options.repeat if target.engine == "cuda" else 1  # the simulator's times are meaningless
        threads = max(1, cores() // workers) if workers else 1
        options = replace(options, simulation=replace(options.simulation, threads=threads), repeat=repeat)
        judge = partial(result_of, checks=planned.checks, timed=workers in (None, 1))
        return Job(judge, options, planned.session.builds if workers else {}, target)

    def _lane(self, run: EntryRun, workers: int, kept: LastAnswers) -> Lane:
        """Create the lane of a run for the schedule, with the stored verdicts of its cases."""
        planned, job = run.planned, self._job(run.planned, workers)
        checks, ordered = planned.checks, tuple(run.ordered.values())
        verdicts = None if self.fresh else Verdicts.under(Session(job.options), planned.target, checks)
        judge = partial(result_of, checks=checks, timed=workers == 1, verdicts=verdicts, kept=kept)
        job = replace(job, judge=judge, brief=partial(judge, diagnosed=False))
        return Lane(planned.on, planned.session, job, run.left, checks.order, ordered, verdicts)

    def workers_on(self, planned: Planned) -> int:
        """The number of processes for an entry on a target: one if repeats are timed on a GPU."""
        timed = planned.target.engine == "cuda" and planned.session.options.repeat > 1
        return self.workers or (1 if timed else cores())

    def _outcome(self, run: EntryRun, stopped: Stopped) -> Outcome:
        """Compare a run with the baseline that was current at its start."""
        planned = len(run.planned.selection.names)
        after = self._of_shard(self.history.results(run.run))
        found = changes(run.before, after, complete=len(after) >= planned) if run.baseline else ()
        timed = any(result.seconds for result in after.values())
        cells = self.history.cells(self.history.nights(run.run)) if timed else ()
        every = (*found, *base_changes(after), *time_changes(cells, after))
        outcome = Outcome(run.run, after, run.baseline, every, planned, stopped, seconds=run.seconds)
        return in_order(outcome, run.planned.selection.names)

    def _of_shard(self, results: Mapping[str, Result]) -> dict[str, Result]:
        return {name: result for name, result in results.items() if self.part.shard.has(result.digest)}


def in_order(outcome: Outcome, names: Sequence[str]) -> Outcome:
    """The outcome with results and changes in the suite's order instead of the order of completion."""
    place = {name: number for number, name in enumerate(names)}
    names = sorted(outcome.results, key=lambda name: place.get(name, len(place)))
    ordered = sorted(outcome.changes, key=lambda change: place.get(change.case, len(place)))
    return replace(outcome, results={name: outcome.results[name] for name in names}, changes=tuple(ordered))


def identity_of(session: Session, target: Target) -> Identity:
    """The identity of a session's results on a target, found without compiling anything."""
    manifest, fingerprint = session.manifest_for(target), fingerprint_of(session, target)
    real = target.engine == "cuda"
    return Identity(
        machine=platform.node(),
        device=gpu_name(target.gpu) if real else str(target),
        cc=target.device.cc if target.device else fingerprint.arch,
        driver=(driver() or "unknown") if real else "",
        engine=target.engine,
        flavour="+".join((fingerprint.flavour, *fingerprint.sanitize)),
        source=manifest.source,
        build_number=manifest.build_number,
        patches=" ".join(manifest.patches),
        version=version("fattn-probe"),
        fingerprint=fingerprint,
    )


def outcome_of(night: Night) -> Outcome:
    """The outcome of a run from the history, compared with its baseline."""
    planned = max(night.run.planned, len(night.results))
    return Outcome(night.run, night.results, night.baseline, night.changes, planned)
