"""What the launch of fattn-mma-f16 says of its arithmetic: steps, warps that share a column, where blocks begin."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fattn_probe.model.tensor_core import Generation, generation_of
from fattn_probe.run.launches import LaunchRecord

KERNEL = "flash_attn_ext_f16"
CHUNK = 16
"""KV rows that one warp multiplies at once; the warps of a column take the chunks of a step in turn."""

Sizes = Mapping[int, tuple[int, int]]
"""By number of columns: KV rows of a step (`nbatch_fa`), and of K's elements those taken at once (2 * `nbatch_K2`)."""

_UP_TO_128 = {8: 128, 16: 64, 32: 64, 64: 64}
AMPERE: Mapping[tuple[int, int], Sizes] = {
    **{(D, D): {ncols: (rows, D) for ncols, rows in _UP_TO_128.items()} for D in (64, 80, 96, 112, 128)},
    (192, 128): {8: (64, 192), 16: (32, 192), 32: (32, 192), 64: (32, 192)},
    (256, 256): {8: (64, 256), 16: (64, 256), 32: (32, 256), 64: (32, 256)},
    (320, 256): {32: (32, 256), 64: (32, 256)},
    (512, 512): {8: (64, 256), 16: (64, 256), 32: (32, 256), 64: (32, 256)},
    (576, 512): {8: (32, 576), 16: (32, 576), 32: (32, 320), 64: (32, 320)},
}
TURING: Mapping[tuple[int, int], Sizes] = {
    (256, 256): {8: (64, 256), 16: (64, 256), 32: (64, 256), 64: (64, 256)},
    (512, 512): {8: (32, 192), 16: (32, 192), 32: (32, 256), 64: (32, 256)},
    (576, 512): {8: (32, 192), 16: (32, 192), 32: (32, 320), 64: (32, 320)},
}
NARROW = {(256, 16), (512, 16), (512, 32)}
"""(DKQ, ncols) of the kernels whose warps work on 8 columns, beside all those with 8 columns in total."""


@dataclass(frozen=True)
class MmaPlan:
    """One launch. `blocks` is the grid; a column is a query of a head, `narrow` warps work on 8 of them, others on 16.

    `nbatch_fa` KV rows are a step, `warps` share a column (upstream's np), `nbatch_K` elements of K's rows are taken at
    once.
    """

    DKQ: int
    DV: int
    ncols1: int
    ncols2: int
    softcap: bool
    use_sparse: bool
    blocks: int
    nbatch_fa: int
    nbatch_K: int
    warps: int
    narrow: bool
    generation: Generation

    @property
    def threads(self) -> int:
        """Threads that share the row sum of a column in one warp."""
        return 8 if self.narrow else 4

    @cached_property
    def k_order(self) -> npt.NDArray[np.intp]:
        """In which order the elements of K's rows are multiplied: the last batch first."""
        starts = range(0, self.DKQ, self.nbatch_K)
        return np.concatenate([np.arange(k, min(k + self.nbatch_K, self.DKQ)) for k in reversed(starts)])

    @property
    def thread_rows(self) -> npt.NDArray[np.intp]:
        """KV rows of a chunk that a thread sums, in its order: (rows, threads).

        Source: PTX ISA, accumulator fragments of m16n8k16; KV rows are the fragment's rows if it is narrow, else its
        columns.
        """
        thread = np.arange(self.threads)
        if self.narrow:
            return np.stack([thread, thread + 8])
        return np.stack([2 * thread, 2 * thread + 1, 2 * thread + 8, 2 * thread + 9])

    def begins(self, tiles: int, steps: int) -> npt.NDArray[np.bool_]:
        """At which steps of which output tiles a CUDA block begins, (tiles, steps): each has an equal share of all."""
        found = np.zeros((tiles, steps), np.bool_)
        found.flat[np.arange(self.blocks, dtype=np.int64) * (tiles * steps) // self.blocks] = True
        found[:, 0] = True
        return found


def mma_plan_of(launch: LaunchRecord, arch: int) -> MmaPlan | None:
    """The plan of a launch; None for a kernel whose sizes are not known here (Volta and older, other sources)."""
    values = launch.values
    if launch.kernel != KERNEL or len(values) < 6 or arch < 75:
        return None
    DKQ, DV, ncols1, ncols2 = (int(value) for value in values[:4])
    ncols = ncols1 * ncols2
    sizes = (TURING.get((DKQ, DV)) if arch < 80 else None) or AMPERE.get((DKQ, DV), {})
    if ncols not in sizes:
        return None
    nbatch_fa, nbatch_K = sizes[ncols]
    narrow = ncols == 8 or (DKQ, ncols) in NARROW
    return MmaPlan(
        DKQ=DKQ,
        DV=DV,
        ncols1=ncols1,
        ncols2=ncols2,
        softcap=values[4] == "true",
        use_sparse=len(values) > 6 and values[6] == "true",
        blocks=launch.grid[0],
        nbatch_fa=nbatch_fa,
        nbatch_K=nbatch_K,
        warps=launch.block[1] * (8 if narrow else 16) // ncols,
        narrow=narrow,
        generation=generation_of(arch),
    )
