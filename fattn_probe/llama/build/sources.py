"""The files of a llama.cpp tree that a build compiles, read from its CMakeLists and folders."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.llama.cxx.includes import INCLUDE
from fattn_probe.llama.launch.families import BY_CASE, FAMILIES, kernel_named
from fattn_probe.llama.source import KernelCase, Tree, kernel_cases
from fattn_probe.llama.source.features import case_parameters
from fattn_probe.llama.source.patches import Patch

GGML = "ggml/src"
CUDA = Path("ggml/src/ggml-cuda")
LIBLLAMA = Path("src")
ARCHITECTURES = LIBLLAMA / "models"
BACKEND = "ggml-cuda.cu"
MINIMAL = (BACKEND, "fattn.cu", "fattn-tile.cu")
DISPATCH, DISPATCH_OF_TILES = MINIMAL[1:]
"""The second file only calls the case for a head size, so it is compiled as part of the first. This saves 1.2 s."""
OWN_NAMES = re.compile(
    r"\b(?:static|template|namespace|using|typedef|struct|class|union|enum|inline|constexpr)\b"
    r"|^(?:const\b|\s*#(?!include))",
    re.MULTILINE,
)
"""Matches files that might define a name that another file defines too, or affect the code after them."""
CONVERSIONS, CONVERSIONS_TO_F16 = "convert.cu", "convert-to-f16.cu"
"""Mma and tile kernels need K and V in f16. The second file has only this conversion; it compiles in 1.6 s, not 3 s."""
TO_OTHER_TYPES = re.compile(r"^to_(?:bf16|fp32)(?:_nc)?_cuda_t \w+\(ggml_type type\) \{\n(?:.*\n)*?\}$", re.MULTILINE)
"""The functions that only the first file contains."""
UNUSED = ("ggml-backend-meta.cpp", "ggml-opt.cpp", "ggml-quants.c", "gguf.cpp")
"""Files of ggml-base that the runner never uses: half of the library's compile time."""
UNUSED_OF_LIBLLAMA = ("llama-chat.cpp", "llama-grammar.cpp", "llama-model-saver.cpp", "llama-quant.cpp")
"""Files of libllama that are never used when a model runs: 14 s of its compile time of 95 s."""
UNUSED_BY_MOST = ("ggml-backend-meta.cpp",)
"""The files in UNUSED that no program except test-backend-ops uses."""
SELDOM = re.compile(r"llama-(?:kv-cache-(?:dsa|dsv4|msa)|memory-(?:hybrid|recurrent)|moe-cache|sampler).*\.cpp")
"""Files of libllama that few models use (21 of 81 s): compiled when a run needs one, as are files of src/models/."""
UNITS, UNIT_PREFIX = 3, "fattn-probe-libllama-"
"""The other files of libllama are joined into this many: separately they take 56 s, in four 36 s, in two 32 s."""
ALL_QUANTS = "all"
INSTANCES = "template-instances"
LAUNCHES = "launches"
"""The folder, in an overlay's ggml-cuda/, with the attention files without kernel bodies."""
LAUNCHES_PREFIX = "fattn-probe-launches-"
OF_CASES = re.compile(rf"{LAUNCHES_PREFIX}of-([0-9a-f]+)\.cu$")
COMMON = "fattn-common.cuh"
"""The header with the kernels that run alongside attention kernels of any family: fixup, combine, mask to KV_max."""
KERNELS = "kernels"
"""The folder, in an overlay's ggml-cuda/, with the version of COMMON that has only the bodies of its kernels."""
COMMON_PREFIX = "fattn-probe-common-"
COMMON_OF = re.compile(rf"{COMMON_PREFIX}of-([0-9a-f]+)-([0-9a-f]+)\.cu$")
HOST_FUNCTIONS = {"mma": 1, "tile": 10, "vec": 4}
"""The approximate number of host functions that launch a case's kernels, by family."""
FUNCTIONS_A_FILE = 30
BODY_PREFIX = "fattn-probe-body-"
QUANTS_PREFIX = "GGML_CUDA_FA_"
"""Prefix of the macros that select vec kernels."""
PRODUCTS = ("mmq", "mmf")
"""Families of matrix product kernels, as in the names of their instance files."""


