"""The layout of a warp's fragments: from (lane, register) to (column, KV row) and (column, d).

Source: PTX ISA, "Matrix Fragments for mma.m16n8k16" and "for mma.m8n8k4", and AMD's matrix instruction calculator, in
the arrangement of ggml_cuda_mma::tile. A column is one query of one head: column jc = j*ncols2 + c of a block's tile is
its query j and head c.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fattn_probe.base.arrays import Indices

LANES = 32

Place = Callable[[Indices, Indices], tuple[Indices, Indices]]

LAYOUTS: Mapping[tuple[int, int, str], Place] = {
    (8, 8, "half2"): lambda lane, at: (lane // 4, at * 4 + lane % 4),
    (16, 4, "half2"): lambda lane, at: (at * 8 + lane // 4, lane % 4),
    (16, 8, "half2"): lambda lane, at: (at % 2 * 8 + lane // 4, at // 2 * 4 + lane % 4),
    (32, 4, "half2"): lambda lane, at: (lane, at),
    (16, 8, "float"): lambda lane, at: (at // 2 * 8 + lane // 4, lane % 4 * 2 + at % 2),
    (16, 16, "float"): lambda lane, at: (
        at // 2 % 2 * 8 + lane // 4,
        at // 4 * 8 + lane % 4 * 2 + at % 2,
    ),
    (32, 8, "float"): lambda lane, at: ((at & 2) + (lane & ~2), (lane & 2) + (at & 5)),
}
"""(i, j) of element `at` of a lane, for a tile<I, J, T>; half2 tiles count pairs in j. 32 rows: Volta only."""

AMD_ROWS: Mapping[str, Callable[[Indices, Indices, int], Indices]] = {
    "mfma": lambda lane, at, ne: ne * (lane // 16) + at,
    "rdna3": lambda lane, at, ne: 2 * at + lane // 16,
    "rdna4": lambda lane, at, ne: ne * (lane // 16) + at,
}
"""J of element `at` of the `ne` of a lane, in the sums of AMD's matrix instructions; i is the lane modulo 16."""
SCRAMBLED = "rdna4 scrambled"
"""The even d of a tile are in the first half of a lane's registers, the odd ones in the second."""


