"""What a launch says of the arithmetic: which numbers are rounded to what, and how the KV rows are cut into sums."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from fattn_probe.launch.record import LaunchRecord
from fattn_probe.truth.error_model.rounding import HALF, SINGLE, Format

Family = Literal["mma_f16", "tile", "vec"]
QForm = Literal["f16 twice", "f16", "f32", "q8_1"]
FAMILIES: dict[str, Family] = {"flash_attn_ext_f16": "mma_f16", "flash_attn_tile": "tile", "flash_attn_ext_vec": "vec"}
VEC_WARPS = 4
PASCAL_WITHOUT_F16 = 61


class Sizes(Protocol):
    """What is needed of a case, or of the op in a capture."""

    @property
    def n_seq(self) -> int: ...  # noqa: D102
    @property
    def n_head(self) -> int: ...  # noqa: D102
    @property
    def n_head_kv(self) -> int: ...  # noqa: D102
    @property
    def n_q(self) -> int: ...  # noqa: D102
    @property
    def n_kv(self) -> int: ...  # noqa: D102
    @property
    def n_kv_max(self) -> int: ...  # noqa: D102
    @property
    def type_K(self) -> str: ...  # noqa: D102
    @property
    def type_V(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class Split:
    """How the KV rows of one step go to accumulators, row = (((m*steps + a)*w + ...)*inner + i)*group + g.

    `outer * warps` accumulators take `steps * inner` additions of `group` products each, the products of one addition
    being summed exactly (to far more bits than are kept).
    """

    outer: int
    steps: int
    warps: int
    inner: int
    group: int

    @property
    def rows(self) -> int:
        """KV rows of a step, upstream's `nbatch_fa`."""
        return self.outer * self.steps * self.warps * self.inner * self.group

    @property
    def accumulators(self) -> int:
        """Independent sums of one row within one block."""
        return self.outer * self.warps


@dataclass(frozen=True)
class Kernel:
    """The arithmetic of one launch.

    `ncols1` queries of `ncols2` heads make an output tile; `blocks` is the launch's grid. `products_f16`: each q*k is
    rounded to f16 before it is summed. `chain` is what the f32 sum of a logit costs: mean squares of its partial sums,
    added up, in units of the logit's square and of |q|^2 |k|^2 / hsk (the first has them grow evenly to the logit, the
    second scatter about that).
    """

    family: Family
    spelling: str
    ncols1: int
    ncols2: int
    split: Split
    accumulator: Format
    weights: Format
    q: QForm
    converts_K: bool
    converts_V: bool
    blocks: tuple[int, int, int]
    chain: tuple[float, float]
    products_f16: bool = False
    sparse: bool = False


def kernel_of(case: Sizes, launches: Iterable[LaunchRecord], arch: int) -> Kernel | None:
    """The arithmetic of the attention kernel among the launches of a case; None if there is none that is known.

    `arch` is nvcc's number of the architecture, 90 for Hopper.
    """
    launch = next((launch for launch in launches if launch.kernel in FAMILIES), None)
    if launch is None:
        return None
    family = FAMILIES[launch.kernel]
    if family == "mma_f16":
        return _mma_f16(case, launch, arch)
    return _tile(case, launch, arch) if family == "tile" else _vec(case, launch, arch)


def products_per_rounding(arch: int) -> int:
    """KV rows that one tensor-core instruction adds before it rounds to f16: K of m8n8k4, m16n8k8 and m16n8k16."""
    return 4 if arch < 75 else 8 if arch < 80 else 16


