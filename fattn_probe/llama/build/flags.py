"""Compiler flags: upstream's definitions, and the flags of the engine and the flavour."""

import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from fattn_probe.cases.device import is_amd
from fattn_probe.llama.build.key import BuildRequest, kernels_apart
from fattn_probe.llama.build.precompiled import HEADERS, QUICK_HEADERS
from fattn_probe.llama.build.simulator_flags import COUNTED, PRELUDE, UNOPTIMISED, SimulatorFlags
from fattn_probe.llama.build.sources import BACKEND, LAUNCHES_PREFIX, QUANTS_PREFIX, Sources
from fattn_probe.llama.build.toolchain import Toolchain
from fattn_probe.llama.launch.architecture import NVIDIA, arch_number

GGML_INCLUDES = ("-Ioverlay/ggml/include", "-Ioverlay/ggml/src")
# as in ggml/src/CMakeLists.txt
GGML_DEFINES = ("-D_GNU_SOURCE", "-D_XOPEN_SOURCE=600", "-DGGML_SCHED_MAX_COPIES=4")
# omits C++17's special functions (Bessel functions etc.) from <cmath>: these templates cost 0.1 s per file
NO_SPECIAL_FUNCTIONS = "-D_GLIBCXX_BITS_SPECFUN_H"
# as in ggml-cuda/CMakeLists.txt, but without GGML_CUDA_USE_GRAPHS, and with NO_VMM, because VMM links libcuda
CUDA_DEFINES = ("-DGGML_CUDA_PEER_MAX_BATCH_SIZE=128", "-DGGML_CUDA_NO_VMM")
# as in ggml-hip/CMakeLists.txt, where NO_VMM is the default
HIP_DEFINES = ("-DGGML_USE_HIP", "-DGGML_HIP_NO_VMM")
# ggml's host code is not under test: -O1 takes half the compile time of -O2, and all flavours share the objects
HOST_OPTIMISATION = ("-O1", "-g1")
MODEL_OPTIMISATION = ("-O0",)  # libllama only builds graphs, so fast compiling and linking matter most
COUNTERS = "sim/counters.cpp"  # the source that provides gcov's library
# Compared with -O2, kernels compute the same bits, run 1 to 2 % slower, and compile in 65 to 85 % of the time (tile
# kernels, whose unrolled code is huge, in half). -fexpensive-optimizations fuses the multiply-adds. Unused for mma and
# vec kernels that report each access, because without unrolling, their local arrays stay in memory.
SIM_QUICK = ("-O1", "-fexpensive-optimizations")
# More headers for files of ggml-cuda/: cooperative_groups.h and mma.h, as for whole programs; a stand-in for CUB
PROGRAM_HEADERS, LIBRARY_HEADERS = "-Inative/sim/program/include", "-Inative/sim/library"
MORE_HEADERS = {
    **dict.fromkeys(("softmax.cu", "lightning-indexer.cu"), (PROGRAM_HEADERS,)),
    **dict.fromkeys(("argsort.cu", "top-k.cu", "sum.cu", "mean.cu", "cumsum.cu"), (LIBRARY_HEADERS,)),
}
# Makes launching code identical in every file, whatever constants its headers define (see `machine/run/executed`).
LAUNCHING = (*UNOPTIMISED, "-ftoplevel-reorder", "-fno-keep-static-consts", "-ffunction-sections", "-fmerge-constants")
BROADCAST = "binbcast.cu"
"""Its hundreds of kernels do one operation per element, so -O0 gives the same bits, in half of the 19 s of -O1."""
# As on NVIDIA GPUs, a kernel stops at a misaligned access. Attention kernels, which would run 1.2 to 1.8 times as long,
# only do so in check builds, and for vectors.
ALIGNED = "-fsanitize=alignment"
ATTENTION = re.compile(r"/fattn-probe-(?:mma|tile|vec)-")
BODIES_ALONE = re.compile(r"/fattn-probe-(?:common|mma|tile|vec)-")
"""Files with the body of one attention kernel, or with kernels that run alongside attention kernels."""
MUTANTS = "mutants"
"""The patch that puts faults behind switches (`lab/detect/schema.py`); its kernels include the switches' header."""
SWITCHES = ("-include", "native/sim/mutant.h")
NVCC_OPTIMISATION = {"release": ("-O3", "-DNDEBUG"), "debug": ("-G", "-g", "-O0")}