@dataclass(frozen=True)
class Sources:
    """Source files by library, relative to ggml/src; those of `cuda` and `full` are relative to ggml/src/ggml-cuda.

    `cuda` are the files that every attention op needs, `full` all files that upstream compiles. fattn.cu can call the
    `dispatched` cases; `quant_defines` select its vec kernels, and `quant_readers` are the attention files and headers
    that read them. `libllama` maps each compiled file to the files of src/ that it joins.
    """

    base: tuple[str, ...]
    registry: tuple[str, ...]
    cpu: tuple[str, ...]
    cuda: tuple[str, ...]
    full: tuple[str, ...]
    cases: dict[str, KernelCase]
    dispatched: tuple[KernelCase, ...]
    quant_defines: tuple[str, ...]
    quant_readers: tuple[str, ...]
    version: str
    version_header: bool
    libllama: dict[str, tuple[str, ...]]

    def kernel(self, name: str) -> KernelCase:
        """The kernel case or instance with this name; InputError if it is unknown."""
        if found := kernel_named(name, self.cases):
            return found
        raise InputError(f"this source's {INSTANCES}/ has no kernel case {name!r}")

    def launched_by(self, file: str) -> list[KernelCase]:
        """The cases whose kernels a file of `launching_files` launches; empty if fattn.cu calls none of that head size.

        For a file of `common_files`, the cases that need its kernels.
        """
        if chosen := OF_CASES.search(file) or COMMON_OF.search(file):
            return [case for number, case in enumerate(self.cases.values()) if int(chosen[1], 16) >> number & 1]
        return [case for case in self.dispatched if launches_file(*case.sizes) == file]


@functools.lru_cache(maxsize=8)
def read_sources(tree: Tree, quants: tuple[str, ...], machine: str) -> Sources:
    """Read a tree's lists of files; `machine` is the processor for which ggml-cpu is compiled."""
    # InputError if fattn-probe does not support the tree's attention kernels, perhaps because they are too old.
    macros = case_parameters(tree.root)
    for family in FAMILIES:
        if tuple(macros.get(family.case, ())) != family.case_parameters:
            macro = f"DECL_FATTN_{family.name.upper()}_CASE({', '.join(family.case_parameters)})"
            raise InputError(
                f"source {tree.spec!r}: fattn-probe does not know this tree's attention kernels: its {CUDA} does not "
                f"define {macro}, which llama.cpp has defined since the end of 2025"
            )
    cmake = text_of(tree, f"{GGML}/CMakeLists.txt")
    source = tree.root / GGML
    pairs, cases = vec_pairs(tree, quants), kernel_cases(tree)
    vec = {case: "-".join(case.args[1:]).replace("GGML_TYPE_", "").lower() for case in cases if case.family == "vec"}
    libllama = [path for path in sorted((tree.root / LIBLLAMA).glob("*.cpp")) if not SELDOM.fullmatch(path.name)]
    require(tree, f"{CUDA}/{BACKEND}")
    said = text_of(tree, "ggml/CMakeLists.txt")
    version = [re.search(rf"set\(GGML_VERSION_{part}\s+(\d+)\)", said) for part in ("MAJOR", "MINOR", "PATCH")]
    return Sources(
        base=present(tree, listed(cmake, "ggml-base")),
        registry=present(tree, listed(cmake, "ggml")),
        cpu=present(tree, cpu_sources(tree, machine)),
        cuda=tuple(name for name in MINIMAL if (tree.root / CUDA / name).is_file()),
        full=full_sources(tree.root / CUDA, pairs),
        cases={case.name: case for case in cases},
        dispatched=tuple(case for case in cases if case not in vec or vec[case] in pairs),
        quant_defines=quant_defines(tree, quants, pairs),
        quant_readers=quant_readers(tree),
        version=".".join(part.group(1) for part in version if part),
        version_header=(source / "ggml-version.h.in").is_file(),
        libllama=units(path for path in libllama if path.name not in UNUSED_OF_LIBLLAMA),
    )


def units(files: Iterable[Path]) -> dict[str, tuple[str, ...]]:
    """The files of libllama, joined into UNITS files of about the same size."""
    parts: dict[str, list[Path]] = {f"{UNIT_PREFIX}{number}.cpp": [] for number in range(1, UNITS + 1)}
    sizes = {path: path.stat().st_size for path in files}
    for path in sorted(sizes, key=lambda path: -sizes[path]):
        min(parts.values(), key=lambda part: sum(map(sizes.__getitem__, part))).append(path)
    return {unit: tuple(path.name for path in part) for unit, part in parts.items() if part}


def is_joined(tree: Tree, patches: Iterable[Patch]) -> bool:
    """Whether DISPATCH_OF_TILES, in a tree with these patches, can be compiled as part of DISPATCH."""
    file, whole = (tree.root / CUDA / name for name in (DISPATCH_OF_TILES, DISPATCH))
    if not file.is_file() or any(DISPATCH_OF_TILES in patch.text for patch in patches):  # also matches fattn-tile.cuh
        return False
    text, there = (path.read_text(errors="replace") for path in (file, whole))
    return not OWN_NAMES.search(text) and set(INCLUDE.findall(text)) <= set(INCLUDE.findall(there))


