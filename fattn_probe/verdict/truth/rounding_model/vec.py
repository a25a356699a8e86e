"""fattn-vec in NumPy: a column is one query, everything is float32, and KV rows are dealt to lanes.

A step has one KV row per thread, 32 for each warp. Each warp has its own maximum, each lane its own row sum.
`threads_K` lanes share a row of K: lane i sums every `threads_K`-th run of `run` elements. For VKQ, a warp's rows are
dealt to 32/`threads_V` groups of lanes, each with its own sum. `gridDim.y` blocks take turns. Sums are FMAs.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fattn_probe.base.arrays import F32, Indices
from fattn_probe.base.workers import spread
from fattn_probe.llama.launch.architecture import AMD, RDNA1, copy_bytes
from fattn_probe.llama.launch.kernel import AttentionKernel
from fattn_probe.verdict.truth.reference.engine import slices
from fattn_probe.verdict.truth.rounding_model.arithmetic import Accumulator, FloatFunctions, KernelPlan
from fattn_probe.verdict.truth.rounding_model.functions import fma, fused_sum, half_of
from fattn_probe.verdict.truth.rounding_model.matrix_amd import dot2
from fattn_probe.verdict.truth.rounding_model.operands import KernelOperands
from fattn_probe.verdict.truth.rounding_model.quantised import Codes, products, quantised_q8_1
from fattn_probe.verdict.truth.rounding_model.softmax import LOWEST, Parts, Turn, total

LANES = 32
FLOATS = ("f16", "bf16")
ROWS = 4096
"""KV rows whose logits are computed at once."""


@dataclass(frozen=True)
class VecPlan(KernelPlan):
    """One launch: `threads_K` lanes share a row of K, and `threads_V` lanes share a row of V.

    If K is floating-point, a lane takes runs of `run` elements. With v_dot2_f32_f16, Q, P, V and VKQ are f16.
    """

    threads_K: int
    threads_V: int
    run: int


def vec_plan_of(kernel: AttentionKernel, arch: int) -> VecPlan:
    """The plan of a launch."""
    copied = copy_bytes(arch)
    of_floats, of_codes = 128 // copied, min(kernel.DKQ // 4, LANES)
    of_codes_K = of_codes if arch < AMD else 2 if arch >= RDNA1 else 4
    threads_K = of_floats if kernel.type_K in FLOATS else of_codes_K
    return VecPlan(kernel, arch, threads_K, of_floats if kernel.type_V in FLOATS else of_codes, copied // 2)


def vec(operands: KernelOperands, plan: VecPlan) -> F32:
    """The op's output as fattn-vec computes it, (n_seq, n_q, n_head, hsv)."""
    n_seq, n_head, n_q, _ = operands.Q.shape
    out = np.empty((n_seq, n_q, n_head, plan.kernel.DKQ), np.float32)
    group = operands.group
    machine = VecMachine.of(operands, plan)

    @np.errstate(over="ignore", invalid="ignore")  # values beyond f16 overflow as in the kernel
    def compute(place: tuple[int, int]) -> None:
        sequence, head_kv = place
        heads = slice(head_kv * group, (head_kv + 1) * group)
        found = machine.run(sequence, heads, head_kv)
        out[sequence, :, heads] = found.reshape(group, n_q, plan.kernel.DKQ).swapaxes(0, 1)

    spread(compute, list(np.ndindex(n_seq, operands.K.shape[1])))
    return out