@dataclass(frozen=True)
class Flags:
    """The compiler commands of a build for each kind of source, without input and output."""

    request: BuildRequest
    toolchain: Toolchain
    sources: Sources

    @property
    def simulator(self) -> SimulatorFlags:
        """The commands for this build's simulator."""
        return SimulatorFlags(self.toolchain, self.request.arch, self.request.flavour, self.request.sanitize)

    def host(self, source: str, optimisation: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The gcc or g++ command for a file of ggml, the runner or test-backend-ops."""
        compiler = (self.toolchain.cc, "-std=gnu11") if source.endswith(".c") else (self.toolchain.cxx, "-std=gnu++17")
        level = optimisation or HOST_OPTIMISATION
        defines = (*GGML_DEFINES, NO_SPECIAL_FUNCTIONS)
        return (*compiler, *level, "-fPIC", "-w", *self.simulator.sanitizers, *defines, *GGML_INCLUDES)

    def base(self, source: str) -> tuple[str, ...]:
        """The command for a file of libggml-base; without ggml-version.h.in, the version is on the command line."""
        version = () if self.sources.version_header else ("-include", "overlay/ggml/src/ggml-version.h")
        return (*self.host(source), *version)

    def libllama(self, source: str) -> tuple[str, ...]:
        """The command for a file of libllama, or of a program that uses it."""
        return (*self.host(source, MODEL_OPTIMISATION), "-Ioverlay/include", "-Ioverlay/src")

    @property
    def openmp(self) -> tuple[str, ...]:
        """The OpenMP flag for ggml-cpu, which is upstream's default.

        test-backend-ops computes its reference with four threads, and ggml's own barriers spin; on two processors,
        spinning takes longer than the computation. The cuda engine's builds also run on machines without libgomp.
        """
        return ("-fopenmp",) if self.request.engine == "sim" and not self.request.sanitize else ()

    def cpu(self, source: str) -> tuple[str, ...]:
        """The command for a file of ggml-cpu, optimised in every flavour: it is a reference, which is not debugged."""
        openmp = (*self.openmp, "-DGGML_USE_OPENMP") if self.openmp else ()
        return (*self.host(source, ("-O3", "-DNDEBUG")), *self.simulator.vector, *openmp, "-Ioverlay/ggml/src/ggml-cpu")

    def cuda_host(self, source: str) -> tuple[str, ...]:
        """The command for C++ that includes CUDA's headers: the cuBLAS stand-in and the launch recorder."""
        return (*self.host(source), "-Inative/cublas", "-isystem", str(self.toolchain.cuda_include))

    def kernel(self, source: str) -> tuple[str, ...]:
        """The command for a .cu file, given relative to ggml-cuda/."""
        return self.nvcc(source) if self.request.engine == "cuda" else self.sim(source)

    def sim(self, source: str = "") -> tuple[str, ...]:
        """The command that compiles a rewritten .cu file as C++.

        ggml-cuda.cu has no attention kernel, so its command is the same for all flavours and NVIDIA architectures. Code
        that only launches kernels has the same command in release and count builds, but not in check builds, which
        check the conversions of launch arguments.
        """
        launches = LAUNCHES_PREFIX in source and self.simulator.flavour not in ("debug", "coverage")
        common = source == BACKEND or (launches and self.simulator.flavour != "check")
        flags = replace(self.simulator, flavour="release", lanes_apart=False) if common else self.simulator
        watched = flags.flavour in ("check", "count") and re.search(r"-(?:common|mma|vec)-", source)
        quick = UNOPTIMISED if source == BROADCAST else SIM_QUICK
        level = LAUNCHING if launches else () if watched or flags.flavour in ("debug", "coverage") else quick
        kernel = BODIES_ALONE.search(source) and kernels_apart("sim", flags.flavour)
        prelude = (QUICK_HEADERS if level else HEADERS) if kernel else PRELUDE
        switches = SWITCHES if any(patch.name == MUTANTS for patch in self.request.applied) else ()
        aligned = (ALIGNED,) if flags.aligned and not common and not ATTENTION.search(source) else ()
        more = (*level, *aligned, NO_SPECIAL_FUNCTIONS, *MORE_HEADERS.get(source, ()), *switches)
        archs = NVIDIA if source == BACKEND and arch_number(self.request.arch) in NVIDIA else ()
        return flags.device(*more, *self.cuda_common(source), prelude=prelude, archs=archs)

    def nvcc(self, source: str) -> tuple[str, ...]:
        """The nvcc command for a .cu file; it prints the kernels' register counts on stderr."""
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
            *self.cuda_common(source),
            f"-I{self.toolchain.cuda_include}",  # precedes nvcc's own folder, which differs between environments
        )

    def cuda_common(self, source: str) -> tuple[str, ...]:
        """Definitions and include folders for a file of ggml-cuda/.

        Only files that read the selection of vec kernels get its definitions, so that builds share the other objects.
        """
        readers = self.sources.quant_readers
        by_all = any(name.endswith(".cuh") for name in readers)
        by_all |= any(QUANTS_PREFIX in patch.text for patch in self.request.applied)
        quants = self.sources.quant_defines if by_all or PurePosixPath(source).name in readers else ()
        folders = ("-Inative/cublas", "-Ioverlay/ggml/src/ggml-cuda", *GGML_INCLUDES)
        defines = (*CUDA_DEFINES, *HIP_DEFINES) if is_amd(self.request.arch) else CUDA_DEFINES
        return (*GGML_DEFINES, *defines, *quants, *folders)

    def link(self, output: str) -> tuple[str, ...]:
        """The link command, without inputs, for a shared library in lib/ or a program in bin/."""
        # Every warp instruction calls a function in the simulator, so these calls must not go through the PLT.
        direct = ("-Wl,-Bsymbolic-functions",) if self.request.engine == "sim" else ()
        counted = (COUNTED,) if self.request.flavour == "coverage" else ()
        library = (f"-Wl,-soname,{Path(output).name}", "-shared", *direct, *counted)
        program = ("-rdynamic", "-Wl,-rpath,$ORIGIN/../lib")
        kind = (*library, "-Wl,-rpath,$ORIGIN") if output.startswith("lib/") else program
        return (self.toolchain.cxx, *self.simulator.sanitizers, *kind)
