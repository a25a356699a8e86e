"""Selects the blocks of a run's launches that some output tiles need, so that a simulated GPU can skip the others.

Blocks are identified by their linear index in the grid (x fastest), and tiles by their numbers. All functions are pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fattn_probe.base.arrays import F64, Bools, Indices
from fattn_probe.cases.op import Sizes
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.llama.launch.record import Dim3, LaunchRecord
from fattn_probe.llama.launch.tiles import ntiles, tile_at

GOLDEN = (np.sqrt(5) - 1) / 2
"""The golden ratio minus 1: its multiples have evenly spread fractional parts, however many there are."""


@dataclass(frozen=True)
class LaunchBlocks:
    """The blocks of a launch to run, as ranges (first, stop) of linear indices, in order."""

    grid: Dim3
    ranges: tuple[tuple[int, int], ...]

    @property
    def number(self) -> int:
        """The number of blocks to run."""
        return sum(stop - first for first, stop in self.ranges)

    @property
    def of(self) -> int:
        """The number of blocks in the grid."""
        return int(np.prod(self.grid, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Selection:
    """The blocks to run in each launch, for the chosen `tiles`. `complete` are all tiles that these blocks finish.

    `attention` is the index of the attention kernel among the launches.
    """

    launches: tuple[LaunchBlocks, ...]
    tiles: Indices
    complete: Indices
    attention: int


@dataclass(frozen=True, eq=False)
class Shares:
    """The range of the attention kernel's blocks that work on each tile, and whether each block runs.

    Without stream-K, the blocks that share a tile are `gridDim.x` apart; they count as one, with the tile's number.
    """

    geometry: Geometry
    first: Indices
    last: Indices
    run: Bools

    @property
    def complete(self) -> Indices:
        """The tiles whose blocks all run."""
        before = np.concatenate([[0], np.cumsum(self.run)])
        return np.flatnonzero(before[self.last + 1] - before[self.first] == self.last + 1 - self.first)

    @property
    def touched(self) -> Indices:
        """The tiles with at least one block that runs."""
        before = np.concatenate([[0], np.cumsum(self.run)])
        return np.flatnonzero(before[self.last + 1] > before[self.first])


def shares_of(geometry: Geometry) -> Shares:
    """The blocks of each tile, with none of them selected."""
    tiles = np.arange(ntiles(geometry.grid))
    if not geometry.kernel.family.stream_k:
        return Shares(geometry, tiles, tiles, np.zeros(len(tiles), np.bool_))
    cuts, steps = np.array(geometry.cuts), geometry.grid.iter_k
    first, last = (np.searchsorted(cuts, at, "right") - 1 for at in (tiles * steps, (tiles + 1) * steps - 1))
    return Shares(geometry, first, last, np.zeros(len(cuts) - 1, np.bool_))


def chosen_tiles(geometry: Geometry, most_flop: float, most: int) -> Indices:
    """At most `most` tiles to run, sorted: the first, the last, a shared tile, and others spread over the output.

    Blocks run completely; if possible, their total number of operations stays below `most_flop`.
    """
    shares = shares_of(geometry)
    cost, chosen, total = _costs(shares), list[int](), 0.0
    for number, tile in enumerate(_candidates(shares, most)):
        blocks = slice(shares.first[tile], shares.last[tile] + 1)
        more = float(cost[blocks][~shares.run[blocks]].sum())
        if number >= 3 and total + more > most_flop:
            break
        shares.run[blocks] = True
        chosen.append(tile)
        total += more
    return np.array(sorted(chosen), np.intp)


def _candidates(shares: Shares, most: int) -> list[int]:
    number = len(shares.first)
    seams = np.flatnonzero(shares.first < shares.last)
    spread = (GOLDEN * np.arange(1, 4 * most) % 1 * number).astype(np.intp)
    seam = [int(seams[len(seams) // 2])] if len(seams) else []
    return list(dict.fromkeys([0, number - 1, *seam, *spread.tolist()]))[:most]


def _costs(shares: Shares) -> F64:
    """The floating-point operations of each block."""
    kernel, grid = shares.geometry.kernel, shares.geometry.grid
    step = 2.0 * kernel.nbatch_fa * kernel.ncols * (kernel.DKQ + kernel.DV)
    steps = np.diff(shares.geometry.cuts) if kernel.family.stream_k else np.full(len(shares.run), grid.iter_k)
    return np.asarray(steps * step, np.float64)


def flop_of(geometry: Geometry) -> float:
    """The floating-point operations of the attention kernel, including padding."""
    return float(_costs(shares_of(geometry)).sum())


def select(geometry: Geometry, launches: Sequence[LaunchRecord], sizes: Sizes, tiles: Indices) -> Selection:
    """The blocks that compute the complete results of these tiles; kernels without a rule run in full."""
    shares = shares_of(geometry)
    for tile in tiles:
        shares.run[shares.first[tile] : shares.last[tile] + 1] = True
    found = tuple(LaunchBlocks(launch.grid, _ranges(_blocks(launch, shares, sizes))) for launch in launches)
    attention = next(place for place, launch in enumerate(launches) if launch.family)
    return Selection(found, tiles, shares.complete, attention)


def _blocks(launch: LaunchRecord, shares: Shares, sizes: Sizes) -> Indices:
    """The blocks of a launch that run, in order."""
    if launch.family:
        if shares.geometry.kernel.family.stream_k:
            return np.flatnonzero(shares.run)
        x, turns, _ = launch.grid
        zt, jt = np.divmod(np.flatnonzero(shares.run), shares.geometry.grid.iter_j)
        return np.sort(((zt[:, None] * turns + np.arange(turns)) * x + jt[:, None]).ravel())
    rule = RULES.get(launch.kernel)
    found = None if rule is None else rule(launch, shares, sizes)
    return np.arange(np.prod(launch.grid, dtype=np.int64)) if found is None else found


def _scan(launch: LaunchRecord, shares: Shares, sizes: Sizes) -> Indices | None:
    """Rule for the scan of the mask: a block for each query tile (x) of a sequence (y)."""
    x, y, _ = launch.grid
    if x != shares.geometry.grid.iter_j:
        return None
    sequence, _, _, jt = tile_at(shares.touched, shares.geometry.grid)
    return np.unique(sequence % y * x + jt)


def _uniform_fixup(launch: LaunchRecord, shares: Shares, sizes: Sizes) -> Indices | None:
    """Rule: one block in x for each tile; y and z are the columns of a tile."""
    return _planes(launch, shares.complete) if launch.grid[0] == len(shares.first) else None


def _general_fixup(launch: LaunchRecord, shares: Shares, sizes: Sizes) -> Indices | None:
    """Rule: one block in x for each block of the attention kernel; a tile's last block adds the other blocks' parts."""
    if launch.grid[0] != len(shares.run):
        return None
    complete = shares.complete
    return _planes(launch, shares.last[complete][shares.first[complete] < shares.last[complete]])


def _planes(launch: LaunchRecord, places: Indices) -> Indices:
    """All blocks whose x is in `places`."""
    x, y, z = launch.grid
    return (np.arange(y * z)[:, None] * x + places).ravel()


def _combine(launch: LaunchRecord, shares: Shares, sizes: Sizes) -> Indices | None:
    """Rule: one block for each output row: query (x), head (y), sequence (z)."""
    if launch.grid != (sizes.n_q, sizes.n_head, sizes.n_seq):
        return None
    sequence, query, head = rows_of_tiles(shares.geometry, sizes, shares.complete).T
    return np.sort((sequence * sizes.n_head + head) * sizes.n_q + query)


RULES: dict[str, Callable[[LaunchRecord, Shares, Sizes], Indices | None]] = {
    "flash_attn_mask_to_KV_max": _scan,
    "flash_attn_mask_to_sparse_indices": _scan,
    "flash_attn_stream_k_fixup": _general_fixup,
    "flash_attn_stream_k_fixup_general": _general_fixup,
    "flash_attn_stream_k_fixup_uniform": _uniform_fixup,
    "flash_attn_combine_results": _combine,
}
"""Rules for the blocks of the other kernels; a rule returns None if the grid is not as expected."""


def rows_of_tiles(geometry: Geometry, sizes: Sizes, tiles: Indices) -> Indices:
    """The output rows (sequence, query, head) of these tiles, tile by tile."""
    kernel, grid = geometry.kernel, geometry.grid
    sequence, z_KV, zt_gqa, jt = tile_at(tiles, grid)
    query = (jt * kernel.ncols1)[:, None, None] + np.arange(kernel.ncols1)[None, :, None]
    within = (zt_gqa * kernel.ncols2)[:, None, None] + np.arange(kernel.ncols2)[None, None, :]
    head = (z_KV * geometry.group)[:, None, None] + within
    sequences, queries, heads = np.broadcast_arrays(sequence[:, None, None], query, head)
    real = (queries < sizes.n_q) & (within < geometry.group)
    return np.stack([sequences[real], queries[real], heads[real]], axis=1)


def _ranges(blocks: Indices) -> tuple[tuple[int, int], ...]:
    """Sorted numbers as ranges (first, stop)."""
    ends = np.concatenate([[0], np.flatnonzero(np.diff(blocks) != 1) + 1, [len(blocks)]])
    return tuple((int(blocks[first]), int(blocks[stop - 1]) + 1) for first, stop in pairwise(ends) if first < stop)
