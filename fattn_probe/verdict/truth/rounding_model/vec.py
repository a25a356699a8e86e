"""fattn-vec in NumPy: a column is one query, everything is float32, and KV rows are dealt to lanes.

A step has 128 KV rows, 32 for each of 4 warps, one per lane. Each warp has its own maximum, each lane its own row sum.
`threads_K` lanes share a row of K: lane i sums every `threads_K`-th run of `run` elements. For VKQ, a warp's rows are
dealt to 32/`threads_V` groups of lanes, each with its own sum. CUDA blocks (`gridDim.y`) take the steps in turn.
Multiply-adds are fused.
"""

from dataclasses import dataclass, replace

import numpy as np

from fattn_probe.base.arrays import F32
from fattn_probe.base.workers import spread
from fattn_probe.llama.launch.architecture import copy_bytes
from fattn_probe.llama.launch.families import VEC_ROWS
from fattn_probe.llama.launch.kernel import AttentionKernel
from fattn_probe.verdict.truth.reference.engine import slices
from fattn_probe.verdict.truth.rounding_model.functions import exp, flushed, fma, rcp, tanh
from fattn_probe.verdict.truth.rounding_model.operands import KernelOperands, as_half
from fattn_probe.verdict.truth.rounding_model.quantised import Codes, products, quantised_q8_1
from fattn_probe.verdict.truth.rounding_model.softmax import LOWEST, total

WARPS, LANES = VEC_ROWS // 32, 32
STEP = VEC_ROWS
FLOATS = ("f16", "bf16")
ROWS = 4096
"""KV rows whose logits are computed at once."""


@dataclass(frozen=True)
class VecPlan:
    """One launch: `threads_K` lanes share a row of K, `threads_V` lanes a row of V.

    For a K of floats, a lane takes runs of `run` neighbouring elements.
    """

    kernel: AttentionKernel
    threads_K: int
    threads_V: int
    run: int


