"""Plans the steps of a build."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.cases.device import is_amd
from fattn_probe.llama.build.flags import COUNTERS, Flags
from fattn_probe.llama.build.key import (
    CAPTURE,
    CPU_RUNNER,
    DEVICE_CAPTURE,
    RUNNER,
    TEST_BACKEND_OPS,
    WITH_LIBLLAMA,
    Contents,
    kernels_apart,
)
from fattn_probe.llama.build.simulator_flags import DEBUGGED, SIM_HOST, SIM_KERNELS, TENSOR_CORES, UNOPTIMISED
from fattn_probe.llama.build.sources import (
    BACKEND,
    BODY_PREFIX,
    COMMON,
    COMMON_OF,
    CONVERSIONS,
    CONVERSIONS_TO_F16,
    DISPATCH_OF_TILES,
    KERNELS,
    LAUNCHES,
    SELDOM,
    UNUSED,
    UNUSED_BY_MOST,
    Sources,
    common_files,
    is_joined,
    launching_files,
)
from fattn_probe.llama.build.steps import BuildStep, Plan, compile_step
from fattn_probe.llama.cxx.functions import BODIES
from fattn_probe.llama.launch.families import BY_CASE
from fattn_probe.llama.source import KernelCase
from fattn_probe.llama.source.features import FIXUP

GGML = "overlay/ggml/src"
CUDA = f"{GGML}/ggml-cuda"
BASE, CPU_LIBRARY, CUDA_LIBRARY = "lib/libggml-base.so", "lib/libggml-cpu.so", "lib/libggml-cuda.so"
RUNNER_SOURCE = "native/runner/runner.cpp"
CAPTURE_SOURCE = "native/models/capture.cpp"
CASE_PREFIX = "fattn-probe-"
STUBS_SCRIPT = Path(__file__).with_name("stubs.py")

# The backends of each program. fattn-runner has no ggml-cpu, which would double the duration of a first build.
BACKENDS = {
    RUNNER: ("cuda",),
    CPU_RUNNER: ("cpu",),
    TEST_BACKEND_OPS: ("cuda", "cpu"),
    CAPTURE: ("cpu",),
    DEVICE_CAPTURE: ("cuda", "cpu"),
}


@dataclass(frozen=True)
class Planner:
    """Plans one build.

    `heaviest` lists the kernels in the order in which to compile them; if empty, the order of `contents` is used.
    """

    flags: Flags
    contents: Contents
    heaviest: tuple[str, ...] = ()

    def plan(self) -> Plan:
        """All steps that the contents need; omits backends that no program uses."""
        backends = {backend for program in self.contents.programs for backend in BACKENDS[program]}
        steps = self.cuda_library() if "cuda" in backends else []
        if "cpu" in backends:
            compiles = [self.compile(f"{GGML}/{name}", self.flags.cpu(name)) for name in self.flags.sources.cpu]
            steps += [*compiles, self.link(CPU_LIBRARY, [step.output for step in compiles], (BASE,))]
        # libggml-base.so, with stubs for functions that neither it nor a program defines. The programs' objects are
        # inputs of this step, so that they compile early instead of last, when nothing else is left.
        compiles = self.base_compiles()
        objects = [step.output for step in compiles]
        programs = [step.output for name in self.contents.programs for step in self.program_files(name)]
        stubs = self.stubs("obj/base-stubs.c", objects, programs)
        steps += [*compiles, *stubs, self.link(BASE, [*objects, stubs[-1].output], ())]
        steps += [step for program in self.contents.programs for step in self.program(program)]
        return Plan(tuple({step.output: step for step in steps}.values()))

    def compile(self, source: str, command: Iterable[str], folder: str = "", log: bool = False) -> BuildStep:
        """The step that compiles one source; obj/ mirrors the folders of the sources."""
        target = f"obj/{folder}{source.removeprefix('overlay/').removeprefix('ggml/src/')}.o"
        return compile_step(source, target, command, ccache=bool(self.flags.toolchain.ccache), log=log)

    @property
    def base_objects(self) -> list[str]:
        """The paths of libggml-base.so's objects."""
        return [step.output for step in self.base_compiles()]

    def base_compiles(self) -> list[BuildStep]:
        """The steps that compile libggml-base.so, without files that no program needs."""
        programs = set(self.contents.programs)
        unused = UNUSED if programs == {RUNNER} else () if TEST_BACKEND_OPS in programs else UNUSED_BY_MOST
        left_out = () if self.contents.full else set(unused) - set(self.contents.sources)
        files = [name for name in self.flags.sources.base if name not in left_out]
        return [self.compile(f"{GGML}/{name}", self.flags.base(name)) for name in files]

    def link(self, output: str, objects: Iterable[str], libraries: Iterable[str]) -> BuildStep:
        """The step that links a library or a program.

        A program loads the libraries when it starts, so it is not linked again when kernels are added.
        """
        inputs, after = (*objects,), (*libraries,)
        openmp = self.flags.openmp if output == CPU_LIBRARY else ()
        words = (*self.flags.link(output), *inputs, *after, *openmp, "-lm", "-ldl", "-lpthread", "-o", output)
        return BuildStep("link", output, inputs, words, after=after)

    def kernel_sources(self) -> list[str]:
        """The .cu files, relative to ggml-cuda/, heaviest first."""
        if self.contents.full:
            return list(self.flags.sources.full)
        kernels = [self.flags.sources.kernel(name) for name in self.heaviest or self.contents.kernels]
        cases = [f"template-instances/{case_file(kernel.name)}" for kernel in kernels]
        split = kernels_apart(self.flags.request.engine, self.flags.request.flavour)
        files = [f"{LAUNCHES}/{name}" if split and name != BACKEND else name for name in self.flags.sources.cuda]
        if split and is_joined(self.flags.request.tree, self.flags.request.applied):
            files.remove(f"{LAUNCHES}/{DISPATCH_OF_TILES}")
        heaviest = sorted(files, key=lambda name: (not name.endswith("fattn.cu"), name != BACKEND))
        wanted = [*derived(self.contents, self.flags.sources)]
        wanted += [CONVERSIONS] * (TEST_BACKEND_OPS in self.contents.programs)
        wanted += [name for name in self.contents.sources if name.endswith(".cu")]
        if not split or CONVERSIONS in wanted:
            wanted = [CONVERSIONS if name == CONVERSIONS_TO_F16 else name for name in wanted]
        return list(dict.fromkeys([heaviest[0], *cases, heaviest[1], *wanted, *heaviest[2:]]))

    def cuda_library(self) -> list[BuildStep]:
        """The steps for libggml-cuda.so: kernels, stand-ins for CUDA's libraries, stubs for everything not built."""
        sim = self.flags.request.engine == "sim"
        names = self.kernel_sources()
        compiles = [self.compile(f"{CUDA}/{name}", self.flags.kernel(name), log=not sim) for name in names]
        if sim:
            dry = self.contents.dry and self.flags.request.flavour not in ("check", "count")  # they need hooks
            unused = SIM_KERNELS if dry else TENSOR_CORES if is_amd(self.flags.request.arch) else ()  # NVIDIA only
            counters = (COUNTERS,) if self.flags.request.flavour == "coverage" else ()
            files = (SIM_HOST, DEBUGGED, *counters, *(name for name in SIM_KERNELS if name not in unused))
            compiles += [self.compile(f"native/{name}", self.flags.simulator.native(name)) for name in files]
        lazy = "native/cublas/cublas_lazy.cpp"
        compiles.append(self.compile(lazy, self.flags.cuda_host(lazy)))
        objects = [step.output for step in compiles]
        stubs = self.stubs("obj/stubs.c", objects, self.base_objects, self.cuda_runtime())
        # Kernels come last, in the order in which they were added. The linker takes the first of several copies of an
        # inline function, so a kernel that is added later does not change the code of earlier ones.
        places = {f"{case_file(name)}.o": place for place, name in enumerate(self.contents.kernels, 2)}
        objects.sort(key=lambda path: places.get(path.rpartition("/")[2], int(CASE_PREFIX in path)))
        link = self.link(CUDA_LIBRARY, [*objects, stubs[-1].output], [BASE, *self.cuda_runtime()])
        return [*compiles, *stubs, link]

    def cuda_runtime(self) -> list[str]:
        """The CUDA runtime library of the cuda engine; the simulator has its own."""
        cudart = self.flags.toolchain.cudart
        return [f"lib/{cudart.name}"] if cudart else []

    def stubs(
        self, source: str, objects: list[str], provided: Iterable[str] = (), libraries: Iterable[str] = ()
    ) -> tuple[BuildStep, BuildStep]:
        """The steps that write and compile stubs for a library made of `objects` and linked against `libraries`.

        Libraries that this build creates are given as their objects, in `provided`. Ninja starts with the step that has
        the most dependents, and would otherwise compile those objects first and the heavy kernels last.
        """
        command = ["python3", "-I", STUBS_SCRIPT.name, "--output", source]
        command += ["--compiler", self.flags.toolchain.cxx, "--sanitize", ",".join(self.flags.request.sanitize)]
        command += [word for library in libraries for word in ("--library", library)]
        command += [word for path in provided for word in ("--provided", path)]
        inputs, after = (STUBS_SCRIPT.name, *objects, *provided), (*libraries,)
        step = BuildStep("stubs", source, inputs, (*command, *objects), after=after)
        return step, self.compile(source, self.flags.host(source, UNOPTIMISED), folder="generated/")

    def program(self, name: str) -> list[BuildStep]:
        """The steps that compile and link a program."""
        backends = BACKENDS[name]
        steps = self.program_files(name)
        libraries = [CUDA_LIBRARY] if "cuda" in backends else []
        libraries += [CPU_LIBRARY] if "cpu" in backends else []
        if "cuda" in backends and self.cuda_runtime():
            steps.append(self.compile(record := "native/cuda/record_launches.cpp", self.flags.cuda_host(record)))
            libraries += self.cuda_runtime()
        objects = [step.output for step in steps if step.rule == "compile"]
        if name in WITH_LIBLLAMA:
            stubs = self.stubs(f"obj/{name}-stubs.c", objects, self.base_objects, libraries)
            steps += stubs
            objects.append(stubs[-1].output)
        return [*steps, self.link(f"bin/{name}", objects, [*libraries, BASE])]

    def program_files(self, name: str) -> list[BuildStep]:
        """The steps that compile a program's own files for its backends."""
        backends = BACKENDS[name]
        uses = tuple(f"-DGGML_USE_{backend.upper()}" for backend in backends)
        if name == TEST_BACKEND_OPS:
            source = "overlay/tests/test-backend-ops.cpp"
            # Without optimisation, it would compile in half the time, but take 20 s longer to list upstream's cases.
            return [*self.registry(uses), self.compile(source, self.flags.host(source))]
        if name in WITH_LIBLLAMA:
            # libllama with the requested architectures; the program has stubs for the others
            added = (name if SELDOM.fullmatch(name) else f"models/{name}" for name in self.contents.architectures)
            files = [f"overlay/src/{name}" for name in (*self.flags.sources.libllama, *added)]
            own, *libllama = (self.compile(name, self.flags.libllama(name)) for name in (CAPTURE_SOURCE, *files))
            return [own, *self.registry(uses, f"{'-'.join(backends)}/"), *libllama]
        command = (*self.flags.host(RUNNER_SOURCE, UNOPTIMISED), *uses)
        return [self.compile(RUNNER_SOURCE, command, f"{'-'.join(backends)}/")]

    def registry(self, uses: tuple[str, ...], folder: str = "") -> list[BuildStep]:
        """The steps for ggml's registry, which lists all backends at compile time; the runner does not need it."""
        files = [f"{GGML}/{name}" for name in self.flags.sources.registry]
        return [self.compile(file, (*self.flags.host(file), *uses), folder) for file in files]