def _mma_f16(case: Sizes, launch: LaunchRecord, arch: int) -> Kernel:
    hsk, _, ncols1, ncols2 = (int(value) for value in launch.values[:4])
    ncols, nwarps = ncols1 * ncols2, launch.block[0] * launch.block[1] // 32
    thin = ncols == 8 or (hsk, ncols) in {(256, 16), (512, 16), (512, 32)}
    columns = 32 if arch < 75 else 8 if thin else 16
    np_ = max(1, nwarps * min(columns, ncols) // ncols)
    together = 8 if arch < 75 else 16
    nbatch_fa, group = mma_nbatch_fa(hsk, ncols, arch), products_per_rounding(arch)
    np_ = min(np_, nbatch_fa // together)
    return Kernel(
        family="mma_f16",
        spelling=launch.spelling,
        ncols1=ncols1,
        ncols2=ncols2,
        split=Split(1, nbatch_fa // (np_ * together), np_, together // group, group),
        accumulator=HALF,
        weights=HALF,
        q="f16 twice",
        converts_K=True,
        converts_V=True,
        blocks=launch.grid,
        chain=(4 / 3 * hsk / group, 4 / 6 * hsk / group),  # cut, not rounded: four times the mean square
        sparse=len(launch.values) > 6 and launch.values[6] == "true",
    )


def mma_nbatch_fa(hsk: int, ncols: int, arch: int) -> int:
    """KV rows between two updates of the maximum, as the tables of fattn-mma-f16.cuh have them."""
    if hsk <= 128:
        return 128 if ncols == 8 else 64
    if hsk == 192:
        return 64 if ncols == 8 else 32
    if hsk == 256:
        return 64 if ncols <= 16 or arch == 75 else 32
    return 64 if hsk == 512 and ncols <= 16 and arch >= 80 else 32


def _tile(case: Sizes, launch: LaunchRecord, arch: int) -> Kernel:
    hsk, _, ncols1, ncols2 = (int(value) for value in launch.values[:4])
    fast, ncols = arch != PASCAL_WITHOUT_F16, ncols1 * ncols2
    np_ = max(1, launch.block[0] * launch.block[1] // 32 // ncols)
    number: Format = HALF if fast else SINGLE
    nbatch_fa = max(tile_nbatch_fa(hsk, ncols, fast), 32 * np_)
    return Kernel(
        family="tile",
        spelling=launch.spelling,
        ncols1=ncols1,
        ncols2=ncols2,
        split=Split(1, nbatch_fa // np_, np_, 1, 1),
        accumulator=number,
        weights=number,
        q="f16" if fast else "f32",
        converts_K=True,
        converts_V=True,
        blocks=launch.grid,
        chain=(hsk / 3, hsk / 6),
        products_f16=fast,
    )


def tile_nbatch_fa(hsk: int, ncols: int, fast: bool) -> int:
    """KV rows between two updates of the maximum, as the tables of fattn-tile.cuh have them, by and large."""
    if fast:
        return 128 if (hsk, ncols) in {(40, 2), (40, 4), (40, 8), (64, 8), (72, 4), (80, 32), (96, 32)} else 64
    wide = {(64, 2), (64, 16), (64, 32), (128, 2), (128, 8), (128, 32), (256, 2), (192, 2)}
    return 64 if (hsk, ncols) in wide else 32


def _vec(case: Sizes, launch: LaunchRecord, arch: int) -> Kernel:
    hsk, ncols = (int(value) for value in launch.values[:2])
    type_K, type_V = (_type(value) for value in launch.values[2:4])
    bytes_ = 16 if arch >= 70 else 8
    threads = 128 // bytes_ if type_V in {"f16", "bf16"} else min(32, hsk // 4)
    lanes = 32 // threads
    return Kernel(
        family="vec",
        spelling=launch.spelling,
        ncols1=ncols,
        ncols2=1,
        split=Split(VEC_WARPS, 32 // lanes, lanes, 1, 1),
        accumulator=SINGLE,
        weights=SINGLE,
        q="f32" if type_K in {"f16", "bf16"} else "q8_1",
        converts_K=type_K != case.type_K,
        converts_V=type_V != case.type_V,
        blocks=launch.grid,
        chain=_lanes_chain(hsk, 128 // bytes_)
        if type_K in {"f16", "bf16"}
        else _lanes_chain(hsk // 4, min(32, hsk // 4)),
    )


def _lanes_chain(length: int, lanes: int) -> tuple[float, float]:
    """`Kernel.chain` of a sum whose terms are dealt out to lanes, which are then added pairwise."""
    each = length / lanes
    pairs = [2**level for level in range(lanes.bit_length() - 1)]  # sums that a round of shuffles leaves, last first
    along = each / 3 / lanes + sum(1 / number for number in pairs)
    return along, each / 6 + each / 3 * (1 - 1 / lanes) + sum(1 - 1 / number for number in pairs)


def _type(value: str) -> str:
    return re.sub(r"^GGML_TYPE_", "", value).lower()


@dataclass(frozen=True)
class Work:
    """The output tiles of a launch and the KV steps each accumulator of one takes, in order.

    Source: `launch_fattn` (fattn-common.cuh) and `flash_attn_ext_f16` (fattn-mma-f16.cuh) for the stream-K blocks.
    """

    kernel: Kernel
    iter_k: int
    iter_j: int
    iter_z: int
    n_head_kv: int
    n_seq: int

    @classmethod
    def of(cls, kernel: Kernel, case: Sizes) -> "Work":
        """The work of a case."""
        n_kv = min(case.n_kv, kernel.ncols1 * case.n_kv_max) if kernel.sparse else case.n_kv
        group = case.n_head // case.n_head_kv
        return cls(
            kernel,
            -(-n_kv // kernel.split.rows),
            -(-case.n_q // kernel.ncols1),
            -(-group // kernel.ncols2),
            case.n_head_kv,
            case.n_seq,
        )

    def pieces(self, seq: int, kv_head: int, head: int, query: int) -> tuple[tuple[int, ...], ...]:
        """The KV steps of each block that works on a row; `head` is counted within its group."""
        if self.kernel.family != "mma_f16":
            turns = min(self.kernel.blocks[1], self.iter_k)
            return tuple(tuple(range(turn, self.iter_k, turns)) for turn in range(turns))
        tile = (seq * self.n_head_kv + kv_head) * self.iter_z + head // self.kernel.ncols2
        tile = tile * self.iter_j + query // self.kernel.ncols1
        seams = self._seams(tile)
        return tuple(tuple(range(first, last)) for first, last in pairwise(seams))

    def _seams(self, tile: int) -> list[int]:
        """Where the blocks of a stream-K launch begin and end within a tile."""
        total = self.iter_k * self.iter_j * self.iter_z * self.n_head_kv * self.n_seq
        blocks, first = self.kernel.blocks[0], tile * self.iter_k
        low, high = first * blocks // total, -(-(first + self.iter_k) * blocks // total) + 1
        starts = {block * total // blocks - first for block in range(low, high + 1)}
        return [0, *sorted(start for start in starts if 0 < start < self.iter_k), self.iter_k]


def steps_of(pieces: tuple[tuple[int, ...], ...], absent: int) -> npt.NDArray[np.intp]:
    """The pieces as one array (pieces, longest), filled with `absent`."""
    longest = max(len(piece) for piece in pieces)
    steps = np.full((len(pieces), longest), absent, dtype=np.intp)
    for row, piece in zip(steps, pieces, strict=True):
        row[: len(piece)] = piece
    return steps
