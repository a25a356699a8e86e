"""Build all the kernels that cases need before they run."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from fattn_probe.base.scratch import scratch
from fattn_probe.base.workers import threads
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.build import RUNNER, BuildRequest
from fattn_probe.llama.build.key import as_compiled
from fattn_probe.llama.build.ninja import Report
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.llama.source import KernelCase
from fattn_probe.machine.run.command import Work
from fattn_probe.machine.run.gpu import gpu_arch, has_gpu
from fattn_probe.machine.run.inputs import make_dry_file
from fattn_probe.machine.run.outcome import Ran
from fattn_probe.machine.run.required_kernels import device_of, likely_kernels, required_kernels, required_sources
from fattn_probe.machine.run.session import RunOptions, Session, arch_of
from fattn_probe.machine.run.simulator import Simulation, unpacked_tables


def prepare(session: Session, work: Work, program: str = RUNNER) -> None:
    """Compile the kernels that the cases need and the builds of their targets lack, each build in one go.

    `program` will run the cases. If the likely kernels are known, they are compiled first, and then those that dry runs
    add. Otherwise dry runs come first: they need only part of a build, and the rest is compiled together with the
    kernels. A session with an existing build has nothing to prepare. A kernel that is still missing is compiled when a
    case calls it (`Session.completing`).
    """
    if session.options.build is not None or session.options.tree is None:
        return
    by_target: dict[str, tuple[Target, list[Case]]] = {}
    for case, targets in work:
        for target in targets:
            by_target.setdefault(str(target), (target, []))[1].append(case)
    here = [(target, cases) for target, cases in by_target.values() if target.engine != "cpu"]
    sources = required_sources(case for _, cases in here for case in cases)
    with threads(1) as beside:
        simulated = any(target.engine == "sim" for target, _ in here)
        tables = beside.submit(unpacked_tables) if simulated else None  # once, half a second, while the compilers run
        for find in (likely_kernels, required_kernels):
            wanted: dict[tuple[str, str], list[KernelCase]] = defaultdict(list)
            for target, cases in here:
                wanted[target.engine, arch_of(target)] += find(session, cases, target)
            for target, _ in here:
                kernels = wanted[target.engine, arch_of(target)]
                if kernels or find is required_kernels:
                    session.add_kernels(target, kernels, program, sources)
        if tables is not None:
            tables.result()  # a full disk stops the run here, not in each case


def kernels_of_build(request: BuildRequest, cases: Sequence[Case], progress: Report) -> list[KernelCase]:
    """The kernel cases that a build uses for cases; without a GPU of its architecture, on a simulated one."""
    options = RunOptions(request.tree, patches=request.patches, quants=request.quants)
    if request.engine == "sim":
        options = replace(options, flavour=request.flavour, sanitize=request.sanitize)
    real = request.engine == "cuda" and has_gpu() and gpu_arch(0) == request.arch
    target = Target("cuda") if real else Target("sim", device_of(request.arch))
    found = required_kernels(Session(options, progress), cases, target)
    return as_compiled(found, request.engine, request.flavour)


def dry_launches(session: Session, case: Case, target: Target) -> tuple[LaunchRecord, ...]:
    """The launches of a case, without running a kernel; none if the dry run fails: the real run shows why.

    Kernels that the build lacks are compiled, since their files launch them.
    """
    simulation = Simulation(dry=True, threads=1)
    dry = replace(session, options=replace(session.options, simulation=simulation, repeat=1, warmup=0))
    with scratch() as folder:
        result = dry.run(case, make_dry_file(case, folder / "case.gguf"), target)
    return result.launches if isinstance(result, Ran) else ()
