"""The arithmetic of a launch: the format of each value, and the division of the KV rows into sums."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fattn_probe.cases.op import Op
from fattn_probe.llama.launch.architecture import (
    AMD,
    CDNA2,
    RDNA1,
    RDNA3,
    RDNA4,
    copy_bytes,
    fast_f16,
    generation_of,
    has_dot2,
)
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.llama.launch.tiles import Tile
from fattn_probe.verdict.truth.error_model.rounding import HALF, SINGLE, Format

EXP_ERROR = 3.0e-8**2 + (2.0**-23 * np.log(2)) ** 2 / 12
"""Mean square of ex2.approx's relative error, from its table (measured on Hopper) and its argument's truncation.

The error of AMD's v_exp_f32, which is accurate to 1 ulp, is not larger.
"""
QForm = Literal["f16 twice", "f16", "f32", "q8_1"]
Joining = Literal["f32", "f16", "f32 from f16"]
"""How a block adds the sums of its accumulators: in f32, in f16, or in f32 after rounding them to f16."""
ASSUMED_DOT2 = "the rounding of v_dot2_f32_f16 on this GPU is not published; it is assumed to round after each product"
ASSUMED_WMMA = "the rounding of WMMA on this GPU is not published; it is assumed to be that of a gfx1201"
Pieces = tuple[range, ...]


@dataclass(frozen=True)
class Split:
    """The assignment of one step's KV rows to accumulators: row = (((m*steps + a)*w + ...)*inner + i)*group + g.

    Each of `outer * warps` accumulators takes `steps * inner` additions of `group` products. The products of one
    addition are summed exactly (to far more bits than the accumulator has).
    """

    outer: int
    steps: int
    warps: int
    inner: int
    group: int

    @property
    def rows(self) -> int:
        """The number of KV rows per step, upstream's `nbatch_fa`."""
        return self.outer * self.steps * self.warps * self.inner * self.group

    @property
    def accumulators(self) -> int:
        """The number of independent sums of one row within one block."""
        return self.outer * self.warps


@dataclass(frozen=True)
class Sinking:
    """The f16 sums that a kernel scales to a sink: those of some warps in one of the CUDA blocks that share a tile.

    `block` is 0 for the first block, -1 for the last. With `flushes`, sums whose maximum is more than 20 below the sink
    become 0, also in the other blocks. `factor` is the format of the factor; products are rounded to f16. With
    `to_maximum`, all f16 sums of each block are scaled to the largest maximum of the block, or to a sink above it.
    """

    block: int
    warps: slice
    flushes: bool
    factor: Format = HALF
    to_maximum: bool = False


@dataclass(frozen=True)
class Kernel:
    """The arithmetic of one launch.

    `name` is for messages; `geometry` divides the KV steps of a tile among blocks; None if one block processes
    them all. `max_offset` is added to a row's maximum. `sparse`: only KV rows that are visible to some query of a tile
    are read. `products_f16`: each q*k is rounded to f16 before it is summed. `chain` is the sum of the mean squares of
    a logit's partial sums in f32, in two units: the logit's square, for partial sums that grow evenly, and |q|^2 |k|^2
    / hsk, for their scatter. `shares_maximum` are the axes of `Block`'s arrays along which accumulators share a running
    maximum. `sinking`: how f16 sums are scaled to a sink; None for f32. `joining`: how a block's sums are added.
    `least_factor` is the smallest Q, K, P or V in f16 that a matrix instruction does not treat as 0. `fast_math`:
    compiled with nvcc's -use_fast_math, as upstream compiles for NVIDIA, but not for AMD: tanh is an approximation, and
    subnormal float32 are 0. `assumed` names the parts that are assumptions; empty if there are none.
    """

    name: str
    geometry: Geometry | None
    split: Split
    accumulator: Format
    weights: Format
    q: QForm
    converts_K: bool
    converts_V: bool
    chain: tuple[float, float]
    shares_maximum: tuple[int, ...]
    sparse: bool
    products_f16: bool = False
    sinking: Sinking | None = None
    joining: Joining = "f32"
    least_factor: float = 0.0
    fast_math: bool = True
    max_offset: float = 0.0
    assumed: str = ""

    @property
    def largest_weight(self) -> float:
        """The largest P, exp(-max_offset): 1/8 with an offset of 3 ln 2."""
        return 2.0 ** -round(self.max_offset / math.log(2))

    @property
    def least_float(self) -> float:
        """The largest error of a number too small for float32: below 2^-126 it becomes 0, or a multiple of 2^-149."""
        return 2.0 ** (SINGLE.least if self.fast_math else SINGLE.least - SINGLE.fraction)


def kernel_of(op: Op, geometry: Geometry | None, arch: int) -> Kernel | None:
    """The arithmetic of the attention kernel with this geometry; None for a family without an error model.

    `arch` is nvcc's number for the architecture, 90 for Hopper.
    """
    describe = None if geometry is None else BY_FAMILY.get(geometry.kernel.family.name)
    return None if geometry is None or describe is None else describe(op, geometry, arch)


