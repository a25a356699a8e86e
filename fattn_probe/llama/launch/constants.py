"""The constants of a llama.cpp tree on which its kernels' arithmetic depends: KV rows per step, and the shift of P.

The constants change from release to release. `constants_of` reads them from a tree; `default_constants` returns those
of the default source, for outputs whose source is not available.
"""

import csv
import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from fattn_probe.llama.cxx.expressions import COMMENT
from fattn_probe.llama.cxx.includes import included
from fattn_probe.llama.launch.architecture import AMD, fast_f16, generation_of, tile_configuration
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA, read_code

Loads = tuple[int, int] | None
"""A step's KV rows (`nbatch_fa`) and the K elements loaded per row; None if the reader cannot tell."""
MmaSizes = Mapping[tuple[int, int, int], Loads]
"""Maps (DKQ, DV, ncols) to a step's KV rows, and to 2 * `nbatch_K2`."""
TileSizes = Mapping[tuple[int, int], Loads]
"""Maps (DKQ, ncols) to a step's KV rows, and to `nbatch_K`."""

_FUNCTION = re.compile(r"get_config(?:_nvidia)?_(\w+)\s*\([^)]*\)\s*\{(.*?)^\}", re.DOTALL | re.MULTILINE)
_DEAD = re.compile(r"^[ \t]*#[ \t]*if 0\b.*?^[ \t]*#[ \t]*(else|endif)\b", re.DOTALL | re.MULTILINE)
_CASE = re.compile(r"CONFIG_CASE\(((?:[^()]|\([^()]*\))*)\)")
_PRODUCT = re.compile(r"\d+(?:\s*\*\s*\d+)*")
_NARROW = re.compile(r"template<> struct mma_tile_sizes<\s*(\d+)\s*,\s*(\d+)\s*>")
_F32_SUMS = re.compile(
    r"^#elif defined\(AMD_MFMA_AVAILABLE\)\s+template<[^{]*struct mma_tile_sizes \{[^}]*T_C_VKQ = tile<[\d, ]*float",
    re.MULTILINE,
)
_F16_VEC = re.compile(r"^#ifdef FAST_FP16_AVAILABLE\s+half2\s+VKQ\[", re.MULTILINE)
_OFFSET = re.compile(r"^#define FATTN_KQ_MAX_OFFSET \(?([\d.]+)f?(?:\s*\*\s*([\d.]+)f?)?\)?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Constants:
    """The constants of one source.

    `max_offset` is added to every maximum (FATTN_KQ_MAX_OFFSET), so that P is at most 1/8. `mma` is keyed by
    configuration: ampere, rdna and cdna have all sizes, turing and volta only those that differ from ampere. `tile` is
    keyed by configuration too: fp16, fp32, amd, amd_rdna; the last two are empty in releases without them. A warp works
    on 8 columns if (DKQ, ncols) is in `narrow` or ncols is 8, otherwise on 16; on Volta always on 32, on AMD always on
    16. `cdna_in_f32`: mma adds P*V in float32 on CDNA, as in sources since September 2026 (b11063).
    """

    max_offset: float
    mma: Mapping[str, MmaSizes]
    narrow: frozenset[tuple[int, int]]
    cdna_in_f32: bool
    tile: Mapping[str, TileSizes]

    def mma_configuration(self, sizes: tuple[int, int, int], arch: int) -> str:
        """The configuration that has the row for (DKQ, DV, ncols): Turing and Volta share Ampere's other rows."""
        own = generation_of(arch).configuration
        return own if arch >= AMD or sizes in self.mma[own] else "ampere"

    def mma_of(self, sizes: tuple[int, int, int], arch: int) -> tuple[int, int] | None:
        """The `nbatch_fa` and 2 * `nbatch_K2` of fattn-mma-f16 for (DKQ, DV, ncols); None if unsupported or unknown."""
        return self.mma[self.mma_configuration(sizes, arch)].get(sizes)

    def with_mma(self, sizes: tuple[int, int, int], arch: int, loads: Loads) -> "Constants":
        """A copy in which fattn-mma-f16 has this `nbatch_fa` and 2 * `nbatch_K2` for (DKQ, DV, ncols)."""
        name = self.mma_configuration(sizes, arch)
        return replace(self, mma={**self.mma, name: {**self.mma[name], sizes: loads}})

    def tile_of(self, sizes: tuple[int, int, int], arch: int) -> tuple[int, int] | None:
        """The `nbatch_fa` and `nbatch_K` of fattn-tile for (DKQ, DV, ncols); None if unsupported or unknown."""
        DKQ, _, ncols = sizes
        return self.tile[tile_configuration(arch)].get((DKQ, ncols))


@functools.cache
def known_constants(tree: Tree | None) -> Constants | None:
    """The constants of a source; None if they cannot be read (unfamiliar kernels, or no source)."""
    try:
        return constants_of(tree) if tree is not None else None
    except (OSError, KeyError, ValueError):
        return None


def headers_of(root: Path, file: str) -> list[str]:
    """A file of ggml-cuda/ and the attention headers that it includes, since a source may move tables there."""
    found = included([root / CUDA / file], (), root / CUDA)
    return [file, *sorted(path.name for path in found if path.name.startswith("fattn-") and path.name != file)]


def constants_of(tree: Tree) -> Constants:
    """Read the constants from a source's files."""
    texts = {
        name: "\n".join((tree.root / CUDA / file).read_text() for file in headers_of(tree.root, f"fattn-{name}.cuh"))
        for name in ("mma-f16", "tile", "common")
    }
    mma = _tables(texts["mma-f16"], ("ampere", "turing", "volta"), ("rdna", "cdna"))
    tile = _tables(texts["tile"], ("fp16", "fp32"), ("amd", "amd_rdna"))
    return Constants(
        max_offset=float(np.float32(max_offset(texts["common"]))),
        mma={name: {at: row and (row[0], 2 * row[1]) for at, row in table.items()} for name, table in mma.items()},
        narrow=frozenset((int(DKQ), int(ncols)) for DKQ, ncols in _NARROW.findall(texts["mma-f16"])),
        cdna_in_f32=bool(_F32_SUMS.search(texts["mma-f16"])),
        tile={name: {(DKQ, n): row for (DKQ, _, n), row in table.items()} for name, table in tile.items()},
    )


def _tables(text: str, always: Sequence[str], often: Sequence[str]) -> dict[str, dict[tuple[int, int, int], Loads]]:
    """`nbatch_fa` and `nbatch_K2` or `nbatch_K` for (DKQ, DV, ncols) in the known configuration functions.

    Every source has the functions `always`; KeyError without one. As in C++, the first row of a size counts. A new
    function, such as rdna4, may replace the rows of the function with whose name it begins (or else of any function),
    so differing rows are unknown. All rows of a function with conditions are unknown.
    """
    tables: dict[str, dict[tuple[int, int, int], Loads]] = {}
    unclear = {name for name, body in _bodies(text).items() if re.search(r"\b(?:if|switch)|\?", body)}
    for name, rows in configurations(text).items():
        tables[name] = {}
        for DKQ, DV, ncols, _, _, nbatch_fa, K, *_ in rows:
            tables[name].setdefault((DKQ, DV, ncols), (nbatch_fa, K) if min(nbatch_fa, K) > 0 else None)
            unclear |= {name} if min(DKQ, DV, ncols) < 0 else set()
    sizes = {one for table in tables.values() for one in table}
    tables |= {name: dict.fromkeys(sizes) for name in unclear}
    known = {name: tables[name] for name in always} | {name: tables.get(name, {}) for name in often}
    for own in sorted(tables.keys() - known.keys()):
        near = max((name for name in known if own.startswith(name)), key=len, default="")
        for table in (known[near],) if near else known.values():
            table |= {one: None for one, row in tables[own].items() if table.get(one) != row or not row}
    return known


def vec_adds_in_f16(tree: Tree, arch: int) -> bool:
    """Whether the vec kernel sums the rows of V in f16, as on most NVIDIA GPUs until the end of 2025 (b7079)."""
    return arch < AMD and fast_f16(arch) and bool(_F16_VEC.search(read_code(tree.root / CUDA / "fattn-vec.cuh")))


def max_offset(header: str) -> float:
    """The value of FATTN_KQ_MAX_OFFSET in the text of fattn-common.cuh; 0 if the file does not define it."""
    found = _OFFSET.search(header)
    return float(found[1]) * float(found[2] or 1) if found else 0.0


def configurations(text: str) -> dict[str, list[tuple[int, ...]]]:
    """The CONFIG_CASE arguments in each configuration function, by the suffix of its name; -1 if unreadable."""
    return {
        name: [tuple(map(_number, case.split(","))) for case in _CASE.findall(body)]
        for name, body in _bodies(text).items()
    }


def _bodies(text: str) -> dict[str, str]:
    """The code of each configuration function, by the suffix of its name, without comments and `#if 0`."""
    return dict(_FUNCTION.findall(_DEAD.sub("#\\1", COMMENT.sub(" ", text))))


def _number(text: str) -> int:
    """The value of a CONFIG_CASE argument; -1 if it is neither a number nor a product."""
    word = text.strip()
    if _PRODUCT.fullmatch(word):
        return math.prod(map(int, word.split("*")))
    return {"true": 1, "false": 0}.get(word, -1)


@functools.cache
def default_constants() -> Constants:
    """The constants of the default source.

    constants.csv has a step's KV rows and the K elements loaded per row, by head sizes and ncols.
    """
    text = (files(__package__) / "constants.csv").read_text(encoding="utf-8")
    mma: dict[str, dict[tuple[int, int, int], Loads]] = {}
    tile: dict[str, dict[tuple[int, int], Loads]] = {}
    for row in csv.DictReader(text.splitlines()):
        family, configuration, DKQ, DV = (row.pop(name) for name in ("family", "configuration", "DKQ", "DV"))
        for ncols, (nbatch_fa, K) in ((int(name), map(int, cell.split())) for name, cell in row.items() if cell):
            if family == "mma":
                mma.setdefault(configuration, {})[int(DKQ), int(DV), ncols] = nbatch_fa, K
            else:
                tile.setdefault(configuration, {})[int(DKQ), ncols] = nbatch_fa, K
    narrow = frozenset({(256, 16), (512, 16), (512, 32)})
    return Constants(float(np.float32(3) * np.float32(0.6931)), mma, narrow, cdna_in_f32=True, tile=tile)
