"""What the launch of fattn-mma-f16 says of its arithmetic: steps, warps that share a column, where blocks begin."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fattn_probe.launch.architecture import Generation, generation_of
from fattn_probe.launch.constants import Constants
from fattn_probe.launch.families import MMA_F16
from fattn_probe.launch.kernel import attention_kernel
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.launch.tiles import cuts


@dataclass(frozen=True)
class MmaPlan:
    """One launch. `blocks` is the grid; a column is a query of a head, a warp works on `columns` (8, 16; Volta 32).

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
    columns: int
    generation: Generation
    max_offset: np.float32

    @property
    def chunk(self) -> int:
        """KV rows of a step that go to one warp, then to the next: those of one fragment."""
        return self.generation.chunk

    @property
    def threads(self) -> int:
        """Threads that share the row sum of a column in one warp."""
        return {8: 8, 16: 4, 32: 2}[self.columns]

    @cached_property
    def k_order(self) -> npt.NDArray[np.intp]:
        """In which order the elements of K's rows are multiplied: the last batch first."""
        starts = range(0, self.DKQ, self.nbatch_K)
        return np.concatenate([np.arange(k, min(k + self.nbatch_K, self.DKQ)) for k in reversed(starts)])

    @property
    def thread_rows(self) -> npt.NDArray[np.intp]:
        """KV rows of a chunk that a thread sums, in its order: (rows, threads).

        Source: PTX ISA, accumulator fragments of m16n8k16, whose rows are KV rows with 8 columns, and columns are with
        16; and of m8n8k4.
        """
        thread = np.arange(self.threads)
        if self.columns == 8:
            return np.stack([thread, thread + 8])
        return np.stack([2 * thread + row for row in (0, 1, self.chunk // 2, self.chunk // 2 + 1)])

    def begins(self, tiles: int, steps: int) -> npt.NDArray[np.bool_]:
        """At which steps of which output tiles a CUDA block begins, (tiles, steps): each has an equal share of all."""
        found = np.zeros((tiles, steps), np.bool_)
        found.flat[list(cuts(tiles * steps, self.blocks)[:-1])] = True
        found[:, 0] = True
        return found


def mma_plan_of(launch: LaunchRecord, arch: int, constants: Constants) -> MmaPlan | None:
    """The plan of a launch; None for another kernel, or sizes that the source does not have."""
    kernel = attention_kernel(launch, arch, constants)
    if kernel is None or kernel.family is not MMA_F16:
        return None
    sizes = constants.mma_of((kernel.DKQ, kernel.DV, kernel.ncols), arch)
    assert sizes is not None
    return MmaPlan(
        DKQ=kernel.DKQ,
        DV=kernel.DV,
        ncols1=kernel.ncols1,
        ncols2=kernel.ncols2,
        softcap=kernel.softcap,
        use_sparse=kernel.sparse,
        blocks=kernel.blocks[0],
        nbatch_fa=kernel.nbatch_fa,
        nbatch_K=sizes[1],
        warps=kernel.warps_per_column,
        columns=kernel.columns,
        generation=generation_of(arch),
        max_offset=np.float32(kernel.max_offset),
    )