def text_of(tree: Tree, path: str) -> str:
    """The text of a file; InputError if the tree lacks it."""
    require(tree, path)
    return (tree.root / path).read_text(errors="replace")


def require(tree: Tree, path: str) -> None:
    """Raise InputError if a tree lacks a file."""
    if not (tree.root / path).is_file():
        raise InputError(f"source {tree.spec!r}: the llama.cpp tree in {tree.root} is incomplete: {path} is missing")


def present(tree: Tree, files: tuple[str, ...]) -> tuple[str, ...]:
    """The `files` (relative to ggml/src); InputError if the tree lacks one of them."""
    for file in files:
        require(tree, f"{GGML}/{file}")
    return files


def listed(cmake: str, target: str) -> tuple[str, ...]:
    """The C and C++ files in CMake's `add_library(target ...)`."""
    match = re.search(rf"add_library\({re.escape(target)}\s([^)]*)\)", cmake)
    return tuple(re.findall(r"(?<!\S)[\w-]+\.(?:cpp|c)\b", match.group(1))) if match else ()


def cpu_sources(tree: Tree, machine: str) -> tuple[str, ...]:
    """ggml-cpu's portable files, and those for the processor's architecture.

    The portable files are the first list in its CMakeLists; without that list, the result is empty. The result excludes
    llamafile's matrix product, which attention does not use; `cpu-feats.cpp`, which is for loadable variants; and two
    files named `repack.cpp`, which take a quarter of the compile time and serve only builds with GGML_USE_CPU_REPACK.
    """
    cmake, source = text_of(tree, f"{GGML}/ggml-cpu/CMakeLists.txt"), tree.root / GGML
    match = re.search(r"list\s*\(APPEND GGML_CPU_SOURCES\s([^)]*)\)", cmake)
    if match is None:
        return ()
    portable = re.findall(r"ggml-cpu/[\w/-]+\.(?:cpp|c)\b", match.group(1))
    arch = "arm" if machine in ("aarch64", "arm64") else "x86"
    own = [path for path in sorted((source / "ggml-cpu/arch" / arch).glob("*.c*")) if path.stem != "cpu-feats"]
    every = (*portable, *(path.relative_to(source).as_posix() for path in own))
    return tuple(name for name in every if not name.endswith("/repack.cpp"))


def full_sources(cuda: Path, pairs: tuple[str, ...]) -> tuple[str, ...]:
    """The files that ggml-cuda's CMakeLists compiles, with the vec instances for these K-V type pairs."""
    patterns = ("*.cu", *(f"{INSTANCES}/{family}*.cu" for family in ("fattn-tile", "fattn-mma", *PRODUCTS)))
    files = [path for pattern in patterns for path in sorted(cuda.glob(pattern))]
    files += [path for pair in pairs if (path := cuda / f"template-instances/fattn-vec-instance-{pair}.cu").is_file()]
    return tuple(path.relative_to(cuda).as_posix() for path in files)


def vec_types(tree: Tree) -> tuple[str, ...]:
    """The types of K and V for which the tree has vec instances."""
    names = [path.stem for path in sorted((tree.root / CUDA / "template-instances").glob("fattn-vec-instance-*.cu"))]
    return tuple(dict.fromkeys(name.removeprefix("fattn-vec-instance-").split("-")[0] for name in names))


def vec_pairs(tree: Tree, quants: tuple[str, ...]) -> tuple[str, ...]:
    """The K-V type pairs for which fattn.cu dispatches to vec kernels: upstream's defaults and `quants`.

    The default of GGML_CUDA_FA_QUANTS is in ggml/CMakeLists.txt. The older option GGML_CUDA_FA_ALL_QUANTS selects
    either all pairs or only the pairs of identical types (f16, q4_0, q8_0, bf16).
    """
    types = vec_types(tree)
    every = tuple(f"{k}-{v}" for k in types for v in types)
    unknown = [pair for pair in quants if pair not in (ALL_QUANTS, *every)]
    if unknown:
        raise InputError(
            f"K-V types {unknown[0]!r}: this tree has vec kernels for pairs of {', '.join(types)}, such as q8_0-f16"
        )
    if ALL_QUANTS in quants or (quants and tree.features.quants_option != "GGML_CUDA_FA_QUANTS"):
        return every
    default = [f"{name}-{name}" for name in ("q4_0", "q8_0", "f16", "bf16") if name in types]
    return tuple(dict.fromkeys([*default, *quants]))


def launches_file(*words: str) -> str:
    """The file with the kernel cases for DKQ and DV, which launch kernels but contain no kernel bodies."""
    return f"{INSTANCES}/{LAUNCHES_PREFIX}{'-'.join(words)}.cu"


def body_file(kernel: str, values: Sequence[str]) -> str:
    """The file with the body of a kernel that belongs to no family, for example one that a patch adds."""
    return f"{INSTANCES}/{BODY_PREFIX}{'-'.join((kernel, *values))}.cu"


