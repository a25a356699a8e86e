"""fattn-mma-f16 in NumPy, written from its arithmetic: what is rounded where, in which order, and nothing else.

A *column* is a query of a head. Q is scaled and rounded to f16; a column's KQ are sums of tensor cores with float32
accumulators, its P = exp(KQ - maximum) are rounded to f16, and VKQ are sums with f16 accumulators, rescaled as the
maximum grows. The KV rows of a step go in chunks (of 16) to the warps that share the column, each of which has maximum,
row sum and VKQ of its own. A column's steps are cut in pieces where CUDA blocks begin (stream-K); the fixup kernel
combines them, the last piece first.

Columns do not meet, so they are computed side by side: arrays are (batch, warps, columns, ...), a batch being a
K/V head of a sequence. A step that the mask hides from all columns at hand changes nothing and is left out.
"""

from dataclasses import dataclass, field

import numpy as np

from fattn_probe.arrays import F32, Bools
from fattn_probe.truth.rounding_model.functions import Exponential, fma, rcp, tanh
from fattn_probe.truth.rounding_model.mma_plan import MmaPlan
from fattn_probe.truth.rounding_model.softmax import FLUSH, LOWEST, total
from fattn_probe.truth.rounding_model.tensor_core import Factors, half_of, matrix_sum, matrix_sum_half


