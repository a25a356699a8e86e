"""The arithmetic of a launch of fattn-mma-f16: its steps, the warps that share a column, where blocks begin."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fattn_probe.llama.launch.architecture import Generation, generation_of
from fattn_probe.llama.launch.constants import Constants
from fattn_probe.llama.launch.kernel import AttentionKernel
from fattn_probe.llama.launch.tiles import cuts


@dataclass(frozen=True)
class MmaPlan:
    """One launch: `nbatch_K` elements of a K row are loaded at once. A column is one query of one head."""

    kernel: AttentionKernel
    nbatch_K: int
    generation: Generation

    @property
    def chunk(self) -> int:
        """KV rows that a warp gets at a time: the rows of one fragment."""
        return self.generation.chunk

    @property
    def threads(self) -> int:
        """Threads of one warp that share a column's row sum."""
        return {8: 8, 16: 4, 32: 2}[self.kernel.columns]

    @cached_property
    def k_order(self) -> npt.NDArray[np.intp]:
        """The order in which the elements of a K row are multiplied: the last batch first."""
        starts, DKQ = range(0, self.kernel.DKQ, self.nbatch_K), self.kernel.DKQ
        return np.concatenate([np.arange(k, min(k + self.nbatch_K, DKQ)) for k in reversed(starts)])

    @property
    def thread_rows(self) -> npt.NDArray[np.intp]:
        """The KV rows of a chunk that each thread sums, in order, (rows, threads).

        Source: PTX ISA, accumulator fragments of m16n8k16 and m8n8k4. KV rows are the rows of the m16n8k16 fragment for
        8 columns, and its columns for 16.
        """
        thread = np.arange(self.threads)
        if self.kernel.columns == 8:
            return np.stack([thread, thread + 8])
        return np.stack([2 * thread + row for row in (0, 1, self.chunk // 2, self.chunk // 2 + 1)])

    def begins(self, tiles: int, steps: int) -> npt.NDArray[np.bool_]:
        """The steps at which a CUDA block or a tile begins, (tiles, steps); blocks have equal shares of all steps."""
        found = np.zeros((tiles, steps), np.bool_)
        found.flat[list(cuts(tiles * steps, self.kernel.blocks[0])[:-1])] = True
        found[:, 0] = True
        return found


def mma_plan_of(kernel: AttentionKernel, arch: int, constants: Constants) -> MmaPlan:
    """The plan of a launch."""
    sizes = constants.mma_of((kernel.DKQ, kernel.DV, kernel.ncols), arch)
    assert sizes is not None
    return MmaPlan(kernel, sizes[1], generation_of(arch))
