"""The cases that a fault in the corpus can change, beginning with those likely to catch it."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fattn_probe.cases.device import Target, load_devices
from fattn_probe.cases.device.target import parse_target, picklable
from fattn_probe.cases.scenario import Case, expand, load
from fattn_probe.daily.regress.entries import Given
from fattn_probe.daily.regress.selection import select
from fattn_probe.daily.regress.suite import CheckSpec, Entry
from fattn_probe.lab.detect.measure import on_simulated
from fattn_probe.llama.source import KernelCase
from fattn_probe.llama.source.faults import HistoricFault
from fattn_probe.machine.run.prepare import KernelsByOp, required_kernels
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation

BY_FILE = {
    "fattn-mma-f16.cuh": "mma",
    "fattn-tile.cuh": "tile",
    "fattn-tile.cu": "tile",
    "fattn-vec.cuh": "vec",
}
"""Files of one family of kernels; a change in these files changes no case of another family."""
CHANGED = re.compile(r"^\+\+\+ b/\S*?([\w.-]+)$", re.MULTILINE)
FIRST = 4  # kernels of each family in the first batch; each further batch doubles the number so far
SHOWS = "shows"
"""The name of the suite that consists of each fault's own case."""


@dataclass(frozen=True)
class CaseBatch:
    """Cases that are judged together: on a target, in a build of an entry's flavour, with the entry's checks."""

    entry: Entry
    target: Target
    cases: Sequence[Case]


@dataclass(frozen=True)
class PlannedPart:
    """An entry on a target: the cases (by name) that the release supports there, with the kernels that each needs."""

    entry: Entry
    target: Target
    cases: Mapping[str, tuple[Case, frozenset[KernelCase]]]


@dataclass(frozen=True)
class SuiteCases:
    """The cases that a suite runs without a fault; no parts for SHOWS.

    `before` maps a fault to the target and the case that caught it with an earlier version of the suite; these are
    tried first.
    """

    name: str
    options: RunOptions
    parts: Sequence[PlannedPart] = ()
    before: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def cases_of_suite(path: Path, options: RunOptions, before: Mapping[str, tuple[str, str]]) -> SuiteCases:
    """The cases of a suite on its simulated GPUs, and the kernels that they need, by dry runs."""
    dry, parts = dry_session(options), []
    for entry, target in on_simulated("faults", path, Given()):
        cases = select(entry, path.parent, dry, target).cases
        known = {kernel.name: kernel for kernel in required_kernels(dry, cases, target)}
        names = KernelsByOp.of(dry.options, target).read()
        needed = {
            case.name: (case, frozenset(known[name] for name in names.get(case.op.digest, ()) if name in known))
            for case in cases
        }
        supported = {name: item for name, item in needed.items() if item[1]}
        parts.append(PlannedPart(entry, picklable(target), supported))
    return SuiteCases(path.stem, options, parts, before)


def dry_session(options: RunOptions) -> Session:
    """A session that only plans launches."""
    return Session(replace(options, simulation=Simulation(dry=True)))


def batches_of(suite: SuiteCases, fault: HistoricFault) -> Iterator[CaseBatch]:
    """The cases that a fault can change, entry by entry and target by target, in batches with more and more kernels.

    Most faults show in all kernels of a family, and the kernels of a batch are compiled with the fault before the batch
    runs. Entries on the GPU of the fault's own case come first, with the build that catches it and the case's kernels.
    """
    if suite.name == SHOWS:
        devices = load_devices()
        check = CheckSpec(kernels=fault.catch == "kernel")
        entry = Entry(flavour="check" if fault.catch == "check" else "release", check=check)
        for shown in fault.shows:
            yield CaseBatch(entry, parse_target(f"sim:{shown.device}", devices), expand(load(shown.scenario)))
        return
    own = {f"sim:{shown.device}" for shown in fault.shows}
    ordered = sorted(
        suite.parts,
        key=lambda part: ((part.entry.flavour == "check") != (fault.catch == "check"), str(part.target) not in own),
    )
    families = {BY_FILE.get(file, "") for file in CHANGED.findall(fault.patch.text)}
    reached = [
        {
            name: (case, kernels)
            for name, (case, kernels) in part.cases.items()
            if "" in families or families & {kernel.family for kernel in kernels}
        }
        for part in ordered
    ]
    on, name = suite.before.get(fault.patch.name, ("", ""))
    for part, cases in zip(ordered, reached, strict=True):
        if str(part.target) == on and name in cases:
            yield CaseBatch(part.entry, part.target, [cases[name][0]])
    for part, cases in zip(ordered, reached, strict=True):
        first = own_kernels(fault, part.target, suite.options)
        yield from (CaseBatch(part.entry, part.target, batch) for batch in by_kernels(cases.values(), first))


def own_kernels(fault: HistoricFault, target: Target, options: RunOptions) -> frozenset[KernelCase]:
    """The kernels that the fault's own case needs on its GPU; empty for other GPUs."""
    shown = [one for one in fault.shows if f"sim:{one.device}" == str(target)]
    cases = [case for one in shown for case in expand(load(one.scenario))]
    return frozenset(required_kernels(dry_session(options), cases, target)) if cases else frozenset()


def by_kernels(
    cases: Collection[tuple[Case, Collection[KernelCase]]], first: Collection[KernelCase] = ()
) -> Iterator[list[Case]]:
    """Cases in batches that need more and more kernels of each family: those in `first`, then the most needed ones.

    In a batch, the cases with the least work come first.
    """
    places, ranks = Counter[str](), dict[KernelCase, int]()
    counts = Counter(kernel for _, kernels in cases for kernel in kernels)
    for kernel, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0].name)):
        ranks[kernel] = places[kernel.family]
        places[kernel.family] += 1
    ranks |= dict.fromkeys(first, -1)
    left, most = sorted(cases, key=lambda item: (item[0].op.sizes.flop, item[0].name)), 0 if first else FIRST
    while left:
        batch = [case for case, kernels in left if all(ranks[kernel] < most for kernel in kernels)]
        left = [(case, kernels) for case, kernels in left if not all(ranks[kernel] < most for kernel in kernels)]
        if batch:
            yield batch
        most = 2 * most or FIRST
