"""Runs cases on targets: makes the build, compiles missing kernels on demand, computes fingerprints."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.base.files import scratch
from fattn_probe.base.fingerprint import Fingerprint
from fattn_probe.base.host import cores
from fattn_probe.base.process import run
from fattn_probe.cases.device import Target, arch_name
from fattn_probe.cases.op.case_file import Named, write_case
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.build import CPU_RUNNER, RUNNER, Build, BuildRequest, Manifest, ensure
from fattn_probe.llama.build.key import Contents, Flavour, key_of, named, new_manifest
from fattn_probe.llama.build.ninja import JobSlots, Report, silent
from fattn_probe.llama.build.stamp import package_stamp
from fattn_probe.llama.build.toolchain import find_toolchain
from fattn_probe.llama.launch.architecture import nvcc_arch
from fattn_probe.llama.launch.record import Names, Types
from fattn_probe.llama.source import KernelCase, Tree, ggml_types, kernel_parameters
from fattn_probe.llama.source.patches import Patch, changed_by
from fattn_probe.machine.run.capture import Capture, FiledInputs, Part, capture_of, write_part
from fattn_probe.machine.run.outcome import Missing, Ran, RunOutcome
from fattn_probe.machine.run.progress import Watch
from fattn_probe.machine.run.provenance import driver, version, versions
from fattn_probe.machine.run.runner import Command, RunFiles, SharedRunner
from fattn_probe.machine.run.simulator import Simulation


def has_gpu() -> bool:
    """Whether this machine has a GPU and a driver."""
    try:
        gpu_arch(0)
    except InputError:
        return False
    return True


@lru_cache
def gpu_arch(index: int) -> str:
    """nvcc's architecture number for a GPU of this machine: "90" for an H200."""
    try:
        done = run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "-i", str(index)], failure=None)
    except BuildError as error:
        raise InputError(
            "--on gpu: this machine has no NVIDIA driver (nvidia-smi); --on sim:h200 needs none"
        ) from error
    if done.code != 0:
        raise InputError(f"--on gpu:{index}: {(done.stdout + done.stderr).strip()}")
    return nvcc_arch(done.stdout)


@lru_cache
def gpu_name(index: int) -> str:
    """The name of a GPU of this machine: "NVIDIA H200"."""
    return run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", str(index)]).stdout.strip()


DEFAULT_ARCH = "90"  # the `cpu` target uses the ggml of a simulator build for this architecture
MOST_RETRIES = 30  # limit on missing kernels per case; more than any op launches
Result = TypeVar("Result")


@dataclass(frozen=True)
class RunOptions:
    """The options of a session; `build` is an existing build, to be used unchanged."""

    tree: Tree | None
    flavour: Flavour = "release"
    sanitize: tuple[str, ...] = ()
    patches: tuple[Patch, ...] = ()
    quants: tuple[str, ...] = ()
    simulation: Simulation = dataclasses.field(default_factory=Simulation)
    repeat: int = 1
    warmup: int = 0
    timeout: float = 600.0
    build: Build | None = None
    beside_base: bool = True
    """Whether a suite's launches are compared with those of the base (`machine/run/base`)."""


def arch_of(target: Target) -> str:
    """The architecture of a target's build: nvcc's number, or an AMD name."""
    if target.device is not None:
        return target.device.arch
    return gpu_arch(target.gpu) if target.engine == "cuda" else DEFAULT_ARCH


