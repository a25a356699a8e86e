"""The choice of cases for the GPUs of one architecture, and the build with their kernels.

A kernel takes as long to compile as dozens of cases take to run. So a lane accepts a case with a new kernel only while
compiling has used less than its share of the time, according to the costs below; other cases with new kernels are left
out. The choice depends on the seed, the source and the devices, but not on the cache or the speed of the machine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, groupby, islice

from fattn_probe.base.errors import BuildError
from fattn_probe.base.host import cores
from fattn_probe.base.process import log
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.lab.fuzz.scenarios import Settings, case_of, draw
from fattn_probe.llama.build import Build
from fattn_probe.machine.run.required_kernels import dry_runs, kernels_of, op_digest, required_sources
from fattn_probe.machine.run.session import Session, arch_of

KERNEL_SECONDS, CASE_SECONDS = 8.0, 0.25
"""CPU seconds to compile an mma or vec kernel, and to run and judge a case."""
TILE_SECONDS = 0.45
"""Seconds to compile a tile kernel, for each element of V's head size: one file has its instances for all ncols."""
FIRST_SECONDS = 80.0
"""The initial allowance of a lane for compiling kernels, in seconds."""
UNSUPPORTED_EVERY = 20
"""Of the cases that a GPU does not support, one in this many runs: they cost little and show little."""
PLANNED_A_CORE = 45
"""Cases per core that are planned at once: they share processes for their dry runs."""
FIRST_BATCH, MOST_BATCH = 60, 1000
"""Cases of a target between two builds: few at first, then twice as many each time."""


@dataclass(frozen=True)
class Drawn:
    """A random case for a target: its number in the sequence of its seed, its settings, and the kernels it needs.

    `kernels` is None if the dry run failed: the real run shows why.
    """

    number: int
    settings: Settings
    case: Case
    target: Target
    kernels: tuple[str, ...] | None

    @property
    def left_out(self) -> bool:
        """Whether the case is unsupported and does not run."""
        return self.kernels == () and self.number % UNSUPPORTED_EVERY != 0


@dataclass(frozen=True)
class LaneBatch:
    """Cases to run, and the builds with their kernels."""

    cases: tuple[Drawn, ...]
    builds: Mapping[str, Build]

    @property
    def by_target(self) -> Iterator[tuple[Target, list[Drawn]]]:
        """The cases of each target."""
        ordered = sorted(self.cases, key=lambda drawn: str(drawn.target))
        for _, found in groupby(ordered, key=lambda drawn: str(drawn.target)):
            cases = list(found)
            yield cases[0].target, cases


@dataclass
class Lane:
    """The sequence of cases for the `targets` that share a build, out of `all_targets` of the run.

    Case number i is for target i modulo the number of targets. `share` is the time share of compiling new kernels,
    `due` the total number of cases, None for no limit.
    """

    session: Session
    targets: Sequence[Target]
    all_targets: Sequence[Target]
    seed: int
    share: float
    due: int | None = None
    kernels: dict[str, float] = field(default_factory=dict)
    accepted: int = 0

    def batch(self, size: int) -> LaneBatch:
        """The next `size` cases, with their kernels compiled; a case whose kernel does not compile will be lost."""
        cases = tuple(islice(self._cases, size))
        sources = required_sources(drawn.case for drawn in cases)
        for target in self.targets:
            try:
                wanted = kernels_of(self.session, target, ["lane"], {"lane": tuple(self.kernels)})
                self.session.add_kernels(target, wanted, sources=sources)
            except BuildError as error:
                log.warning("%s", error)
                self.session.add_kernels(target, (), sources=sources)
        return LaneBatch(cases, dict(self.session.builds))

    @property
    def next_size(self) -> int:
        """The number of cases of the next batch; 0 after the last one."""
        size = min(FIRST_BATCH * len(self.targets) + self.accepted, MOST_BATCH * len(self.targets))
        return size if self.due is None else min(size, self.due - self.accepted)

    @cached_property
    def _cases(self) -> Iterator[Drawn]:
        """The cases that are run, in order."""
        for drawn in self._planned():
            new = {name: seconds_to_compile(name) for name in drawn.kernels or () if name not in self.kernels}
            seconds = sum(self.kernels.values()) + sum(new.values())
            if not drawn.left_out and (seconds <= self._allowed or not new):
                self.kernels |= new
                self.accepted += 1
                yield drawn

    @property
    def _allowed(self) -> float:
        """The CPU seconds that compiling kernels may have taken so far."""
        return FIRST_SECONDS + self.share / (1 - self.share) * CASE_SECONDS * self.accepted

    def _planned(self) -> Iterator[Drawn]:
        """All cases with the kernels that they need."""
        numbers = (number for number in count() if self._target(number) in self.targets)
        while True:
            cases = {}
            for number in islice(numbers, PLANNED_A_CORE * cores()):
                settings = draw(self.seed, number)
                cases[number] = settings, case_of(settings, f"fuzz-{self.seed}-{number}")
            names = {}
            for target in self.targets:
                of_target = [case for number, (_, case) in cases.items() if self._target(number) == target]
                names[str(target)] = dry_runs(self.session, {op_digest(case.op): case for case in of_target}, target)
            for number, (settings, case) in cases.items():
                target = self._target(number)
                yield Drawn(number, settings, case, target, names[str(target)].get(op_digest(case.op)))

    def _target(self, number: int) -> Target:
        return self.all_targets[number % len(self.all_targets)]


def lanes(session: Session, targets: Sequence[Target], seed: int, share: float, total: int | None = None) -> list[Lane]:
    """A lane for each architecture of the targets, with a part of the `total` cases in proportion to its targets."""
    by_arch: dict[str, list[Target]] = {}
    for target in targets:
        by_arch.setdefault(arch_of(target), []).append(target)
    found, before = list[Lane](), 0
    for same in by_arch.values():
        after = before + len(same)
        due = None if total is None else after * total // len(targets) - before * total // len(targets)
        found.append(Lane(Session(session.options, session.progress), same, targets, seed, share, due))
        before = after
    return found


def seconds_to_compile(kernel: str) -> float:
    """The CPU seconds to compile a kernel case, `tile 576,512` or `mma 64,64,8,8`."""
    family, _, arguments = kernel.partition(" ")
    return TILE_SECONDS * int(arguments.split(",")[1]) if family == "tile" else KERNEL_SECONDS