def vec_plan_of(kernel: AttentionKernel, arch: int) -> VecPlan:
    """The plan of a launch."""
    copied = copy_bytes(arch)
    threads = {True: 128 // copied, False: min(kernel.DKQ // 4, LANES)}
    return VecPlan(kernel, threads[kernel.type_K in FLOATS], threads[kernel.type_V in FLOATS], copied // 2)


def vec(operands: KernelOperands, plan: VecPlan) -> F32:
    """The op's output as fattn-vec computes it, (n_seq, n_q, n_head, hsv)."""
    n_seq, n_head, n_q, _ = operands.Q.shape
    out = np.empty((n_seq, n_q, n_head, plan.kernel.DKQ), np.float32)
    group = operands.group
    K, V = operands.K, operands.V
    operands = replace(
        operands,
        K=as_half(K) if plan.kernel.type_K == "f16" else K,
        V=as_half(V) if plan.kernel.type_V == "f16" else V,
        codes=None if plan.kernel.type_K in FLOATS else operands.codes,
    )

    @np.errstate(over="ignore", invalid="ignore")  # values beyond f16 overflow as in the kernel
    def compute(place: tuple[int, int]) -> None:
        sequence, head_kv = place
        heads = slice(head_kv * group, (head_kv + 1) * group)
        found = VecMachine(plan, operands).run(sequence, heads, head_kv)
        out[sequence, :, heads] = found.reshape(group, n_q, plan.kernel.DKQ).swapaxes(0, 1)

    spread(compute, list(np.ndindex(n_seq, K.shape[1])))
    return out


@dataclass(frozen=True)
class VecMachine:
    """The kernel's arithmetic on the queries of the heads of one K/V head; arrays are (columns, blocks, warps, ...)."""

    plan: VecPlan
    operands: KernelOperands

    def run(self, sequence: int, heads: slice, head_kv: int) -> F32:
        """The output, (columns, D): queries of the first head, then of the next."""
        place = (sequence, head_kv)
        Q = (self.operands.Q[sequence, heads] * self.operands.scale).reshape(-1, self.plan.kernel.DKQ)
        KQ = self.masked(self.logits(Q, place), sequence, heads)
        KQ = np.moveaxis(KQ.reshape(len(KQ), -1, self.plan.kernel.blocks[1], WARPS, LANES), 1, 0)
        V = self.operands.V[place]
        V = np.pad(V, [(0, -len(V) % (STEP * self.plan.kernel.blocks[1])), (0, 0)])
        values = V.reshape(
            -1,
            self.plan.kernel.blocks[1],
            WARPS,
            self.plan.threads_V,
            LANES // self.plan.threads_V,
            self.plan.kernel.DKQ,
        )
        return self.combine(*self.rounds(KQ, values), sequence, heads)

    def logits(self, Q: F32, place: tuple[int, int]) -> F32:
        """Q K, (columns, rows)."""
        codes = self.operands.codes
        parts = slices(self.operands.K.shape[2], ROWS)
        if codes is None:
            K = self.operands.K[place]
            return np.concatenate([self.dot(Q, K[part]) for part in parts], axis=1)
        ours = quantised_q8_1(Q)
        return np.concatenate([self.dot_of_codes(ours, codes[place][part]) for part in parts], axis=1)

    def dot(self, Q: F32, K: F32) -> F32:
        """Q K for a K of floats: fused multiply-adds in each lane, then a sum across lanes."""
        plan = self.plan
        Q, K = (np.moveaxis(each.reshape(len(each), -1, plan.threads_K, plan.run), 2, 3) for each in (Q, K))
        Q, K = (each.reshape(len(each), -1, plan.threads_K) for each in (Q, K))
        lanes = np.zeros((len(Q), len(K), plan.threads_K), np.float32)
        for i in range(Q.shape[1]):
            lanes = fma(Q[:, None, i], K[None, :, i], lanes)
        return total(lanes)

    def dot_of_codes(self, Q: Codes, K: Codes) -> F32:
        """Q K for a quantised K: groups of four elements go to the lanes in turn."""
        steps = [np.moveaxis(part.reshape(*part.shape[:2], -1, self.plan.threads_K), 2, 0) for part in products(Q, K)]
        found = np.zeros(steps[0].shape[1:], np.float32)
        for a, b in zip(*steps, strict=True):
            found = fma(a, b, found)
        return total(found)

    def masked(self, KQ: F32, sequence: int, heads: slice) -> F32:
        """Apply softcap and mask, and pad with masked rows."""
        softcap, mask = self.operands.logit_softcap, self.operands.mask
        n_q, n_kv = self.operands.Q.shape[2], self.operands.K.shape[2]
        if mask is None:
            KQ = softcap * tanh(KQ) if self.plan.kernel.softcap else KQ
        else:
            slope = np.repeat(self.operands.slopes[heads], n_q)[:, None]
            rows = np.tile(mask[sequence % len(mask), :n_q], (heads.stop - heads.start, 1))
            if self.plan.kernel.softcap and self.plan.kernel.ncols1 == 1:
                KQ = fma(softcap, tanh(KQ), slope * rows)
            else:
                KQ = fma(slope, rows, softcap * tanh(KQ) if self.plan.kernel.softcap else KQ)
        padding = -n_kv % (STEP * self.plan.kernel.blocks[1])
        return np.pad(KQ, [(0, 0), (0, padding)], constant_values=-np.inf)

    def rounds(self, KQ: F32, values: F32) -> tuple[F32, F32, F32]:
        """Maximum, row sum (by lane) and VKQ (by group of lanes) of each warp after its last step."""
        groups = LANES // self.plan.threads_V
        maximum = np.full(KQ.shape[1:4], LOWEST)
        sums = np.zeros(KQ.shape[1:], np.float32)
        VKQ = np.zeros((*KQ.shape[1:4], groups, self.plan.kernel.DKQ), np.float32)
        for logits, V in zip(KQ, values, strict=True):
            before, maximum = maximum, np.fmax(maximum, np.fmax.reduce(logits, axis=3) + self.plan.kernel.max_offset)
            scale = exp(before - maximum)
            P = exp(logits - maximum[..., None])
            sums = fma(sums, scale[..., None], P)
            shared = P.reshape(*P.shape[:3], -1, groups)
            VKQ = fma(VKQ, scale[..., None, None], V[None, :, :, 0] * shared[:, :, :, 0, :, None])
            for k in range(1, shared.shape[3]):
                VKQ = fma(V[None, :, :, k], shared[:, :, :, k, :, None], VKQ)
        return maximum, sums, VKQ

    def combine(self, maximum: F32, sums: F32, VKQ: F32, sequence: int, heads: slice) -> F32:
        """Combine the warps of each block, then the blocks."""
        if self.operands.sinks is not None:
            # A column's sink is added in the first block, to lane 0 of the warp with the column's number in the block.
            n_q, column = self.operands.Q.shape[2], np.arange(len(maximum))
            sinks, place = (
                np.repeat(self.operands.sinks[heads], n_q),
                (column, 0, column % n_q % self.plan.kernel.ncols1),
            )
            highest = np.fmax(sinks, maximum[place])
            factor = exp(maximum[place] - highest)
            first = np.zeros((len(column), LANES), np.float32)
            first[:, 0] = exp(sinks - highest)
            maximum[place], sums[place] = highest, fma(sums[place], factor[:, None], first)
            VKQ[place] = flushed(VKQ[place] * factor[:, None, None])
        most = maximum.max(axis=2)
        scale = exp(maximum - most[..., None])
        rowsum = total(total(sums * scale[..., None]))
        parts = flushed(VKQ * scale[..., None, None]).reshape(*most.shape, -1, self.plan.kernel.DKQ)
        out = np.zeros((*most.shape, self.plan.kernel.DKQ), np.float32)
        for part in range(parts.shape[2]):
            out = flushed(out + parts[:, :, part])
        return combined(out, most, rowsum)


def combined(parts: F32, maximum: F32, rowsum: F32) -> F32:
    """Combine the blocks' parts (columns, blocks, D) and divide by the row sum (`flash_attn_combine_results`)."""
    if parts.shape[1] == 1:
        return divided(parts[:, 0], rcp(rowsum))
    scale = exp(maximum - maximum.max(axis=1, keepdims=True))
    numerator, denominator = np.zeros(parts[:, 0].shape, np.float32), np.zeros(len(parts), np.float32)
    for block in range(parts.shape[1]):
        numerator = flushed(fma(scale[:, block, None], parts[:, block], numerator))
        denominator = fma(scale[:, block], rowsum[:, block], denominator)
    return divided(numerator, rcp(denominator)[:, None])


def divided(sums: F32, by_row: F32) -> F32:
    """Sums times the reciprocal of their row sum; NaN, 0 times infinity, in fully masked rows."""
    with np.errstate(invalid="ignore"):
        return flushed(sums * by_row)
