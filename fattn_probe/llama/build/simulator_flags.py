"""Compiler flags for the simulator itself, and for CUDA sources that are compiled for it."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.cases.device import is_amd
from fattn_probe.llama.build.key import Flavour
from fattn_probe.llama.build.toolchain import Toolchain
from fattn_probe.llama.cxx.includes import included
from fattn_probe.llama.launch.architecture import cuda_arch, wave_size

SIM = Path(__file__).parents[2] / "native/sim"
MACRO = re.compile(r"\bSIMT_(?:AHEAD|ALIGNED|AMD|ARCH|CHECK|COUNT|GFX_NUMBER|WARP)\b")
TURING = 750  # `__CUDA_ARCH__`
TENSOR_CORE_GENERATIONS = (900, 800, 0)
"""The lowest `__CUDA_ARCH__` of each group of architectures that share the simulator's tensor-core code."""
X86_V3 = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
# For SIM_HOST, which has no loop over data: it compiles in half the time that -O1 takes.
UNOPTIMISED = ("-O0", "-g1")
PRELUDE = "native/sim/prelude.h"
HIP_HEADERS = "sim/hip"
"""The folder, in native/, of HIP's headers, which define HIP's names as CUDA's names."""
DEBUGGED = "sim/debugged.cpp"  # the simulator's variables that a debugger reads
# The rest of the simulator. Without SIM_KERNELS, kernels can be launched but not run.
SIM_HOST = "sim/units/sim_host.cpp"
MATRIX_CORES = "sim/amd/matrix_cores.cpp"
TENSOR_CORES = ("sim/tensor_core.cpp", "sim/tensor_core_avx512.cpp")
SIM_KERNELS = ("sim/units/sim_kernels.cpp", *TENSOR_CORES, MATRIX_CORES)
SIMULATOR = (SIM_HOST, DEBUGGED, *SIM_KERNELS)
# Keep calls from different lines separate: if merged, a finding names the wrong line, and two accesses count as one.
HOOKED = ("--param=tsan-instrument-func-entry-exit=0", "-fno-crossjumping", "-fno-tree-tail-merge")
# Insert calls to the checker: native/sim/check_hooks.cpp and check_arithmetic.cpp
CHECKS = ("-fsanitize=thread,alignment,signed-integer-overflow", *HOOKED)
# Insert calls to the counters of accesses: native/sim/check_hooks.cpp
COUNTERS_OF_ACCESSES = ("-fsanitize=thread", *HOOKED)
# Keep loads as in the source: a structure is one load, and no load moves to the previous iteration of a loop.
AS_WRITTEN = ("-fno-tree-sra", "-fno-tree-pre")
# Count executions for gcov; linking needs its library (native/sim/counters.cpp)
COUNTED = "--coverage"
# With unrolled loops and no vectorisation, g++ fuses the multiply-adds that nvcc fuses (docs/guide/simulator.md)
SIM_OPTIMISATION = {
    "release": ("-O2", "-fpeel-loops", "-fno-tree-vectorize", "-g1"),
    "check": ("-O2", "-fpeel-loops", "-fno-tree-vectorize", "-g1", *CHECKS),
    "count": ("-O2", "-fpeel-loops", "-fno-tree-vectorize", *AS_WRITTEN, "-g1", *COUNTERS_OF_ACCESSES),
    "debug": ("-O0", "-g3"),
    "coverage": ("-O1", "-g1", "-fno-exceptions", "-fno-early-inlining", COUNTED),
}
ARITHMETIC = (
    "-ffp-contract=fast",
    # For some processors, and since version 13 also for `generic`, g++ leaves sums of products in loops unfused.
    "--param=avoid-fma-max-bits=0",
    "-fno-math-errno",
    "-fno-strict-aliasing",  # device code reads arrays as other types, which nvcc allows
)


@functools.cache
def macros_of(name: str) -> frozenset[str]:
    """The simulator's macros that a file (relative to native/) or the headers that it includes mention."""
    texts = included([SIM.parent / name], (SIM, SIM / "include"), SIM.parent).values()
    return frozenset(macro for text in texts for macro in MACRO.findall(text))


