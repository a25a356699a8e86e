"""Compile a CUDA program (its file, its own headers, options) with g++ for the simulator, or with nvcc for a GPU."""

import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

import yaml

from fattn_probe.base.cache import Growth, Kind, cache_dir, get_or_make, growing, lock_beside
from fattn_probe.base.digest import damage, read_seal, short
from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.cases.device import Target, is_amd
from fattn_probe.llama.build.ccache import ccache_env
from fattn_probe.llama.build.ensure import is_unsealed, mark_used
from fattn_probe.llama.build.key import Flavour
from fattn_probe.llama.build.ninja import Report, run_ninja, silent
from fattn_probe.llama.build.overlay import ERRORS, known_ptx, write_native
from fattn_probe.llama.build.rewrite import Rewritten, Style, rewrite
from fattn_probe.llama.build.simulator_flags import HIP_HEADERS, SIMULATOR, SimulatorFlags
from fattn_probe.llama.build.stamp import NATIVE, own_stamp
from fattn_probe.llama.build.steps import BuildStep, Plan, compile_step
from fattn_probe.llama.build.toolchain import Toolchain, find_toolchain
from fattn_probe.llama.cxx.includes import INCLUDE, included
from fattn_probe.llama.cxx.tokens import draft_of, tokenize
from fattn_probe.machine.run.session import arch_of

HIP = "hip/hip_runtime.h"
SIMULATED = (NATIVE / "sim/program/include", NATIVE / HIP_HEADERS)
C_HEADERS = (
    "assert complex ctype errno float inttypes limits locale math setjmp signal stdarg stddef stdint stdio stdlib"
)
STANDARD = re.compile(rf"[a-z_]+|(?:{'|'.join(C_HEADERS.split())}|string|time)\.h")
"""Headers of the C and C++ libraries."""
UNWRITABLE = re.compile("[\n\udc80-\udcff]")
"""Characters that a build file cannot contain."""


@dataclass(frozen=True)
class Program:
    """A program in one file, with `-I` folders and `-D` macros; `fast_math` is nvcc's -use_fast_math."""

    path: Path
    includes: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    fast_math: bool = False

    @cached_property
    def texts(self) -> dict[Path, str]:
        """The file and those that it includes from its own folders, by absolute path."""
        if self.path.is_dir():
            raise InputError(f"{self.path} is a folder: name the program's file")
        if not self.path.is_file():
            raise InputError(f"{self.path}: there is no such file")
        found = included([self.path.resolve()], self.folders, Path("/"))
        for word in (*map(str, (*found, *self.folders)), *self.defines):
            if UNWRITABLE.search(word):
                raise InputError(f"{word!r} has a line break, or bytes that are not UTF-8: rename it")
        return found

    @property
    def folders(self) -> tuple[Path, ...]:
        """The `-I` folders, absolute."""
        return tuple(folder.resolve() for folder in self.includes)

    def has(self, name: str, includer: Path) -> bool:
        """Whether an include of this name refers to one of the program's own files."""
        return any(Path(os.path.normpath(place / name)) in self.texts for place in (includer.parent, *self.folders))

    def folder_of(self, path: Path) -> Path | None:
        """The `-I` folder that a file comes from; None for the program's file and those in its folder."""
        beside = path.is_relative_to(self.path.resolve().parent)
        return None if beside else next((folder for folder in self.folders if path.is_relative_to(folder)), None)

    @property
    def hip(self) -> bool:
        """Whether this is a HIP program."""
        return self.path.suffix == ".hip" or any(HIP in INCLUDE.findall(text) for text in self.texts.values())

    @property
    def digest(self) -> str:
        """The digest of everything that the compiled program depends on."""
        parts = [*map(str, self.includes), *self.defines, str(self.fast_math)]
        parts += [f"{path}\0{text}" for path, text in sorted(self.texts.items())]
        return short("\0".join(parts), 12)

    @property
    def standard_headers(self) -> list[str]:
        """The headers of the C and C++ libraries that the program includes, in order."""
        names = [name for text in self.texts.values() for name in INCLUDE.findall(text)]
        return list(dict.fromkeys(name for name in names if STANDARD.fullmatch(name)))

    @property
    def simulator_headers(self) -> list[str]:
        """The included CUDA headers for which the simulator has its own versions, in order."""
        names = [
            name for path, text in self.texts.items() for name in INCLUDE.findall(text) if not self.has(name, path)
        ]
        return [name for name in dict.fromkeys(names) if any((folder / name).is_file() for folder in SIMULATED)]


