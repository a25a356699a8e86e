"""fattn-mma-f16 in NumPy: every rounding of the kernel, in the kernel's order, and no others.

A *column* is one query of one head. Q is scaled and rounded to f16. Tensor cores sum KQ in float32; P = exp(KQ -
maximum) is rounded to f16. Tensor cores sum VKQ in f16, and VKQ is rescaled as the maximum grows. The KV rows of a step
are dealt in chunks (of 16) to the warps that share the column. Each warp has its own maximum, row sum and VKQ. A new
CUDA block (stream-K) begins a new piece of the column. The fixup kernel combines the pieces, the last one first.

Columns are independent and are computed side by side: arrays are (batch, warps, columns, ...), where a batch is a K/V
head of a sequence. A step that the mask hides from all columns changes nothing and is skipped.
"""

from dataclasses import dataclass

import numpy as np

from fattn_probe.base.arrays import F32, Bools
from fattn_probe.llama.launch.architecture import AMD
from fattn_probe.verdict.truth.rounding_model.functions import fma, half_of
from fattn_probe.verdict.truth.rounding_model.mma_plan import MmaPlan
from fattn_probe.verdict.truth.rounding_model.softmax import FLUSH, LOWEST, total


@dataclass(frozen=True)
class Columns:
    """Columns that read the same KV rows: Q (batch, columns, DKQ), scaled, f16; K and V (batch, rows, ...).

    `mask` is (batch, columns, rows); `slope` and `sink` are (batch, columns). `begins` (batch, columns, steps) marks
    the steps at which a CUDA block begins a piece. Rows are padded to whole steps; the mask hides the padding.
    """

    Q: F32
    K: F32
    V: F32
    mask: F32
    slope: F32
    sink: F32 | None
    begins: Bools
    softcap: np.float32


@dataclass
class State:
    """Each warp's maximum, row sum (by thread) and VKQ (f16) of each column.

    A piece is one CUDA block's part of some columns: its warps combined in float32, not yet divided by the row sum.
    """

    maximum: F32
    rowsum: F32
    VKQ: F32

    def reset(self, where: Bools) -> None:
        """Reset the columns that `where` (batch, columns) marks."""
        for array, value in ((self.maximum, LOWEST), (self.rowsum, 0), (self.VKQ, 0)):
            np.moveaxis(array, 1, 2)[where] = value


