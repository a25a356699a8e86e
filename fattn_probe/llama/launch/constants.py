"""The constants of a llama.cpp tree on which its kernels' arithmetic depends: KV rows per step, and the shift of P.

The constants change from release to release. `constants_of` reads them from a tree; `default_constants` returns those
of the default source, for outputs whose source is not available.
"""

import csv
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from fattn_probe.llama.launch.architecture import AMD, fast_f16, generation_of, tile_configuration
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA, read_code

MmaSizes = Mapping[tuple[int, int, int], tuple[int, int]]
"""Maps (DKQ, DV, ncols) to a step's KV rows (`nbatch_fa`) and the K elements loaded per row (2 * `nbatch_K2`)."""
TileSizes = Mapping[tuple[int, int], tuple[int, int]]
"""Maps (DKQ, ncols) to a step's KV rows (`nbatch_fa`) and the K elements loaded per row (`nbatch_K`)."""

_FUNCTION = re.compile(r"get_config(?:_nvidia)?_(\w+)\s*\([^)]*\)\s*\{(.*?)^\}", re.DOTALL | re.MULTILINE)
_CASE = re.compile(r"CONFIG_CASE\(([\w\s,]+)\)")
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
        """The `nbatch_fa` and 2 * `nbatch_K2` of fattn-mma-f16 for (DKQ, DV, ncols); None for unsupported sizes."""
        return self.mma[self.mma_configuration(sizes, arch)].get(sizes)

    def tile_of(self, sizes: tuple[int, int, int], arch: int) -> tuple[int, int] | None:
        """The `nbatch_fa` and `nbatch_K` of fattn-tile for (DKQ, DV, ncols); None for unsupported sizes."""
        DKQ, _, ncols = sizes
        return self.tile[tile_configuration(arch)].get((DKQ, ncols))


@functools.cache
def known_constants(tree: Tree | None) -> Constants | None:
    """The constants of a source; None if they cannot be read (unfamiliar kernels, or no source)."""
    try:
        return constants_of(tree) if tree is not None else None
    except (OSError, KeyError, ValueError):
        return None


def constants_of(tree: Tree) -> Constants:
    """Read the constants from a source's files."""
    texts = {name: (tree.root / CUDA / f"fattn-{name}.cuh").read_text() for name in ("mma-f16", "tile", "common")}
    mma = {
        name: {(DKQ, DV, ncols): (rows, 2 * K2) for DKQ, DV, ncols, _, _, rows, K2, *_ in cases}
        for name, cases in configurations(texts["mma-f16"]).items()
    }
    tile = {
        name: {(DKQ, ncols): (rows, K) for DKQ, _, ncols, _, _, rows, K in cases}
        for name, cases in configurations(texts["tile"]).items()
    }
    return Constants(
        max_offset=float(np.float32(max_offset(texts["common"]))),
        mma={name: mma[name] for name in ("ampere", "turing", "volta")}
        | {name: mma.get(name, {}) for name in ("rdna", "cdna")},
        narrow=frozenset((int(DKQ), int(ncols)) for DKQ, ncols in _NARROW.findall(texts["mma-f16"])),
        cdna_in_f32=bool(_F32_SUMS.search(texts["mma-f16"])),
        tile={name: tile[name] for name in ("fp16", "fp32")}
        | {name: tile.get(name, {}) for name in ("amd", "amd_rdna")},
    )


def vec_adds_in_f16(tree: Tree, arch: int) -> bool:
    """Whether the vec kernel sums the rows of V in f16, as on most NVIDIA GPUs until the end of 2025 (b7079)."""
    return arch < AMD and fast_f16(arch) and bool(_F16_VEC.search(read_code(tree.root / CUDA / "fattn-vec.cuh")))


def max_offset(header: str) -> float:
    """The value of FATTN_KQ_MAX_OFFSET in the text of fattn-common.cuh; 0 if the file does not define it."""
    found = _OFFSET.search(header)
    return float(found[1]) * float(found[2] or 1) if found else 0.0


def configurations(text: str) -> dict[str, list[tuple[int, ...]]]:
    """The CONFIG_CASE arguments in each configuration function, by the suffix of its name."""
    return {
        name: [
            tuple(int({"true": "1", "false": "0"}.get(word, word)) for word in re.findall(r"\w+", case))
            for case in rows
        ]
        for name, rows in ((name, _CASE.findall(body)) for name, body in _FUNCTION.findall(text))
    }


@functools.cache
def default_constants() -> Constants:
    """The constants of the default source.

    constants.csv has a step's KV rows and the K elements loaded per row, by head sizes and ncols.
    """
    text = (files(__package__) / "constants.csv").read_text(encoding="utf-8")
    mma: dict[str, dict[tuple[int, int, int], tuple[int, int]]] = {}
    tile: dict[str, dict[tuple[int, int], tuple[int, int]]] = {}
    for row in csv.DictReader(text.splitlines()):
        family, configuration, DKQ, DV = (row.pop(name) for name in ("family", "configuration", "DKQ", "DV"))
        for ncols, (nbatch_fa, K) in ((int(name), map(int, cell.split())) for name, cell in row.items() if cell):
            if family == "mma":
                mma.setdefault(configuration, {})[int(DKQ), int(DV), ncols] = nbatch_fa, K
            else:
                tile.setdefault(configuration, {})[int(DKQ), ncols] = nbatch_fa, K
    narrow = frozenset({(256, 16), (512, 16), (512, 32)})
    return Constants(float(np.float32(3) * np.float32(0.6931)), mma, narrow, cdna_in_f32=True, tile=tile)
