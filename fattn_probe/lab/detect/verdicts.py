"""The plan for trying mutants, the verdict on each, and the file that keeps the verdicts."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document, append, numbered
from fattn_probe.base.errors import InputError
from fattn_probe.base.fingerprint import Fingerprint
from fattn_probe.cases.device import Target, is_amd
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.entries import session_for
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.selection import select
from fattn_probe.daily.regress.suite import Entry
from fattn_probe.lab.detect.counts import equivalents
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.machine.run.session import Session, arch_of, of_source, on_target
from fattn_probe.verdict.judge import support
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.judgement import Judgement

KilledBy = Literal["verdict", "check", "checker", "stopped", "support", "build"]
"""A wrong output; a correct one that fails a check of its bits or its kernels; a finding of the checker's build; a run
that stopped without an output, or hung; an op that is no longer supported; a kernel that does not compile."""
MISSING: Final = "missing"
"""A run that stopped because the build lacks a kernel; compile it and run again."""
LOST: Final = "lost"
"""A run that ended with an error in the worker: no verdict. Failures of cases that cannot run begin with this word."""
Ending = KilledBy | Literal["", "missing", "lost"]
"""How a run with a mutant ended; empty if the mutant survives."""


def killed_by(result: Result | Judgement) -> KilledBy | Literal[""]:
    """The way in which a result kills a fault; empty if it passes, is unjudged, or is a known defect."""
    return "" if result.status in ("pass", "unjudged") or result.known else how_it_failed(result)


def how_it_failed(result: Result | Judgement) -> KilledBy:
    """How a result that does not pass shows a fault, even if it looks like a known defect."""
    if result.status == "unsupported" or result.reason.startswith(support.LOST):
        return "support"
    if result.status == "lost" or result.finding is not None:
        return "stopped"
    return "check" if any(check.fails for check in result.checks) else "verdict"


METHOD = 2
"""The version of the rules for judging mutants; verdicts of other versions are discarded."""


@dataclass(frozen=True)
class MutantVerdict:
    """The fate of a mutant: killed `by` something, on a part, in a case; or a survivor of the `cases` that reach it.

    `changed`: its outputs are correct, but a case launches different kernels or grids.
    """

    mutant: Mutant
    on: str
    by: KilledBy | Literal[""]
    case: str
    said: str
    cases: int
    seconds: float
    changed: bool = False

    @property
    def fate(self) -> str:
        """Killed, another kernel, survived or not reached."""
        if self.by:
            return "killed"
        return "not reached" if not self.cases else "another kernel" if self.changed else "survived"

    def document(self) -> dict[str, Any]:
        """The verdict for JSON."""
        return asdict(self) | {"fate": self.fate}


STORED = Document("a verdict of `mutate`", MutantVerdict)


@dataclass(frozen=True)
class SuitePart:
    """An entry of a suite on a target, how it is judged, and its cases."""

    entry: Entry
    target: Target
    checks: Checks
    cases: tuple[Case, ...]

    @property
    def name(self) -> str:
        """The part's name in tables: `sim:h200`, `races on sim:h200`."""
        return f"{self.entry.name} on {self.target}" if self.entry.name else str(self.target)

    def judgement(self, by: KilledBy) -> list[Any]:
        """How its cases are run and judged, to be hashed: only the parts on which this kind of kill depends."""
        return judgement_of(self.entry, self.target, decisive(self.checks, by))


