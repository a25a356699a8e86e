"""What the launch of fattn-mma-f16 says of its arithmetic: steps, warps that share a column, where blocks begin."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fattn_probe.launch.constants import Constants
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.truth.rounding_model.tensor_core import Generation, generation_of

KERNEL = "flash_attn_ext_f16"


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
        return 8 if self.columns == 32 else 16

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
        found.flat[np.arange(self.blocks, dtype=np.int64) * (tiles * steps) // self.blocks] = True
        found[:, 0] = True
        return found


def mma_plan_of(launch: LaunchRecord, arch: int, constants: Constants) -> MmaPlan | None:
    """The plan of a launch; None for another kernel, or sizes that the source does not have."""
    values = launch.values
    if launch.kernel != KERNEL or len(values) < 6:
        return None
    DKQ, DV, ncols1, ncols2 = (int(value) for value in values[:4])
    ncols = ncols1 * ncols2
    own = "volta" if arch < 75 else "turing" if arch < 80 else "ampere"
    found = [sizes for name in (own, "ampere") if (sizes := constants.mma[name].get((DKQ, DV, ncols)))]
    if not found:
        return None
    columns = 32 if arch < 75 else 8 if ncols == 8 or (DKQ, ncols) in constants.narrow else 16
    return MmaPlan(
        DKQ=DKQ,
        DV=DV,
        ncols1=ncols1,
        ncols2=ncols2,
        softcap=values[4] == "true",
        use_sparse=len(values) > 6 and values[6] == "true",
        blocks=launch.grid[0],
        nbatch_fa=found[0][0],
        nbatch_K=found[0][1],
        warps=launch.block[1] * columns // ncols,
        columns=columns,
        generation=generation_of(arch),
        max_offset=np.float32(constants.max_offset),
    )
