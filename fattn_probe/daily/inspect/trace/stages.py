"""The stages of an output row, from a block's KV steps to dst, compared with the kernel's rounding model.

A stage is a quantity at a point in the kernel: in the registers of a warp (tile and vec kernels), or in memory, as the
attention kernel stores it for the kernel that combines the blocks, or in dst.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, F64, Bools
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.trace.checks import ULP_F32, distance, half_ulp
from fattn_probe.llama.launch.constants import Constants
from fattn_probe.llama.launch.families import MMA_F16, TILE, VEC
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.llama.launch.kernel import AttentionKernel
from fattn_probe.llama.launch.tiles import TileWork
from fattn_probe.verdict.measure.expected import LEAST_ULPS
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
"""The number of KV rows whose products are computed at once."""
Row = tuple[int, int, int]
"""(sequence, query, head)"""


def largest_of(values: F32 | F64) -> float:
    """The largest finite magnitude; 0 if there is none."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


@dataclass(frozen=True)
class ModelledRows:
    """A launch's rounding model, applied row by row; its arrays have one column."""

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
        """The model's assumptions about the GPU's sums; empty if there are none."""
        described = kernel_of(self.case.op, geometry, self.arch)
        return "" if described is None else described.assumed

    @cached_property
    def machine(self) -> TileMachine | VecMachine:
        """The kernel's arithmetic (a tile or vec kernel)."""
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
                products = Q * K[part]  # infinite and NaN logits are compared as they are
                sums = np.cumsum(products, axis=1, dtype=np.float64)
                largest = max(largest, largest_of(products), largest_of(sums))
            softcap = float(self.operands.logit_softcap) or 1.0
            self._KQ_errors[row] = 1.5 * self.kernel.DKQ * ULP_F32 * largest * softcap
        return self._KQ_errors[row]

    def VKQ_error(self, row: Row, parts: Parts, KV_rows: int) -> F64:
        """A bound on the error of P V, summed over `KV_rows` KV rows, for each block that works on a row.

        The bound covers the errors of P and the sum: one rounding per row in float32, eight standard deviations in f16.
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
        """The KV steps of a row in a tile or vec kernel; turn n has the n-th step of every block."""
        sequence, query, head = row
        machine, at = self.machine, slice(query, query + 1)
        with np.errstate(over="ignore", invalid="ignore"):
            if isinstance(machine, TileMachine):
                return list(machine.turns(sequence, head, at))
            turns = machine.turns(sequence, slice(head, head + 1), head // machine.operands.group)
            return [Turn(*(values[at] for values in vars(turn).values())) for turn in turns]

    def parts(self, row: Row) -> Parts:
        """The blocks' parts of a row, in the order of their KV steps, before another kernel combines them."""
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
        """The output row, (DV), computed from the blocks' parts."""
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


Labels = Mapping[str, npt.NDArray[np.integer[Any]]]
DST, PARTS, META = "(long)KQV->data", "(long)dst_tmp.ptr", "(long)dst_tmp_meta.ptr"
LAUNCHED, FINISHED = "launched", "finished"
FLOAT = 4


@dataclass(frozen=True)
class StageDeviation:
    """The value in a stage that is farthest from the model; `at` has its coordinates by name."""

    where: str
    quantity: str
    place: str
    at: Mapping[str, int]
    found: float
    expected: float
    count: int
    """The number of the stage's values that differ."""

    @property
    def words(self) -> str:
        """The deviation in a sentence."""
        at = ", ".join(f"{name} {index}" for name, index in self.at.items())
        more = f"; {self.count} such values" if self.count > 1 else ""
        subject = f"{self.quantity} of {at}" if at else self.quantity
        return f"{self.where}: {subject} is {self.found:.7g}, not {self.expected:.7g}{more}"


@dataclass(frozen=True)
class Stage:
    """A quantity at a point in the kernel, found and expected; `bound` and `labels` (coordinates) broadcast.

    The bound covers the difference between compilers: the debug build, which is traced, does not fuse multiply-adds.
    `place` is the line (`file:line`) before which the quantity was read.
    """

    where: str
    quantity: str
    found: F32
    expected: F32
    bound: F64
    labels: Labels
    place: str = ""
    stored: bool = False
    """Whether this is part of what a block stores for the kernel that combines the blocks."""
    kb0: int | None = None
    """The KV step; None after the last one."""

    @property
    def error(self) -> F32:
        """The distances from the expected values."""
        return distance(self.found, self.expected)

    @property
    def differs(self) -> Bools:
        """Which values differ by more than their bound plus a few ulps."""
        finite = np.where(np.isfinite(self.expected), np.abs(self.expected), np.float32(0))
        bound = np.where(np.isfinite(self.bound), self.bound, 0.0)
        return np.asarray(self.error > bound + LEAST_ULPS * np.spacing(finite))

    @property
    def deviation(self) -> StageDeviation | None:
        """The largest difference; None if there is none."""
        differs = self.differs
        if not differs.any():
            return None
        worst = np.unravel_index(np.argmax(np.where(differs, self.error, -1.0)), differs.shape)
        at = {name: int(np.broadcast_to(values, differs.shape)[worst]) for name, values in self.labels.items()}
        found, expected = float(self.found[worst]), float(self.expected[worst])
        return StageDeviation(self.where, self.quantity, self.place, at, found, expected, int(differs.sum()))


