"""How a launch that the history keeps divided the work among blocks: its record and the kernels' arithmetic say it."""

import re
from collections.abc import Iterator

import numpy as np

from fattn_probe.compare.geometry import Geometry, geometry_of
from fattn_probe.inspect.facts import Choice, Facts
from fattn_probe.launch.tiles import BlockWork, ntiles, tiles_in_turn, tiles_of
from fattn_probe.regress.records import CaseRecord, Identity, Result

MOST_BLOCKS = 20000


def work_facts(case: CaseRecord, result: Result, identity: Identity) -> Facts | None:
    """The facts that the map is drawn from; None where the launches are of no kernel whose arithmetic is known.

    What the mask hides is not known here: every KV step counts as done.
    """
    geometry = geometry_of(case, result.kernels, arch_of(identity)) if result.launches else None
    if geometry is None or int(np.prod(geometry.kernel.blocks)) > MOST_BLOCKS:
        return None
    kernel, rows = geometry.kernel, geometry.rows
    config = {"nthreads" if kernel.family == "vec" else "nbatch_fa": rows}
    choice = Choice(kernel.family, kernel.spelling, {}, config)
    about = {"case": case.name, "device": identity.device}
    return Facts(about, choice=choice, grid=geometry.grid, blocks=tuple(_blocks(geometry)))


def arch_of(identity: Identity) -> int:
    """nvcc's number of the architecture: 90 of `9.0` and of `90`."""
    digits = re.match(r"\d+", identity.cc.replace(".", ""))
    return int(digits[0]) if digits else 0


def _blocks(geometry: Geometry) -> Iterator[BlockWork]:
    x, y, z = geometry.kernel.blocks
    grid = geometry.grid
    if geometry.kernel.family == "mma_f16":
        total = ntiles(grid) * grid.iter_k
        for block in range(x):
            kbc, kbc_stop = block * total // x, (block + 1) * total // x
            yield BlockWork(block, (block, 0, 0), kbc, kbc_stop, tiles_of(kbc, kbc_stop, grid))
        return
    for block, (k, j, i) in enumerate(np.ndindex(z, y, x)):
        yield BlockWork(block, (i, j, k), None, None, tiles_in_turn((i, j, k), y, grid))
