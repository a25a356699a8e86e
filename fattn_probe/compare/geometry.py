"""Which output tile a row belongs to, and which CUDA blocks made it, from a launch record alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fattn_probe.arrays import Indices
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.launch.tiles import Grid, Tile, index_of, ntiles, tiles_in_turn, tiles_of
from fattn_probe.scenario import TensorView
from fattn_probe.truth.error_model.kernel import Kernel, Sizes, Work, kernel_of


@dataclass(frozen=True)
class Part:
    """A CUDA block's share of an output tile: KV steps `range(start, stop, every)`; `writes` dst, or leaves it."""

    block: int
    start: int
    stop: int
    every: int
    writes: bool


@dataclass(frozen=True)
class OpSizes:
    """The sizes of an op of which only the tensors are known, as in a capture."""

    n_seq: int
    n_head: int
    n_head_kv: int
    n_q: int
    n_kv: int
    n_kv_max: int
    type_K: str
    type_V: str

    @classmethod
    def of(cls, tensors: Mapping[str, TensorView], n_kv_max: int) -> "OpSizes":
        """From Q, K and V."""
        (_, n_q, n_head, n_seq), (_, n_kv, n_head_kv, _) = tensors["Q"].ne, tensors["K"].ne
        return cls(n_seq, n_head, n_head_kv, n_q, n_kv, n_kv_max, tensors["K"].type, tensors["V"].type)


@dataclass(frozen=True)
class Geometry:
    """How a launch cuts the output: `rows` KV rows a step, `grid` of output tiles, `ncols1` queries x `ncols2` heads.

    `group` is the number of heads a K/V head has. Source: `flash_attn_ext_f16` of fattn-mma-f16.cuh (stream-K: `kbc =
    block * total / gridDim.x`), `launch_fattn` of fattn-common.cuh.
    """

    kernel: Kernel
    grid: Grid
    group: int
    n_kv: int

    @property
    def rows(self) -> int:
        """KV rows of a step, upstream's nbatch_fa."""
        return self.kernel.split.rows

    @cached_property
    def parts(self) -> tuple[tuple[Part, ...], ...]:
        """The blocks' shares of each output tile, by the tile's number in the row of all tiles."""
        found: list[list[Part]] = [[] for _ in range(ntiles(self.grid))]
        x, y, z = self.kernel.blocks
        if self.kernel.family == "mma_f16":
            total = ntiles(self.grid) * self.grid.iter_k
            for block in range(x):
                for work in tiles_of(block * total // x, (block + 1) * total // x, self.grid):
                    part = Part(block, work.kb0_start, work.kb0_stop, 1, not work.is_fixup)
                    found[index_of(work.tile, self.grid)].append(part)
            return tuple(map(tuple, found))
        for place in np.ndindex(z, y, x):
            block = (place[0] * y + place[1]) * x + place[2]
            for work in tiles_in_turn((place[2], place[1], place[0]), y, self.grid):
                if (index := index_of(work.tile, self.grid)) < len(found):
                    found[index].append(Part(block, work.kb0_start, work.kb0_stop, y, y == 1))
        return tuple(map(tuple, found))

    def tile_of(self, sequence: int, query: int, head: int) -> Tile:
        """The tile (sequence, z_KV, zt_gqa, jt) of a row."""
        z_KV, within = divmod(head, self.group)
        return sequence, z_KV, within // self.kernel.ncols2, query // self.kernel.ncols1

    def parts_of(self, tile: Tile) -> tuple[Part, ...]:
        """The shares of one tile, by KV step."""
        return self.parts[index_of(tile, self.grid)]

    def indices(self, shape: tuple[int, int, int]) -> Indices:
        """The number of each row's tile, (n_seq, n_q, n_head)."""
        sequence, query, head = np.ogrid[: shape[0], : shape[1], : shape[2]]
        z_KV, within = np.divmod(head, self.group)
        grid = self.grid
        tile = (sequence * grid.ne12 + z_KV) * grid.iter_z_gqa + within // self.kernel.ncols2
        return np.asarray(tile * grid.iter_j + query // self.kernel.ncols1)


def geometry_of(case: Sizes, launches: Iterable[LaunchRecord], arch: int) -> Geometry | None:
    """The geometry of a case's launches; None where no attention kernel that is known is among them.

    `arch` is nvcc's number of the architecture. A kernel that gathers the KV rows of its mask (`n_kv_max`) has steps
    of gathered rows.
    """
    kernel = kernel_of(case, launches, arch)
    if kernel is None:
        return None
    work = Work.of(kernel, case)
    grid = Grid(work.iter_k, work.iter_j, work.iter_z, case.n_head_kv, case.n_seq)
    return Geometry(kernel, grid, case.n_head // case.n_head_kv, case.n_kv)