def _mma_f16(op: Op, geometry: Geometry, arch: int) -> Kernel:
    launched, generation = geometry.kernel, generation_of(arch)
    in_f16 = not launched.sums_in_f32
    group, np_ = generation.k_half if in_f16 else generation.group, launched.warps_per_column
    length = launched.DKQ / (group if arch < AMD else generation.group)
    truncated = 4 if arch < AMD else 1  # times the mean square of rounding to nearest
    return Kernel(
        name=launched.family.name.replace("_", "-"),
        geometry=geometry,
        split=Split(1, launched.nbatch_fa // (np_ * generation.chunk), np_, generation.chunk // group, group),
        accumulator=HALF if in_f16 else SINGLE,
        weights=HALF,
        q="f16 twice",
        converts_K=True,
        converts_V=True,
        chain=(truncated / 3 * length, truncated / 6 * length),
        shares_maximum=(4, 6, 7),
        sinking=Sinking(block=-1, warps=slice(1), flushes=True, factor=HALF if in_f16 else SINGLE),
        joining="f32" if in_f16 else "f32 from f16",
        least_factor=2.0**HALF.least if arch == CDNA2 else 0.0,
        fast_math=arch < AMD,
        max_offset=launched.max_offset,
        sparse=launched.sparse,
        assumed=ASSUMED_WMMA if arch == RDNA4 else "",
    )


def _tile(op: Op, geometry: Geometry, arch: int) -> Kernel:
    launched = geometry.kernel
    fast, dot2, np_ = fast_f16(arch), has_dot2(arch), launched.warps_per_column
    number: Format = HALF if fast else SINGLE
    additions = launched.DKQ / (2 if arch >= RDNA3 else 1)
    return Kernel(
        name=launched.family.name.replace("_", "-"),
        geometry=geometry,
        split=Split(1, launched.nbatch_fa // np_, np_, 1, 1),
        accumulator=number,
        weights=number,
        q="f16" if fast else "f32",
        converts_K=True,
        converts_V=True,
        chain=(additions / 3, additions / 6),
        shares_maximum=(3, 4, 5, 6, 7),
        products_f16=fast and not dot2,
        sinking=Sinking(block=0, warps=slice(None), flushes=False) if fast else None,
        joining="f16" if fast else "f32",
        fast_math=arch < AMD,
        max_offset=launched.max_offset,
        sparse=launched.sparse,
        assumed=ASSUMED_DOT2 if dot2 and arch < RDNA3 else "",
    )


def _vec(op: Op, geometry: Geometry, arch: int) -> Kernel:
    """The vec kernel. With AMD's dot product of two f16 (`V_DOT2_F32_F16_AVAILABLE`), Q, P, V and P*V sums are f16."""
    launched, dot2 = geometry.kernel, has_dot2(arch)
    D, floats = launched.DKQ, {"f16", "bf16"}
    own_K, of_floats = launched.type_K in floats, 128 // copy_bytes(arch)
    of_quants = min(32, D // 4)  # threads that share a row of V (on NVIDIA, also a row of K)
    threads_K = of_floats if own_K else of_quants if arch < AMD else 2 if arch >= RDNA1 else 4
    lanes = 32 // (of_floats if launched.type_V in floats else of_quants)
    additions = D // 4 if not own_K else D // 2 if arch >= RDNA3 and launched.type_K == "f16" else D
    return Kernel(
        name=launched.family.name.replace("_", "-"),
        geometry=geometry,
        split=Split(launched.warps, 32 // lanes, lanes, 1, 1),
        accumulator=HALF if dot2 else SINGLE,
        weights=HALF if dot2 else SINGLE,
        q="q8_1" if not own_K else "f16 twice" if dot2 else "f32",
        converts_K=launched.type_K != op.type_K,
        converts_V=launched.type_V != op.type_V or dot2,
        chain=_lanes_chain(additions, threads_K),
        shares_maximum=(4, 5, 6, 7),
        sinking=Sinking(block=0, warps=slice(None), flushes=False, to_maximum=True) if dot2 else None,
        fast_math=arch < AMD,
        max_offset=launched.max_offset,
        sparse=launched.sparse,
        assumed=ASSUMED_DOT2 if dot2 and arch < RDNA3 and launched.type_K == "f16" else "",
    )


BY_FAMILY: Mapping[str, Callable[[Op, Geometry, int], Kernel]] = {"mma_f16": _mma_f16, "tile": _tile, "vec": _vec}


def _lanes_chain(length: int, lanes: int) -> tuple[float, float]:
    """`Kernel.chain` for a sum whose terms are dealt to lanes; the lanes' sums are then added pairwise."""
    each = length / lanes
    pairs = [2**level for level in range(lanes.bit_length() - 1)]  # sums after each round of shuffles, last first
    along = each / 3 / lanes + sum(1 / number for number in pairs)
    return along, each / 6 + each / 3 * (1 - 1 / lanes) + sum(1 - 1 / number for number in pairs)


def pieces_of(geometry: Geometry, tile: Tile) -> Pieces:
    """The KV steps of each CUDA block in an output tile, in order; blocks without steps are left out."""
    return tuple(work.steps for work in geometry.parts_of(tile).values() if work.steps)


def steps_of(pieces: Pieces, absent: int) -> npt.NDArray[np.intp]:
    """The pieces as one array (pieces, longest), padded with `absent`."""
    longest = max(len(piece) for piece in pieces)
    steps = np.full((len(pieces), longest), absent, dtype=np.intp)
    for row, piece in zip(steps, pieces, strict=True):
        row[: len(piece)] = piece
    return steps
