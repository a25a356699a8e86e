"""The numbers of an output row at each KV step, in the kernel's arithmetic and exactly."""

from dataclasses import dataclass, field

import numpy as np

from fattn_probe.base.arrays import F32, F64, Bools
from fattn_probe.cases.op.values import logits_of
from fattn_probe.daily.inspect.trace.model import ModelledRows, Row
from fattn_probe.llama.launch.families import MMA_F16
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.verdict.truth.reference.attention import alibi_slopes
from fattn_probe.verdict.truth.rounding_model.mma_f16 import MmaMachine, State


@dataclass(frozen=True)
class RowSums:
    """Running softmax of a row: maximum m (with the kernel's offset), sum l, and VKQ (DV), undivided."""

    m: float
    l: float  # noqa: E741 - the papers' name
    VKQ: F64


@dataclass(frozen=True)
class RowAtStep:
    """A row after a KV step of a block: the kernel's arithmetic (`kernel`) next to exact arithmetic.

    The warps that share the row are combined. P has the weights of the step's KV rows, relative to m.
    """

    kb0: int
    kernel: RowSums
    exact: RowSums
    kernel_P: F64
    exact_P: F64


@dataclass(frozen=True)
class RowInBlock:
    """A block's part of a row: its KV steps, then what it hands on, with the sink if this block adds it."""

    block: int
    steps: tuple[RowAtStep, ...]
    kernel: RowSums
    exact: RowSums


@dataclass(frozen=True)
class RowNumbers:
    """An output row: its parts in the order of their first KV steps, and the output by the kernel's arithmetic."""

    row: Row
    parts: tuple[RowInBlock, ...]
    output: F64
    exact: F64


@dataclass
class _Recorder(MmaMachine):
    """The mma kernel's arithmetic on one column, which keeps the state after each step."""

    seen: list[tuple[RowSums, F64]] = field(default_factory=list)
    P: F32 | None = None

    def step(self, state: State, step: int) -> None:
        """Process a step, and keep the state of the column."""
        self.P = None
        super().step(state, step)
        sums = state.rowsum[0, :, 0].sum(axis=-1)
        joined, scale = combined(state.maximum[0, :, 0], sums, state.VKQ[0, :, 0])
        rows = self.plan.kernel.nbatch_fa
        found = np.zeros(rows)
        if self.P is not None:  # (warps, chunks, rows of a chunk); the rows are dealt to the warps chunk by chunk
            found = (self.P[0, :, 0] * scale[:, None, None]).swapaxes(0, 1).reshape(-1)
        self.seen.append((joined, found))

    def exponentials(self, state: State, KQ: F32) -> F32:
        """P of a step, which is kept too."""
        self.P = super().exponentials(state, KQ)
        return self.P


def combined(maximum: F32, sums: F32, VKQ: F32) -> tuple[RowSums, F64]:
    """The state of a row from those of its warps, in float64, and the factor of each warp."""
    largest = maximum.max()
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.exp(maximum.astype(np.float64) - float(largest))
    return RowSums(float(largest), float(scale @ sums), scale @ VKQ.astype(np.float64)), scale


def numbers_of(rows: ModelledRows, geometry: Geometry, row: Row) -> RowNumbers:
    """The numbers of a row at all KV steps of all of its blocks."""
    parts = geometry.parts_of(geometry.tile_of(*row))
    due = [range(part.start, part.stop, part.every) for part in parts]
    found = rows.parts(row)
    if rows.kernel.family is MMA_F16:
        plain = rows.mma(row)
        machine = _Recorder(plain.plan, plain.columns)
        with np.errstate(over="ignore", invalid="ignore"):
            machine.run()
        kernel = [[machine.seen[step] for step in steps] for steps in due]
    else:
        turns = rows.turns(row)
        kernel = [[_of_turn(turns[turn], block) for turn in range(len(steps))] for block, steps in enumerate(due)]
    exact, made = ExactRow.of(rows, row), []
    for number, (part, steps) in enumerate(zip(parts, due, strict=True)):
        state, after = RowSums(-np.inf, 0.0, np.zeros(rows.kernel.DV)), list[RowAtStep]()
        for kb0, (ours, P) in zip(steps, kernel[number], strict=True):
            state, weights = exact.add(state, slice(kb0 * geometry.rows, (kb0 + 1) * geometry.rows))
            after.append(RowAtStep(kb0, ours, state, P[: len(weights)], weights))
        if part.writes if rows.kernel.family is MMA_F16 else number == 0:
            state = exact.add_sink(state)
        handed = RowSums(
            float(found.maximum[0, number]), float(found.rowsum[0, number]), found.VKQ[0, number].astype(np.float64)
        )
        made.append(RowInBlock(part.block, tuple(after), handed, state))
    return RowNumbers(row, tuple(made), rows.output(row, found).astype(np.float64), exact.output())


