"""The values that a correct kernel has at each stage of an output row, bit for bit, from the rounding models."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fattn_probe.base.arrays import F32, F64
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.trace.checks import ULP_F32, half_ulp
from fattn_probe.llama.launch.constants import Constants
from fattn_probe.llama.launch.families import MMA_F16, TILE
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.llama.launch.kernel import AttentionKernel
from fattn_probe.verdict.truth.error_model.kernel import kernel_of
from fattn_probe.verdict.truth.reference.adapter import Inputs
from fattn_probe.verdict.truth.reference.engine import slices
from fattn_probe.verdict.truth.rounding_model.arithmetic import KernelPlan
from fattn_probe.verdict.truth.rounding_model.mma_f16 import MmaMachine, State
from fattn_probe.verdict.truth.rounding_model.mma_op import mma_machines
from fattn_probe.verdict.truth.rounding_model.mma_plan import mma_plan_of
from fattn_probe.verdict.truth.rounding_model.operands import KernelOperands, operands_of
from fattn_probe.verdict.truth.rounding_model.softmax import Parts, Turn
from fattn_probe.verdict.truth.rounding_model.tile import TileMachine, tile_plan_of
from fattn_probe.verdict.truth.rounding_model.vec import VecMachine, combined, vec_plan_of

ROWS = 4096
"""KV rows whose products are computed at once."""
Row = tuple[int, int, int]
"""(sequence, query, head)"""


def largest_of(values: F32 | F64) -> float:
    """The largest finite magnitude; 0 if there is none."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


@dataclass(frozen=True)
class ModelledRows:
    """A launch's rounding model, row by row; arrays have one column."""

    case: Case
    inputs: Inputs
    kernel: AttentionKernel
    arch: int
    constants: Constants
    _KQ_errors: dict[Row, float] = field(default_factory=dict)

    @cached_property
    def operands(self) -> KernelOperands:
        """The op's tensors."""
        return operands_of(self.case, dict(self.inputs), self.arch)

    def assumed(self, geometry: Geometry) -> str:
        """The model's assumptions on the sums of the GPU; empty if there are none."""
        described = kernel_of(self.case.op, geometry, self.arch)
        return "" if described is None else described.assumed

    @cached_property
    def machine(self) -> TileMachine | VecMachine:
        """The arithmetic of a tile or vec kernel."""
        if self.kernel.family is TILE:
            return TileMachine.of(self.operands, tile_plan_of(self.kernel, self.arch, self.constants))
        return VecMachine.of(self.operands, vec_plan_of(self.kernel, self.arch))

    @property
    def half(self) -> bool:
        """Whether VKQ is f16."""
        return KernelPlan(self.kernel, self.arch).VKQ.half

    def KQ_error(self, row: Row) -> float:
        """A bound on the error of a row's logits in float32: 1.5 DKQ ulps of the largest partial sum or product."""
        if row not in self._KQ_errors:
            sequence, query, head = row
            Q = self.operands.Q[sequence, head, query] * self.operands.scale
            K = self.operands.K[sequence, head // self.operands.group]
            largest = 0.0
            for part in slices(len(K), ROWS):
                products = Q * K[part]  # infinite and NaN logits are compared as such
                sums = np.cumsum(products, axis=1, dtype=np.float64)
                largest = max(largest, largest_of(products), largest_of(sums))
            softcap = float(self.operands.logit_softcap) or 1.0
            self._KQ_errors[row] = 1.5 * self.kernel.DKQ * ULP_F32 * largest * softcap
        return self._KQ_errors[row]

    def VKQ_error(self, row: Row, parts: Parts, KV_rows: int) -> F64:
        """A bound on the error of sums of `KV_rows` rows of P V, for each block of a row.

        It counts the errors of P and of the sum: one rounding per row in float32, eight standard deviations in f16.
        """
        sequence, _, head = row
        V = self.operands.V[sequence, head // self.operands.group]
        size = np.abs(parts.rowsum[0].astype(np.float64)) * largest_of(V)
        found = size * (2 * self.KQ_error(row) + KV_rows * ULP_F32)
        if self.half:
            largest = np.abs(parts.VKQ[0].astype(np.float64)).max(axis=-1, initial=0.0)
            found = found + 8 * np.sqrt(KV_rows) * half_ulp(largest)
        return np.asarray(found, np.float64)

    def turns(self, row: Row) -> list[Turn]:
        """The KV steps of a row in a tile or vec kernel: the n-th step of each block together."""
        sequence, query, head = row
        machine, at = self.machine, slice(query, query + 1)
        with np.errstate(over="ignore", invalid="ignore"):
            if isinstance(machine, TileMachine):
                return list(machine.turns(sequence, head, at))
            turns = machine.turns(sequence, slice(head, head + 1), head // machine.operands.group)
            return [Turn(*(values[at] for values in vars(turn).values())) for turn in turns]

    def parts(self, row: Row) -> Parts:
        """The blocks' parts of a row, before another kernel combines them, in the order of their KV steps."""
        sequence, query, head = row
        with np.errstate(over="ignore", invalid="ignore"):
            if self.kernel.family is MMA_F16:
                pieces = [piece for _, piece in self.mma(row).pieces()]
                return Parts(
                    VKQ=np.stack([piece.VKQ for piece in pieces], axis=1),
                    maximum=np.stack([piece.maximum for piece in pieces], axis=1),
                    rowsum=np.stack([piece.rowsum for piece in pieces], axis=1),
                )
            machine = self.machine
            if isinstance(machine, TileMachine):
                return machine.parts(self.turns(row)[-1], head)
            heads = slice(head, head + 1)
            *_, last = machine.turns(sequence, heads, head // machine.operands.group)
            found = machine.parts(last, heads)
            return Parts(*(values[query : query + 1] for values in vars(found).values()))

    def output(self, row: Row, parts: Parts) -> F32:
        """The row of the output, (DV), that follows from the blocks' parts."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.kernel.family is not MMA_F16:
                return np.asarray(combined(parts, self.machine.plan.functions)[0])
            where = np.ones((1, 1), np.bool_)
            *earlier, last = (
                State(parts.maximum[:, at].copy(), parts.rowsum[:, at].copy(), parts.VKQ[:, at].copy())
                for at in range(parts.VKQ.shape[1])
            )
            return np.asarray(self.mma(row).fix_up(last, [(where, piece) for piece in earlier])[0, 0])

    def mma(self, row: Row) -> MmaMachine:
        """The arithmetic of the mma kernel on one row."""
        sizes = self.case.op.sizes
        wanted = np.zeros((sizes.n_seq, sizes.n_q, sizes.n_head), np.bool_)
        wanted[row] = True
        plan = mma_plan_of(self.kernel, self.arch, self.constants)
        ((_, machine),) = mma_machines(self.operands, plan, self.case.op.params.n_kv_max, wanted=wanted)
        return machine()