def check_supported(program: Program) -> None:
    """InputError that names each location where the program uses an unsupported feature."""
    found = [
        f"{path}:{line}: {what}"
        for path, text in program.texts.items()
        for line, what in sorted(missing_headers(program, path) + missing_names(text))
    ]
    if found:
        raise InputError("\n".join(["this program needs features that the simulator lacks:", *found]))


def check_vendor(program: Program, arch: str) -> None:
    """InputError if a CUDA program is to run on an AMD GPU."""
    if is_amd(arch) and not program.hip:
        raise InputError(f"{program.path} is a CUDA program: AMD GPUs run HIP programs (#include <{HIP}>)")


@cache
def unsupported(kind: str) -> MappingProxyType[str, str]:
    """The headers or calls that the simulator does not support, each with a message."""
    found = yaml.safe_load((files("fattn_probe.lab.program") / "unsupported.yaml").read_text())[kind]
    return MappingProxyType({name: message for message, names in found.items() for name in names})


def missing_headers(program: Program, path: Path) -> list[tuple[int, str]]:
    """(line, what is missing) for each header that a file includes and neither the program nor the simulator has."""
    text = program.texts[path]
    return [
        (1 + text.count("\n", 0, match.start(1)), f"<{match[1]}>: {what}")
        for match in INCLUDE.finditer(text)
        for name, what in unsupported("headers").items()
        if (match[1] == name or (name.endswith("/") and match[1].startswith(name))) and not program.has(match[1], path)
    ]


def missing_names(text: str) -> list[tuple[int, str]]:
    """(line, what is missing) for each name that the simulator does not have."""
    draft = draft_of(tokenize(text))
    return [
        (draft.lines[index], f"{name}: {what}")
        for name, what in unsupported("calls").items()
        for index in draft.where.get(name, ())
        if draft.word(index - 1) not in (".", "->")  # a member belongs to the program
    ]


WHAT = "the folder of programs"
GENERATED = Kind("generated", "the generated program")
RECORDER = "native/cuda/record_launches.cpp"
PRELUDE = "native/sim/program/prelude.h"
NVCC_FLAGS = {"release": ("-O3", "-lineinfo"), "debug": ("-G", "-g", "-O0")}
# libcu++ (cuda/std/) would read CUDA's own cuda_fp16.h for its overloads, in addition to the simulator's header.
LIBCUXX = ("-DCCCL_DISABLE_FP16_SUPPORT",)
PLACE = re.compile(r"^(?P<file>/.*?):(?P<line>\d+):\d+: ", re.MULTILINE)


@dataclass(frozen=True)
class Executable:
    """A compiled program, and the PTX in it that the simulator lacks, as `file:line: instruction`.

    `kernels` are the locations of the kernels' first statements, `file:line`. `source` is the program's path, as given.
    """

    path: Path
    source: Path
    kernels: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    fast_math: bool = False