def derived(contents: Contents, sources: Sources) -> tuple[str, ...]:
    """The files that launch a build's separately compiled kernels, and those with the kernels that run alongside them.

    Files in `contents.sources` are left out.
    """
    kernels, cases = map(sources.kernel, contents.kernels), sources.cases.values()
    alone = [kernel for kernel in kernels if kernel.instance]
    return tuple(name for find in (launching_files, common_files) for name in find(alone, cases, contents.sources))


def case_file(name: str) -> str:
    """The generated .cu file for the kernel case with this name: `fattn-probe-mma-64-64-8-8.cu` for `mma 64,64,8,8`."""
    words = name.replace("GGML_TYPE_", "").lower().replace(" ", "-").replace(",", "-")
    return f"{CASE_PREFIX}{words}.cu"


def kernel_of(source: str) -> str:
    """The short name of a generated file's kernel case, `vec 128,f16,q8_0`; any other file name unchanged."""
    if not source.startswith(CASE_PREFIX):
        return source
    family, _, arguments = source.removeprefix(CASE_PREFIX).removesuffix(".cu").partition("-")
    return f"{family} {arguments.replace('-', ',')}"


def launches_text(cases: Iterable[KernelCase]) -> str:
    """The text of a file whose kernel cases launch kernels with bodies in other files."""
    cases = tuple(cases)
    headers = dict.fromkeys(f'#include "../{LAUNCHES}/{case.header}"\n' for case in cases)
    return "".join([*headers, "\n", *(f"{case.declaration}\n" for case in cases)])