@dataclass(frozen=True)
class Fragment:
    """A tile<I, J, T> spread over the registers of a warp."""

    I: int  # noqa: E741 - as upstream has it
    J: int
    T: str
    lanes: int = LANES
    layout: str = ""
    """The layout on an AMD GPU: mfma, rdna3, rdna4; empty for NVIDIA."""

    @property
    def ne(self) -> int:
        """Registers per lane."""
        return self.I * self.J // self.lanes

    @property
    def known(self) -> bool:
        """Whether the layout is known."""
        return self.I == 16 if self.layout else (self.I, self.J, self.T) in LAYOUTS

    def place(self) -> tuple[Indices, Indices]:
        """The places (i, j), each [lane][register]."""
        lane, register = np.meshgrid(np.arange(self.lanes), np.arange(self.ne), indexing="ij")
        if not self.layout:
            return LAYOUTS[self.I, self.J, self.T](lane, register)
        return lane % 16, AMD_ROWS[self.layout.split()[0]](lane, register, self.ne)

    def halves(self) -> tuple[Indices, Indices]:
        """The places (i, along j) of all numbers, each [lane][number]: a half2 register is two."""
        i, j = self.place()
        if self.T != "half2":
            return i, j
        i, j = (np.repeat(part, 2, axis=1) for part in (i, j))
        half = np.arange(i.shape[1]) % 2
        if self.layout == SCRAMBLED:
            at = np.arange(i.shape[1]) // 2
            lane = np.arange(self.lanes)[:, None]
            return i, 2 * (lane // 16 * self.ne + at % (self.ne // 2) * 2 + half) + at // (self.ne // 2)
        return i, 2 * j + half


@dataclass(frozen=True)
class Places:
    """The place of each number of a variable, [lane][number]: the block's column, and the KV row or d.

    KV rows are counted from the first row of the step. A half2 register is two numbers, x and y.
    """

    column: Indices
    along: Indices


@dataclass(frozen=True)
class WarpFragments:
    """The layout of one warp's part of KQ and VKQ.

    With np > 1 several warps share the columns and process the KV rows of a step in turn.
    """

    KQ: Fragment
    VKQ: Fragment
    ncols1: int
    ncols2: int
    nwarps: int
    warp: int

    @classmethod
    def of(cls, document: Mapping[str, Any], warp: int) -> "WarpFragments":
        """The layout, from the document of `read_trace`."""
        template = document["template"]
        KQ, VKQ = (Fragment(**document[name]) for name in ("KQ", "VKQ"))
        return cls(KQ, VKQ, template["ncols1"], template["ncols2"], template["nwarps"], warp)

    @property
    def upright(self) -> bool:
        """Whether KQ's rows are KV rows (8 columns per warp); otherwise they are columns (16, Volta 32)."""
        return (self.KQ.I, self.KQ.J) == (16, 8)

    @property
    def cols_per_warp(self) -> int:
        """Columns that a warp works on."""
        return self.KQ.J if self.upright else self.KQ.I

    @property
    def np(self) -> int:
        """Warps that share a column."""
        return max(1, self.nwarps * self.cols_per_warp // (self.ncols1 * self.ncols2))

    @property
    def first_column(self) -> int:
        """The warp's first column in the block's tile."""
        return self.warp // self.np * self.cols_per_warp

    @property
    def kv_per_tile(self) -> int:
        """KV rows of one KQ fragment."""
        return self.KQ.I if self.upright else self.KQ.J

    @property
    def d_per_tile(self) -> int:
        """Rows of V's transpose in one VKQ fragment."""
        if self.upright:
            return self.VKQ.I
        return self.VKQ.J * (2 if self.VKQ.T == "half2" else 1)

    def nbatch_fa(self, numbers: int) -> int:
        """KV rows of a step, from the number of KQ values per lane."""
        return numbers // self.KQ.ne * self.np * self.kv_per_tile

    def KQ_places(self, numbers: int) -> Places:
        """The places of `KQ_C`, given its numbers per lane."""
        i, j = self.KQ.place()
        rows, columns = (i, j) if self.upright else (j, i)
        tiles = np.arange(numbers // self.KQ.ne)
        start = (tiles * self.np + self.warp % self.np) * self.kv_per_tile
        return Places(self.first_column + _repeat(columns, 0 * start), _repeat(rows, start))

    def VKQ_places(self, numbers: int) -> Places:
        """The places of `VKQ_C` along d, given its numbers per lane."""
        i, j = self.VKQ.halves()
        d, columns = (i, j) if self.upright else (j, i)
        start = np.arange(numbers // i.shape[1]) * self.d_per_tile
        return Places(self.first_column + _repeat(columns, 0 * start), _repeat(d, start))

    def places(self, variable: str, numbers: int) -> Places:
        """The places of a variable's numbers; `along` is -1 for those that have neither KV row nor d."""
        if variable == "KQ_C":
            return self.KQ_places(numbers)
        if variable == "VKQ_C":
            return self.VKQ_places(numbers)
        columns = self.state_columns()
        return Places(columns, np.full_like(columns, -1))

    def state_columns(self) -> Indices:
        """The column of each KQ_max and KQ_rowsum of a lane, [lane][index]: one on AMD, two on NVIDIA."""
        i, j = self.KQ.place()
        columns = j[:, :2] if self.upright else i[:, [0]] if self.KQ.layout else i[:, [0, 2]]
        return self.first_column + columns


def _repeat(place: Indices, start: Indices) -> Indices:
    """The places of consecutive fragments, [lane][number]."""
    return (start[None, :, None] + place[:, None, :]).reshape(len(place), -1)
