"""The features of a llama.cpp tree, read from its files, never inferred from a version number."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

CUDA = Path("ggml/src/ggml-cuda")
FIXUP = "stream_k_fixup"
"""Part of the name of each kernel that combines the partial results for a stream-K kernel's tiles."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DECLARED_CASE = re.compile(r"^\s*DECL_FATTN_(?P<macro>\w+)_CASE\s*\((?P<args>[^()]*)\)\s*;", re.MULTILINE)
_DEFINED_CASE = re.compile(r"^\s*#\s*define\s+DECL_FATTN_(?P<macro>\w+)_CASE\((?P<names>[\w, ]*)\)", re.MULTILINE)
_KERNEL = re.compile(
    r"template\s*<(?P<parameters>[^<>]*)>\s*"
    r"(?:__launch_bounds__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)?"
    r"(?:static\s+)?__global__\s+void\s+(?P<name>\w+)\s*\("
)
_ENUM = re.compile(r"enum\s+ggml_type\s*\{(?P<body>[^}]*)\}")
_ENUM_VALUE = re.compile(r"GGML_TYPE_(\w+)\s*=\s*(\d+)")
_TEST_CASE = re.compile(r"struct\s+test_flash_attn_ext\s.*?VARS_TO_STR\d+\s*\((?P<names>[^)]*)\)", re.DOTALL)


@dataclass(frozen=True)
class Features:
    """The features that distinguish the eras of the attention code.

    `era` is A, B or C, or `?` for a tree without the features of any of these eras. The other fields hold names from
    the source; None if the tree has none of the alternatives.
    """

    era: str
    ntiles: str | None
    view_parameter: str | None
    kernel_launch: str
    sparse_gather: bool
    fixup_kernels: tuple[str, ...]
    wmma: bool
    quants_option: str | None
    test_file_option: bool
    test_types: str


@dataclass(frozen=True)
class KernelCase:
    """A host function that launches the kernels of one shape, as template-instances/ declares it.

    `family` is mma, tile or vec; `args` are the macro's arguments: mma (DKQ, DV, ncols1, ncols2), tile (DKQ, DV), vec
    (D, type_K, type_V); `macro` is the part of its name that differs (MMA_F16 of DECL_FATTN_MMA_F16_CASE). If the
    record stands for only one of its kernels, `instance` has that kernel's template arguments.
    """

    family: str
    args: tuple[str, ...]
    macro: str
    instance: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name on the command line and in build manifests: `mma 64,64,8,8`, with all arguments for an instance."""
        return f"{self.family} {','.join(self.instance or self.args)}"

    @property
    def whole(self) -> "KernelCase":
        """The case with all of its kernels."""
        return replace(self, instance=())

    @property
    def sizes(self) -> tuple[str, str]:
        """The head sizes (DKQ, DV)."""
        return (self.args[0], self.args[1] if self.args[1].isdigit() else self.args[0])

    @property
    def declaration(self) -> str:
        """The macro call that instantiates the case."""
        return f"DECL_FATTN_{self.macro}_CASE({', '.join(self.args)});"

    @property
    def header(self) -> str:
        """The header in ggml-cuda/ that defines the case's macro."""
        return f"fattn-{self.macro.lower().replace('_', '-')}.cuh"


def read_code(path: Path) -> str:
    """The text of a C++ file without comments; empty if the file does not exist."""
    return without_comments(path.read_text(errors="replace")) if path.is_file() else ""


def without_comments(text: str) -> str:
    """C++ with each comment replaced by a space."""
    return _COMMENT.sub(" ", text)


def probe(root: Path) -> Features:
    """Read all features of the tree at `root` (llama.cpp's folder)."""
    common, host = read_code(root / CUDA / "fattn-common.cuh"), read_code(root / CUDA / "fattn.cu")
    mma, tests = read_code(root / CUDA / "fattn-mma-f16.cuh"), read_code(root / "tests/test-backend-ops.cpp")
    kernels = kernel_parameters(root)
    ntiles = first_word(common, "ntiles_dst", "ntiles_total")
    return Features(
        era=era_of(ntiles, "ntiles_z_gqa" in common, first_word(mma, "V_is_K_view", "mla")),
        ntiles=ntiles,
        view_parameter=first_word(mma, "V_is_K_view", "mla"),
        kernel_launch="ggml_cuda_kernel_launch" if "ggml_cuda_kernel_launch" in common else "fattn_kernel<<<...>>>",
        sparse_gather="n_kv_max" in host,
        fixup_kernels=tuple(name for name in kernels if FIXUP in name),
        wmma=(root / CUDA / "fattn-wmma-f16.cu").is_file(),
        quants_option=quants_option(root),
        test_file_option='"--test-file"' in tests,
        test_types=test_types(tests),
    )