@dataclass(frozen=True)
class MutationPlan:
    """A suite's entries on their targets, and the mutants to try: those in some `files`, a `sample` of them (0: all).
    Mutants in AMD-only code need an AMD GPU; with `amd`, only these and those equivalent on NVIDIA GPUs are tried.

    `upstream`: judge as upstream's test does. `most` is the number of cases with the same launches that a mutant is
    tried on (0: all). No case starts after `seconds`. `passed_over` are digests of mutants in the sample to leave out.
    """

    parts: tuple[SuitePart, ...]
    files: tuple[str, ...] = ()
    sample: int = 0
    upstream: bool = False
    seconds: float = math.inf
    most: int = 0
    passed_over: frozenset[str] = frozenset()
    amd: bool = False

    def likely(self, mutants: Iterable[Mutant]) -> list[Mutant]:
        """The mutants to sample from, of which at least half compile."""
        return replace(self, sample=2 * self.sample).chosen(mutants)

    def chosen(self, mutants: Iterable[Mutant]) -> list[Mutant]:
        """The mutants to try, by digest. A smaller sample is a subset of a larger one."""
        amds = [item for item in equivalents() if item.nvidia and self.amd]
        own = (m for m in mutants if m.amd in {self.amd, self.on_amd} or any(item.means(m) for item in amds))
        found = (m for m in own if not self.files or m.file in self.files)
        return sorted(found, key=lambda m: m.digest)[: self.sample or None]

    @property
    def on_amd(self) -> bool:
        """Whether at least one part is on an AMD GPU."""
        return any(is_amd(arch_of(part.target)) for part in self.parts)

    def key(self, session: Session) -> str:
        """A hash of what a survival depends on, except the mutant: release, patches, every case and its judgement."""
        parts = [[part.judgement("check"), [case.digest for case in part.cases]] for part in self.parts]
        return self.hashed(session, [self.most, parts])

    def killers(self, session: Session, by: KilledBy = "check") -> dict[tuple[str, str], str]:
        """For each part and case, by name: a hash of everything that a kill depends on except the mutant.

        So a kill is valid for every plan with that part and case. `by` is the kind of kill, as in `MutantVerdict`.
        """
        return {
            (part.name, case.name): self.hashed(session, [part.judgement(by), case.digest])
            for part in self.parts
            for case in part.cases
        }

    def hashed(self, session: Session, what: Sequence[Any]) -> str:
        """A hash of `what` together with the release, its patches and the way of judging."""
        return short(json.dumps([METHOD, *of_source(session.options).source, self.upstream, what]))


def judgement_of(entry: Entry, target: Target, checks: Checks) -> list[Any]:
    """How an entry's cases are run and judged on a target, to be hashed."""
    built = Fingerprint(flavour=entry.flavour, sanitize=tuple(entry.sanitize), quants=tuple(entry.quants))
    return replace(on_target(built, target), checks=str(checks)).judgement


def decisive(checks: Checks, by: KilledBy) -> Checks:
    """The checks on which a kill depends: checks of correct outputs matter only if one of them kills."""
    return checks if by == "check" else replace(checks, roundings=False, kernels=False)


def weaker(checks: Checks) -> Iterator[Checks]:
    """The checks minus some of those that apply only to correct outputs, and the checks unchanged."""
    for roundings, kernels in product({False, checks.roundings}, {False, checks.kernels}):
        yield replace(checks, roundings=roundings, kernels=kernels)


def parts_of(pairs: Iterable[tuple[Entry, Target, Checks]], folder: Path, session: Session) -> tuple[SuitePart, ...]:
    """The parts of a suite in a folder."""
    return tuple(
        SuitePart(entry, target, checks, select(entry, folder, session_for(entry, session), target).cases)
        for entry, target, checks in pairs
    )


@dataclass(frozen=True)
class Verdicts:
    """The verdicts in a file that are valid for a plan.

    A kill is valid for every plan with the same case and judgement, a survival only for a plan with the same cases. By
    part and case, `killers` has the hashes of kills by a check, `others` those of other kills, and `weaker` those of
    kills by a check with fewer checks of correct outputs.
    """

    path: Path
    key: str
    killers: Mapping[tuple[str, str], str]
    others: Mapping[tuple[str, str], str] = field(default_factory=dict)
    weaker: frozenset[str] = frozenset()

    @classmethod
    def of(cls, path: Path, plan: MutationPlan, session: Session) -> "Verdicts":
        """The verdicts for a plan. A kill without some check of correct outputs is also a kill with that check."""
        parts = ((part, checks) for part in plan.parts for checks in weaker(part.checks))
        plans = (replace(plan, parts=(replace(part, checks=checks),)) for part, checks in parts)
        every = frozenset(killer for one in plans for killer in one.killers(session).values())
        return cls(path, plan.key(session), plan.killers(session), plan.killers(session, "verdict"), every)

    def append(self, verdict: MutantVerdict) -> None:
        """Add a verdict to the file."""
        killers = self.killers if verdict.by == "check" else self.others
        keys = {"key": self.key, "killer": killers.get((verdict.on, verdict.case), "")}
        append(self.path, [keys | verdict.document()])

    def __iter__(self) -> Iterator[MutantVerdict]:
        """The verdicts, in the order of the file if a mutant has several."""
        known = self.weaker.union(self.killers.values(), self.others.values())
        for item in documents(self.path):
            if item["key"] == self.key or item.get("killer", "") in known:
                yield STORED.of(item)


def documents(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of verdicts; none if there is no file."""
    for number, item in numbered(path, "verdict"):
        if not {"key", "fate", "mutant"} <= item.keys():
            raise InputError(f"{path}:{number}: is not a verdict of `mutate`")
        yield item