@dataclass(frozen=True)
class Maker:
    """Compiles programs for one architecture and flavour; they share a folder and the simulator.

    `arch` is nvcc's number, or the name of an AMD GPU's architecture ("gfx942").
    """

    arch: str
    flavour: Flavour
    cuda: bool = False

    @functools.cached_property
    def toolchain(self) -> Toolchain:
        """The compilers, located when there is something to compile; BuildError if this machine lacks one."""
        return find_toolchain("cuda" if self.cuda else "sim")

    @property
    def folder(self) -> Path:
        """The folder of all programs that are compiled in this way."""
        engine = "cuda" if self.cuda else "sim"
        arch = self.arch if self.amd else f"sm{self.arch}"
        return cache_dir() / "builds" / f"programs-{engine}-{arch}-{self.flavour}-{own_stamp()[:12]}"

    @property
    def amd(self) -> bool:
        """Whether the programs are for an AMD GPU."""
        return is_amd(self.arch)

    def make(self, program: Program, report: Report = silent) -> Executable:
        """The compiled program, recompiled if it has changed. BuildError with the compiler's errors."""
        target = f"bin/{program.path.stem}-{program.digest}"
        rewritten = {} if self.cuda else self.rewritten(program)
        with lock_beside(self.folder):
            if self.has(target):
                mark_used(self.folder)
            else:
                with growing(self.folder, WHAT, is_unsealed) as growth:
                    try:
                        self.compile(growth, program, target, rewritten, report)
                    except BuildError as error:
                        raise explained(error, program, rewritten) from error
        kernels = (f"{path}:{one.first_line}" for path, file in rewritten.items() for one in file.kernels)
        warnings = warnings_of(program, rewritten)
        return Executable(self.folder / target, program.path, tuple(kernels), warnings, program.fast_math)

    def has(self, target: str) -> bool:
        """Whether a file is in the folder, and not damaged."""
        sealed = read_seal(self.folder)
        return sealed is not None and target in sealed.files and not damage(self.folder, sealed, target.__eq__)

    def rewritten(self, program: Program) -> dict[Path, Rewritten]:
        """The program's files as C++, by their own paths."""
        check_supported(program)
        check_vendor(program, self.arch)
        known, style = known_ptx(), Style(program.fast_math, whole=True, unrolls=self.flavour == "count")
        return {path: rewrite(text, path.name, known, style) for path, text in program.texts.items()}

    def compile(
        self, growth: Growth, program: Program, target: str, rewritten: Mapping[Path, Rewritten], report: Report
    ) -> None:
        """Compile and link, including the simulator's own files if they are missing."""
        for path, file in rewritten.items():
            growth.write(copy_of(path), f'#line 1 "{path}"\n{file.text}', ERRORS)
        write_native(growth)
        if not self.cuda:
            growth.write(f"obj/{Path(target).name}.h", prelude_text(program))
        for name in ("bin", "obj"):
            (self.folder / name).mkdir(exist_ok=True)
        steps = self.nvcc_steps(program, target) if self.cuda else self.simulator_steps(program, target)
        growth.write("build.ninja", Plan(tuple(steps)).render())
        env = {"PATH": self.toolchain.path} | (ccache_env(self.toolchain.versions) if self.toolchain.ccache else {})
        run_ninja(growth, report, env=env)

    def simulator_steps(self, program: Program, target: str) -> list[BuildStep]:
        """The steps of a program for the simulator."""
        include = os.path.relpath(self.toolchain.cuda_include, self.folder)
        flags = SimulatorFlags(replace(self.toolchain, cuda_include=Path(include)), self.arch, self.flavour)
        own = self.compile_step(
            copy_of(program.path.resolve()),
            f"obj/{Path(target).name}.o",
            (
                *flags.device(prelude=f"obj/{Path(target).name}.h"),
                "-Inative/sim/program/include",
                *((f"-Inative/{HIP_HEADERS}", "-DSIMT_HIP") if program.hip and not self.amd else ()),
                *LIBCUXX,
                *("-isystem", f"{include}/cccl"),
                *(() if program.fast_math else ("-DSIMT_PRECISE",)),
                *(f"-D{macro}" for macro in program.defines if is_reserved(macro)),
                *(
                    f"-I{place}"
                    for folder in program.includes
                    for place in (copy_of(folder.resolve()), folder.resolve())
                ),
            ),
        )
        simulator = [self.compile_step(f"native/{name}", f"obj/{name}.o", flags.native(name)) for name in SIMULATOR]
        objects = tuple(step.output for step in (own, *simulator))
        link = (self.toolchain.cxx, "-rdynamic", *objects, "-lm", "-ldl", "-lpthread", "-o", target)
        return [own, *simulator, BuildStep("link", target, objects, link)]

    def nvcc_steps(self, program: Program, target: str) -> list[BuildStep]:
        """The steps of a program for a GPU; it is linked with the launch recorder."""
        include = str(self.toolchain.cuda_include)
        recorder = self.compile_step(
            RECORDER, "obj/recorder.o", (self.toolchain.cxx, "-std=gnu++17", "-O1", "-w", "-isystem", include)
        )
        nvcc = (
            "nvcc",
            f"-ccbin={self.toolchain.cxx}",
            "-std=c++17",
            f"-gencode=arch=compute_{self.arch},code=sm_{self.arch}",
        )
        own = self.compile_step(
            str(program.path.resolve()),
            f"obj/{Path(target).name}.o",
            (
                *nvcc,
                *(("-x", "cu", f"-I{NATIVE / HIP_HEADERS}") if program.hip else ()),
                *NVCC_FLAGS[self.flavour],
                *(("-use_fast_math",) if program.fast_math else ()),
                *(f"-D{macro}" for macro in program.defines),
                *(f"-I{folder.resolve()}" for folder in program.includes),
            ),
        )
        assert self.toolchain.cudart is not None
        runtime, objects = self.toolchain.cudart.parent, (own.output, recorder.output)
        shared = ("-cudart=shared", "-Xlinker=--export-dynamic", f"-Xlinker=-rpath={runtime}")
        link = (*nvcc, *shared, *objects, "-ldl", "-lcudart", f"-L{runtime}", "-o", target)
        return [own, recorder, BuildStep("link", target, objects, link)]

    def compile_step(self, source: str, target: str, command: Iterable[str]) -> BuildStep:
        """The step that compiles one file, with ccache if there is one."""
        return compile_step(source, target, command, ccache=bool(self.toolchain.ccache))