def _of_turn(turn: object, block: int) -> tuple[RowSums, F64]:
    """The state and P of a block's step in a tile or vec kernel."""
    _, P, maximum, sums, VKQ = (np.asarray(values)[0, block] for values in vars(turn).values())
    warps = sums.shape[0]
    VKQ = VKQ if VKQ.ndim == 2 else VKQ.sum(axis=1, dtype=np.float64)  # vec: groups of lanes
    state, scale = combined(np.broadcast_to(maximum, (warps,)), sums.sum(axis=-1, dtype=np.float64), VKQ)
    P = P.astype(np.float64)
    return state, (P * scale[:, None]).reshape(-1) if maximum.ndim else P.reshape(-1)


@dataclass(frozen=True)
class ExactRow:
    """A row's logits (n_kv), V (n_kv, DV) and sink in float64; `offset` is what the kernel adds to a maximum."""

    S: F64
    V: F64
    sink: float
    offset: float

    @classmethod
    def of(cls, rows: ModelledRows, row: Row) -> "ExactRow":
        """The exact logits of a row of the op."""
        sequence, query, head = row
        operands, op = rows.operands, rows.case.op
        at = sequence, head // operands.group
        Q, K, V = (
            one.astype(np.float64) for one in (operands.Q[sequence, head, query], operands.K[at], operands.V[at])
        )
        bias = None
        if operands.mask is not None:
            slope = alibi_slopes(op.sizes.n_head, op.params.max_bias)[head]
            bias = slope * operands.mask[sequence % len(operands.mask), query].astype(np.float64)
        sink = -np.inf if operands.sinks is None else float(operands.sinks[head])
        return cls(logits_of(K @ Q, op.params.stored, bias), V, sink, rows.kernel.max_offset)

    def add(self, state: RowSums, at: slice) -> tuple[RowSums, F64]:
        """The state with some more KV rows, and their weights."""
        S = self.S[at]
        m = max(state.m, float(S.max(initial=-np.inf)) + self.offset)
        if m == -np.inf:
            return state, np.zeros(len(S))
        P, scale = np.exp(S - m), np.exp(state.m - m)
        return RowSums(m, state.l * scale + P.sum(), state.VKQ * scale + P @ self.V[at]), P

    def add_sink(self, state: RowSums) -> RowSums:
        """The state with the sink, whose V is 0."""
        m = max(state.m, self.sink)
        if self.sink == -np.inf:
            return state
        scale = np.exp(state.m - m)
        return RowSums(m, state.l * scale + np.exp(self.sink - m), state.VKQ * scale)

    def output(self) -> F64:
        """The output of the row."""
        state = self.add_sink(self.add(RowSums(-np.inf, 0.0, np.zeros(self.V.shape[1])), slice(None))[0])
        return state.VKQ / (state.l or 1.0)


def visible_shares(mask: F32 | None, n_kv: int, rows: int, ncols1: int, steps: int) -> list[str]:
    """For each query tile a digit per KV step: the share of its mask that is visible, 0 none to 9 all.

    `mask` is (queries, KV rows) of one sequence. Any visible entry gives at least 1, any hidden one at most 8.
    """
    if mask is None:
        return []
    seen: Bools = ~np.isneginf(mask[:, :n_kv])
    found = []
    for first in range(0, len(seen), ncols1):
        part = seen[first : first + ncols1]
        line = ""
        for step in range(steps):
            share = part[:, step * rows : (step + 1) * rows].mean()
            line += "0" if share == 0 else "9" if share == 1 else str(1 + int(share * 7.999))
        found.append(line)
    return found