@dataclass
class Session:
    """Runs cases, and keeps the build of each target."""

    options: RunOptions
    progress: Report = silent
    builds: dict[str, Build] = dataclasses.field(default_factory=dict)
    watch: Watch | None = None
    shared: SharedRunner | None = dataclasses.field(default=None, init=False)

    @contextlib.contextmanager
    def persistent_runner(self) -> Iterator[None]:
        """Reuse one runner for all cases on a target; a case that crashes it runs again in a separate runner."""
        with SharedRunner() as shared:
            self.shared = shared
            try:
                yield
            finally:
                self.shared = None

    def reordered(self, number: int) -> "Session":
        """This session, with a different order of warps on simulators; on a GPU, the order varies with each run."""
        simulation = self.options.simulation
        other = dataclasses.replace(simulation, schedule=simulation.schedule + number)
        return dataclasses.replace(self, options=dataclasses.replace(self.options, simulation=other))

    def build_for(self, target: Target, program: str | None = None) -> Build:
        """The build for a target, with `program`; it is created if it does not exist."""
        if (made := self.options.build) is not None:
            has, arch = made.manifest.fingerprint, arch_of(target) if target.device is not None else ""
            if target.engine != "cpu" and (has.engine != target.engine or arch not in ("", has.arch)):
                needed = f"{target.engine}, {arch_name(arch)}" if arch else target.engine
                is_for = f"{made.folder} is a build for {has.engine}, {arch_name(has.arch)}"
                raise InputError(f"{is_for}, but {target} needs a build for {needed}")
            return made
        wanted = program or (CPU_RUNNER if target.engine == "cpu" else RUNNER)
        key = f"{target}/{wanted}"
        if key not in self.builds:
            self.add_kernels(target, (), wanted)
        return self.builds[key]

    def request_for(self, target: Target) -> BuildRequest:
        """The request for a target's build; InputError if there is no source."""
        options = self.options
        if options.tree is None:
            raise InputError("a build needs a source")
        return BuildRequest(
            options.tree,
            "cuda" if target.engine == "cuda" else "sim",
            options.flavour,
            arch=arch_of(target),
            sanitize=options.sanitize,
            patches=options.patches,
            quants=options.quants,
        )

    def manifest_for(self, target: Target) -> Manifest:
        """The manifest of a target's build, with empty contents if there is no build yet; compiles nothing."""
        if self.options.build is not None:
            return self.options.build.manifest
        request = self.request_for(target)
        try:
            compilers = find_toolchain(request.engine).versions
        except BuildError:  # there may still be a finished build, made by another machine's compiler
            return self.build_for(target).manifest
        return new_manifest(request, key_of(request, compilers), Contents())

    def add_kernels(
        self,
        target: Target,
        kernels: Iterable[KernelCase],
        program: str = RUNNER,
        sources: Iterable[str] = (),
        architectures: Iterable[str] = (),
        *,
        jobs: int | JobSlots | None = None,
    ) -> None:
        """Compile all kernels and other files that a target's build lacks, at most `jobs` in parallel."""
        made = ensure(
            self.request_for(target),
            kernels,
            (program,),
            dry=self.options.simulation.dry,
            sources=sources,
            architectures=architectures,
            progress=self.progress,
            jobs=jobs,
        )
        self.builds[f"{target}/{program}"] = made

    def complete(self, target: Target, symbol: str, program: str) -> Build:
        """A target's build, after compiling a missing symbol into it."""
        from fattn_probe.llama.build.make import add_missing  # its imports are only needed to compile

        build = add_missing(self.build_for(target, program), symbol, progress=self.progress)
        self.builds[f"{target}/{program}"] = build
        return build

    def completing(self, name: str, target: Target, program: str, attempt: Callable[[Build], Result]) -> Result:
        """The first result of `attempt` that is not Missing; each missing kernel is compiled before the next attempt.

        After too many attempts, BuildError names the case, `name`.
        """
        build, symbol = self.build_for(target, program), ""
        for _ in range(MOST_RETRIES):
            result = attempt(build)
            if not isinstance(result, Missing):
                return result
            symbol = result.symbol
            build = self.complete(target, symbol, program)
        raise BuildError(f"{name}: after {MOST_RETRIES} kernels the build still lacks {symbol}")

    def env(self, target: Target, program: str | None = None) -> dict[str, str]:
        """The environment variables for a program on a target."""
        build = self.build_for(target, program)
        env = build.env() | target.env
        if target.engine == "sim" and target.device is not None:
            manifest = build.manifest
            env |= self.options.simulation.env(target.device, manifest.build_number, released=manifest.released)
        elif target.engine == "cuda":
            env |= self.options.simulation.dry_env
        return env

    def run(self, case: Named, inputs: Mapping[str, Bytes], target: Target, part: Part | None = None) -> RunOutcome:
        """Run one case, or a part of it; if the build lacks a kernel, compile it and run again."""
        program = CPU_RUNNER if target.engine == "cpu" else RUNNER
        with scratch() as folder:
            files = RunFiles(
                inputs.file if isinstance(inputs, FiledInputs) else folder / "case.gguf",
                folder / "out.gguf",
                None if part is None else folder / "part.gguf",
            )
            if not isinstance(inputs, FiledInputs):
                write_case(case, inputs, files.case)
            if part is not None and files.part is not None:
                write_part(part, case.op.sizes, files.part)

            def execute() -> RunOutcome:
                command = self.command(target, program)
                return command.run(files) if self.shared is None else self.shared.run(command, files, case.name)

            options, watch = self.options, self.watch
            threads = str(options.simulation.threads or cores())
            kind = "-".join((str(target).replace(":", "-"), options.flavour, *options.sanitize, threads))
            runs = (options.warmup + options.repeat) * (1.0 if part is None else part.share)

            def attempt(_: Build) -> RunOutcome:
                if watch is None or options.simulation.dry:
                    return execute()
                return watch.run(f"{case.name} on {target}", kind, case.op.sizes, runs, execute)

            return self.completing(case.name, target, program, attempt)

    def command(self, target: Target, program: str) -> Command:
        """The runner of this session's build, with its arguments."""
        options, build, (types, names) = self.options, self.build_for(target, program), self.kernel_words
        words = ["--backend", target.backend, "--repeat", str(options.repeat), "--warmup", str(options.warmup)]
        words += ["--dry"] * options.simulation.dry
        if target.engine == "cpu":
            words += ["--threads", str(options.simulation.threads or cores())]
        watched = self.watch.env if self.watch is not None and target.engine == "sim" else {}
        env = self.env(target) | watched
        return Command(build.program(program), words, env, options.timeout, types, names, build)

    @functools.cached_property
    def kernel_words(self) -> tuple[Types | None, Names | None]:
        """The source's names for ggml's types and for its kernels' template parameters."""
        tree = self.options.tree
        if tree is None:
            return None, None
        return ggml_types(tree.root), kernel_parameters(tree.root, changed=changed_by(self.options.patches, tree.root))

    def capture(
        self, case: Case, inputs: Mapping[str, Bytes], target: Target, part: Part | None = None
    ) -> Capture | RunOutcome:
        """Run one case, or a part of it; returns the capture if it completed, otherwise the outcome."""
        outcome = self.run(case, inputs, target, part)
        return (
            capture_of(case, inputs, outcome, self.provenance(target, case.seed))
            if isinstance(outcome, Ran)
            else outcome
        )

    def provenance(self, target: Target, seed: int, program: str | None = None) -> dict[str, str]:
        """The provenance of a program's results on a target, for data generated from `seed`."""
        manifest = self.build_for(target, program).manifest
        built = manifest.fingerprint
        tree = self.options.tree
        found = {
            "source": manifest.source,
            **({"revision": tree.revision} if tree and tree.revision else {}),
            "build_number": manifest.build_number,
            "patches": " ".join(manifest.patches),
            "engine": built.engine,
            "flavour": built.flavour,
            "arch": built.arch,
            "compilers": " ".join(built.compilers),
            "device": str(target),
            "seed": str(seed),
            "schedule": str(self.options.simulation.schedule),
        }
        return found | ({"driver": driver() or "unknown"} if target.engine == "cuda" else {}) | versions()


def of_source(options: RunOptions) -> Fingerprint:
    """The fingerprint of the source, its patches and the build options; needs neither a build nor a GPU."""
    return Fingerprint(
        tree=options.tree.digest if options.tree else "",
        patches=named(options.patches),
        flavour=options.flavour,
        sanitize=options.sanitize,
        quants=options.quants,
        version=version("fattn-probe"),
    )


def on_target(found: Fingerprint, target: Target) -> Fingerprint:
    """A fingerprint with the target's device added."""
    device: tuple[tuple[str, int | str], ...] = ()
    if target.device is not None:
        device = (("id", target.device.id), ("name", target.device.name), *target.device.properties().items())
    elif target.engine == "cuda":
        device = (("name", gpu_name(target.gpu)),)
    return replace(found, target=str(target), device=device)


def fingerprint_of(session: Session, target: Target) -> Fingerprint:
    """The fingerprint of a session on a target: the build (which need not exist yet), the device, and fattn-probe."""
    built = session.manifest_for(target).fingerprint
    found = replace(built, engine=target.engine, version=version("fattn-probe"), own=package_stamp())
    real = target.engine == "cuda"
    return replace(on_target(found, target), driver=(driver() or "unknown") if real else "")
