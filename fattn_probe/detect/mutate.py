"""`fattn-probe mutate`: the flow from a suite to the fate of each mutant."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from fattn_probe.build import RUNNER
from fattn_probe.build.stamp import own_stamp
from fattn_probe.cache import cache_dir
from fattn_probe.detect.baseline import Kept
from fattn_probe.detect.bench import Alone, Trial, Work
from fattn_probe.detect.killed_by import CHECK, LOST, MISSING, STOPPED
from fattn_probe.detect.killing import Hunt, alone, cheapest, workers
from fattn_probe.detect.mutants import Mutant
from fattn_probe.detect.schemata import Release, Schemata, compiling, switched
from fattn_probe.detect.verdicts import Part, Plan, Verdict, Verdicts
from fattn_probe.errors import BuildError
from fattn_probe.regress.entries import session_for
from fattn_probe.regress.pool import cores
from fattn_probe.run.required_kernels import KernelReader, required_kernels, required_sources
from fattn_probe.run.session import Session, arch_of
from fattn_probe.scenario import Case
from fattn_probe.source import KernelCase

OnStep = Callable[[str], None]
BUILDS_SHARE = 4
"""Cores for each build of several at once."""
ROUNDS = 3
"""Times that kernels are compiled which only mutants need."""
NOT_FELT = "gives no other value in any of them"
"""What is said of a mutant that no case has to try."""


@dataclass(frozen=True)
class Mutated:
    """The fates of mutants; of the cases, those that fail without a mutant, and whose bits the switches change.

    `other_bits` is None if that was not found out. `compiled` is the number of mutants in the builds and of those with
    a verdict from before, `left` of those without a verdict yet. `ran` has the cases that execute a mutant, by its
    digest; those of mutants whose verdict is from an earlier call are not known.
    """

    on: tuple[str, ...]
    cases: int
    failing: tuple[str, ...]
    other_bits: tuple[str, ...] | None
    verdicts: tuple[Verdict, ...]
    compiled: int
    left: int
    ran: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass
class Laboratory:
    """A release with its mutants, built for every part of a plan; what its cases give without a mutant.

    Mutants whose fate is `known`, by digest, are not in its builds: they compile the faster for it.
    """

    plan: Plan
    session: Session
    say: OnStep
    known: Collection[str] = ()
    schemata: Schemata = field(init=False)
    sessions: list[Session] = field(init=False)
    baseline: list[Alone] = field(default_factory=list)
    kernels: list[list[KernelCase]] = field(default_factory=list)
    kept: Kept = field(init=False)
    keys: dict[tuple[int, str], str] = field(default_factory=dict)
    until: float = field(init=False)

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.plan.seconds
        by_arch: dict[str, dict[str, KernelCase]] = defaultdict(dict)
        for part in self.plan.parts:
            found = required_kernels(session_for(part.entry, self.session), part.cases, part.target)
            by_arch[arch_of(part.target)] |= {kernel.name: kernel for kernel in found}
            self.kernels.append(found)
        options = self.session.options
        assert options.tree is not None
        self.say("finding the mutants that compile")
        kernels = {arch: list(found.values()) for arch, found in by_arch.items()}
        every = switched(options.tree, options.patches, frozenset()).mutants
        unwanted = {mutant.id for mutant in every} - {mutant.id for mutant in self.plan.likely(every)}
        unwanted |= {
            mutant.id for mutant in every if mutant.digest in self.known or mutant.digest in self.plan.passed_over
        }
        quants = tuple(sorted({pair for part in self.plan.parts for pair in part.entry.quants}))
        release = Release(options.tree, options.patches, quants)
        self.schemata = compiling(release, kernels, self.say, frozenset(unwanted))
        self.say("compiling the kernels with their mutants")
        with ThreadPoolExecutor(max(1, cores() // BUILDS_SHARE)) as pool:  # each build ends with its slowest kernels
            self.sessions = list(pool.map(self.built, self.plan.parts, self.kernels))

    def built(self, part: Part, kernels: Sequence[KernelCase]) -> Session:
        """A session for a part whose build has the mutants."""
        own = session_for(part.entry, self.session)
        session = replace(own, options=replace(own.options, patches=self.schemata.patches, repeat=1), builds={})
        session.add_kernels(part.target, kernels, RUNNER, required_sources(part.cases))
        return session

    @property
    def works(self) -> list[Work]:
        """The parts for worker processes."""
        return [
            Work(part.name, session.options, session.builds, part.target, part.checks, self.plan.upstream)
            for part, session in zip(self.plan.parts, self.sessions, strict=True)
        ]

    @property
    def items(self) -> list[tuple[int, Case]]:
        """Every case of every part."""
        return [(number, case) for number, part in enumerate(self.plan.parts) for case in part.cases]

    def run_baseline(self, pool: ProcessPoolExecutor) -> None:
        """Run the cases without a mutant, but those that are kept from an earlier call."""
        items = self.items
        self.keys = {(number, case.digest): self.key_of(number, case) for number, case in items}
        self.kept = Kept.read(cache_dir() / "mutants" / f"{self.schemata.patches[-1].digest[:16]}.jsonl")
        self.baseline = list(self.kept.find(items, [self.keys[number, case.digest] for number, case in items]))
        left = [(number, case) for number, case in items if self.keys[number, case.digest] not in self.kept.runs]
        self.say(f"running {len(left)} cases without a mutant")
        for run in alone(pool, left):
            self.baseline.append(run)
            if not run.failure.startswith(LOST):
                self.kept.add(self.key(run), run)

    def key(self, run: Alone) -> str:
        """The key of a case that was run."""
        return self.keys[run.work, run.case.digest]

    def key_of(self, number: int, case: Case) -> str:
        """What a case's run without a mutant depends on, as a hash."""
        part, build = self.plan.parts[number], self.sessions[number].build_for(self.plan.parts[number].target)
        judged = self.plan.hashed(self.session, [part.judgement(CHECK), case.digest])
        return hashlib.sha256(f"{own_stamp()} {build.folder.name} {judged}".encode()).hexdigest()[:16]

    def trying(self) -> dict[int, list[int]]:
        """By mutant that a case reaches which passes without it, the cases that try it: those that feel it."""
        reached: set[int] = set()
        found: dict[int, list[int]] = defaultdict(list)
        for number, item in enumerate(self.baseline):
            reached |= item.reached if not item.failure else set()
            for mutant in item.felt if not item.failure else ():
                found[mutant].append(number)
        return {mutant: cheapest(found[mutant], self.baseline, self.plan.most) for mutant in reached}

    def try_all(self, mutants: Sequence[Mutant], on_verdict: Callable[[Verdict], None]) -> None:
        """The fate of each mutant, as it is known; first the cases run without a mutant.

        A mutant that no case killed and that one was lost with has no verdict, so that a later call tries it again.
        """
        lost: dict[int, str] = {}
        known = {mutant.id: mutant for mutant in mutants}
        for number in range(ROUNDS + 1):
            missing = list(self.tried(mutants, on_verdict, lost, last=number == ROUNDS))
            if not missing or time.monotonic() > self.until:
                break
            self.complete(missing)
            mutants = [known[trial.mutant] for _, trial in missing]
        if lost:
            said = next(iter(lost.values()))
            self.say(f"{len(lost)} mutants have no verdict, run it again to try them: {said}")

    def tried(
        self, mutants: Sequence[Mutant], on_verdict: Callable[[Verdict], None], lost: dict[int, str], *, last: bool
    ) -> Iterator[tuple[int, Trial]]:
        """Try mutants; yields what ended in a kernel that the build lacks, unless it is the `last` round.

        Adds those without a verdict to `lost`, with what is said of the run.
        """
        with workers(self.works) as pool:
            if not self.baseline:
                self.run_baseline(pool)
            trying, known = self.trying(), {mutant.id: mutant for mutant in mutants}
            trials: dict[int, list[Trial]] = {}
            left: dict[int, list[int]] = {}
            for mutant in mutants:
                cases = trying.get(mutant.id, [])
                survived = {case: self.kept.trials[self.key(self.baseline[case])].get(mutant.id) for case in cases}
                trials[mutant.id] = [trial for trial in survived.values() if trial]
                left[mutant.id] = [case for case, trial in survived.items() if trial is None]
                if not left[mutant.id]:
                    on_verdict(self.survivor(mutant, trials[mutant.id]) if cases else self.untried(mutant))
            fresh = ((mutant, cases) for mutant, cases in left.items() if cases)
            failed: dict[int, str] = {}
            for case, trial, over in Hunt(self.baseline).trials(pool, fresh, self.until):
                if trial.by == LOST:
                    failed[trial.mutant] = trial.said
                else:
                    trials[trial.mutant].append(trial)
                if not trial.by:
                    self.kept.add_survived(self.key(self.baseline[case]), trial)
                if trial.by == MISSING and not last:
                    yield self.baseline[case].work, trial
                elif over and trial.mutant in failed and trial.by in ("", LOST):
                    lost[trial.mutant] = failed[trial.mutant]
                elif over:
                    on_verdict(self.verdict(known[trial.mutant], trials.pop(trial.mutant), self.baseline[case]))

    def executing(self, mutants: Iterable[Mutant]) -> dict[str, tuple[str, ...]]:
        """The cases that execute each mutant and pass without it, by its digest."""
        cases = [(item, f"{item.case.name} on {self.plan.parts[item.work].name}") for item in self.baseline]
        good = [(item.reached, name) for item, name in cases if not item.failure]
        return {mutant.digest: tuple(name for reached, name in good if mutant.id in reached) for mutant in mutants}

    def untried(self, mutant: Mutant) -> Verdict:
        """The fate of a mutant that no case feels: one that is reached is a survivor of all that reach it."""
        cases = sum(mutant.id in item.reached for item in self.baseline if not item.failure)
        return Verdict(mutant, "", "", "", NOT_FELT if cases else "", cases, 0.0)

    def verdict(self, mutant: Mutant, trials: Sequence[Trial], case: Alone) -> Verdict:
        """The fate of a mutant from its trials; `case` is that of the last."""
        last, found = trials[-1], self.survivor(mutant, trials)
        assert last.by != LOST, "it has no verdict"
        if not last.by:
            return found
        by = STOPPED if last.by == MISSING else last.by
        name = self.plan.parts[case.work].name
        return replace(found, on=name, by=by, case=case.case.name, said=last.said)

    def survivor(self, mutant: Mutant, trials: Sequence[Trial]) -> Verdict:
        """The fate of a mutant that these trials did not kill."""
        seconds = round(sum(trial.seconds for trial in trials), 2)
        return Verdict(mutant, "", "", "", "", len(trials), seconds, any(trial.changed for trial in trials))

    def other_bits(self) -> tuple[str, ...] | None:
        """The cases whose bits the switches alone change; None if no time is left to find out."""
        if time.monotonic() > self.until or not self.baseline:
            return None
        self.say("running the cases without switches")
        sessions = [session_for(part.entry, self.session) for part in self.plan.parts]
        for session, part, kernels in zip(sessions, self.plan.parts, self.kernels, strict=True):
            session.add_kernels(part.target, kernels, RUNNER, required_sources(part.cases))
        works = [
            replace(work, options=session.options, builds=session.builds, judge=False)
            for work, session in zip(self.works, sessions, strict=True)
        ]
        with workers(works) as pool:
            plain = {(item.work, item.case.name): item.output for item in alone(pool, self.items)}
        differs = [item for item in self.baseline if item.output != plain[item.work, item.case.name]]
        return tuple(sorted(f"{item.case.name} on {self.plan.parts[item.work].name}" for item in differs))

    def complete(self, missing: Sequence[tuple[int, Trial]]) -> None:
        """Compile the kernels that only mutants need."""
        tree = self.session.options.tree
        assert tree is not None
        read = KernelReader(tree)
        for number in {work for work, _ in missing}:
            symbols = {trial.said for work, trial in missing if work == number}
            found = {case for symbol in symbols if (case := read.of_symbol(symbol)) is not None}
            self.say(f"compiling {len(found)} kernels that only mutants need")
            part = self.plan.parts[number]
            try:
                self.sessions[number].add_kernels(part.target, sorted(found, key=lambda case: case.name), RUNNER)
            except BuildError as error:
                self.say(str(error).partition("\n")[0])


