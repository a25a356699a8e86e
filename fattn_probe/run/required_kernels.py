"""The kernels that cases launch on a target, found by dry runs of the target's build, and remembered."""

import functools
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from fattn_probe.build import Build
from fattn_probe.build.sources import CONVERSIONS
from fattn_probe.build.symbols import case_of, demangle
from fattn_probe.device import Device, Target, load_devices
from fattn_probe.device.target import picklable
from fattn_probe.errors import InputError
from fattn_probe.launch.architecture import arch_number
from fattn_probe.launch.families import BY_KERNEL
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.run.command import Done, plan_cases
from fattn_probe.run.kernels_by_op import KernelsByOp, op_digest
from fattn_probe.run.outcome import Ran, Unsupported, skipped_symbols
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario import Case
from fattn_probe.source import KernelCase, Tree, ggml_types, kernel_cases

CASES_A_PROCESS = 50
"""The number of dry runs that justifies another process, which takes half a second to start."""
Names = dict[str, tuple[str, ...]]
"""The names of the kernel cases of ops, by the ops' digests."""


def required_kernels(session: Session, cases: Sequence[Case], target: Target) -> list[KernelCase]:
    """The kernel cases that a target needs for these cases.

    A case whose dry run fails is left out; its real run shows the error.
    """
    tree = session.options.tree
    if tree is None:
        return []
    ops = {op_digest(case.op): case for case in cases}
    remembered = KernelsByOp.of(session.options, target)
    names = remembered.read()
    fresh = {digest: case for digest, case in ops.items() if digest not in names}
    if fresh:
        names |= dry_runs(session, fresh, target)
        remembered.write(names)
        similar = KernelsByOp.similar(session.options, target)
        similar.write(similar.read() | names)
    return kernels_of(tree, ops, names)


def likely_kernels(session: Session, cases: Sequence[Case], target: Target) -> list[KernelCase]:
    """The likely kernel cases without dry runs: those needed before, with other edits or patches of the source.

    With this guess, the kernels compile beside the host code that dry runs need.
    """
    tree = session.options.tree
    if tree is None:
        return []
    files = (KernelsByOp.similar(session.options, target), KernelsByOp.of(session.options, target))
    names = {digest: kernels for file in files for digest, kernels in file.read().items()}
    return kernels_of(tree, [op_digest(case.op) for case in cases], names)


def required_sources(cases: Iterable[Case]) -> tuple[str, ...]:
    """The further files of the CUDA backend that cases need: conversions to f16, for other types of K and V."""
    types = {type for case in cases for type in (case.op.type_K, case.op.type_V)}
    return () if types <= {"f16"} else (CONVERSIONS,)


def kernels_of(tree: Tree, ops: Iterable[str], names: Names) -> list[KernelCase]:
    """The kernel cases of ops, each once, as far as the tree has them."""
    known = {case.name: case for case in kernel_cases(tree)}
    wanted = dict.fromkeys(name for digest in ops for name in names.get(digest, ()))
    return [known[name] for name in wanted if name in known]


@dataclass(frozen=True)
class DryRuns:
    """Dry runs of a part of the cases, in a separate process if there are many."""

    options: RunOptions
    builds: Mapping[str, Build]
    target: Target
    cases: Mapping[str, Case]

    def names(self) -> Names:
        """The kernel cases of each op, without ops whose run failed."""
        tree = self.options.tree
        assert tree is not None
        session = Session(self.options, builds=dict(self.builds))
        read = KernelReader(tree)
        done = plan_cases(session, [(case, [self.target]) for case in self.cases.values()])
        found = zip(self.cases, map(read.names, done), strict=True)
        return {digest: names for digest, names in found if names is not None}


def dry_runs(session: Session, cases: Mapping[str, Case], target: Target) -> Names:
    """The kernel cases of each op, by dry runs in parallel; kernels that the build lacks are skipped, not compiled."""
    simulation = Simulation(dry=True, skip_kernels=True, threads=1)
    options = replace(session.options, simulation=simulation, repeat=1, warmup=0)
    dry = Session(options, session.progress)
    dry.add_kernels(target, (), sources=required_sources(cases.values()))
    items, processes = list(cases.items()), process_count(len(cases))
    parts = [
        DryRuns(options, dry.builds, picklable(target), dict(items[start::processes])) for start in range(processes)
    ]
    if processes == 1:
        return parts[0].names()
    # A fork server would have the environment of its first use, with another cache in a program that changed it since.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return {digest: names for part in pool.map(DryRuns.names, parts) for digest, names in part.items()}


def process_count(cases: int) -> int:
    """The number of processes that share dry runs; one in a process that may start no other."""
    if multiprocessing.current_process().daemon:
        return 1
    return max(1, min(len(os.sched_getaffinity(0)), cases // CASES_A_PROCESS))


class KernelReader:
    """Reads the kernel cases of an op from its dry run."""

    def __init__(self, tree: Tree) -> None:
        self.cases = kernel_cases(tree)
        self.types = ggml_types(tree)
        self.by_key = {(case.family, case.args): case for case in self.cases}
        self.of_symbol = functools.cache(lambda symbol: case_of(demangle(symbol), self.cases, self.types))

    def names(self, done: Done) -> tuple[str, ...] | None:
        """The names of the kernel cases that were launched or skipped; None if the run failed."""
        if not isinstance(done.result, Ran | Unsupported):
            return None
        found = self._cases(done.result) if isinstance(done.result, Ran) else ()
        return tuple(dict.fromkeys(case.name for case in found if case is not None))

    def _cases(self, ran: Ran) -> Iterator[KernelCase | None]:
        yield from (self.by_key.get(kernel_key(launch)) for launch in ran.launches)
        yield from (self.of_symbol(symbol) for symbol in skipped_symbols(ran))


def device_of(arch: str) -> Device:
    """The first GPU of the catalogue with an architecture."""
    for device in load_devices().values():
        if arch_number(device.arch) == arch_number(arch):
            return device
    raise InputError(
        f"no GPU of the catalogue has arch {arch}, so it is not known which kernels these scenarios need there; "
        "name them with --kernel, or build without scenarios: a run compiles what it misses"
    )


def kernel_key(launch: LaunchRecord) -> tuple[str, tuple[str, ...]]:
    """The family and arguments of a launch's kernel case; ("", ()) for a kernel without its own case."""
    family = BY_KERNEL.get(launch.kernel)
    arguments = family.case_arguments(launch.values) if family else ()
    return (family.case, arguments) if family and arguments else ("", ())