@dataclass(frozen=True)
class StoredRow:
    """An output row in memory: the parts that the blocks store, and dst."""

    rows: ModelledRows
    geometry: Geometry
    row: Row

    @property
    def parts(self) -> Mapping[int, TileWork]:
        """The blocks that work on the row, and their work."""
        return self.geometry.parts_of(self.geometry.tile_of(*self.row))

    @property
    def warps(self) -> range:
        """The warps in a block that work on the row."""
        kernel, group = self.geometry.kernel, self.rows.case.op.sizes.group
        _, query, head = self.row
        column = query % kernel.ncols1 * kernel.ncols2 + head % group % kernel.ncols2
        shared = kernel.warps if kernel.family is VEC else kernel.warps_per_column
        columns = kernel.ncols * shared // kernel.warps
        first = column // columns * shared
        return range(first, first + shared)

    def plan(self) -> list[tuple[str, str, int, int]]:
        """The `parts` that `read_row` should read: each block's VKQ and (maximum, row sum), then dst."""
        sequence, query, head = self.row
        kernel, sizes = self.geometry.kernel, self.rows.case.op.sizes
        DV, blocks = kernel.DV, kernel.blocks[0]
        at = (sequence * sizes.n_q + query) * sizes.n_head + head
        dst, found, parts = (DST, at * DV), [], self.parts
        in_group = head % sizes.group
        column = query % kernel.ncols1 * kernel.ncols2 + in_group % kernel.ncols2
        for number, (block, work) in enumerate(parts.items() if len(parts) > 1 else ()):
            if kernel.family is not MMA_F16:
                index = at * len(parts) + number
                VKQ, meta = (PARTS, index * DV), 2 * index
            else:  # dst_fixup: the pairs of each tile's last block, the pairs of other blocks, then VKQ of other blocks
                index = block * kernel.ncols + column
                VKQ = dst if work.writes else (META, 4 * blocks * kernel.ncols + index * DV)
                meta = 2 * (index if work.writes else blocks * kernel.ncols + index)
            found += [(LAUNCHED, *VKQ, DV), (LAUNCHED, META, meta, 2)]
        return [(a, buffer, FLOAT * i, FLOAT * n) for a, buffer, i, n in [*found, (FINISHED, *dst, DV)]]

    def stages(self, document: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[Stage]:
        """The stages in a document of `read_row`: the stored parts, then dst, compared with the parts' result."""
        texts = document["parts"]
        *stored, dst = (None if text is None else np.frombuffer(bytes.fromhex(text), "<f4") for text in texts)
        expected, parts = self.rows.parts(self.row), self.parts
        sequence, query, head = self.row
        labels = {"sequence": np.array(sequence), "query": np.array(query), "head": np.array(head)}
        d = labels | {"d": np.arange(self.geometry.kernel.DV)}
        found = Parts(expected.VKQ.copy(), expected.maximum.copy(), expected.rowsum.copy())
        kernel, logits = self.geometry.kernel, self.rows.KQ_error(self.row)
        KV_rows = max(len(work.steps) for work in parts.values()) * kernel.nbatch_fa
        bounds = self.rows.VKQ_error(self.row, expected, KV_rows)
        sums = np.abs(expected.rowsum[0]) * (2 * logits + KV_rows * ULP_F32)
        for number, block in enumerate(parts if len(parts) > 1 else ()):
            VKQ, meta = stored[2 * number], stored[2 * number + 1]
            if VKQ is None or meta is None:
                continue
            found.VKQ[0, number], found.maximum[0, number], found.rowsum[0, number] = VKQ, *meta
            where = f"stored by block {block}"
            at, place = slice(number, number + 1), places[LAUNCHED]
            yield Stage(
                where, "KQ_max", meta[:1], expected.maximum[0, at], np.array([logits]), labels, place, stored=True
            )
            yield Stage(where, "row sum", meta[1:], expected.rowsum[0, at], sums[at], labels, place, stored=True)
            yield Stage(where, "VKQ", VKQ, expected.VKQ[0, number], bounds[at], d, place, stored=True)
        if dst is not None:
            output = self.rows.output(self.row, found)
            bound = largest_of(output) * len(parts) * 16 * ULP_F32
            if len(parts) == 1:  # no parts were stored
                bound = bound + (bounds / expected.rowsum[0])
            yield Stage("dst", "output", dst, output, np.atleast_1d(bound), d, places[FINISHED])
