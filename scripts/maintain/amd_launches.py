"""The launches of an attention op on an AMD GPU, according to a second implementation of the host code in fattn*.cu.

Nothing here comes from the simulator or the package's own model of launches, so agreement is evidence. This module
covers only small ops, which leave most of a GPU idle: the grid then does not depend on the number of blocks that fit.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import Op

Pointers = Mapping[str, int]
"""Addresses of Q, K, V, mask, sinks, dst, partial (the outputs of blocks that share a tile) and meta (their sums)."""
IDLE = 40
"""A number of compute units smaller than any GPU of these architectures has."""
STRIDE = 256  # FATTN_KQ_STRIDE
CASES = {
    "vec": '#include "fattn-vec.cuh"\nDECL_FATTN_VEC_CASE({0}, {2}, {3});\n',
    "tile": '#include "fattn-tile.cuh"\nDECL_FATTN_TILE_CASE({0}, {0});\n',
    "mma": '#include "fattn-mma-f16.cuh"\nDECL_FATTN_MMA_F16_CASE({0}, {0}, {1}, {2});\n',
}
CONFIG = r"{}_CONFIG_CASE\(\s*{},\s*{},\s*{},\s*(.*?)\)"


@dataclass(frozen=True)
class Kernel:
    """A kernel's launch: its family, template arguments, geometry and arguments as bytes."""

    family: str
    name: str
    arguments: tuple[bytes, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic: int = 0

    @property
    def source(self) -> str:
        """The text of a file that instantiates the attention kernel of a family."""
        values = self.name[self.name.index("<") + 1 : -1].split(",")
        order = (0, 2, 2, 3) if self.family == "vec" else (0, 2, 3)
        return CASES[self.family].format(*(values[at] for at in order))


@dataclass(frozen=True)
class Chosen:
    """The kernel that fattn.cu chooses, with its columns per block: queries, and query heads of one K/V head."""

    family: str
    ncols1: int
    ncols2: int


def chosen(op: Op, gfx: str) -> Chosen:
    """The choice that ggml_cuda_get_best_fattn_kernel and the switches after it make, for head sizes up to 256."""
    sizes, params = op.sizes, op.params
    ratio = sizes.n_head // sizes.n_head_kv
    quantized = op.type_K.startswith("q"), op.type_V.startswith("q")
    strides = (view.nb for name, view in op.tensors.items() if name in ("Q", "K", "V", "mask") and view.type[0] != "q")
    aligned = all(step % 16 == 0 for nb in strides for step in nb[1:])
    shared = op.has_mask and params.max_bias == 0 and sizes.n_kv % STRIDE == 0
    effective = next(n for n in (8, 4, 2, 1) if n == 1 or (params.max_bias == 0 and ratio % n == 0))
    columns, size, odd = sizes.n_q * effective, sizes.hsk, sizes.hsk in (40, 72)
    if gfx == "gfx942":
        mma = not odd and any(size <= most and columns > least for most, least in ((64, 8), (128, 16), (256, 64)))
    else:
        mma = not odd and ratio >= 2 and shared and aligned and columns > (8 if size <= 128 else 16)
    if mma:
        fits = () if gfx == "gfx942" else (n for n in (8, 4, 2) if ratio % n == 0)  # RDNA avoids unused columns
        ncols2 = (*fits, *(n for n in (8, 4, 2) if ratio > n // 2), 1)[0] if shared and aligned else 1
        total = next(total for total in (16, 32, 64) if total == 64 or sizes.n_q <= total // ncols2)
        return Chosen("mma", total // ncols2, ncols2)
    if size % 64 == 0 and sizes.n_kv % STRIDE == 0:
        single = sizes.n_q == 1 and not (ratio >= 2 and shared and aligned)
        if sizes.n_q <= 2 if any(quantized) else single:
            return Chosen("vec", min(sizes.n_q, 2), 1)
    ncols2 = next((n for n in (8, 4, 2) if shared and ratio % n == 0), 1)
    wide = (64,) if size <= 128 else ()
    total = next(
        total for total in (*wide, 32, 16, 8, 4, 2) if total // 2 < sizes.n_q * ncols2 or total == max(2, ncols2)
    )
    return Chosen("tile", total // ncols2, ncols2)


def configured(ggml: Path, family: str, gfx: str, size: int, columns: int) -> list[int]:
    """A row of the tables of tile sizes: nthreads, occupancy, nbatch_fa and so on."""
    file, function = {
        "tile": ("fattn-tile.cuh", "fattn_tile_get_config_amd" + ("" if gfx == "gfx942" else "_rdna")),
        "mma": ("fattn-mma-f16.cuh", "fattn_mma_get_config_" + ("cdna" if gfx == "gfx942" else "rdna")),
    }[family]
    text = (ggml / "src/ggml-cuda" / file).read_text()
    body = text[text.index(f" ggml_cuda_{function}(") :]
    row = re.search(CONFIG.format(family.upper(), size, size, columns), body[: body.index("\n}")])
    if row is None:
        raise InputError(f"{file}: no row of {family} for head size {size} and {columns} columns")
    return [int(word) for word in row[1].replace("true", "1").replace("false", "0").split(",")]


def launches(op: Op, gfx: str, ggml: Path, at: Pointers) -> Iterator[Kernel]:
    """The launches of launch_fattn: the attention kernel, then one that adds the parts of blocks that share a tile."""
    sizes, params, choice = op.sizes, op.params, chosen(op, gfx)
    ncols, wave = choice.ncols1 * choice.ncols2, 64 if gfx == "gfx942" else 32
    if sizes.hsk != sizes.hsv or (choice.family != "vec" and {op.type_K, op.type_V} != {"f16"}):
        raise InputError("the head sizes must be equal, and K and V f16 for the tile and mma kernels")
    row = [128, 0, sizes.hsk] if choice.family == "vec" else configured(ggml, choice.family, gfx, sizes.hsk, ncols)
    threads, batch = row[0], row[2]
    ratio, kv_tiles = sizes.n_head // sizes.n_head_kv, -(-sizes.n_kv // batch)
    tiles_x, tiles_z = -(-sizes.n_q // choice.ncols1), -(-ratio // choice.ncols2)
    tiles = tiles_x * tiles_z * sizes.n_head_kv * sizes.n_seq
    if tiles * kv_tiles > IDLE or tiles_x > 4:
        raise InputError(f"{tiles * kv_tiles} blocks, at most {IDLE}")
    softcap = str(params.logit_softcap != 0).lower()
    if choice.family == "mma":
        values = [sizes.hsk, sizes.hsv, choice.ncols1, choice.ncols2, softcap, "false", "false"]
        grid, block, dynamic = (tiles * kv_tiles, 1, 1), (wave, threads // wave, 1), _lds(row, choice, sizes.hsk, wave)
        name, whole = "flash_attn_ext_f16", True
    else:
        values = [sizes.hsk, sizes.hsv, choice.ncols1, choice.ncols2, softcap]
        if choice.family == "vec":
            values = [
                sizes.hsk,
                choice.ncols1,
                *(f"GGML_TYPE_{kind.upper()}" for kind in (op.type_K, op.type_V)),
                softcap,
            ]
        grid, block, dynamic = (tiles_x, kv_tiles, tiles // tiles_x), (32, threads // 32, 1), 0
        name, whole = {"vec": "flash_attn_ext_vec", "tile": "flash_attn_tile"}[choice.family], kv_tiles == 1
    arguments = _arguments(op, at, at["dst"] if whole else at["partial"])
    yield Kernel(choice.family, f"{name}<{','.join(map(str, values))}>", tuple(arguments), grid, block, dynamic)
    if kv_tiles == 1:
        return
    if choice.family == "mma":
        numbers = (sizes.n_q, sizes.n_head, sizes.n_head_kv, grid[0], ratio, kv_tiles)
        divisors = (tiles_x * tiles_z * sizes.n_head_kv, tiles_x * tiles_z, tiles_x)
        added = (_pointer(at["dst"]), _pointer(at["meta"]), *map(_int, numbers), *map(fastdiv, divisors))
        name = f"flash_attn_stream_k_fixup_uniform<{sizes.hsv},{choice.ncols1},{choice.ncols2}>"
        yield Kernel("mma", name, added, (tiles, choice.ncols1, choice.ncols2), (sizes.hsv, 1, 1))
    else:
        added = (*map(_pointer, (at["partial"], at["meta"], at["dst"])), _int(kv_tiles))
        grid = (sizes.n_q, sizes.n_head, sizes.n_seq)
        name = f"flash_attn_combine_results<{sizes.hsv}>"
        yield Kernel(choice.family, name, added, grid, (sizes.hsv, 1, 1), 8 * kv_tiles)


def _lds(row: list[int], choice: Chosen, size: int, wave: int) -> int:
    """Dynamic LDS of an mma kernel in bytes, with one stage and no swizzle; a half2 takes 4 bytes."""
    threads, _, batch, K2, V2, combine, _, in_registers = row
    ncols = choice.ncols1 * choice.ncols2
    keys = batch * (max(K2, V2) + 4)
    queries, mask = ncols * (size // 2 + 4), choice.ncols1 * (batch // 2 + 4)
    used = max(queries, keys + mask) if in_registers else queries + keys + mask
    return 4 * max(used, threads // wave * min(ncols, 16) * (combine + 4))


def _arguments(op: Op, at: Pointers, dst: int) -> Iterator[bytes]:
    sizes, params = op.sizes, op.params
    Q, K, V = (op.tensors[name] for name in ("Q", "K", "V"))
    mask = op.tensors.get("mask")
    scale = np.float32(params.scale) / np.float32(params.logit_softcap or 1)
    heads = 1 << (sizes.n_head.bit_length() - 1)
    bases = (np.float32(2.0 ** (-params.max_bias / part / heads)) for part in (1, 2))
    yield from (_pointer(at.get(name, 0)) for name in ("Q", "K", "V", "mask", "sinks"))
    yield from map(_pointer, (0, dst, at["meta"]))  # no KV_max: the mask of a small op is not scanned
    yield from (struct.pack("<f", value) for value in (scale, params.max_bias, *bases))
    yield _int(heads)
    yield struct.pack("<f", params.logit_softcap)
    yield from (_int(Q.ne[0]), fastdiv(Q.ne[1]), _int(Q.ne[2]), _int(Q.ne[3]), *map(_int, Q.nb[1:]))
    yield from (*map(_int, (*K.ne, K.nb[1], K.nb[2])), _long(K.nb[3]))
    yield from (_int(V.nb[1]), _int(V.nb[2]), _long(V.nb[3]))
    ne, nb = (mask.ne, mask.nb) if mask else ((0,) * 4, (0,) * 4)
    yield from (*map(_int, (*ne[1:], nb[1], nb[2])), _long(nb[3]))


def fastdiv(divisor: int) -> bytes:
    """The three words of init_fastdiv_values: a multiplier, a shift and the divisor."""
    shift = (divisor - 1).bit_length()
    return struct.pack("<III", ((1 << 32) * ((1 << shift) - divisor) // divisor + 1) & 0xFFFFFFFF, shift, divisor)


def _pointer(address: int) -> bytes:
    return struct.pack("<Q", address)


def _int(value: int) -> bytes:
    return struct.pack("<i", value)


def _long(value: int) -> bytes:
    return struct.pack("<q", value)
