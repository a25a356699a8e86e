"""Finds the kernels that cases launch on a target, by dry runs whose results are stored, and builds them in advance."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fattn_probe.base.cache import Kind
from fattn_probe.base.documents import Document
from fattn_probe.base.errors import BuildError, InputError, LostError
from fattn_probe.base.files import scratch
from fattn_probe.base.host import cores
from fattn_probe.base.workers import Died, Tell, Workers, threads
from fattn_probe.cases.device import Device, Target, load_devices
from fattn_probe.cases.device.target import picklable
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.build import RUNNER, Build, BuildRequest
from fattn_probe.llama.build.ensure import existing
from fattn_probe.llama.build.key import as_compiled, folder_of, kernels_apart, key_of
from fattn_probe.llama.build.ninja import Report, silent
from fattn_probe.llama.build.sources import (
    COMMON_PREFIX,
    CONVERSIONS_TO_F16,
    LAUNCHES_PREFIX,
    launches_file,
    launching_files,
)
from fattn_probe.llama.build.stamp import own_stamp
from fattn_probe.llama.build.symbols import case_of, demangle
from fattn_probe.llama.build.toolchain import find_toolchain
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.families import BY_KERNEL, instance_of, kernel_named
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.llama.source import KernelCase, Tree, ggml_types, kernel_cases
from fattn_probe.machine.run.capture import make_dry_file
from fattn_probe.machine.run.command import Done, Work, plan_cases
from fattn_probe.machine.run.outcome import Ran, Unsupported, missing_kernels
from fattn_probe.machine.run.session import RunOptions, Session, arch_of, gpu_arch, has_gpu, of_source, on_target
from fattn_probe.machine.run.simulator import Simulation, unpacked_tables

KERNELS = Kind("instances", "the list of ops' kernels")
DOCUMENT = Document("a list of ops' kernels", dict[str, tuple[str, ...]])


@dataclass(frozen=True)
class KernelsByOp:
    """A cached document with the kernel cases that ops need, by `Op.digest`, for one source on one GPU."""

    key: str

    @classmethod
    def of(cls, options: RunOptions, target: Target) -> "KernelsByOp":
        """The document for a source with its patches on a target, which together with the op determine the kernels."""
        return cls(on_target(of_source(options), target).kernels)

    @classmethod
    def similar(cls, options: RunOptions, target: Target) -> "KernelsByOp":
        """The document of the source's last run, as a guess: its patches or its code may have differed."""
        spelled = replace(of_source(options), tree=options.tree.spec if options.tree else "", patches=())
        return cls(on_target(spelled, target).kernels)

    @classmethod
    def launches(cls, options: RunOptions, target: Target) -> "KernelsByOp":
        """The document with the launches of ops, as JSON lines, for a source with its patches on a target."""
        return cls(replace(on_target(of_source(options), target), stamp=own_stamp()).launches)

    def read(self) -> dict[str, tuple[str, ...]]:
        """The contents of the document; empty if it is missing or damaged."""
        return DOCUMENT.remembered(KERNELS, self.key) or {}

    def write(self, names: Mapping[str, tuple[str, ...]]) -> None:
        """Replace the document; a read-only cache is not an error."""
        DOCUMENT.remember(KERNELS, self.key, dict(names))


CASES_A_PROCESS = 50
"""The number of dry runs that justify another process, which takes half a second to start."""
Names = dict[str, tuple[str, ...]]
"""Maps an op's digest to the names of its kernel cases, or to other descriptions of its launches."""
Items = Sequence[tuple[str, Case]]
"""Cases with the digests of their ops."""
Read = Callable[[Tree], Callable[[Done], tuple[str, ...] | None]]
"""Creates a function that describes the launches in a dry run of a tree; it returns None for a failed run."""


def required_kernels(session: Session, cases: Sequence[Case], target: Target) -> list[KernelCase]:
    """The kernel cases that a target needs for these cases.

    A case whose dry run fails is left out; its real run will show the error.
    """
    tree = session.options.tree
    if tree is None:
        return []
    ops = {case.op.digest: case for case in cases}
    remembered = KernelsByOp.of(session.options, target)
    names = remembered.read()
    fresh = {digest: case for digest, case in ops.items() if digest not in names}
    if fresh:
        names |= dry_runs(session, fresh, target)
        remembered.write(names)
        similar = KernelsByOp.similar(session.options, target)
        similar.write(similar.read() | names)
    return kernels_of(session, target, ops, names)


