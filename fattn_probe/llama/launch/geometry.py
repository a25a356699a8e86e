"""A launch's division of the output: the output tile of each row, and the CUDA blocks that compute it."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fattn_probe.base.arrays import Indices
from fattn_probe.cases.device import Device, Origin
from fattn_probe.cases.op import Op, Sizes
from fattn_probe.llama.launch.architecture import AMD, RDNA3, arch_number
from fattn_probe.llama.launch.constants import Constants, default_constants
from fattn_probe.llama.launch.kernel import AttentionKernel, attention_of
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.llama.launch.tiles import (
    BlockWork,
    Grid,
    Tile,
    TileWork,
    blocks_in_turn,
    cuts,
    index_of,
    ntiles,
    stream_k_blocks,
    tile_index,
    tiles_in,
    tiles_in_turn,
    tiles_of,
)

ADA, DGX_SPARK = 89, 121


@dataclass(frozen=True)
class Geometry:
    """A launch's division of the output: a `grid` of tiles, each of `ncols1` queries x `ncols2` heads.

    A KV step has `rows` KV rows. `group` is the number of query heads per K/V head. Source: `flash_attn_ext_f16` in
    fattn-mma-f16.cuh, `launch_fattn` in fattn-common.cuh.
    """

    kernel: AttentionKernel
    grid: Grid
    group: int
    n_kv: int

    @property
    def rows(self) -> int:
        """KV rows per step, upstream's nbatch_fa."""
        return self.kernel.nbatch_fa

    @cached_property
    def parts(self) -> tuple[Mapping[int, TileWork], ...]:
        """The blocks' work on each output tile, indexed by the tile's number."""
        return tuple(map(self.parts_of, tiles_in(self.grid)))

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """The first KV step of each stream-K block, counted over all tiles, and the end of the last block."""
        return cuts(ntiles(self.grid) * self.grid.iter_k, self.kernel.blocks[0])

    def blocks(self) -> tuple[BlockWork, ...]:
        """The work of each CUDA block."""
        if self.kernel.family.stream_k:
            return stream_k_blocks(self.grid, self.kernel.blocks[0])
        return blocks_in_turn(self.kernel.blocks, self.grid)

    def tile_of(self, sequence: int, query: int, head: int) -> Tile:
        """The tile (sequence, z_KV, zt_gqa, jt) that contains an output row."""
        z_KV, within = divmod(head, self.group)
        return sequence, z_KV, within // self.kernel.ncols2, query // self.kernel.ncols1

    def parts_of(self, tile: Tile) -> Mapping[int, TileWork]:
        """The work on a tile, by block, in the order of the blocks' first KV steps."""
        index, iter_k = index_of(tile, self.grid), self.grid.iter_k
        if not self.kernel.family.stream_k:
            x, turns, _ = self.kernel.blocks
            zt, jt = divmod(index, self.grid.iter_j)
            places = {(zt * turns + turn) * x + jt: (jt, turn, zt) for turn in range(turns)}
            return {block: tiles_in_turn(place, turns, self.grid)[0] for block, place in places.items()}
        first, stop = index * iter_k, (index + 1) * iter_k
        blocks = range(bisect_right(self.cuts, first) - 1, bisect_left(self.cuts, stop))
        shares = {block: (max(first, self.cuts[block]), min(stop, self.cuts[block + 1])) for block in blocks}
        return {block: work for block, share in shares.items() for work in tiles_of(*share, self.grid)}

    def indices(self, shape: tuple[int, int, int]) -> Indices:
        """The tile number of each output row, as an array (n_seq, n_q, n_head)."""
        sequence, query, head = np.ogrid[: shape[0], : shape[1], : shape[2]]
        z_KV, within = np.divmod(head, self.group)
        return np.asarray(
            tile_index(sequence, z_KV, within // self.kernel.ncols2, query // self.kernel.ncols1, self.grid)
        )


def division_origin(launches: Sequence[LaunchRecord], device: Device, found: Geometry | None) -> Origin | None:
    """The origin of the occupancy that determines how a launch divides the KV rows; None if occupancy does not matter.

    `found` is the launches' geometry, None if it is unknown. `launch_fattn` (fattn-common.cuh) limits a grid to the
    blocks that fit on the GPU at once. A tile with only one KV step is not divided. Stream-K uses a block for each step
    if there are no more steps than SMs. GPUs before Ada, a DGX Spark (compute capability 12.1), and AMD GPUs (except
    RDNA3 and RDNA4 with head size 64) may use whole tiles instead, depending on occupancy.
    """
    launch = next((launch for launch in launches if launch.family), None)
    if launch is None:
        return None
    if found is None:
        return launch.origin
    arch, steps = arch_number(device.arch), ntiles(found.grid) * found.grid.iter_k
    divides = arch >= RDNA3 and found.kernel.DKQ == 64 if arch >= AMD else arch >= ADA and arch != DGX_SPARK
    always_divides = found.kernel.family.stream_k and divides
    if found.grid.iter_k == 1 or (always_divides and launch.grid[0] == steps <= device.multiProcessorCount):
        return None
    return launch.origin


def grid_of(sizes: Sizes, ncols1: int, ncols2: int, nbatch_fa: int, n_kv: int | None = None) -> Grid:
    """The grid of an op's tiles and their KV steps; pass `n_kv` if the kernel reads fewer KV rows than the op has."""
    return Grid(
        iter_k=-(-(sizes.n_kv if n_kv is None else n_kv) // nbatch_fa),
        iter_j=-(-sizes.n_q // ncols1),
        iter_z_gqa=-(-sizes.group // ncols2),
        ne12=sizes.n_head_kv,
        ne03=sizes.n_seq,
    )


def tile_rows(tile: Tile, sizes: Sizes, ncols1: int, ncols2: int) -> tuple[range, range]:
    """The queries and the heads of an output tile, without padding."""
    _, z_KV, zt_gqa, jt = tile
    first = z_KV * sizes.group + zt_gqa * ncols2
    queries = range(jt * ncols1, min((jt + 1) * ncols1, sizes.n_q))
    return queries, range(first, min(first + ncols2, (z_KV + 1) * sizes.group))


def gathered(n_kv: int, n_kv_max: int, ncols1: int) -> int:
    """An upper bound on the KV rows that a sparse kernel's tile reads: each query sees at most `n_kv_max`."""
    return min(n_kv, ncols1 * n_kv_max)


def geometry_of(
    op: Op, launches: Sequence[LaunchRecord], arch: int, constants: Constants | None = None
) -> Geometry | None:
    """The geometry of an op's launches; None if they contain no attention kernel with known sizes.

    `arch` is the number from `arch_number`; `constants` are those of the source, or None. The kernel's `softcap` is
    that of the op, since a source may read it at run time.
    """
    kernel = attention_of(launches, arch, constants or default_constants())
    return None if kernel is None else geometry(op, replace(kernel, softcap=op.params.logit_softcap != 0))


def geometry(op: Op, kernel: AttentionKernel) -> Geometry:
    """The geometry of one kernel; a sparse kernel steps through gathered KV rows."""
    sizes = op.sizes
    n_kv = gathered(sizes.n_kv, op.params.n_kv_max, kernel.ncols1) if kernel.sparse else sizes.n_kv
    grid = grid_of(sizes, kernel.ncols1, kernel.ncols2, kernel.nbatch_fa, n_kv)
    return Geometry(kernel, grid, sizes.group, sizes.n_kv)