@dataclass
class MmaMachine:
    """The kernel's arithmetic on some columns."""

    plan: MmaPlan
    columns: Columns

    def run(self) -> F32:
        """The output of the columns, (batch, columns, DV)."""
        *earlier, (_, last) = self.pieces()
        return self.fix_up(last, earlier)

    def pieces(self) -> list[tuple[Bools, State]]:
        """The pieces, each with its columns, in the order of their KV steps; the last has all columns."""
        columns = self.columns
        batch, number, _ = columns.Q.shape
        shape = (batch, self.plan.kernel.warps_per_column, number)
        state = State(
            np.full(shape, LOWEST),
            np.zeros((*shape, self.plan.threads), np.float32),
            np.zeros((*shape, self.plan.kernel.DV), np.float32),
        )
        pieces: list[tuple[Bools, State]] = []
        for step in range(columns.begins.shape[2]):
            begins = columns.begins[:, :, step]
            if step > 0 and begins.any():
                pieces.append((begins, self.piece(state, begins)))
                state.reset(begins)
            self.step(state, step)
        if columns.sink is not None:
            self.add_sink(state, columns.sink)
        where = np.ones(columns.Q.shape[:2], np.bool_)
        return [*pieces, (where, self.piece(state, where))]

    def step(self, state: State, step: int) -> None:
        """Process the KV rows of one step."""
        rows = slice(step * self.plan.kernel.nbatch_fa, (step + 1) * self.plan.kernel.nbatch_fa)
        mask = self.columns.mask[..., rows]
        if np.isneginf(mask).all():
            return
        KQ = self.logits(rows, mask)
        batch, columns, _ = KQ.shape  # to (batch, warps, columns, chunks, rows of a chunk)
        KQ = np.moveaxis(KQ.reshape(batch, columns, -1, self.plan.kernel.warps_per_column, self.plan.chunk), 3, 1)
        self.add_values(state, self.exponentials(state, KQ), rows)

    def logits(self, rows: slice, mask: F32) -> F32:
        """KQ with softcap and mask, (batch, columns, rows)."""
        columns, order, tanh = self.columns, self.plan.k_order, self.plan.functions.tanh
        K = np.ascontiguousarray(np.swapaxes(columns.K[:, rows, order], 1, 2))
        Q = columns.Q[..., order]
        KQ = self.plan.matrix_sum(Q, K, np.zeros((*Q.shape[:2], K.shape[2]), np.float32))
        if (
            self.plan.kernel.softcap and self.plan.kernel.ncols2 > 1
        ):  # a kernel for several heads always has a mask, and never a slope
            return fma(columns.softcap, tanh(KQ), mask)
        if self.plan.kernel.softcap:
            KQ = columns.softcap * tanh(KQ)
        return KQ + mask if (columns.slope == 1).all() else fma(columns.slope[..., None], mask, KQ)

    def exponentials(self, state: State, KQ: F32) -> F32:
        """P of a step; raises the state's maximum and scales its sums down accordingly."""
        before = state.maximum
        state.maximum = np.fmax(before, np.fmax.reduce(KQ, axis=(3, 4)) + self.plan.kernel.max_offset)
        P = self.plan.functions.exp(KQ - state.maximum[..., None, None])
        added = np.zeros(state.rowsum.shape, np.float32)
        for chunk in range(P.shape[3]):
            for rows in self.plan.thread_rows:
                added += P[:, :, :, chunk, rows]
        scale = self.scale(before - state.maximum)
        state.rowsum = fma(scale[..., None], state.rowsum, added)
        self.scale_VKQ(state, scale)
        return P

    def scale(self, difference: F32) -> F32:
        """exp of the difference of two maxima; 0 for a difference below `FLUSH`."""
        return np.where(difference >= FLUSH, self.plan.functions.exp(difference), np.float32(0))

    def add_values(self, state: State, P: F32, rows: slice) -> None:
        """Add P V to VKQ, chunk by chunk."""
        plan = self.plan
        V = self.columns.V[:, rows].reshape(P.shape[0], -1, plan.kernel.warps_per_column, plan.chunk, plan.kernel.DV)
        order = plan.in_instruction[: plan.chunk]
        half, V = half_of(P)[..., order], V[..., order, :]
        for chunk in range(P.shape[3]):
            a, b = np.ascontiguousarray(half[:, :, :, chunk]), np.ascontiguousarray(V[:, chunk])
            state.VKQ = plan.matrix_sum(a, b, state.VKQ, half=plan.VKQ.half)

    def add_sink(self, state: State, sink: F32) -> None:
        """Add up the row sums of the first warp's threads, then add the sink to the total."""
        first = State(state.maximum[:, :1], total(state.rowsum[:, :1])[..., None], state.VKQ[:, :1])
        before = first.maximum
        first.maximum = np.fmax(before, sink[..., None, :])
        scale = self.scale(before - first.maximum)
        added = self.plan.functions.exp(sink[..., None, :] - first.maximum)
        first.rowsum = fma(scale[..., None], first.rowsum, added[..., None])
        self.scale_VKQ(first, scale)
        state.rowsum[:, :1], state.rowsum[:, :1, :, :1] = 0, first.rowsum
        state.maximum[:, :1], state.VKQ[:, :1] = first.maximum, first.VKQ

    def piece(self, state: State, where: Bools) -> State:
        """The piece of the marked columns."""
        maxima, sums, VKQ = (np.moveaxis(array, 1, 2)[where] for array in (state.maximum, state.rowsum, state.VKQ))
        sums, VKQ, functions = total(sums), half_of(VKQ), self.plan.functions
        if self.plan.kernel.warps_per_column == 1:
            return State(maxima[:, 0], sums[:, 0], VKQ[:, 0])
        most = maxima.max(axis=1)
        scales = functions.exp(maxima - most[:, None])
        out = np.zeros(VKQ[:, 0].shape, np.float32)
        for warp in range(self.plan.kernel.warps_per_column):
            out = functions.flushed(fma(VKQ[:, warp], scales[:, warp, None], out))
        # The row sum: each lane adds up some warps' sums, then lanes are added pairwise. One multiply-add adds a lane's
        # first two products, so the first is not rounded. With clang, the second may come from another lane.
        lanes = min(self.plan.kernel.warps_per_column, self.plan.lanes // self.plan.kernel.columns)
        scale, part = (np.split(array, self.plan.kernel.warps_per_column // lanes, axis=1) for array in (scales, sums))
        found = scale[0] * part[0]
        if len(part) > 1:
            found = fma(scale[0], part[0], scale[1] * part[1])
        elif self.plan.arch >= AMD:
            half = lanes // 2
            found = fma(scales[:, :half], sums[:, :half], found[:, half:])
        for i in range(2, len(part)):
            found = fma(scale[i], part[i], found)
        return State(most, total(found), out)

    def fix_up(self, last: State, earlier: list[tuple[Bools, State]]) -> F32:
        """Combine the pieces of each column and divide by the row sum; `last` has all columns."""
        shape = self.columns.Q.shape[:2]
        functions = self.plan.functions
        maximum, rowsum = last.maximum.reshape(shape), last.rowsum.reshape(shape)
        out = last.VKQ.reshape(*shape, -1)
        for where, piece in reversed(earlier):
            most = np.fmax(maximum[where], piece.maximum)
            ours, theirs = self.scale(maximum[where] - most), self.scale(piece.maximum - most)
            added = functions.flushed(theirs[:, None] * piece.VKQ)
            out[where] = functions.flushed(fma(ours[:, None], out[where], added))
            rowsum[where] = fma(ours, rowsum[where], theirs * piece.rowsum)
            maximum[where] = most
        return functions.divided(out, rowsum[..., None])

    def scale_VKQ(self, state: State, scale: F32) -> None:
        """Multiply VKQ by the scale."""
        if (scale != 1).any():
            state.VKQ = self.plan.VKQ.product(state.VKQ, self.plan.VKQ.rounded(scale)[..., None])
