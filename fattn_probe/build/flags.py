"""Compiler flags: upstream's definitions, and those of the engine and the flavour."""

import re
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.build.key import BuildRequest
from fattn_probe.build.native_macros import macros_of
from fattn_probe.build.sources import BACKEND, Sources
from fattn_probe.build.toolchain import Toolchain

GGML_INCLUDES = ("-Ioverlay/ggml/include", "-Ioverlay/ggml/src")
# ggml/src/CMakeLists.txt's own
GGML_DEFINES = ("-D_GNU_SOURCE", "-D_XOPEN_SOURCE=600", "-DGGML_SCHED_MAX_COPIES=4")
# ggml-cuda/CMakeLists.txt's; without GGML_CUDA_USE_GRAPHS, and NO_VMM because that links libcuda
CUDA_DEFINES = ("-DGGML_CUDA_PEER_MAX_BATCH_SIZE=128", "-DGGML_CUDA_NO_VMM")
TURING = 750  # `__CUDA_ARCH__`
X86_V3 = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
# ggml's host code is not under test: -O1 compiles in half the time of -O2, and all flavours share the objects
HOST_OPTIMISATION = ("-O1", "-g1")
# The runner, the stubs and SIM_HOST have no loop over data, and compile in half the time of -O1.
UNOPTIMISED = ("-O0", "-g1")
DEBUGGED = "sim/debugged.cpp"  # the simulator's variables that a debugger uses
# The rest of the simulator. Without SIM_KERNELS a kernel can be launched, but not run.
SIM_HOST = "sim/units/sim_host.cpp"
SIM_KERNELS = ("sim/units/sim_kernels.cpp", "sim/tensor_core.cpp", "sim/tensor_core_avx512.cpp")
# What calls the checker: native/sim/check_hooks.cpp and check_arithmetic.cpp
CHECKS = (
    "-fsanitize=thread,alignment,signed-integer-overflow",
    "--param=tsan-instrument-func-entry-exit=0",
    *("-fno-crossjumping", "-fno-tree-tail-merge"),  # calls of two lines as one: a finding would name the other line
)
# Counts what is executed, for gcov; the link needs its library (native/sim/counters.cpp)
COUNTED = "--coverage"
COUNTERS = "sim/counters.cpp"
# With loops unrolled and no vectorisation, g++ fuses the multiply-adds that nvcc fuses (docs/simulator.md)
SIM_OPTIMISATION = {
    "release": ("-O2", "-fpeel-loops", "-fno-tree-vectorize", "-g1"),
    "check": ("-O2", "-fpeel-loops", "-fno-tree-vectorize", "-g1", *CHECKS),
    "debug": ("-O0", "-g3"),
    "coverage": ("-O1", "-g1", "-fno-exceptions", "-fno-early-inlining", COUNTED),
}
# For all except the mma and vec kernels. Tile kernels, whose unrolled code is huge, compile in half the time of -O2,
# with the same speed and the same bits. -fexpensive-optimizations fuses the multiply-adds.
SIM_QUICK = ("-O1", "-fexpensive-optimizations")
NVCC_OPTIMISATION = {"release": ("-O3", "-DNDEBUG"), "debug": ("-G", "-g", "-O0")}