def body_text(file: str, headers: Iterable[str]) -> str:
    """The text of a file with one kernel's body; `file` is its name from `body_file`."""
    kernel, *values = file.rpartition("/")[2].removeprefix(BODY_PREFIX).removesuffix(".cu").split("-")
    includes = "".join(f'#include "../{header}"\n' for header in (*headers, COMMON, f"{KERNELS}/{COMMON}"))
    return f"{includes}\n{bodies_text([(kernel, values)])}"


def case_text(case: KernelCase) -> str:
    """The text of a kernel case's file: upstream's instance file, reduced to one declaration, or one kernel's body."""
    if not case.instance:
        return f'#include "../{case.header}"\n\n{case.declaration}\n'
    return f'#include "../{case.header}"\n\n{bodies_text([(BY_CASE[case.family].kernel, case.instance)])}'


def common_text(file: str, cases: Iterable[KernelCase], common: Mapping[str, Sequence[str]]) -> str:
    """The text of a file with the `common` kernels (template parameters by name) that run alongside the cases' kernels.

    The text has all instances for the sizes and columns of the cases, but fixup kernels only for stream-K kernels.
    """
    found = COMMON_OF.search(file)
    others = int(found[2], 16) if found else 0
    known = [{"ncols1": str(1 << bit)} for bit in range(others.bit_length()) if others >> bit & 1]
    for case in cases:
        family = BY_CASE[case.family]
        named = dict(zip(family.case_parameters, case.args, strict=True)) if family.stream_k else {}
        known.append({**named, "D": case.sizes[1]})
    kernels = {
        (name, tuple(columns[parameter] for parameter in parameters)): None
        for name, parameters in common.items()
        for columns in known
        if columns.keys() >= set(parameters) and ("ncols2" in columns or FIXUP not in name)
    }
    return f'#include "../{COMMON}"\n#include "../{KERNELS}/{COMMON}"\n\n{bodies_text(kernels)}'


def bodies_text(kernels: Iterable[tuple[str, Sequence[str]]]) -> str:
    """A C++ table of pointers to kernel bodies (name, template arguments), so that the compiler emits them."""
    named = (f"{name}<{', '.join(values)}>" if values else name for name, values in kernels)
    bodies = "".join(f"    (void (*)()) &{BODIES}::{words},\n" for words in named)
    return f"[[gnu::used]] static void (*const bodies[])() = {{\n{bodies}}};\n"
