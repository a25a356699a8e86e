"""fattn-tile in NumPy, for GPUs without tensor cores and head sizes without a tensor-core kernel.

Where f16 arithmetic is fast, products of Q (scaled down by 4) and K are rounded to f16 and added to a float32 sum in
pairs. P is rounded to f16, and VKQ is summed in f16 with one fused multiply-add per KV row. Elsewhere (compute
capability 6.1) everything is float32. For the row sum, the rows of a step are dealt to the lanes of `warps` warps; for
VKQ, to the warps in turn. All warps share the column's maximum. CUDA blocks (`gridDim.y`) take the steps in turn.

If VKQ is rescaled and the first row added in one basic block, `VKQ*scale` is fused and `V*P` is rounded; with a branch
in between, `V*P` is fused and `VKQ*scale` is rounded (build/rewrite_products.py).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fattn_probe.base.arrays import F32, Bools, Indices
from fattn_probe.base.workers import spread
from fattn_probe.llama.launch.architecture import fast_f16, has_dot2
from fattn_probe.llama.launch.constants import Constants
from fattn_probe.llama.launch.kernel import AttentionKernel
from fattn_probe.verdict.truth.reference.engine import slices
from fattn_probe.verdict.truth.rounding_model.arithmetic import KernelPlan
from fattn_probe.verdict.truth.rounding_model.functions import fma, fused_sum, half_of
from fattn_probe.verdict.truth.rounding_model.matrix_amd import dot2
from fattn_probe.verdict.truth.rounding_model.operands import KernelOperands
from fattn_probe.verdict.truth.rounding_model.softmax import LOWEST, Parts, Turn, total
from fattn_probe.verdict.truth.rounding_model.vec import combined

LANES = 32
FATTN_KQ_STRIDE = 256
"""The number of KV rows that the scan of the mask reads at once."""

COLUMNS, ROWS = 64, 512
"""Columns and KV rows computed together: their data fits in a core's cache."""


@dataclass(frozen=True)
class TilePlan(KernelPlan):
    """One launch.

    `fused`: VKQ is rescaled by the multiply-add that adds a step's first row. The exception is the last step of a
    kernel that checks for the end of K (a kernel for one head, `ncols2` = 1).
    """

    fused: bool

    @property
    def checks_end(self) -> bool:
        """Whether the kernel checks for the end of K in its last step."""
        return self.kernel.ncols2 == 1

    @property
    def elements(self) -> int:
        """The number of elements of a step's KQ that a thread holds."""
        return self.kernel.nbatch_fa * self.kernel.ncols // (self.kernel.warps * LANES)


def tile_plan_of(kernel: AttentionKernel, arch: int, constants: Constants) -> TilePlan:
    """The plan of a launch."""
    sizes = constants.tile_of((kernel.DKQ, kernel.DV, kernel.ncols), arch)
    assert sizes is not None
    return TilePlan(kernel, arch, _loads_V_without_branch(kernel, sizes[1], arch))


def scanned_ends(mask: F32, ncols1: int) -> Indices:
    """The KV row at which each query tile ends, from the scan of a mask (n_q, n_kv): all later rows are masked."""
    shown = ~np.isinf(mask).reshape(len(mask), -1, FATTN_KQ_STRIDE).all(axis=2)
    strides = np.logical_or.reduceat(shown, np.arange(0, len(mask), ncols1)) * (1 + np.arange(shown.shape[1]))
    return np.asarray(strides.max(axis=1) * FATTN_KQ_STRIDE)


