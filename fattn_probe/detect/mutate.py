"""`fattn-probe mutate`: the flow from a suite to the fate of each mutant, and the results file."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fattn_probe.detect.killing import Alone, Verdict, Work, alone, verdicts
from fattn_probe.detect.mutants import Mutant
from fattn_probe.detect.schemata import Schemata, compiling
from fattn_probe.device import Target
from fattn_probe.regress.selection import select
from fattn_probe.regress.suite import Suite
from fattn_probe.run.prepare import prepare
from fattn_probe.run.required_kernels import required_kernels
from fattn_probe.run.session import Session, arch_of
from fattn_probe.scenario import Case
from fattn_probe.source import Tree

OnStep = Callable[[str], None]
OnVerdict = Callable[[Verdict, int, int], None]


@dataclass(frozen=True)
class Plan:
    """A suite on one target, and the mutants to try: those of some `files`, a `sample` of them by digest (0: all)."""

    suite: Suite
    folder: Path
    target: Target
    files: tuple[str, ...] = ()
    sample: int = 0

    def chosen(self, mutants: Iterable[Mutant]) -> list[Mutant]:
        """The mutants to try. A smaller sample is a part of a larger one."""
        found = sorted((m for m in mutants if not self.files or m.file in self.files), key=lambda m: m.digest)
        return found[: self.sample or None]


@dataclass(frozen=True)
class Mutated:
    """The fates of mutants, and the cases whose bits the switches alone change."""

    on: str
    cases: int
    other_bits: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    compiled: int


def run(plan: Plan, session: Session, results: Path, say: OnStep, on_verdict: OnVerdict) -> Mutated:
    """Try mutants with a suite; verdicts that `results` has already are taken from there."""
    tree, target = session.options.tree, plan.target
    assert tree is not None
    cases, _ = select(plan.suite, plan.folder, session, target)
    say("finding the mutants that compile")
    kernels = required_kernels(session, cases, target)
    schemata = compiling(tree, {arch_of(target): kernels}, say)
    chosen = plan.chosen(schemata.mutants)
    say("running the cases without a mutant")
    before, work, baseline = baselines(session, schemata, cases, plan)
    known = {item.mutant.digest: item for item in read(results, tree, plan)}
    fresh = [mutant for mutant in chosen if mutant.digest not in known]
    found = [known[mutant.digest] for mutant in chosen if mutant.digest in known]
    for item in verdicts(work, fresh, baseline):
        found.append(item)
        append(results, tree, plan, item)
        on_verdict(item, len(found), len(chosen))
    plain = {item.case.name: item.result.output for item in before}
    other = tuple(item.case.name for item in baseline if item.result.output != plain[item.case.name])
    return Mutated(str(target), len(cases), other, tuple(found), len(schemata.mutants))


def baselines(
    session: Session, schemata: Schemata, cases: Sequence[Case], plan: Plan
) -> tuple[list[Alone], Work, list[Alone]]:
    """The cases on the release as it is; then the work and the cases of the release with all switches off."""
    switched = replace(session, options=replace(session.options, patches=(schemata.patch,)), builds={})
    found = []
    for one in (session, switched):
        prepare(one, [(case, [plan.target]) for case in cases])
        work = Work(one.options, one.builds, plan.target, plan.suite.check.checks)
        found.append(list(alone(work, cases)))
    return found[0], work, found[1]


def key_of(tree: Tree, plan: Plan) -> list[str]:
    """What a verdict depends on besides the mutant."""
    return [tree.digest, str(plan.target), plan.suite.model_dump_json()]


def append(path: Path, tree: Tree, plan: Plan, verdict: Verdict) -> None:
    """Add a verdict to a results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key_of(tree, plan), **verdict.document()}) + "\n")


def read(path: Path, tree: Tree, plan: Plan) -> Iterator[Verdict]:
    """The verdicts of a results file for this release, target and suite."""
    for line in path.read_text().splitlines() if path.is_file() else ():
        item = json.loads(line)
        if item.pop("key") == key_of(tree, plan):
            item.pop("fate")
            yield Verdict(**{**item, "mutant": Mutant(**item["mutant"])})