@dataclass(frozen=True)
class SimulatorFlags:
    """The g++ commands for one architecture, flavour and set of sanitizers, without input and output.

    `arch` is nvcc's number, or the name of an AMD architecture, for which sources are compiled as HIP. `lanes_apart`:
    where possible, lanes run ahead through loops of matrix instructions (native/sim/ahead.h).
    """

    toolchain: Toolchain
    arch: str
    flavour: Flavour = "release"
    sanitize: tuple[str, ...] = ()
    lanes_apart: bool = True

    @property
    def sanitizers(self) -> tuple[str, ...]:
        """The flags for every compile and link of a sanitized build.

        Since g++ 13, AddressSanitizer moves local variables to its own heap to find uses after a return, but mixes up
        the simulator's stacks, one for each CUDA thread.
        """
        stacks = ("--param=asan-use-after-return=0",) if "address" in self.sanitize else ()
        names = ",".join(self.sanitize)
        return (f"-fsanitize={names}", "-fno-omit-frame-pointer", *stacks) if names else ()

    @property
    def vector(self) -> tuple[str, ...]:
        """The instruction set that code may use: x86-64-v3, or aarch64."""
        return X86_V3 if self.toolchain.machine in ("x86_64", "AMD64") else ()

    @property
    def macros(self) -> dict[str, str]:
        """The macros of the simulator and its kernels; each value is written as on a command line.

        SIMT_AHEAD: lanes run ahead through loops of matrix instructions. It is off for debuggers and sanitizers, which
        need each instruction at its place in the source, and before Turing, where ordinary code loads fragments.
        SIMT_AMD is common to all AMD architectures, so that only the matrix instructions are compiled for each one.
        """
        ahead = (
            self.lanes_apart
            and not is_amd(self.arch)
            and self.flavour not in ("debug", "count")
            and not self.sanitize
            and cuda_arch(self.arch) >= TURING
        )
        macros = {"SIMT_ARCH": f"={cuda_arch(self.arch)}"} | ({"SIMT_AHEAD": ""} if ahead else {})
        if is_amd(self.arch):
            macros |= {
                "SIMT_AMD": "",
                "SIMT_GFX_NUMBER": f"=0x{self.arch.removeprefix('gfx')}",
                "SIMT_WARP": f"={wave_size(self.arch)}",
            }
        watching = {"check": "SIMT_CHECK", "count": "SIMT_COUNT"}.get(self.flavour)
        return macros | ({watching: ""} if watching else {}) | ({"SIMT_ALIGNED": ""} if self.aligned else {})

    @property
    def aligned(self) -> bool:
        """Whether the simulator has alignment.cpp; check builds always have it, and --sanitize its own function."""
        return self.flavour == "release" and not self.sanitize and not is_amd(self.arch)

    @property
    def hip(self) -> tuple[str, ...]:
        """The macros that clang defines for an AMD architecture (`__gfx942__`, `__GFX9__`), and HIP's headers."""
        if not is_amd(self.arch):
            return ()
        family = self.arch[:-2].upper()
        named = (f'-DSIMT_GFX="{self.arch}"', f"-D__{self.arch}__", f"-D__{family}__")
        return ("-DSIMT_HIP", "-DSIMT_PRECISE", *named, f"-Inative/{HIP_HEADERS}")

    @property
    def headers(self) -> tuple[str, ...]:
        """The folders of the simulator's headers and, after all others, of CUDA's headers."""
        return ("-Inative/sim", "-Inative/sim/include", "-isystem", str(self.toolchain.cuda_include))

    def native(self, source: str) -> tuple[str, ...]:
        """The command for a file of the simulator, given relative to native/: optimised in every flavour."""
        level = UNOPTIMISED if source == SIM_HOST else ("-O2", "-g" if source == DEBUGGED else "-g1")
        # No other library replaces these functions, so g++ may inline them, but not with AddressSanitizer: if g++ saw
        # that a fiber's last call never returns, it would unpoison the stack, whose bounds ASan does not know.
        inlined = () if self.sanitize else ("-fno-semantic-interposition",)
        generation = next(first for first in TENSOR_CORE_GENERATIONS if cuda_arch(self.arch) >= first)
        macros = self.macros | {"SIMT_ARCH": f"={generation}"}
        return (
            *(self.toolchain.cxx, "-std=gnu++17", "-D_GNU_SOURCE", *level, "-fPIC", "-w", *self.sanitizers),
            *self.vector,
            *ARITHMETIC,
            *inlined,
            *(f"-D{macro}{value}" for macro, value in macros.items() if macro in macros_of(source)),
            "-Inative/cublas",
            *self.headers,
        )

    def device(self, *more: str, prelude: str = PRELUDE, archs: Sequence[int] = ()) -> tuple[str, ...]:
        """The command that compiles a rewritten CUDA source as C++; `more` are additional flags for this source.

        Its host code supports GPUs of all `archs`, as in a build for several GPUs; its kernels are for the last one.
        """
        macros = self.macros | ({"SIMT_ARCH": f"={10 * archs[-1]}"} if archs else {})
        listed = ",".join(str(10 * number) for number in archs) or cuda_arch(self.arch)
        return (
            *(self.toolchain.cxx, "-std=gnu++17", *SIM_OPTIMISATION[self.flavour], *more),
            *(f"-D{macro}{value}" for macro, value in macros.items()),
            *self.sanitizers,
            *self.vector,
            *ARITHMETIC,
            "-U_FORTIFY_SOURCE",  # Ubuntu defines it; a finding in a kernel would then name glibc's header
            "-fstack-clash-protection",  # an overflowing stack reaches its guard page, not another thread's stack
            "-fPIC",
            "-w",
            f"-D__CUDA_ARCH_LIST__={listed}",
            *self.hip,
            *("-include", prelude),
            *self.headers,
            *("-x", "c++"),
        )