def maker(target: Target, flavour: Flavour) -> Maker:
    """The compilers for programs on a target."""
    if target.device is None:
        return Maker(arch_of(target), flavour, cuda=True)
    return Maker(target.device.arch, flavour)


def written(text: str, name: str, suffix: str) -> Path:
    """The file of a generated program; identical programs share one file and are compiled once."""
    file = f"{name}-{short(text, 12)}{suffix}"

    def write(folder: Path) -> None:
        (folder / file).write_text(text)

    return get_or_make(GENERATED, file, write) / file


def prelude_text(program: Program) -> str:
    """The text before a program's first line: headers of C and C++, the simulator's headers, then the `-D` macros.

    So a macro like N or K cannot affect a header. A macro with a reserved name is for the headers, and comes first.
    """
    standard, own = (
        [f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in names]
        for names in (program.standard_headers, program.simulator_headers)
    )
    pairs = [macro.partition("=") for macro in program.defines if not is_reserved(macro)]
    macros = [f"#define {name} {value if equals else 1}\n" for name, equals, value in pairs]
    return "".join([*standard, f'#include "../{PRELUDE}"\n', *own, *macros])


def is_reserved(macro: str) -> bool:
    """Whether a macro's name is reserved for the implementation: `_GNU_SOURCE`, `__CUDA_NO_HALF_OPERATORS__`."""
    return macro.startswith("_") and (macro[1:2] == "_" or macro[1:2].isupper())


def copy_of(path: Path) -> str:
    """The path of the rewritten copy of a file or folder in the folder of programs."""
    return f"source{path}"


def explained(error: BuildError, program: Program, rewritten: dict[Path, Rewritten]) -> BuildError | InputError:
    """A compiler's errors in the user's terms: without columns in rewritten lines, and without the renamed main()."""
    if "undefined reference to `main'" in str(error):
        return InputError(f"{program.path} has no main()")
    as_written = {path: (program.texts[path].splitlines(), file.text.splitlines()) for path, file in rewritten.items()}

    def placed(match: re.Match[str]) -> str:
        texts, line = as_written.get(Path(match["file"])), int(match["line"])
        same = texts is None or texts[0][line - 1 : line] == texts[1][line - 1 : line]
        return match[0] if same else f"{match['file']}:{line}: "

    return BuildError(PLACE.sub(placed, str(error)))


def warnings_of(program: Program, rewritten: dict[Path, Rewritten]) -> tuple[str, ...]:
    """Warnings about unsupported PTX: the program's own instructions, and the number in each `-I` folder.

    A library's headers have instructions for every architecture, and the program may need none of them.
    """
    places = [
        (program.folder_of(path), f"{path}:{line}: the simulator does not have the PTX instruction {name}")
        for path, file in rewritten.items()
        for name, line in file.unknown_ptx
    ]
    counts = Counter(folder for folder, _ in places if folder is not None)
    own = [text for folder, text in places if folder is None]
    libraries = [f"{it}: its headers have {n} PTX instructions that the simulator lacks" for it, n in counts.items()]
    return tuple(f"{text}; the program ends if it reaches one" for text in (*own, *libraries))