@dataclass(frozen=True)
class Flags:
    """The compiler commands of a build without input and output, by kind of source."""

    request: BuildRequest
    toolchain: Toolchain
    sources: Sources

    @property
    def sanitize(self) -> tuple[str, ...]:
        """The flags of every compile and link of a sanitized build.

        From g++ 13 on, AddressSanitizer moves local variables to a heap of its own to find uses after a return. Its
        bookkeeping takes the simulator's stacks, one for each CUDA thread, for one another's.
        """
        names = self.request.sanitize
        stacks = ("--param=asan-use-after-return=0",) if "address" in names else ()
        return (f"-fsanitize={','.join(names)}", "-fno-omit-frame-pointer", *stacks) if names else ()

    @property
    def vector(self) -> tuple[str, ...]:
        """The instruction set that code may use: x86-64-v3, or aarch64."""
        return X86_V3 if self.toolchain.machine in ("x86_64", "AMD64") else ()

    def host(self, source: str, optimisation: tuple[str, ...] = ()) -> tuple[str, ...]:
        """gcc or g++ for one file of ggml, the runner or test-backend-ops."""
        compiler = (self.toolchain.cc, "-std=gnu11") if source.endswith(".c") else (self.toolchain.cxx, "-std=gnu++17")
        level = optimisation or HOST_OPTIMISATION
        return (*compiler, *level, "-fPIC", "-w", *self.sanitize, *GGML_DEFINES, *GGML_INCLUDES)

    def base(self, source: str) -> tuple[str, ...]:
        """Libggml-base; releases without ggml-version.h.in take the version from the command line."""
        version = () if self.sources.version_header else ("-include", "overlay/ggml/src/ggml-version.h")
        return (*self.host(source), *version)

    @property
    def openmp(self) -> tuple[str, ...]:
        """OpenMP for ggml-cpu, which is upstream's default.

        test-backend-ops computes its reference with four threads, and ggml's own barriers spin; on two processors the
        spinning takes longer than the computation. Not for the cuda engine: its builds run on machines without libgomp.
        """
        return ("-fopenmp",) if self.request.engine == "sim" and not self.request.sanitize else ()

    def cpu(self, source: str) -> tuple[str, ...]:
        """ggml-cpu, optimised in every flavour: it serves as a reference, not for debugging."""
        openmp = (*self.openmp, "-DGGML_USE_OPENMP") if self.openmp else ()
        return (*self.host(source, ("-O3", "-DNDEBUG")), *self.vector, *openmp, "-Ioverlay/ggml/src/ggml-cpu")

    def cuda_host(self, source: str) -> tuple[str, ...]:
        """C++ that includes CUDA's headers: the cuBLAS stand-in and the launch recorder."""
        return (*self.host(source), "-Inative/cublas", "-isystem", str(self.toolchain.cuda_include))

    def sim_native(self, source: str) -> tuple[str, ...]:
        """A file of the simulator, relative to native/: optimised in every flavour."""
        level = UNOPTIMISED if source == SIM_HOST else ("-O2", "-g" if source == DEBUGGED else "-g1")
        # Nobody replaces these functions, so they may be inlined. But then g++ sees that a fiber's end does not return,
        # and AddressSanitizer clears the stack there, whose bounds it does not know.
        inlined = () if self.sanitize else ("-fno-semantic-interposition",)
        return (
            *self.host(source, level),
            *self.vector,
            "-ffp-contract=fast",
            "-fno-math-errno",
            "-fno-strict-aliasing",  # device code reads arrays as other types, which nvcc allows
            *inlined,
            *(f"-D{macro}{value}" for macro, value in self.sim_macros.items() if macro in macros_of(source)),
            "-Inative/sim",
            "-Inative/sim/include",
            "-Inative/cublas",
            "-isystem",
            str(self.toolchain.cuda_include),
        )

    def kernel(self, source: str) -> tuple[str, ...]:
        """A .cu file, relative to ggml-cuda/."""
        return self.nvcc() if self.request.engine == "cuda" else self.sim(source)

    @property
    def sim_macros(self) -> dict[str, str]:
        """The macros of the simulator and its kernels, each with its value as on a command line.

        SIMT_AHEAD: lanes pass loops of matrix instructions alone (native/sim/ahead.h). Not for debuggers and the
        sanitizers, which see each instruction where it stands in the source; nor before Turing, where ordinary code
        loads fragments.
        """
        arch, flavour = self.request.cuda_arch, self.request.flavour
        ahead = flavour != "debug" and not self.request.sanitize and arch >= TURING
        macros = {"SIMT_ARCH": f"={arch}"} | ({"SIMT_AHEAD": ""} if ahead else {})
        return macros | ({"SIMT_CHECK": ""} if flavour == "check" else {})

    def sim(self, source: str = "") -> tuple[str, ...]:
        """A rewritten .cu file as C++; ggml-cuda.cu, which has no attention kernel, is the same in every flavour."""
        arch = self.request.cuda_arch
        flavour = "release" if source == BACKEND else self.request.flavour
        macros = {"SIMT_ARCH": f"={arch}"} if source == BACKEND else self.sim_macros
        quick = () if flavour in ("debug", "coverage") or re.search(r"-(?:mma|vec)-", source) else SIM_QUICK
        return (
            self.toolchain.cxx,
            "-std=gnu++17",
            *SIM_OPTIMISATION[flavour],
            *quick,
            *(f"-D{macro}{value}" for macro, value in macros.items()),
            *self.sanitize,
            *self.vector,
            "-ffp-contract=fast",
            "-fno-math-errno",
            "-fno-strict-aliasing",  # device code reads arrays as other types, which nvcc allows
            "-U_FORTIFY_SOURCE",  # which Ubuntu defines: a kernel's reads would be in a header of glibc
            "-fstack-clash-protection",  # a stack that overflows reaches its guard page, not another thread's stack
            "-fPIC",
            "-w",
            f"-D__CUDA_ARCH_LIST__={arch}",
            "-include",
            "native/sim/prelude.h",
            "-Inative/sim",
            "-Inative/sim/include",
            *self.cuda_common(),
            "-isystem",
            str(self.toolchain.cuda_include),
            "-x",
            "c++",
        )

    def nvcc(self) -> tuple[str, ...]:
        """A .cu file compiled by nvcc, with the register counts of its kernels on stderr."""
        arch = self.request.arch
        return (
            "nvcc",
            f"-ccbin={self.toolchain.cxx}",
            "-std=c++17",
            f"-gencode=arch=compute_{arch},code=sm_{arch}",
            "-use_fast_math",
            "-extended-lambda",
            "--resource-usage",
            *NVCC_OPTIMISATION[self.request.flavour],
            "-Xcompiler=-fPIC,-w",
            "-w",
            *self.cuda_common(),
            f"-I{self.toolchain.cuda_include}",  # before nvcc's own folder, which differs between environments
        )

    def cuda_common(self) -> tuple[str, ...]:
        """Definitions and include folders of ggml-cuda."""
        folders = ("-Inative/cublas", "-Ioverlay/ggml/src/ggml-cuda", *GGML_INCLUDES)
        return (*GGML_DEFINES, *CUDA_DEFINES, *self.sources.quant_defines, *folders)

    def link(self, output: str) -> tuple[str, ...]:
        """The link command without inputs: for a shared library in lib/, or a program in bin/."""
        # The simulator's functions are called at every warp instruction: directly, not through the PLT.
        direct = ("-Wl,-Bsymbolic-functions",) if self.request.engine == "sim" else ()
        counted = (COUNTED,) if self.request.flavour == "coverage" else ()
        library = (f"-Wl,-soname,{Path(output).name}", "-shared", *direct, *counted)
        program = ("-rdynamic", "-Wl,-rpath,$ORIGIN/../lib")
        kind = (*library, "-Wl,-rpath,$ORIGIN") if output.startswith("lib/") else program
        return (self.toolchain.cxx, *self.sanitize, *kind)
