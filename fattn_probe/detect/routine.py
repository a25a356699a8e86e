"""What suites ask of a release with a fault: the cases that the fault can change, those likely to catch it first."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from fattn_probe.detect.measure import on_simulated
from fattn_probe.device import Target, load_devices
from fattn_probe.device.target import parse_target, picklable
from fattn_probe.regress.entries import Given
from fattn_probe.regress.selection import select
from fattn_probe.regress.suite import CheckSpec, Entry, Suite, load_suite
from fattn_probe.run.kernels_by_op import KernelsByOp, op_digest
from fattn_probe.run.required_kernels import required_kernels
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario import Case, expand, load
from fattn_probe.source import KernelCase
from fattn_probe.source.faults import HistoricFault
from fattn_probe.source.patches import Patch

BY_FILE = {
    "fattn-mma-f16.cuh": "mma",
    "fattn-tile.cuh": "tile",
    "fattn-tile.cu": "tile",
    "fattn-vec.cuh": "vec",
}
"""Files of one family of kernels: a change in them changes no case of another family."""
CHANGED = re.compile(r"^\+\+\+ b/\S*?([\w.-]+)$", re.MULTILINE)
FIRST = 4  # kernels of each family in the first batch; the batches so far have twice as many with each further one
SHOWS = "shows"
"""The name of the routine that runs a fault's own case."""


@dataclass(frozen=True)
class Batch:
    """Cases that are judged together: on a target, in a build of an entry's flavour, by its checks."""

    entry: Entry
    target: Target
    cases: Sequence[Case]


class Questions(Protocol):
    """What is asked of a release with a fault."""

    options: RunOptions

    @property
    def name(self) -> str:
        """The suite's name."""

    def get_ready(self) -> None:
        """Find the cases before the faults are tried."""

    def batches(self, fault: HistoricFault) -> Iterator[Batch]:
        """The cases that the fault can change."""


@dataclass
class Showing:
    """The cases in each fault's head."""

    options: RunOptions
    name: str = SHOWS

    def get_ready(self) -> None:
        """Nothing: the cases are in the heads."""

    def batches(self, fault: HistoricFault) -> Iterator[Batch]:
        """The cases of the head's scenarios on their devices, by the build or the check that must catch the fault."""
        devices = load_devices()
        check = CheckSpec(kernels=fault.catch == "kernel")
        entry = Entry(flavour="check" if fault.catch == "check" else "release", check=check)
        for shown in fault.shows:
            yield Batch(entry, parse_target(f"sim:{shown.device}", devices), expand(load(shown.scenario)))


Planned = dict[str, tuple[Case, frozenset[KernelCase]]]