def era_of(ntiles: str | None, z_gqa: bool, view_parameter: str | None) -> str:
    """The era, A (December 2025), B (early 2026) or C (2026), recognised by names in the launch code."""
    if ntiles == "ntiles_dst":
        return "C"
    if ntiles == "ntiles_total" and z_gqa:
        return "B"
    return "A" if ntiles == "ntiles_total" and view_parameter == "mla" else "?"


def first_word(text: str, *words: str) -> str | None:
    """The first of `words` that occurs in the text as a whole word."""
    return next((word for word in words if re.search(rf"\b{word}\b", text)), None)


def quants_option(root: Path) -> str | None:
    """The CMake option that adds quantised K/V instances."""
    return first_word(read_code(root / "ggml/CMakeLists.txt"), "GGML_CUDA_FA_QUANTS", "GGML_CUDA_FA_ALL_QUANTS")


def test_types(tests: str) -> str:
    """The parameters with which test-backend-ops names the types of K and V: `type_KV` or `type_K,type_V`."""
    match = _TEST_CASE.search(tests)
    return "type_K,type_V" if match and "type_V" in match["names"] else "type_KV"


def kernel_parameters(
    root: Path, pattern: str = "fattn*.cu*", *, changed: Mapping[Path, str | None] = MappingProxyType({})
) -> dict[str, list[str]]:
    """The names of the template parameters of every `__global__` kernel in ggml-cuda's files, by kernel.

    `changed` has the texts of files that patches change or add, None for a deleted one.

    fattn-wmma-f16.cu and fattn-mma-f16.cuh have kernels of the same name; the former kernel is listed as
    `fattn-wmma-f16:flash_attn_ext_f16`.
    """
    kernels: dict[str, list[str]] = {}
    added = {path for path in changed if path.parent == root / CUDA and path.match(pattern)}
    for path in sorted({*(root / CUDA).glob(pattern), *added}):
        prefix = "fattn-wmma-f16:" if "wmma" in path.name else ""
        code = without_comments(changed[path] or "") if path in changed else read_code(path)
        for match in _KERNEL.finditer(code):
            parameters = match["parameters"].split(",")
            kernels[prefix + match["name"]] = [parameter.partition("=")[0].split()[-1] for parameter in parameters]
    return kernels


def instance_cases(root: Path) -> Iterator[KernelCase]:
    """Every DECL_FATTN_*_CASE in template-instances/."""
    for path in sorted((root / CUDA / "template-instances").glob("fattn-*.cu")):
        for match in _DECLARED_CASE.finditer(read_code(path)):
            args = tuple(arg.strip() for arg in match["args"].split(","))
            yield KernelCase(family_of_macro(match["macro"]), args, match["macro"])


def family_of_macro(macro: str) -> str:
    """The family in a macro's name: `mma` for the MMA_F16 of DECL_FATTN_MMA_F16_CASE."""
    return macro.partition("_")[0].lower()


def case_parameters(root: Path) -> dict[str, list[str]]:
    """The names of the arguments of each family's kernel cases, from the definitions of the macros."""
    texts = [read_code(path) for path in sorted((root / CUDA).glob("fattn-*.cuh"))]
    defined = [match for text in texts for match in _DEFINED_CASE.finditer(text)]
    return {family_of_macro(match["macro"]): match["names"].replace(" ", "").split(",") for match in defined}


def ggml_types(root: Path) -> dict[int, str]:
    """The values of ggml_type, with their names as in ggml_type_name: lower case, except the K of the K-quants."""
    match = _ENUM.search(read_code(root / "ggml/include/ggml.h"))
    pairs = _ENUM_VALUE.findall(match["body"]) if match else []
    return {int(value): re.sub("_k$", "_K", name.lower()) for name, value in pairs if name != "COUNT"}