def launching_files(
    kernels: Iterable[KernelCase], every: Iterable[KernelCase], files: Iterable[str] = (), most: int = 1
) -> tuple[str, ...]:
    """The additional files that must launch these kernels, beyond those that a build's `files` launch already.

    For kernels of one head size, it is the file with all cases of that size, which takes 2.4 s to compile; otherwise up
    to `most` files with only the needed cases. A file's name has one bit per case: the case's number among `every` case
    of the tree. A file takes 1 s, plus 35 ms per host function. Cases with the same DV share functions and a file.
    """
    there, numbers = set(files), {case: number for number, case in enumerate(every)}
    chosen = [int(match[1], 16) for match in map(OF_CASES.search, there) if match]
    left = {
        case: launches_file(*case.sizes)
        for case in dict.fromkeys(kernel.whole for kernel in kernels)
        if launches_file(*case.sizes) not in there and not any(bits >> numbers[case] & 1 for bits in chosen)
    }
    if len(set(left.values())) <= 1:
        return tuple(left.values())[:1]
    parts = side_by_side({case: HOST_FUNCTIONS.get(case.family, 1) for case in left}, most)
    return tuple(launches_file(f"of-{sum(1 << numbers[case] for case in part):x}") for part in parts)


def side_by_side(cases: Mapping[KernelCase, int], most: int) -> list[list[KernelCase]]:
    """Divide cases into at most `most` parts with similar function counts; cases with the same DV stay together."""
    by_width: dict[str, list[KernelCase]] = {}
    for case, number in cases.items():
        by_width.setdefault(case.sizes[1], []).extend([case] * number)
    parts: list[list[KernelCase]] = [[] for _ in range(max(1, min(most, sum(cases.values()) // FUNCTIONS_A_FILE)))]
    for some in sorted(by_width.values(), key=len, reverse=True):
        min(parts, key=len).extend(some)
    return [list(dict.fromkeys(part)) for part in parts if part]


def common_files(
    kernels: Iterable[KernelCase], every: Iterable[KernelCase], files: Iterable[str] = (), most: int = 1
) -> tuple[str, ...]:
    """The additional files with kernels of COMMON that run alongside these, beyond those that `files` contain.

    They are chosen as in `launching_files`. A name also contains the sum of the distinct ncols1 (powers of two) of
    kernels without stream-K; stream-K cases include theirs. A file takes 0.25 s to compile, plus 25 ms per kernel.
    """
    numbers = {case: number for number, case in enumerate(every)}
    chosen = [(int(match[1], 16), int(match[2], 16)) for match in map(COMMON_OF.search, files) if match]
    left: dict[KernelCase, set[int]] = {}
    for kernel in filter(lambda kernel: kernel.instance, kernels):
        named = BY_CASE[kernel.family].arguments(kernel.instance)
        columns = 0 if BY_CASE[kernel.family].stream_k else int(named.get("ncols1") or named.get("ncols") or 1)
        if not any(bits >> numbers[kernel.whole] & 1 and columns & all_ == columns for bits, all_ in chosen):
            left.setdefault(kernel.whole, set()).add(columns)
    found = []
    for part in side_by_side({case: 2 for case in left}, most) if left else ():
        bits, columns = sum(1 << numbers[case] for case in part), sum(set().union(*(left[case] for case in part)))
        found.append(f"{INSTANCES}/{COMMON_PREFIX}of-{bits:x}-{columns:x}.cu")
    return tuple(found)


def quant_defines(tree: Tree, quants: tuple[str, ...], pairs: tuple[str, ...]) -> tuple[str, ...]:
    """The -D options that select vec kernels, as upstream's CMake passes them."""
    if tree.features.quants_option != "GGML_CUDA_FA_QUANTS":
        return ("-DGGML_CUDA_FA_ALL_QUANTS",) if quants else ()
    types = vec_types(tree)
    flags = [f"-DGGML_CUDA_FA_{k}_{v}".upper() + f"={int(f'{k}-{v}' in pairs)}" for k in types for v in types]
    return (*flags, f'-DGGML_CUDA_FA_QUANTS="{",".join(pairs)}"')


def quant_readers(tree: Tree) -> tuple[str, ...]:
    """The attention files and the headers of ggml-cuda/ that read `quant_defines`: today only fattn.cu.

    ggml-cuda.cu reads them too, for a list of features that none of the programs shows.
    """
    cuda = tree.root / CUDA
    paths = (path for pattern in ("fattn*.cu", "*.cuh") for path in sorted(cuda.glob(pattern)))
    return tuple(path.name for path in paths if QUANTS_PREFIX.encode() in path.read_bytes())
