"""The values of an output row at each KV step, in the kernel's arithmetic and in exact arithmetic."""

from dataclasses import dataclass, field, replace

import numpy as np

from fattn_probe.base.arrays import F32, F64, Bools
from fattn_probe.cases.op.values import logits_of
from fattn_probe.daily.inspect.trace.show import NOTHING_SEEN
from fattn_probe.daily.inspect.trace.stages import ModelledRows, Row
from fattn_probe.llama.launch.families import MMA_F16
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.verdict.truth.reference.attention import alibi_slopes
from fattn_probe.verdict.truth.reference.softmax import RunningSoftmax
from fattn_probe.verdict.truth.rounding_model.mma_f16 import MmaMachine, State

NO_ROWS = np.zeros(0)


@dataclass(frozen=True)
class RowState:
    """The running softmax of a row: maximum m (with the kernel's offset), sum l, and VKQ (DV), not yet divided by l.

    P contains the weights of the KV rows in the last step, relative to m.
    """

    m: float
    l: float  # noqa: E741 - the papers' name
    VKQ: F64
    P: F64


@dataclass(frozen=True)
class RowInBlock:
    """A block's part of a row: its KV steps, and the state after each, in the kernel's arithmetic and exactly.

    The last state, without P, is the one that the block passes on; it includes the sink if this block adds it. The
    states of warps that share the row are combined.
    """

    block: int
    kb0: tuple[int, ...]
    kernel: tuple[RowState, ...]
    exact: tuple[RowState, ...]


@dataclass(frozen=True)
class RowNumbers:
    """An output row: its parts by their first KV steps, and its output in the kernel's arithmetic and exactly."""

    row: Row
    parts: tuple[RowInBlock, ...]
    output: F64
    exact: F64


@dataclass
class _Recorder(MmaMachine):
    """The mma kernel's arithmetic on one column; stores the state after each step."""

    seen: list[RowState] = field(default_factory=list)
    P: F32 | None = None

    def step(self, state: State, step: int) -> None:
        """Process a step, and store the column's state."""
        self.P = None
        super().step(state, step)
        joined, scale = combined(state.maximum[0, :, 0], state.rowsum[0, :, 0].sum(axis=-1), state.VKQ[0, :, 0])
        found = np.zeros(self.plan.kernel.nbatch_fa)
        if self.P is not None:  # (warps, chunks, rows of a chunk); the rows are dealt to the warps chunk by chunk
            found = (self.P[0, :, 0] * scale[:, None, None]).swapaxes(0, 1).reshape(-1)
        self.seen.append(replace(joined, P=found))

    def exponentials(self, state: State, KQ: F32) -> F32:
        """Compute and store P of a step."""
        self.P = super().exponentials(state, KQ)
        return self.P


def combined(maximum: F32, sums: F32, VKQ: F32) -> tuple[RowState, F64]:
    """Combine the states of a row's warps in float64; also returns the rescale factor of each warp."""
    largest = maximum.max()
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.exp(maximum.astype(np.float64) - float(largest))
    m = float(largest) if largest > NOTHING_SEEN else -np.inf
    return RowState(m, float(scale @ sums), scale @ VKQ.astype(np.float64), NO_ROWS), scale


def numbers_of(rows: ModelledRows, geometry: Geometry, row: Row) -> RowNumbers:
    """Compute the values of a row at every KV step of each of its blocks."""
    parts = geometry.parts_of(geometry.tile_of(*row))
    found = rows.parts(row)
    if rows.kernel.family is MMA_F16:
        plain = rows.mma(row)
        machine = _Recorder(plain.plan, plain.columns)
        with np.errstate(over="ignore", invalid="ignore"):
            machine.run()
        kernel = [[machine.seen[step] for step in work.steps] for work in parts.values()]
    else:
        turns = rows.turns(row)
        kernel = [
            [_of_turn(turns[turn], number) for turn in range(len(work.steps))]
            for number, work in enumerate(parts.values())
        ]
    sequence, query, head = row
    operands, op = rows.operands, rows.case.op
    own = sequence, head // operands.group
    Q, K, V = (one.astype(np.float64) for one in (operands.Q[sequence, head, query], operands.K[own], operands.V[own]))
    bias = None
    if operands.mask is not None:
        slope = alibi_slopes(op.sizes.n_head, op.params.max_bias)[head]
        bias = slope * operands.mask[sequence % len(operands.mask), query].astype(np.float64)
    S = logits_of(K @ Q, op.params.stored, bias)
    sink = None if operands.sinks is None else operands.sinks[head : head + 1].astype(np.float64)
    made, offset = list[RowInBlock](), rows.kernel.max_offset
    for number, (block, work) in enumerate(parts.items()):
        exact, ours, right = RunningSoftmax.empty(1, rows.kernel.DV), list[RowState](), list[RowState]()
        for kb0, state in zip(work.steps, kernel[number], strict=True):
            at = slice(kb0 * geometry.rows, (kb0 + 1) * geometry.rows)
            weights = np.exp(S[at] - exact.raise_maximum(S[None, at].max(axis=1) + offset))
            exact.total += weights.sum()
            exact.weighted += weights @ V[at]
            ours.append(replace(state, P=state.P[: len(weights)]))
            right.append(_state_of(exact, weights))
        if sink is not None and (work.writes if rows.kernel.family is MMA_F16 else number == 0):
            exact.add_sink(sink)
        handed, _ = combined(found.maximum[0, number, None], found.rowsum[0, number, None], found.VKQ[0, number, None])
        made.append(RowInBlock(block, tuple(work.steps), (*ours, handed), (*right, _state_of(exact, NO_ROWS))))
    whole = RunningSoftmax.empty(1, rows.kernel.DV)
    whole.add(S[None].copy(), V)
    if sink is not None:
        whole.add_sink(sink)
    return RowNumbers(row, tuple(made), rows.output(row, found).astype(np.float64), whole.mean()[0])


def _state_of(state: RunningSoftmax, P: F64) -> RowState:
    return RowState(float(state.maximum[0]), float(state.total[0]), state.weighted[0].copy(), P)


def _of_turn(turn: object, block: int) -> RowState:
    """The state after a block's step in a tile or vec kernel."""
    _, P, maximum, sums, VKQ = (np.asarray(values)[0, block] for values in vars(turn).values())
    warps = sums.shape[0]
    VKQ = VKQ if VKQ.ndim == 2 else VKQ.sum(axis=1, dtype=np.float64)  # vec: groups of lanes
    state, scale = combined(np.broadcast_to(maximum, (warps,)), sums.sum(axis=-1, dtype=np.float64), VKQ)
    P = P.astype(np.float64)
    return replace(state, P=(P * scale[:, None]).reshape(-1) if maximum.ndim else P.reshape(-1))


def visible_shares(mask: F32 | None, n_kv: int, rows: int, ncols1: int, steps: int) -> list[str]:
    """The visible share of the mask per query tile, with one digit per KV step: 0 for none, 9 for all.

    `mask` is (queries, KV rows) of one sequence. A digit is at least 1 if any entry is visible, else 0.
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
