"""The division of work of a stored launch, from its record and the kernels' arithmetic."""

from dataclasses import dataclass

import numpy as np

from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.daily.regress.records import Identity, Result, StoredCase
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.tiles import ntiles, tile_at

MOST_BLOCKS = 20000
MOST_TILES = 2000


@dataclass(frozen=True)
class OutputTile:
    """An output tile: its first query and head, its numbers of both, and the number of blocks that share it."""

    query: int
    head: int
    queries: int
    heads: int
    blocks: int


def work_facts(case: StoredCase, result: Result, identity: Identity) -> Facts | None:
    """The facts for the map of work; None if the launches have no kernel of known arithmetic.

    The mask is not known here, so every KV step counts as done.
    """
    geometry = geometry_of(case.op, result.kernels, arch_number(identity.cc)) if result.launches else None
    if geometry is None or int(np.prod(geometry.kernel.blocks)) > MOST_BLOCKS:
        return None
    family = geometry.kernel.family
    choice = Choice(family.name, geometry.kernel.spelling, {}, {family.step_name: geometry.rows})
    about = {"case": case.name, "device": identity.device}
    return Facts(about, choice=choice, grid=geometry.grid, blocks=geometry.blocks())


def output_tiles(case: StoredCase, result: Result, identity: Identity) -> tuple[OutputTile, ...]:
    """The output tiles of the first sequence; empty if the kernel is unknown or the tiles are too many to draw."""
    geometry = geometry_of(case.op, result.kernels, arch_number(identity.cc)) if result.launches else None
    if geometry is None or ntiles(geometry.grid) > MOST_TILES:
        return ()
    n_q, ncols1, ncols2, group = case.op.sizes.n_q, geometry.kernel.ncols1, geometry.kernel.ncols2, geometry.group
    found = []
    for tile in (tile_at(index, geometry.grid) for index in range(ntiles(geometry.grid))):
        sequence, z_KV, zt_gqa, jt = tile
        query, within = jt * ncols1, zt_gqa * ncols2
        queries, heads = min(ncols1, n_q - query), min(ncols2, group - within)
        if sequence == 0 and queries > 0 and heads > 0:
            found.append(OutputTile(query, z_KV * group + within, queries, heads, len(geometry.parts_of(tile))))
    return tuple(found)