def _loads_V_without_branch(kernel: AttentionKernel, nbatch_K: int, arch: int) -> bool:
    """Whether all threads of a block load the same number of rows of V (flash_attn_tile_load_tile).

    A row is copied in pieces of 16 bytes (8 before Volta). The last pieces are copied by as many lanes as the largest
    power of two that divides the number of pieces.
    """
    nbatch_V = (nbatch_K if kernel.DV % nbatch_K == 0 else nbatch_K * 2 // 3) * kernel.nbatch_fa // kernel.DV
    pieces = kernel.DV * (2 if fast_f16(arch) else 4) // (16 if arch >= 70 else 8)
    lanes = min(LANES, pieces & -pieces)
    return nbatch_V % (kernel.warps * LANES // lanes) == 0


def tile(operands: KernelOperands, plan: TilePlan) -> F32:
    """The op's output as fattn-tile computes it, (n_seq, n_q, n_head, hsv)."""
    n_seq, n_head, n_q, _ = operands.Q.shape
    out = np.empty((n_seq, n_q, n_head, plan.kernel.DV), np.float32)
    machine = TileMachine.of(operands, plan)

    @np.errstate(over="ignore", invalid="ignore")  # values beyond f16 overflow as in the kernel
    def compute(work: tuple[int, int, slice]) -> None:
        sequence, head, queries = work
        out[sequence, queries, head] = machine.run(sequence, head, queries)

    works = [(s, head, queries) for s, head in np.ndindex(n_seq, n_head) for queries in slices(n_q, COLUMNS)]
    spread(compute, works)
    return out


@dataclass(frozen=True)
class TileMachine:
    """The kernel's arithmetic on some queries of a head; arrays are (columns, blocks, warps, ...)."""

    plan: TilePlan
    operands: KernelOperands

    @classmethod
    def of(cls, operands: KernelOperands, plan: TilePlan) -> "TileMachine":
        """A machine for an op's operands: K and V are rounded to f16."""
        operands = replace(operands, K=half_of(operands.K), V=half_of(operands.V))
        return cls(plan, operands)

    def run(self, sequence: int, head: int, queries: slice) -> F32:
        """The output, (queries, DV)."""
        (last,) = deque(self.turns(sequence, head, queries), maxlen=1)
        parts, functions = self.parts(last, head), self.plan.functions
        if parts.VKQ.shape[1] > 1:
            return combined(parts, functions)
        with np.errstate(invalid="ignore"):  # a single block multiplies by its row sum's reciprocal
            return functions.flushed(parts.VKQ[:, 0] * functions.divided(np.ones_like(parts.rowsum), parts.rowsum))

    def turns(self, sequence: int, head: int, queries: slice) -> Iterator[Turn]:
        """The steps of the blocks: the first step of each block, then the second step of each, and so on."""
        operands, plan = self.operands, self.plan
        place = (sequence, head // operands.group)
        KQ = self.logits(operands.Q[sequence, head, queries] * operands.scale, operands.K[place])
        KQ = self.masked(KQ, sequence, head, queries)
        padding = -KQ.shape[1] % (plan.kernel.nbatch_fa * plan.kernel.blocks[1])
        KQ = np.pad(KQ, [(0, 0), (0, padding)], constant_values=-np.inf)
        V = np.pad(operands.V[place], [(0, padding), (0, 0)])
        logits = np.moveaxis(KQ.reshape(len(KQ), -1, plan.kernel.blocks[1], plan.kernel.nbatch_fa), 1, 0)
        last = self.last_steps(sequence)[queries]
        return self.rounds(logits, V.reshape(-1, plan.kernel.blocks[1], plan.kernel.nbatch_fa, plan.kernel.DV), last)

    def logits(self, Q: F32, K: F32) -> F32:
        """Q K, (columns, rows)."""
        if self.plan.VKQ.half:
            Q = half_of(Q) if has_dot2(self.plan.arch) else half_of(half_of(Q) * 0.25)
        return np.concatenate([self.dot(Q, K[part]) for part in slices(len(K), ROWS)], axis=1)

    def dot(self, Q: F32, K: F32) -> F32:
        """Q K of some rows: element by element in float32, or by pairs of f16 products."""
        columns, rows = Q.T[:, :, None], np.ascontiguousarray(K.T)
        found = np.zeros((len(Q), len(K)), np.float32)
        if not self.plan.VKQ.half:
            return fused_sum(columns, rows[:, None], found)
        if has_dot2(self.plan.arch):
            for k in range(0, len(rows), 2):
                found = dot2(columns[k : k + 2], rows[k : k + 2, None], found, self.plan.arch)
            return found
        for k in range(0, len(rows), 2):
            first, second = half_of(columns[k : k + 2] * rows[k : k + 2, None])
            found += first + second
        return found * np.float32(4)

    def masked(self, KQ: F32, sequence: int, head: int, queries: slice) -> F32:
        """Apply softcap and mask (docs/measurements/agreement.md says which products nvcc fuses)."""
        softcap, slope, tanh = self.operands.logit_softcap, self.operands.slopes[head], self.plan.functions.tanh
        capped = softcap * tanh(KQ) if self.plan.kernel.softcap else KQ
        if self.operands.mask is None:
            return capped
        mask = self.operands.mask[sequence % len(self.operands.mask), queries]
        if self.plan.kernel.softcap and not self.plan.checks_end:
            return fma(softcap, tanh(KQ), mask)
        return fma(slope, mask, capped) if self.plan.elements > 1 else capped + slope * mask

    def last_steps(self, sequence: int) -> Indices:
        """For each query, the step that checks for the end of K; -1 for none."""
        plan, (_, _, n_q, _) = self.plan, self.operands.Q.shape
        if not plan.checks_end:
            return np.full(n_q, -1)
        if not plan.kernel.scanned or self.operands.mask is None:
            return np.full(n_q, -(-self.operands.K.shape[2] // plan.kernel.nbatch_fa) - 1)
        ends = scanned_ends(self.operands.mask[sequence % len(self.operands.mask)], plan.kernel.ncols1)
        return np.repeat(ends // plan.kernel.nbatch_fa - 1, plan.kernel.ncols1)[:n_q]

    def rounds(self, logits: F32, values: F32, last: Indices) -> Iterator[Turn]:
        """The steps, with a row sum per lane and a VKQ per warp; `last` is the last step of each column."""
        plan, exp = self.plan, self.plan.functions.exp
        maximum = np.full(logits.shape[1:3], LOWEST)
        sums = np.zeros((*logits.shape[1:3], plan.kernel.warps_per_column, LANES), np.float32)
        VKQ = np.zeros((*logits.shape[1:3], plan.kernel.warps_per_column, plan.kernel.DV), np.float32)
        for turn, (KQ, V) in enumerate(zip(logits, values, strict=True)):
            before, maximum = maximum, np.fmax(maximum, np.fmax.reduce(KQ, axis=2) + self.plan.kernel.max_offset)
            scale = exp(before - maximum)
            P = exp(KQ - maximum[..., None])
            added = np.zeros(sums.shape, np.float32)
            for part in np.moveaxis(P.reshape(*P.shape[:2], -1, plan.kernel.warps_per_column, LANES), 2, 0):
                added += part
            sums = fma(sums, scale[..., None, None], added)
            fused = plan.fused & (np.arange(plan.kernel.blocks[1]) + turn * plan.kernel.blocks[1] != last[:, None])
            VKQ = self.add_values(VKQ, scale, P, V, fused)
            yield Turn(KQ, P, maximum, sums, VKQ)

    def add_values(self, VKQ: F32, scale: F32, P: F32, V: F32, fused: Bools) -> F32:
        """Rescale VKQ and add P V row by row; the rows are dealt to the warps."""
        plan, number = self.plan, self.plan.VKQ
        factor = number.rounded(scale)[..., None, None]
        weights = np.moveaxis(number.rounded(P).reshape(*P.shape[:2], -1, plan.kernel.warps_per_column, 1), 2, 0)
        rows = np.moveaxis(V.reshape(len(V), -1, plan.kernel.warps_per_column, plan.kernel.DV), 1, 0)
        rescaled = number.fused(weights[:1], rows[:1], number.product(VKQ, factor))
        added = number.fused(VKQ[None], factor[None], number.product(weights[0], rows[0]))
        return number.fused(weights[1:], rows[1:], np.where(fused[..., None, None], added, rescaled))

    def parts(self, last: Turn, head: int) -> Parts:
        """Combine the warps after the last step, and add the sink."""
        maximum, VKQ = last.maximum.copy(), last.VKQ.copy()
        parts, out, number, exp = total(last.sums), VKQ[:, :, 0], self.plan.VKQ, self.plan.functions.exp
        rowsum = parts[..., 0]
        for warp in range(1, self.plan.kernel.warps_per_column):
            out = number.sum(out, VKQ[:, :, warp])
            rowsum = rowsum + parts[..., warp]
        if self.operands.sinks is not None:
            first = (slice(None), slice(0, 1))
            most = np.fmax(maximum[first], self.operands.sinks[head])
            scale = exp(maximum[first] - most)
            rowsum[first] = fma(rowsum[first], scale, exp(self.operands.sinks[head] - most))
            out[first] = number.product(out[first], number.rounded(scale)[..., None])
            maximum[first] = most
        return Parts(out, maximum, rowsum)