@dataclass(frozen=True)
class Columns:
    """Columns that read the same KV rows, by batch: Q (batch, columns, DKQ) scaled f16, K and V (batch, rows, ...).

    `mask` is (batch, columns, rows) or None; `slope` (columns) or (batch, columns), `sink` likewise; `begins` says at
    which steps a CUDA block begins a piece, (batch, columns, steps). Rows are padded to whole steps, masked.
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
    """What each warp has of each column: maximum, row sum by thread, VKQ in f16."""

    maximum: F32
    rowsum: F32
    VKQ: F32

    @classmethod
    def of(cls, batch_and_columns: tuple[int, int], plan: MmaPlan) -> "State":
        """Before the first step."""
        batch, columns = batch_and_columns
        shape = (batch, plan.warps, columns)
        return cls(
            np.full(shape, LOWEST),
            np.zeros((*shape, plan.threads), np.float32),
            np.zeros((*shape, plan.DV), np.float32),
        )

    def reset(self, where: Bools) -> None:
        """Begin anew in the columns that `where`, (batch, columns), marks."""
        for array, value in ((self.maximum, LOWEST), (self.rowsum, 0), (self.VKQ, 0)):
            np.moveaxis(array, 1, 2)[where] = value


@dataclass(frozen=True)
class Piece:
    """What one CUDA block leaves of columns: sums not yet divided, in float32, with their maxima and row sums."""

    where: Bools
    maximum: F32
    rowsum: F32
    VKQ: F32


@dataclass
class Machine:
    """The kernel's arithmetic on some columns."""

    plan: MmaPlan
    columns: Columns
    exp: Exponential = field(default_factory=Exponential)

    def run(self) -> F32:
        """The output of the columns, (batch, columns, DV)."""
        columns = self.columns
        state = State.of((columns.Q.shape[0], columns.Q.shape[1]), self.plan)
        pieces: list[Piece] = []
        for step in range(columns.begins.shape[2]):
            begins = columns.begins[:, :, step]
            if step > 0 and begins.any():
                pieces.append(self.piece(state, begins))
                state.reset(begins)
            self.step(state, step)
        if columns.sink is not None:
            self.add_sink(state, columns.sink)
        last = self.piece(state, np.ones(columns.Q.shape[:2], np.bool_))
        return self.fix_up(last, pieces)

    def step(self, state: State, step: int) -> None:
        """The KV rows of one step."""
        rows = slice(step * self.plan.nbatch_fa, (step + 1) * self.plan.nbatch_fa)
        mask = self.columns.mask[..., rows]
        if np.isneginf(mask).all():
            return
        KQ = self.by_warp(self.logits(rows, mask))
        P = self.exponentials(state, KQ)
        self.add_values(state, P, rows)

    def logits(self, rows: slice, mask: F32) -> F32:
        """KQ with softcap and mask, (batch, columns, rows)."""
        columns, order = self.columns, self.plan.k_order
        K = Factors(np.ascontiguousarray(np.swapaxes(columns.K[:, rows, order], 1, 2)))
        Q = Factors(columns.Q[..., order])
        zeros = np.zeros((*Q.value.shape[:2], K.value.shape[2]), np.float32)
        KQ = matrix_sum(Q, K, zeros, self.plan.generation)
        if self.plan.softcap:
            KQ = columns.softcap * tanh(KQ)
        return KQ + mask if (columns.slope == 1).all() else fma(columns.slope[..., None], mask, KQ)

    def by_warp(self, KQ: F32) -> F32:
        """(batch, columns, rows) to (batch, warps, columns, chunks, rows of a chunk)."""
        batch, columns, _ = KQ.shape
        return np.moveaxis(KQ.reshape(batch, columns, -1, self.plan.warps, self.plan.chunk), 3, 1)

    def exponentials(self, state: State, KQ: F32) -> F32:
        """P of a step; the state's maximum grows, and its sums are scaled down to it."""
        before = state.maximum
        state.maximum = np.fmax(before, np.fmax.reduce(KQ, axis=(3, 4)) + self.plan.max_offset)
        P = self.exp(KQ - state.maximum[..., None, None])
        added = np.zeros(state.rowsum.shape, np.float32)
        for chunk in range(P.shape[3]):
            for rows in self.plan.thread_rows:
                added += P[:, :, :, chunk, rows]
        scale = self.scale(before - state.maximum)
        state.rowsum = fma(scale[..., None], state.rowsum, added)
        scale_VKQ(state, scale)
        return P

    def scale(self, difference: F32) -> F32:
        """e to the difference of two maxima, flushed to zero."""
        return np.where(difference >= FLUSH, self.exp(difference), np.float32(0))

    def add_values(self, state: State, P: F32, rows: slice) -> None:
        """VKQ += P V, chunk by chunk."""
        plan = self.plan
        V = self.columns.V[:, rows].reshape(P.shape[0], -1, plan.warps, plan.chunk, plan.DV)
        half = half_of(P)
        for chunk in range(P.shape[3]):
            factors = Factors(np.ascontiguousarray(half[:, :, :, chunk]))
            state.VKQ = matrix_sum_half(factors, Factors(np.ascontiguousarray(V[:, chunk])), state.VKQ, plan.generation)

    def add_sink(self, state: State, sink: F32) -> None:
        """The sink joins the row sum of the first warp; its threads' sums are one by now."""
        first = State(state.maximum[:, :1], total(state.rowsum[:, :1])[..., None], state.VKQ[:, :1])
        before = first.maximum
        first.maximum = np.fmax(before, sink[..., None, :])
        scale = self.scale(before - first.maximum)
        first.rowsum = fma(scale[..., None], first.rowsum, self.exp(sink[..., None, :] - first.maximum)[..., None])
        scale_VKQ(first, scale)
        state.rowsum[:, :1], state.rowsum[:, :1, :, :1] = 0, first.rowsum
        state.maximum[:, :1], state.VKQ[:, :1] = first.maximum, first.VKQ

    def piece(self, state: State, where: Bools) -> Piece:
        """The marked columns of a state, the warps combined."""
        maxima, sums, VKQ = (np.moveaxis(array, 1, 2)[where] for array in (state.maximum, state.rowsum, state.VKQ))
        sums = total(sums)
        if self.plan.warps == 1:
            return Piece(where, maxima[:, 0], sums[:, 0], VKQ[:, 0])
        most = maxima.max(axis=1)
        scales = self.exp(maxima - most[:, None])
        out = np.zeros(VKQ[:, 0].shape, np.float32)
        for warp in range(self.plan.warps):
            out = fma(VKQ[:, warp], scales[:, warp, None], out)
        return Piece(where, most, self.sum_of_warps(scales, sums), out)

    def sum_of_warps(self, scales: F32, sums: F32) -> F32:
        """A warp's lanes hold some of the warps' sums each, then exchange them; of two products the first is fused."""
        lanes = min(self.plan.warps, 32 // self.plan.columns)
        scale, part = (np.split(array, self.plan.warps // lanes, axis=1) for array in (scales, sums))
        found = scale[0] * part[0]
        if len(part) > 1:
            found = fma(scale[0], part[0], scale[1] * part[1])
        for i in range(2, len(part)):
            found = fma(scale[i], part[i], found)
        return total(found)

    def fix_up(self, last: Piece, earlier: list[Piece]) -> F32:
        """All pieces of each column in one, and divided; `last` has all columns."""
        shape = last.where.shape
        maximum, rowsum = last.maximum.reshape(shape), last.rowsum.reshape(shape)
        out = last.VKQ.reshape(*shape, -1)
        for piece in reversed(earlier):
            where = piece.where
            most = np.fmax(maximum[where], piece.maximum)
            ours, theirs = self.scale(maximum[where] - most), self.scale(piece.maximum - most)
            out[where] = fma(ours[:, None], out[where], theirs[:, None] * piece.VKQ)
            rowsum[where] = fma(ours, rowsum[where], theirs * piece.rowsum)
            maximum[where] = most
        with np.errstate(invalid="ignore"):  # a row without any key: 0 * infinity
            return out * rcp(rowsum)[..., None]


def scale_VKQ(state: State, scale: F32) -> None:
    """VKQ times the scale as f16."""
    if (scale != 1).any():
        state.VKQ = half_of(state.VKQ * half_of(scale).astype(np.float64)[..., None])