def run(
    plan: Plan,
    session: Session,
    results: Path,
    say: OnStep,
    on_verdict: Callable[[Verdict, int, int], None],
    *,
    bits: bool = True,
) -> Mutated:
    """Try mutants with a suite; verdicts that `results` has already are taken from there.

    `bits`: also find out which cases the switches alone change, which takes a build without them.
    """
    verdicts = Verdicts.of(results, plan, session)
    known = {item.mutant.digest: item for item in verdicts}
    laboratory = Laboratory(plan, session, say, known)
    compiled = {mutant.digest: mutant for mutant in laboratory.schemata.mutants}
    compiled |= {digest: item.mutant for digest, item in known.items()}
    mutants = [mutant for mutant in plan.chosen(compiled.values()) if mutant.digest not in plan.passed_over]
    found = [known[mutant.digest] for mutant in mutants if mutant.digest in known]

    def take(verdict: Verdict) -> None:
        found.append(verdict)
        verdicts.append(verdict)
        on_verdict(verdict, len(found), len(mutants))

    laboratory.try_all([mutant for mutant in mutants if mutant.digest not in known], take)
    failing = tuple(f"{item.case.name}: {item.failure}" for item in laboratory.baseline if item.failure)
    return Mutated(
        tuple(part.name for part in plan.parts),
        len(laboratory.items),
        failing,
        laboratory.other_bits() if bits else None,
        tuple(found),
        len(compiled),
        len(mutants) - len(found),
        laboratory.executing(mutant for mutant in mutants if mutant.digest not in known),
    )