@dataclass
class Routine:
    """A suite, its cases by entry and target, and the kernels that each case needs without a fault.

    `before`: by fault, the target and the case that caught it when the suite was another; they are tried first.
    """

    path: Path
    options: RunOptions
    before: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    suite: Suite = field(init=False)
    targets: list[tuple[Entry, Target]] = field(init=False)
    _planned: dict[tuple[str, str], Planned] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.suite = load_suite(self.path)
        found = on_simulated("faults", self.path, Given())
        self.targets = [(entry, picklable(target)) for entry, target in found]

    @property
    def name(self) -> str:
        """The suite's name."""
        return self.path.stem

    def get_ready(self) -> None:
        """Find the cases of all entries and targets, and what they need."""
        for entry, target in self.targets:
            self.planned(entry, target)

    def planned(self, entry: Entry, target: Target) -> Planned:
        """By name, the cases of an entry that the release supports on a target, with their kernels."""
        key = entry.name, str(target)
        if key not in self._planned:
            dry = Session(replace(self.options, simulation=Simulation(dry=True)))
            cases, _ = select(entry, self.path.parent, dry, target)
            kernels = kernels_by_case(dry, cases, target)
            self._planned[key] = {case.name: (case, kernels[case.name]) for case in cases if kernels[case.name]}
        return self._planned[key]

    def reached(self, patch: Patch, entry: Entry, target: Target) -> Planned:
        """The cases of an entry that a patch can change."""
        files = set(CHANGED.findall(patch.text))
        families = {BY_FILE.get(file, "") for file in files}
        cases = self.planned(entry, target).items()
        return {
            name: (case, own)
            for name, (case, own) in cases
            if "" in families or families & {kernel.family for kernel in own}
        }

    def batches(self, fault: HistoricFault) -> Iterator[Batch]:
        """The cases that a fault can change, entry by entry and target by target, in batches of more and more kernels.

        Most faults show in all kernels of a family, and those of a batch are compiled with the fault before it runs.
        First come entries on the GPU of the fault's own case, with the build that it is caught by, and its kernels.
        """
        on, name = self.before.get(fault.patch.name, ("", ""))
        targets = sorted(self.targets, key=lambda pair: unlike(fault, *pair))
        reached = [(entry, target, self.reached(fault.patch, entry, target)) for entry, target in targets]
        for entry, target, cases in reached:
            if str(target) == on and name in cases:
                yield Batch(entry, target, [cases[name][0]])
        for entry, target, cases in reached:
            first = self.own_kernels(fault, target)
            yield from (Batch(entry, target, batch) for batch in by_kernels(cases.values(), first))

    def own_kernels(self, fault: HistoricFault, target: Target) -> frozenset[KernelCase]:
        """The kernels that the fault's own case needs on its GPU; none on others."""
        cases = [
            case
            for shown in fault.shows
            if f"sim:{shown.device}" == str(target)
            for case in expand(load(shown.scenario))
        ]
        dry = Session(replace(self.options, simulation=Simulation(dry=True)))
        return frozenset(required_kernels(dry, cases, target)) if cases else frozenset()


def unlike(fault: HistoricFault, entry: Entry, target: Target) -> tuple[bool, bool]:
    """Orders the entries for a fault: whether the build, then the GPU, is another than that of its own case."""
    own = {f"sim:{shown.device}" for shown in fault.shows}
    return (entry.flavour == "check") != (fault.catch == "check"), str(target) not in own


def kernels_by_case(session: Session, cases: Sequence[Case], target: Target) -> dict[str, frozenset[KernelCase]]:
    """The kernels that each case needs on a target, by the case's name."""
    known = {kernel.name: kernel for kernel in required_kernels(session, cases, target)}
    names = KernelsByOp.of(session.options, target).read()
    return {
        case.name: frozenset(known[name] for name in names.get(op_digest(case.op), ()) if name in known)
        for case in cases
    }


def by_kernels(
    cases: Collection[tuple[Case, Collection[KernelCase]]], first: Collection[KernelCase] = ()
) -> Iterator[list[Case]]:
    """Cases in batches that need more and more kernels of each family: `first` these, then those that most cases need.

    In a batch, those with the least work are first.
    """
    ranks = ranked(kernel for _, kernels in cases for kernel in kernels) | dict.fromkeys(first, -1)
    left, most = sorted(cases, key=lambda item: (item[0].op.sizes.flop, item[0].name)), 0 if first else FIRST
    while left:
        batch = [case for case, kernels in left if all(ranks[kernel] < most for kernel in kernels)]
        left = [(case, kernels) for case, kernels in left if not all(ranks[kernel] < most for kernel in kernels)]
        if batch:
            yield batch
        most = 2 * most or FIRST


def ranked(kernels: Iterable[KernelCase]) -> dict[KernelCase, int]:
    """The place of each kernel in its family, the most frequent first."""
    places, ranks = Counter[str](), dict[KernelCase, int]()
    for kernel, _ in sorted(Counter(kernels).items(), key=lambda item: (-item[1], item[0].name)):
        ranks[kernel] = places[kernel.family]
        places[kernel.family] += 1
    return ranks