def likely_kernels(session: Session, cases: Sequence[Case], target: Target) -> list[KernelCase]:
    """A guess at the kernel cases, without dry runs: those needed before, with other edits or patches in the source.

    With this guess, kernels can compile at the same time as the host code that dry runs need.
    """
    tree = session.options.tree
    if tree is None:
        return []
    files = (KernelsByOp.similar(session.options, target), KernelsByOp.of(session.options, target))
    names = {digest: kernels for file in files for digest, kernels in file.read().items()}
    return kernels_of(session, target, [case.op.digest for case in cases], names)


def required_sources(cases: Iterable[Case]) -> tuple[str, ...]:
    """Additional files of the CUDA backend that cases need: conversions to f16, if K or V has another type."""
    types = {type for case in cases for type in (case.op.type_K, case.op.type_V)}
    return () if types <= {"f16"} else (CONVERSIONS_TO_F16,)


def launching_by_size(session: Session, cases: Iterable[Case], target: Target) -> tuple[str, ...]:
    """The file that launches all kernels of the cases' head size on a simulated GPU; empty if they have several."""
    tree, sizes = session.options.tree, {(str(case.op.sizes.hsk), str(case.op.sizes.hsv)) for case in cases}
    if tree is None or target.engine != "sim" or len(sizes) > 1:
        return ()
    return tuple(launches_file(*size) for size in sizes & {case.sizes for case in kernel_cases(tree)})


