"""fattn-tile in NumPy, for GPUs without tensor cores and head sizes without a tensor-core kernel.

Where f16 arithmetic is fast, products of Q (scaled down by 4) and K are rounded to f16 and added to a float32 sum in
pairs. P is rounded to f16, and VKQ is summed in f16 with one fused multiply-add per KV row. Elsewhere (compute
capability 6.1) everything is float32. For the row sum, the rows of a step are dealt to the lanes of `warps` warps; for
VKQ, to the warps in turn. All warps share the column's maximum. CUDA blocks (`gridDim.y`) take the steps in turn.

The model fuses the multiply-adds that g++ fuses when it compiles the kernel for the simulator: no output of a GPU is
recorded for this kernel. g++ fuses some of ALiBi's products, depending on column and row; the model fuses none.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from fattn_probe.arrays import F32, Bools
from fattn_probe.launch.architecture import fast_f16
from fattn_probe.launch.constants import Constants
from fattn_probe.launch.families import TILE
from fattn_probe.launch.kernel import attention_kernel
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.truth.rounding_model.functions import Exponential, flushed, fma, rcp, tanh
from fattn_probe.truth.rounding_model.operands import KernelOperands, as_half
from fattn_probe.truth.rounding_model.softmax import LOWEST, slices, total
from fattn_probe.truth.rounding_model.tensor_core import half_of
from fattn_probe.truth.rounding_model.vec import combined, divided

LANES = 32

COLUMNS, ROWS = 64, 512
"""Columns and KV rows computed side by side: their data fits a core's cache."""


@dataclass(frozen=True)
class TilePlan:
    """One launch: `warps` warps share a column (upstream's np), and `blocks` blocks take turns on it.

    `half`: f16 arithmetic is fast. `fused`: a float32 VKQ is rescaled by the multiply-add that adds a step's first row,
    except in the last step of a kernel that checks the end of K (`checks_end`: kernels of one head). g++ does so for
    heads of 128 and steps of 32 rows. A thread has `elements` of a step's KQ.
    """

    DV: int
    softcap: bool
    blocks: int
    warps: int
    nbatch_fa: int
    half: bool
    fused: bool
    checks_end: bool
    elements: int
    max_offset: np.float32


def tile_plan_of(launch: LaunchRecord, arch: int, constants: Constants) -> TilePlan | None:
    """The plan of a launch; None for other kernels, and for sizes that the source lacks."""
    kernel = attention_kernel(launch, arch, constants)
    if kernel is None or kernel.family is not TILE:
        return None
    return TilePlan(
        DV=kernel.DV,
        softcap=kernel.softcap,
        blocks=kernel.blocks[1],
        warps=kernel.warps_per_column,
        nbatch_fa=kernel.nbatch_fa,
        half=fast_f16(arch),
        fused=kernel.DKQ == 128 and kernel.nbatch_fa == LANES,
        checks_end=kernel.ncols2 == 1,
        elements=kernel.nbatch_fa * kernel.ncols // (kernel.warps * LANES),
        max_offset=np.float32(kernel.max_offset),
    )


def tile(operands: KernelOperands, plan: TilePlan, exact_exp: bool = False) -> F32:
    """The op's output as fattn-tile computes it, (n_seq, n_q, n_head, hsv)."""
    n_seq, n_head, n_q, _ = operands.Q.shape
    out = np.empty((n_seq, n_q, n_head, plan.DV), np.float32)
    operands = replace(operands, K=as_half(operands.K), V=as_half(operands.V))
    machine = Machine(plan, operands, Exponential(exact_exp))

    def compute(work: tuple[int, int, slice]) -> None:
        sequence, head, queries = work
        out[sequence, queries, head] = machine.run(sequence, head, queries)

    works = [(s, head, queries) for s, head in np.ndindex(n_seq, n_head) for queries in slices(n_q, COLUMNS)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compute, works))
    return out