@dataclass(frozen=True)
class VecMachine:
    """The kernel's arithmetic on the queries of the heads of one K/V head; arrays are (columns, blocks, warps, ...)."""

    plan: VecPlan
    operands: KernelOperands

    @classmethod
    def of(cls, operands: KernelOperands, plan: VecPlan) -> "VecMachine":
        """A machine for an op's operands, as the kernel reads them."""
        operands = replace(
            operands,
            K=half_of(operands.K) if plan.kernel.type_K == "f16" else operands.K,
            V=half_of(operands.V) if plan.kernel.type_V == "f16" else plan.VKQ.rounded(operands.V),
            codes=None if plan.kernel.type_K in FLOATS else operands.codes,
        )
        return cls(plan, operands)

    def run(self, sequence: int, heads: slice, head_kv: int) -> F32:
        """The output, (columns, D): queries of the first head, then of the next."""
        (last,) = deque(self.turns(sequence, heads, head_kv), maxlen=1)
        return combined(self.parts(last, heads), self.plan.functions)

    def turns(self, sequence: int, heads: slice, head_kv: int) -> Iterator[Turn]:
        """The steps of the blocks: the first step of each block, then the second step of each, and so on."""
        place = (sequence, head_kv)
        plan, Q = self.plan, self.operands.Q[sequence, heads].reshape(-1, self.plan.kernel.DKQ)
        number = plan.VKQ if self.operands.codes is None else Accumulator(False, plan.functions)
        Q = number.product(number.rounded(Q), number.rounded(np.full(1, self.operands.scale)))
        KQ = self.masked(self.logits(Q, place), sequence, heads)
        blocks, warps, threads_V = plan.kernel.blocks[1], plan.kernel.warps, plan.threads_V
        KQ = np.moveaxis(KQ.reshape(len(KQ), -1, blocks, warps, LANES), 1, 0)
        V = self.operands.V[place]
        V = np.pad(V, [(0, -len(V) % (plan.kernel.nbatch_fa * blocks)), (0, 0)])
        return self.rounds(KQ, V.reshape(-1, blocks, warps, threads_V, LANES // threads_V, plan.kernel.DKQ))

    def logits(self, Q: F32, place: tuple[int, int]) -> F32:
        """Q K, (columns, rows)."""
        codes = self.operands.codes
        parts = slices(self.operands.K.shape[2], ROWS)
        if codes is None:
            K = self.operands.K[place]
            return np.concatenate([self.dot(Q, K[part]) for part in parts], axis=1)
        ours = quantised_q8_1(Q, self.plan.functions)
        return np.concatenate([self.dot_of_codes(ours, codes[place][part]) for part in parts], axis=1)

    def dot(self, Q: F32, K: F32) -> F32:
        """Q K for an unquantised K: each lane uses multiply-adds or dot products of two, then the lanes are added."""
        plan = self.plan
        Q, K = (np.moveaxis(each.reshape(len(each), -1, plan.threads_K, plan.run), 2, 3) for each in (Q, K))
        Q, K = (each.reshape(len(each), -1, plan.threads_K) for each in (Q, K))
        lanes = np.zeros((len(Q), len(K), plan.threads_K), np.float32)
        if plan.VKQ.half and plan.kernel.type_K == "f16":
            for i in range(0, Q.shape[1], 2):
                x, y = np.moveaxis(Q[:, None, i : i + 2], 2, 0), np.moveaxis(K[None, :, i : i + 2], 2, 0)
                lanes = dot2(x, y, lanes, plan.arch)
            return total(lanes)
        return total(fused_sum(np.moveaxis(Q, 1, 0)[:, :, None], np.moveaxis(K, 1, 0)[:, None], lanes))

    def dot_of_codes(self, Q: Codes, K: Codes) -> F32:
        """Q K for a quantised K: groups of four elements go to the lanes in turn."""
        steps = [np.moveaxis(part.reshape(*part.shape[:2], -1, self.plan.threads_K), 2, 0) for part in products(Q, K)]
        found = np.zeros(steps[0].shape[1:], np.float32)
        for a, b in zip(*steps, strict=True):
            found = fma(a, b, found)
        return total(found)

    def masked(self, KQ: F32, sequence: int, heads: slice) -> F32:
        """Apply softcap and mask, and pad with masked rows."""
        softcap, mask, tanh = self.operands.logit_softcap, self.operands.mask, self.plan.functions.tanh
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
        padding = -n_kv % (self.plan.kernel.nbatch_fa * self.plan.kernel.blocks[1])
        return np.pad(KQ, [(0, 0), (0, padding)], constant_values=-np.inf)

    def rounds(self, KQ: F32, values: F32) -> Iterator[Turn]:
        """The steps: each warp has a maximum, a row sum per lane and a VKQ per group of lanes."""
        groups, number, exp = LANES // self.plan.threads_V, self.plan.VKQ, self.plan.functions.exp
        maximum = np.full(KQ.shape[1:4], LOWEST)
        sums = np.zeros(KQ.shape[1:], np.float32)
        VKQ = np.zeros((*KQ.shape[1:4], groups, self.plan.kernel.DKQ), np.float32)
        for logits, V in zip(KQ, values, strict=True):
            before, maximum = maximum, np.fmax(maximum, np.fmax.reduce(logits, axis=3) + self.plan.kernel.max_offset)
            scale = exp(before - maximum)
            P = exp(logits - maximum[..., None])
            sums = fma(sums, scale[..., None], P)
            shared = number.rounded(P).reshape(*P.shape[:3], -1, groups, 1)
            rows, weights, factor = (
                np.moveaxis(V, 2, 0),
                np.moveaxis(shared, 3, 0),
                number.rounded(scale)[..., None, None],
            )
            if number.half:
                VKQ = number.fused(rows, weights, number.product(VKQ, factor))
            else:
                VKQ = number.fused(VKQ[None], factor[None], number.product(rows[0], weights[0]))
                VKQ = number.fused(rows[1:], weights[1:], VKQ)
            yield Turn(logits, P, maximum, sums, VKQ)

    def sunk(self, last: Turn, heads: slice, queries: Indices) -> Turn:
        """Add each column's sink in the first block, to lane 0 of the warp with the column's number in the block."""
        if self.operands.sinks is None:
            return last
        maximum, sums, VKQ = last.maximum.copy(), last.sums.copy(), last.VKQ.copy()
        sinks, queries = np.repeat(self.operands.sinks[heads], len(queries)), np.tile(queries, heads.stop - heads.start)
        column, number, exp = np.arange(len(maximum)), self.plan.VKQ, self.plan.functions.exp
        place = (column, 0, queries % self.plan.kernel.ncols1)
        most = np.fmax(sinks, maximum[place])
        scale = exp(maximum[place] - most)
        first = np.zeros((len(column), LANES), np.float32)
        first[:, 0] = exp(sinks - most)
        maximum[place], sums[place] = most, fma(sums[place], scale[:, None], first)
        VKQ[place] = number.product(VKQ[place], number.rounded(scale)[:, None, None])
        return replace(last, maximum=maximum, sums=sums, VKQ=VKQ)

    def parts(self, last: Turn, heads: slice) -> Parts:
        """Add the sinks after the last step, and combine the warps of each block."""
        last = self.sunk(last, heads, np.arange(self.operands.Q.shape[2]))
        number, functions, most = self.plan.VKQ, self.plan.functions, last.maximum.max(axis=2)
        scale = functions.exp(last.maximum - most[..., None])
        scaled = last.sums * scale[..., None]
        if self.plan.arch >= AMD:  # clang fuses the product with the first sum across lanes
            half = LANES // 2
            scaled = fma(last.sums[..., :half], scale[..., None], scaled[..., half:])
        rowsum = total(total(scaled))
        parts = number.product(last.VKQ, number.rounded(scale)[..., None, None])
        parts = parts.reshape(*most.shape, -1, self.plan.kernel.DKQ)
        out = np.zeros((*most.shape, self.plan.kernel.DKQ), np.float32)
        for part in range(parts.shape[2]):
            out = functions.flushed(out + parts[:, :, part])
        return Parts(out, most, rowsum)


def combined(parts: Parts, functions: FloatFunctions) -> F32:
    """Combine the parts of the blocks and divide by the row sum (`flash_attn_combine_results`), (columns, D)."""
    VKQ = parts.VKQ
    if VKQ.shape[1] == 1:
        return functions.divided(VKQ[:, 0], parts.rowsum)
    scale = functions.exp(parts.maximum - parts.maximum.max(axis=1, keepdims=True))
    numerator, denominator = np.zeros(VKQ[:, 0].shape, np.float32), np.zeros(len(VKQ), np.float32)
    for block in range(VKQ.shape[1]):
        numerator = functions.flushed(fma(scale[:, block, None], VKQ[:, block], numerator))
        denominator = fma(scale[:, block], parts.rowsum[:, block], denominator)
    return functions.divided(numerator, denominator[:, None])
