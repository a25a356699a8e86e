"""A build that grows while cases of it are judged: which kernels it gets next."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fattn_probe.base.errors import BuildError
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.pool import Growth
from fattn_probe.llama.source import Tree
from fattn_probe.machine.run.kernels_by_op import op_digest

MOST_IN_A_WAVE = 32
HOST, UNKNOWN = 4, 64
"""What a build costs before its first kernel, and one whose kernels are not known yet, in kernels."""
LAST = 10**9
"""More cases than any suite has."""


@dataclass(frozen=True)
class Likely:
    """The order of cases by how likely they show a change, and the families of kernels that it concerns.

    A case is known by its entry with its target (`few-sms on sim:h200-5`) and its name. Without families, all are.
    Before dry runs it is assumed that ops launch what they did with the tree of the `base`.
    """

    places: Mapping[tuple[str, str], int] = field(default_factory=dict)
    families: Sequence[str] = ()
    base: Tree | None = None

    def place(self, on: str, case: Case, kernels: Iterable[str]) -> int:
        """The place of a case, or one after all known ones; the last one if it has no kernel of these families."""
        return self.places.get((on, case.name), LAST - any(map(self.concerns, kernels)))

    def concerns(self, kernel: str) -> bool:
        """Whether a kernel is of these families."""
        return not self.families or kernel.partition(" ")[0] in self.families


@dataclass
class GrowingBuild:
    """A build of some lanes, by their numbers: the kernels that it `has`, and all that it is to have, by name.

    `names` are the kernels of a lane's ops, at first as they were before the last edit (a guess), later `exact`.
    `failed` has the compiler's words for kernels that do not compile, `suspects` those of a wave that did not.
    """

    lanes: list[int]
    kernels: dict[str, Any] = field(default_factory=dict)
    names: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    waiting: list[tuple[int, Case]] = field(default_factory=list)
    growth: Growth = field(default_factory=Growth)
    has: set[str] = field(default_factory=set)
    failed: dict[str, BuildError] = field(default_factory=dict)
    suspects: list[str] = field(default_factory=list)
    broken: BuildError | None = None
    exact: bool = False
    busy: bool = False

    @property
    def pending(self) -> list[str]:
        """The kernels that are neither there nor known to fail."""
        return [name for name in self.kernels if name not in self.has and name not in self.failed]

    @property
    def done(self) -> bool:
        """Whether nothing is left to compile."""
        return self.broken is not None or (self.exact and not self.pending)

    def needs(self, number: int, case: Case) -> tuple[str, ...]:
        """The kernels of a lane's case, as far as they are known."""
        return self.names.get((number, op_digest(case.op)), ())

    def wave(self, place: Callable[[int, Case, Iterable[str]], int], jobs: int) -> tuple[int, list[str]]:
        """The kernels to compile next: those of the cases that are most likely to tell, and of these the most used.

        With the `place` of the first such case in that order.
        """
        if self.suspects:
            return 0, self.suspects[:1] if self.growth.times else []
        used, places = Counter[str](), dict[str, int]()
        for number, case in self.waiting:
            kernels = self.needs(number, case)
            first = place(number, case, kernels)
            used.update(kernels)
            places |= {name: min(first, places.get(name, LAST)) for name in kernels}
        ordered = sorted(self.pending, key=lambda name: (places.get(name, LAST), -used[name], name))
        wave = ordered[: min(jobs << self.growth.times, MOST_IN_A_WAVE)]
        return min((places.get(name, LAST) for name in wave), default=LAST), wave

    def worth(self, place: Callable[[int, Case, Iterable[str]], int], jobs: int) -> tuple[int, float]:
        """How much its next step is worth: how likely to tell, and the cases that become ready for each kernel."""
        first, wave = self.wave(place, jobs)
        if not wave:
            return -first, len(self.waiting) / (HOST if self.growth.times else HOST + UNKNOWN)
        there = self.has.union(wave)
        ready = sum(there.issuperset(self.needs(number, case)) for number, case in self.waiting)
        return -first, ready / (len(wave) + (0 if self.growth.times else HOST))