@dataclass(frozen=True)
class Machine:
    """The kernel's arithmetic on some queries of a head; arrays are (columns, blocks, warps, ...)."""

    plan: TilePlan
    operands: KernelOperands
    exp: Exponential

    def run(self, sequence: int, head: int, queries: slice) -> F32:
        """The output, (queries, DV)."""
        operands, plan = self.operands, self.plan
        place = (sequence, head // operands.group)
        KQ = self.logits(operands.Q[sequence, head, queries] * operands.scale, operands.K[place])
        KQ = self.masked(KQ, sequence, head, queries)
        padding = -KQ.shape[1] % (plan.nbatch_fa * plan.blocks)
        KQ = np.pad(KQ, [(0, 0), (0, padding)], constant_values=-np.inf)
        V = np.pad(operands.V[place], [(0, padding), (0, 0)])
        logits = np.moveaxis(KQ.reshape(len(KQ), -1, plan.blocks, plan.nbatch_fa), 1, 0)
        maximum, sums, VKQ = self.rounds(logits, V.reshape(-1, plan.blocks, plan.nbatch_fa, plan.DV))
        return self.combine(maximum, sums, VKQ, head)

    def logits(self, Q: F32, K: F32) -> F32:
        """Q K, (columns, rows)."""
        if self.plan.half:
            Q = half_of(as_half(Q) * 0.25)
        return np.concatenate([self.dot(Q, K[part]) for part in slices(len(K), ROWS)], axis=1)

    def dot(self, Q: F32, K: F32) -> F32:
        """Q K of some rows: element by element in float32, or by pairs of f16 products."""
        found = np.zeros((len(Q), len(K)), np.float32)
        if not self.plan.half:
            for k in range(Q.shape[1]):
                found = fma(Q[:, None, k], K[None, :, k], found)
            return found
        for k in range(0, Q.shape[1], 2):
            x, y = (half_of(np.multiply(Q[:, None, i], K[None, :, i], dtype=np.float64)) for i in (k, k + 1))
            found += x + y
        return found * np.float32(4)

    def masked(self, KQ: F32, sequence: int, head: int, queries: slice) -> F32:
        """Apply softcap and mask (docs/agreement.md says which products nvcc fuses)."""
        softcap, slope = self.operands.logit_softcap, self.operands.slopes[head]
        capped = softcap * tanh(KQ) if self.plan.softcap else KQ
        if self.operands.mask is None:
            return capped
        mask = self.operands.mask[sequence % len(self.operands.mask), queries]
        if self.plan.softcap and not self.plan.checks_end:
            return fma(softcap, tanh(KQ), mask)
        return fma(slope, mask, capped) if self.plan.elements > 1 else capped + slope * mask

    def rounds(self, logits: F32, values: F32) -> tuple[F32, F32, F32]:
        """Maximum, row sum by lane, and VKQ of each warp after its last step."""
        plan = self.plan
        maximum = np.full(logits.shape[1:3], LOWEST)
        sums = np.zeros((*logits.shape[1:3], plan.warps, LANES), np.float32)
        VKQ = np.zeros((*logits.shape[1:3], plan.warps, plan.DV), np.float32)
        last = (-(-self.operands.K.shape[2] // plan.nbatch_fa) - 1) if plan.checks_end else -1
        for turn, (KQ, V) in enumerate(zip(logits, values, strict=True)):
            before, maximum = maximum, np.fmax(maximum, np.fmax.reduce(KQ, axis=2) + self.plan.max_offset)
            scale = self.exp(before - maximum)
            P = self.exp(KQ - maximum[..., None])
            added = np.zeros(sums.shape, np.float32)
            for part in np.moveaxis(P.reshape(*P.shape[:2], -1, plan.warps, LANES), 2, 0):
                added += part
            sums = fma(sums, scale[..., None, None], added)
            fused = np.full(plan.blocks, plan.fused) & (np.arange(plan.blocks) + turn * plan.blocks != last)
            VKQ = self.add_values(VKQ, scale, P, V, fused)
        return maximum, sums, VKQ

    def scaled(self, VKQ: F32, scale: F32) -> F32:
        """VKQ times the scale of each column and block."""
        if self.plan.half:
            scale = half_of(scale)
            return half_of(np.multiply(VKQ, scale[..., None, None], dtype=np.float64))
        return flushed(VKQ * scale[..., None, None])

    def add_values(self, VKQ: F32, scale: F32, P: F32, V: F32, fused: Bools) -> F32:
        """Rescale VKQ and add P V row by row; the rows are dealt to the warps."""
        plan = self.plan
        shared = (half_of(P) if plan.half else P).reshape(*P.shape[:2], -1, plan.warps, 1)
        rows = V.reshape(1, len(V), -1, plan.warps, plan.DV)
        unfused = self.fused(shared[:, :, 0], rows[:, :, 0], self.scaled(VKQ, scale))
        if not plan.half:
            at_once = fma(VKQ, scale[..., None, None], shared[:, :, 0] * rows[:, :, 0])
            VKQ = np.where(fused[:, None, None], at_once, unfused)
        else:
            VKQ = unfused
        for i in range(1, rows.shape[2]):
            VKQ = self.fused(shared[:, :, i], rows[:, :, i], VKQ)
        return VKQ

    def fused(self, a: F32, b: F32, c: F32) -> F32:
        """a*b + c in VKQ's number format, rounded once."""
        if not self.plan.half:
            return fma(a, b, c)
        exact = np.multiply(a, b, dtype=np.float64)
        exact += c
        return half_of(exact)

    def combine(self, maximum: F32, sums: F32, VKQ: F32, head: int) -> F32:
        """Combine the warps, add the sink, then combine the blocks."""
        parts, out = total(sums), VKQ[:, :, 0]
        rowsum = parts[..., 0]
        for warp in range(1, self.plan.warps):
            out = self.added(out, VKQ[:, :, warp])
            rowsum = rowsum + parts[..., warp]
        if self.operands.sinks is not None:
            first = (slice(None), slice(0, 1))
            most = np.fmax(maximum[first], self.operands.sinks[head])
            scale = self.exp(maximum[first] - most)
            rowsum[first] = fma(rowsum[first], scale, self.exp(self.operands.sinks[head] - most))
            out[first] = self.scaled(out[first][:, :, None], scale)[:, :, 0]
            maximum[first] = most
        if self.plan.blocks == 1:
            return divided(out[:, 0], rcp(rowsum))
        return combined(out, maximum, rowsum, self.exp)

    def added(self, a: F32, b: F32) -> F32:
        """The sum of two warps' VKQ."""
        return half_of(a.astype(np.float64) + b) if self.plan.half else flushed(a + b)