def missing_files(
    find: Callable[..., tuple[str, ...]], session: Session, kernels: Iterable[KernelCase], target: Target
) -> tuple[str, ...]:
    """The `launching_files` or `common_files` of kernels that a simulated GPU's build still lacks.

    Another session may have extended the build since this one used it, for dry runs.
    """
    if session.options.tree is None or target.engine != "sim":
        return ()
    made = session.builds.get(f"{target}/{RUNNER}")
    now = existing(made.folder, made.request) if made is not None else None
    files = now.manifest.contents.sources if now is not None else ()
    return find(kernels, known_cases(session.options.tree).values(), files, cores() // 2)


def files_of_base(session: Session, base: Tree, target: Target) -> tuple[str, ...]:
    """The `launching_files` and `common_files` in a base's build for a simulated GPU; empty if there is no such build.

    Few edits change these files, so ccache has their objects; and if an edit changes which kernels are chosen, these
    files probably launch them. Their names have a number for each of a tree's cases, so both trees need the same cases.
    """
    tree = session.options.tree
    if tree is None or target.engine != "sim" or list(known_cases(tree)) != list(known_cases(base)):
        return ()
    request = Session(replace(session.options, tree=base, patches=())).request_for(target)
    try:
        compilers = find_toolchain(request.engine).versions
    except BuildError:  # nothing can be compiled, but the edited source's build may exist
        return ()
    made = existing(folder_of(request, key_of(request, compilers)), request)
    files = made.manifest.contents.sources if made is not None else ()
    return tuple(name for name in files if LAUNCHES_PREFIX in name or COMMON_PREFIX in name)


def known_cases(tree: Tree) -> dict[str, KernelCase]:
    """The kernel cases of a tree by name."""
    return {case.name: case for case in kernel_cases(tree)}


def kernels_of(session: Session, target: Target, ops: Iterable[str], names: Names) -> list[KernelCase]:
    """The distinct kernels of ops, if the tree has them; whole cases if kernels are not compiled separately."""
    assert session.options.tree is not None
    known = known_cases(session.options.tree)
    wanted = dict.fromkeys(name for digest in ops for name in names.get(digest, ()))
    found = (kernel for name in wanted if (kernel := kernel_named(name, known)))
    return as_compiled(found, target.engine, session.options.flavour)


def compiled_names(session: Session, target: Target, names: Names) -> Names:
    """The kernels of ops under the names that builds use; kernels that the tree lacks are left out.

    A dry run names single kernels, but builds for a GPU or a debugger have all kernels of a case or none.
    """
    assert session.options.tree is not None
    known, flavour = known_cases(session.options.tree), session.options.flavour
    every = {
        name: kernel_named(name, known) for name in dict.fromkeys(name for words in names.values() for name in words)
    }
    compiled = {name: as_compiled([kernel], target.engine, flavour)[0].name for name, kernel in every.items() if kernel}
    return {
        digest: tuple(dict.fromkeys(compiled[name] for name in words if name in compiled))
        for digest, words in names.items()
    }


def dry_runs(session: Session, cases: Mapping[str, Case], target: Target, read: "Read | None" = None) -> Names:
    """The launches of each op, from parallel dry runs: the names of its kernel cases, or the result of `read`.

    Kernels missing from the build are skipped, not compiled. An op whose run failed is left out. If kernels are not
    compiled separately, a release build performs the dry runs, so that the actual build does not contain a second host
    function for a kernel. Ops of several head sizes run twice: the first time without the files that launch their
    kernels, to determine which of these files they need.
    """
    simulation = Simulation(dry=True, skip_kernels=True, threads=1)
    options = replace(session.options, simulation=simulation, repeat=1, warmup=0)
    if target.engine == "sim" and not kernels_apart(target.engine, options.flavour):
        options = replace(options, flavour="release")
    dry, items = Session(options, session.progress), list(cases.items())
    by_size = launching_by_size(session, cases.values(), target)
    dry.add_kernels(target, (), sources=(*required_sources(cases.values()), *by_size))
    if target.engine == "sim" and not by_size:
        assert options.tree is not None
        every, known = known_cases(options.tree), KernelsByOp.of(session.options, target).read()
        names = {digest: known[digest] for digest in cases.keys() & known.keys()}
        names |= _read_runs(dry, [item for item in items if item[0] not in names], target, KernelReader)
        called = (kernel_named(name, every) for words in names.values() for name in words)
        files = missing_files(launching_files, dry, filter(None, called), target)
        if not files and read is None:
            return names
        dry.add_kernels(target, (), sources=files)
    return _read_runs(dry, items, target, read or KernelReader)


def _read_runs(dry: Session, items: Items, target: Target, read: Read) -> Names:
    """Perform dry runs in parallel; returns the results of `read`."""
    begin = functools.partial(reading, dry.options, dry.builds, picklable(target), read)
    processes = process_count(len(items))
    if processes == 1:
        with begin(silent) as words_of:
            return words_of(items)
    found: Names = {}
    with Workers[Items, Names](begin, processes) as pool:
        for _, names in pool.answers([items[start::processes] for start in range(processes)]):
            if isinstance(names, Died):
                raise LostError(f"dry runs: {names.how}")
            found |= names
    return found


@contextmanager
def reading(
    options: RunOptions, builds: Mapping[str, Build], target: Target, read: "Read", tell: Tell
) -> Iterator[Callable[[Items], Names]]:
    """Provide a worker's function, which performs dry runs of some ops; `read` describes their launches."""
    session, tree = Session(options, builds=dict(builds)), options.tree
    assert tree is not None
    words_of = read(tree)

    def names(items: Items) -> Names:
        done = plan_cases(session, [(case, [target]) for _, case in items])
        found = ((digest, words_of(one)) for (digest, _), one in zip(items, done, strict=True))
        return {digest: words for digest, words in found if words is not None}

    yield names


def process_count(cases: int) -> int:
    """The number of processes for dry runs of this many cases."""
    return max(1, min(cores(), cases // CASES_A_PROCESS))


class KernelReader:
    """Finds an op's kernel cases in its dry run."""

    def __init__(self, tree: Tree) -> None:
        self.cases = known_cases(tree)
        self.types = ggml_types(tree.root)
        self.of_symbol = functools.cache(lambda symbol: case_of(demangle(symbol), self.cases, self.types))

    def __call__(self, done: Done) -> tuple[str, ...] | None:
        """The names of the launched kernels and of the skipped kernel cases; None if the run failed."""
        if not isinstance(done.result, Ran | Unsupported):
            return None
        found = self._cases(done.result) if isinstance(done.result, Ran) else ()
        return tuple(dict.fromkeys(case.name for case in found if case is not None))

    def _cases(self, ran: Ran) -> Iterator[KernelCase | None]:
        known = ((BY_KERNEL.get(launch.kernel), launch.values) for launch in ran.launches)
        yield from (instance_of(family, values, self.cases) for family, values in known if family)
        yield from (self.of_symbol(symbol) for symbol in missing_kernels(ran.warnings))


def device_of(arch: str) -> Device:
    """The first GPU in the catalogue with this architecture."""
    for device in load_devices().values():
        if arch_number(device.arch) == arch_number(arch):
            return device
    raise InputError(
        f"no GPU in the catalogue has arch {arch}, so the kernels that these scenarios need are unknown; "
        "name them with --kernel, or build without scenarios: a run compiles what is missing"
    )


def kernel_key(launch: LaunchRecord) -> tuple[str, tuple[str, ...]]:
    """The family and arguments of a launch's kernel case; ("", ()) for a kernel that belongs to no case."""
    family = BY_KERNEL.get(launch.kernel)
    arguments = family.case_arguments(launch.values) if family else ()
    return (family.case, arguments) if family and arguments else ("", ())


def prepare(session: Session, work: Work, program: str = RUNNER, *, partly: bool = False) -> dict[str, str]:
    """Compile the kernels that the cases need and that their targets' builds lack, all at once for each build.

    `program` will run the cases. If the likely kernels are known, they are compiled first, followed by those that dry
    runs add. Otherwise, dry runs come first: they need only part of a build, and the rest is compiled together with the
    kernels. A session with an existing build prepares nothing. Further kernels are compiled on demand (`completing`).
    Returns the errors of targets that do not compile; BuildError for any or, with `partly`, if no target compiles.
    """
    if session.options.build is not None or session.options.tree is None:
        return {}
    by_target: dict[str, tuple[Target, list[Case]]] = {}
    for case, targets in work:
        for target in targets:
            by_target.setdefault(str(target), (target, []))[1].append(case)
    here = [(target, cases) for target, cases in by_target.values() if target.engine != "cpu"]
    sources, refused = required_sources(case for _, cases in here for case in cases), dict[str, str]()
    with threads(1) as beside:
        simulated = any(target.engine == "sim" for target, _ in here)
        tables = beside.submit(unpacked_tables) if simulated else None  # takes half a second, once, while compilers run
        for find in (likely_kernels, required_kernels):
            wanted: dict[tuple[str, str], list[KernelCase]] = defaultdict(list)
            for target, cases in here:
                try:
                    wanted[target.engine, arch_of(target)] += find(session, cases, target)
                except BuildError as error:
                    refused[str(target)] = str(error)
            for target, _ in here:
                kernels = wanted[target.engine, arch_of(target)]
                if str(target) not in refused and (kernels or find is required_kernels):
                    try:
                        session.add_kernels(target, kernels, program, sources)
                    except BuildError as error:
                        # A likely kernel whose configuration the source no longer has does not compile.
                        refused |= {str(target): str(error)} if find is required_kernels else {}
        if tables is not None:
            tables.result()  # a full disk stops the run here, not in each case
    if len(here) > 1:
        refused = {name: f"{name}: {error}" for name, error in refused.items()}
    if refused and (not partly or len(refused) == len(here)):
        raise BuildError("\n".join(refused.values()))
    return refused


def kernels_of_build(request: BuildRequest, cases: Sequence[Case], progress: Report) -> list[KernelCase]:
    """The kernel cases that these cases launch on a GPU of the build's architecture, or on a simulated one."""
    options = RunOptions(request.tree, patches=request.patches, quants=request.quants)
    if request.engine == "sim":
        options = replace(options, flavour=request.flavour, sanitize=request.sanitize)
    real = request.engine == "cuda" and has_gpu() and gpu_arch(0) == request.arch
    target = Target("cuda") if real else Target("sim", device_of(request.arch))
    return as_compiled(required_kernels(Session(options, progress), cases, target), request.engine, request.flavour)


def dry_launches(session: Session, case: Case, target: Target) -> tuple[LaunchRecord, ...]:
    """The launches of a case, without running a kernel; empty if the dry run fails, as the real run will show why.

    Kernels that the build lacks are compiled, because their files also contain the launches.
    """
    simulation = Simulation(dry=True, threads=1)
    dry = replace(session, options=replace(session.options, simulation=simulation, repeat=1, warmup=0))
    with scratch() as folder:
        result = dry.run(case, make_dry_file(case, folder / "case.gguf"), target)
    return result.launches if isinstance(result, Ran) else ()
