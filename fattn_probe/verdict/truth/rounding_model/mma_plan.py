"""The arithmetic of a fattn-mma-f16 launch: its steps, the warps that share a column, the starts of blocks."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32
from fattn_probe.llama.launch.architecture import AMD, RDNA4, Generation, generation_of, is_cdna
from fattn_probe.llama.launch.constants import Constants
from fattn_probe.llama.launch.kernel import AttentionKernel
from fattn_probe.llama.launch.tiles import cuts
from fattn_probe.verdict.truth.rounding_model import matrix_amd
from fattn_probe.verdict.truth.rounding_model.arithmetic import KernelPlan
from fattn_probe.verdict.truth.rounding_model.tensor_core import Factors, matrix_sum

INSTRUCTION = 16
"""The number of f16 products that an instruction adds to each of its sums."""


@dataclass(frozen=True)
class MmaPlan(KernelPlan):
    """One launch: `nbatch_K` elements of a K row are loaded at once. A column is one query of one head."""

    nbatch_K: int

    @property
    def generation(self) -> Generation:
        """The matrix instructions."""
        return generation_of(self.arch)

    @property
    def lanes(self) -> int:
        """The lanes of a warp."""
        return 64 if is_cdna(self.arch) else 32

    @property
    def chunk(self) -> int:
        """The number of KV rows that a warp gets at a time: one fragment."""
        return self.generation.chunk

    @property
    def threads(self) -> int:
        """The threads of one warp that share a column's row sum."""
        return self.lanes // self.kernel.columns if self.arch >= AMD else {8: 8, 16: 4, 32: 2}[self.kernel.columns]

    @property
    def in_instruction(self) -> npt.NDArray[np.intp]:
        """The order in which an instruction adds products of neighbouring elements.

        On RDNA4, a lane holds 8 of 16 neighbours; the instruction takes 4 elements from each half of the lanes in turn.
        """
        order = np.arange(INSTRUCTION)
        return order.reshape(2, 2, 4).swapaxes(0, 1).ravel() if self.arch >= RDNA4 else order

    @cached_property
    def k_order(self) -> npt.NDArray[np.intp]:
        """The order in which the elements of a K row are multiplied: the last batch first."""
        starts, DKQ = range(0, self.kernel.DKQ, self.nbatch_K), self.kernel.DKQ
        order = np.concatenate([np.arange(k, min(k + self.nbatch_K, DKQ)) for k in reversed(starts)])
        return order.reshape(-1, INSTRUCTION)[:, self.in_instruction].ravel()

    @property
    def thread_rows(self) -> npt.NDArray[np.intp]:
        """The KV rows of a chunk that each thread sums, in order, (rows, threads).

        Source: PTX ISA, accumulator fragments of m16n8k16 and m8n8k4. KV rows are the rows of the m16n8k16 fragment for
        8 columns, and its columns for 16. AMD's matrix instruction calculator: D of a 16x16 matrix.
        """
        thread = np.arange(self.threads)
        if self.arch >= AMD:
            row = np.arange(self.chunk // self.threads)[:, None]
            return row + thread * len(row) if is_cdna(self.arch) or self.arch >= RDNA4 else 2 * row + thread
        if self.kernel.columns == 8:
            return np.stack([thread, thread + 8])
        return np.stack([2 * thread + row for row in (0, 1, self.chunk // 2, self.chunk // 2 + 1)])

    def matrix_sum(self, a: F32, b: F32, c: F32, *, half: bool = False) -> F32:
        """c + a @ b of f16 operands, with accumulators in f32 or f16 (`half`)."""
        if self.arch >= AMD:
            return matrix_amd.matrix_sum(a, b, c, self.arch, half=half)
        return matrix_sum(Factors(a), Factors(b), c, self.generation, self.generation.k_half if half else 0)

    def begins(self, tiles: int, steps: int) -> npt.NDArray[np.bool_]:
        """Marks the steps (tiles, steps) at which a CUDA block or a tile begins; blocks share the steps equally."""
        found = np.zeros((tiles, steps), np.bool_)
        found.flat[list(cuts(tiles * steps, self.kernel.blocks[0])[:-1])] = True
        found[:, 0] = True
        return found


def mma_plan_of(kernel: AttentionKernel, arch: int, constants: Constants) -> MmaPlan:
    """The plan of a launch."""
    sizes = constants.mma_of((kernel.DKQ, kernel.DV, kernel.ncols), arch)
    assert sizes is not None
    return MmaPlan(kernel, arch, sizes[1])
