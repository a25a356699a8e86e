"""`fattn-probe mutate`: try each mutant with a suite, and report its fate.

A schema is one build with all mutants behind switches. The cases run on it without a mutant, which is their baseline;
then each mutant is tried on the cases in which it changes a value, until one kills it.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fattn_probe.base.activity import Step
from fattn_probe.base.cache import cache_dir
from fattn_probe.base.digest import short
from fattn_probe.base.errors import BuildError
from fattn_probe.base.host import cores
from fattn_probe.base.workers import Workers, threads
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.entries import session_for
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.lab.detect.schedule import KnownRuns, Schedule, baseline_runs, workers
from fattn_probe.lab.detect.schema import Schema, compiling, switched
from fattn_probe.lab.detect.verdicts import LOST, MISSING, MutantVerdict, MutationPlan, SuitePart, Verdicts
from fattn_probe.lab.detect.worker import BaselineRun, BuiltPart, Task, Trial
from fattn_probe.llama.build import RUNNER, BuildRequest
from fattn_probe.llama.build.stamp import own_stamp
from fattn_probe.llama.source import KernelCase
from fattn_probe.machine.run.prepare import KernelReader, required_kernels, required_sources
from fattn_probe.machine.run.session import Session, arch_of

ROUNDS = 3
"""The number of rounds in which kernels needed only by mutants are compiled."""
BUILDS_SHARE = 4
"""Cores for each of several parallel builds."""
NOT_INFECTED = "changes no value in any of them"
"""The reason given for a mutant that needs no trial."""


@dataclass(frozen=True)
class Mutated:
    """The fates of mutants; the cases that fail without a mutant, and those whose output the switches alone change.

    `other_bits` is None if this was not determined. `compiled` is the number of mutants in the builds or with an
    earlier verdict, `left` the number that have no verdict yet. `ran` contains the cases that execute a mutant, by the
    mutant's digest, except for mutants whose verdict is from an earlier run. `amd`: cases ran on an AMD GPU.
    """

    on: tuple[str, ...]
    cases: int
    failing: tuple[str, ...]
    other_bits: tuple[str, ...] | None
    verdicts: tuple[MutantVerdict, ...]
    compiled: int
    left: int
    ran: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    amd: bool = False


@dataclass(frozen=True)
class MutantBuild:
    """A release with its mutants, built for every part of a plan; no run starts after `until`."""

    plan: MutationPlan
    session: Session
    say: Step
    schema: Schema
    sessions: Sequence[Session]
    kernels: Sequence[Sequence[KernelCase]]
    until: float

    @property
    def parts(self) -> list[BuiltPart]:
        """The parts for worker processes."""
        return [
            BuiltPart(part.name, session.options, session.builds, part.target, part.checks, self.plan.upstream)
            for part, session in zip(self.plan.parts, self.sessions, strict=True)
        ]

    @property
    def cases(self) -> list[tuple[int, Case]]:
        """Every case of every part."""
        return [(number, case) for number, part in enumerate(self.plan.parts) for case in part.cases]


@dataclass
class Baseline:
    """The runs of all cases without a mutant; `keys` are their keys in `known`, which also stores the survivors."""

    runs: list[BaselineRun]
    keys: list[str]
    known: KnownRuns

    def cases_by_mutant(self, most: int = 0) -> dict[int, list[int]]:
        """For each mutant that passing cases reach, the cases to try it on: those that it infects.

        Only the fastest `most` of the cases with the same kernels and grids are used (0: all).
        """
        passing = [(number, run) for number, run in enumerate(self.runs) if not run.failure]
        infected: dict[int, dict[tuple[int, str], list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, run in sorted(passing, key=lambda item: item[1].judged):
            for mutant in run.infected:
                infected[mutant][run.part, run.launches].append(number)
        reached = frozenset[int]().union(*(run.reached for _, run in passing))
        return {
            mutant: sorted(case for kind in infected[mutant].values() for case in kind[: most or None])
            for mutant in reached
        }


def build_mutants(plan: MutationPlan, session: Session, say: Step, known: Collection[str] = ()) -> MutantBuild:
    """Build the mutants that compile for every part of a plan; takes minutes.

    Mutants whose fate is `known`, by digest, are left out of the builds, which then compile faster.
    """
    until, options = time.monotonic() + plan.seconds, session.options
    kernels = [required_kernels(session_for(part.entry, session), part.cases, part.target) for part in plan.parts]
    by_arch: dict[str, dict[str, KernelCase]] = defaultdict(dict)
    for part, found in zip(plan.parts, kernels, strict=True):
        by_arch[arch_of(part.target)] |= {kernel.name: kernel for kernel in found}
    assert options.tree is not None
    say("finding the mutants that compile")
    every = switched(options.tree, options.patches, frozenset()).mutants
    likely = {mutant.id for mutant in plan.likely(every)}
    unwanted = {
        mutant.id
        for mutant in every
        if mutant.id not in likely or mutant.digest in known or mutant.digest in plan.passed_over
    }
    quants = tuple(sorted({pair for part in plan.parts for pair in part.entry.quants}))
    wanted = {arch: list(found.values()) for arch, found in by_arch.items()}
    release = BuildRequest(options.tree, patches=options.patches, quants=quants)
    schema = compiling(release, wanted, say, frozenset(unwanted))
    say("compiling the kernels with their mutants")

    def built(part: SuitePart, needed: Sequence[KernelCase]) -> Session:
        own = session_for(part.entry, session)
        made = replace(own, options=replace(own.options, patches=schema.patches, repeat=1), builds={})
        made.add_kernels(part.target, needed, RUNNER, required_sources(part.cases))
        return made

    with threads(max(1, cores() // BUILDS_SHARE)) as pool:  # each build finishes with its slowest kernels
        sessions = list(pool.map(built, plan.parts, kernels))
    return MutantBuild(plan, session, say, schema, sessions, kernels, until)


def run_baseline(built: MutantBuild, pool: Workers[Task, Any]) -> Baseline:
    """Run the cases without a mutant, except those known from an earlier run."""
    plan, keys = built.plan, dict[tuple[int, str], str]()
    for number, case in built.cases:
        part, session = plan.parts[number], built.sessions[number]
        judged = plan.hashed(built.session, [part.judgement("check"), case.digest])
        keys[number, case.digest] = short(f"{own_stamp()} {session.build_for(part.target).folder.name} {judged}")
    known = KnownRuns.read(cache_dir() / "mutants" / f"{built.schema.patches[-1].digest[:16]}.jsonl")
    earlier = [known.run(keys[number, case.digest], number, case) for number, case in built.cases]
    left = [item for item, run in zip(built.cases, earlier, strict=True) if run is None]
    runs = [run for run in earlier if run is not None]
    built.say(f"running {len(left)} cases without a mutant")
    for run in baseline_runs(pool, left):
        runs.append(run)
        if not run.failure.startswith(LOST):
            known.add_run(keys[run.part, run.case.digest], run)
    return Baseline(runs, [keys[run.part, run.case.digest] for run in runs], known)


def try_all(built: MutantBuild, mutants: Sequence[Mutant], on_verdict: Callable[[MutantVerdict], None]) -> Baseline:
    """Run the cases without a mutant, then find the fate of each mutant.

    If no case killed a mutant, but a run was lost, the mutant has no verdict, and the next command tries it again.
    """
    with workers(built.parts) as pool:
        baseline = run_baseline(built, pool)
        missing, lost = try_mutants(built, baseline, mutants, pool, on_verdict)
    for number in range(ROUNDS):
        if not missing or time.monotonic() > built.until:
            break
        compile_missing(built, missing)
        ids = {trial.mutant for _, trial in missing}
        again = [mutant for mutant in mutants if mutant.id in ids]
        with workers(built.parts) as pool:
            missing, more = try_mutants(built, baseline, again, pool, on_verdict, last=number == ROUNDS - 1)
        lost |= more
    if lost:
        said = next(iter(lost.values()))
        built.say(f"{len(lost)} mutants have no verdict; the next command will try them again: {said}")
    return baseline


def try_mutants(
    built: MutantBuild,
    baseline: Baseline,
    mutants: Sequence[Mutant],
    pool: Workers[Task, Any],
    on_verdict: Callable[[MutantVerdict], None],
    *,
    last: bool = False,
) -> tuple[list[tuple[int, Trial]], dict[int, str]]:
    """Try mutants; returns, by part, the trials that lack a kernel, and, by mutant, the reason why it has no verdict.

    In the `last` round, a missing kernel counts as a kill.
    """
    by_mutant, known = baseline.cases_by_mutant(built.plan.most), {mutant.id: mutant for mutant in mutants}
    trials: dict[int, list[Trial]] = {}
    left: dict[int, list[int]] = {}
    for mutant in mutants:
        cases = by_mutant.get(mutant.id, [])
        survived = {case: baseline.known.trials[baseline.keys[case]].get(mutant.id) for case in cases}
        trials[mutant.id] = [trial for trial in survived.values() if trial]
        left[mutant.id] = [case for case, trial in survived.items() if trial is None]
        if not cases:
            reaching = sum(mutant.id in run.reached for run in baseline.runs if not run.failure)
            on_verdict(MutantVerdict(mutant, "", "", "", NOT_INFECTED if reaching else "", reaching, 0.0))
        elif not left[mutant.id]:
            on_verdict(verdict_of(mutant, trials[mutant.id]))
    missing, failed, lost = list[tuple[int, Trial]](), dict[int, str](), dict[int, str]()
    fresh = ((mutant, cases) for mutant, cases in left.items() if cases)
    for case, trial, over in Schedule(baseline.runs).trials(pool, fresh, built.until):
        run = baseline.runs[case]
        if trial.by == LOST:
            failed[trial.mutant] = trial.said
        else:
            trials[trial.mutant].append(trial)
        if not trial.by:
            baseline.known.add_survived(baseline.keys[case], trial)
        if trial.by == MISSING and not last:
            missing.append((run.part, trial))
        elif over and trial.mutant in failed and trial.by in ("", LOST):
            lost[trial.mutant] = failed[trial.mutant]
        elif over:
            on, tried = built.plan.parts[run.part].name, trials.pop(trial.mutant)
            on_verdict(verdict_of(known[trial.mutant], tried, on, run.case.name))
    return missing, lost


def verdict_of(mutant: Mutant, trials: Sequence[Trial], on: str = "", case: str = "") -> MutantVerdict:
    """The fate of a mutant from its trials; the last trial was in `case` on the part `on`."""
    last, seconds = trials[-1], round(sum(trial.seconds for trial in trials), 2)
    changed = any(trial.changed for trial in trials)
    assert last.by != LOST, "it has no verdict"
    if not last.by:
        return MutantVerdict(mutant, "", "", "", "", len(trials), seconds, changed)
    by = "stopped" if last.by == MISSING else last.by
    return MutantVerdict(mutant, on, by, case, last.said, len(trials), seconds, changed)


def compile_missing(built: MutantBuild, missing: Iterable[tuple[int, Trial]]) -> None:
    """Compile the kernels that only mutants need."""
    tree = built.session.options.tree
    assert tree is not None
    symbols: dict[int, set[str]] = defaultdict(set)
    for number, trial in missing:
        symbols[number].add(trial.said)
    read = KernelReader(tree)
    for number, names in symbols.items():
        found = {case for symbol in names if (case := read.of_symbol(symbol)) is not None}
        built.say(f"compiling {len(found)} kernels that only mutants need")
        kernels, target = sorted(found, key=lambda case: case.name), built.plan.parts[number].target
        try:
            built.sessions[number].add_kernels(target, kernels, RUNNER)
        except BuildError as error:
            built.say(str(error).partition("\n")[0])


def other_bits(built: MutantBuild, baseline: Baseline) -> tuple[str, ...] | None:
    """The cases whose bits the switches alone change; None if there is no time to determine this."""
    if time.monotonic() > built.until or not baseline.runs:
        return None
    built.say("running the cases without switches")
    parts = []
    for with_switches, part, kernels in zip(built.parts, built.plan.parts, built.kernels, strict=True):
        session = session_for(part.entry, built.session)
        session.add_kernels(part.target, kernels, RUNNER, required_sources(part.cases))
        parts.append(replace(with_switches, options=session.options, builds=session.builds, judge=False))
    with workers(parts) as pool:
        plain = {(run.part, run.case.name): run.output for run in baseline_runs(pool, built.cases)}
    differs = [run for run in baseline.runs if run.output != plain[run.part, run.case.name]]
    return tuple(sorted(f"{run.case.name} on {parts[run.part].name}" for run in differs))


def run(
    plan: MutationPlan,
    session: Session,
    results: Path,
    say: Step,
    on_verdict: Callable[[MutantVerdict, int, int], None],
    *,
    bits: bool = True,
) -> Mutated:
    """Try mutants with a suite; verdicts that are already in `results` are reused.

    `bits`: also determine which cases the switches alone change, which needs a build without switches.
    """
    verdicts = Verdicts.of(results, plan, session)
    known = {item.mutant.digest: item for item in verdicts}
    built = build_mutants(plan, session, say, known)
    compiled = {mutant.digest: mutant for mutant in built.schema.mutants}
    compiled |= {digest: item.mutant for digest, item in known.items()}
    mutants = [mutant for mutant in plan.chosen(compiled.values()) if mutant.digest not in plan.passed_over]
    found = [known[mutant.digest] for mutant in mutants if mutant.digest in known]

    def take(verdict: MutantVerdict) -> None:
        found.append(verdict)
        verdicts.append(verdict)
        on_verdict(verdict, len(found), len(mutants))

    fresh = [mutant for mutant in mutants if mutant.digest not in known]
    baseline = try_all(built, fresh, take)
    passing = [
        (run.reached, f"{run.case.name} on {plan.parts[run.part].name}") for run in baseline.runs if not run.failure
    ]
    return Mutated(
        tuple(part.name for part in plan.parts),
        len(built.cases),
        tuple(f"{run.case.name} on {plan.parts[run.part].name}: {run.failure}" for run in baseline.runs if run.failure),
        other_bits(built, baseline) if bits else None,
        tuple(found),
        len(compiled),
        len(mutants) - len(found),
        {mutant.digest: tuple(name for reached, name in passing if mutant.id in reached) for mutant in fresh},
        plan.on_amd,
    )
