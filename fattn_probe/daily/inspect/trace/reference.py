"""Compare a traced warp with an online softmax in NumPy at each step, and find the first deviation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F64, Indices
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.trace.checks import (
    Quantity,
    TracedOperands,
    WarpInputs,
    WarpStep,
    factors,
    logits,
    quantities,
    warp_inputs,
)
from fattn_probe.daily.inspect.trace.fragments import Step, WarpFragments, steps_of
from fattn_probe.daily.inspect.trace.stages import Row, Stage, StageDeviation
from fattn_probe.llama.launch.tiles import TileWork
from fattn_probe.verdict.truth.reference.adapter import Inputs
from fattn_probe.verdict.truth.reference.softmax import RunningSoftmax

SLACK = 2.0**-10


@dataclass(frozen=True)
class StepDeviation:
    """The value with a quantity's worst error in a step, if that error exceeds its bound."""

    tile: int
    kb0: int
    quantity: str
    anchor: str
    lane: int
    register: int
    query: int
    head: int
    kv_row: int | None
    d: int | None
    found: float
    expected: float
    bound: float
    count: int
    """The number of the quantity's values whose errors exceed their bounds."""

    @property
    def words(self) -> str:
        """The deviation in a sentence."""
        place = {"query": self.query, "head": self.head, "KV row": self.kv_row, "d": self.d}
        at = ", ".join(f"{name} {index}" for name, index in place.items() if index is not None)
        more = f"; {self.count} such values" if self.count > 1 else ""
        return (
            f"kb0 {self.kb0}: {self.quantity} of {at} (lane {self.lane}, number {self.register})"
            f" is {self.found:.7g}, not {self.expected:.7g} +- {self.bound:.1g}{more}"
        )


@dataclass(frozen=True)
class Checked:
    """A summary of a quantity in a step: its largest value and error, and the largest error in units of its bound."""

    name: str
    largest: float
    error: float
    in_bounds: float


@dataclass(frozen=True)
class TracedStep:
    """A traced step; matrices are (columns, KV rows of this warp) or (columns, DV), vectors have one entry per column.

    KQ is softcapped, before the mask. `KQ_rowsum` is summed over the lanes of a column, for this warp's KV rows up to
    this step. `exact_*` is the float64 online softmax over the same rows from the tile's first step, with Q and P
    rounded to f16 as in the kernel; NaN if unknown.
    """

    kb0: int
    kv_rows: Indices
    KQ: F64
    P: F64
    KQ_max: F64
    KQ_rowsum: F64
    KQ_max_scale: F64
    VKQ_before: F64
    VKQ: F64
    exact_KQ: F64
    exact_KQ_max: F64
    exact_KQ_rowsum: F64
    exact_VKQ: F64
    checked: tuple[Checked, ...]
    deviations: tuple[StepDeviation, ...]


@dataclass(frozen=True)
class TracedTile:
    """A warp's part of one tile. `query` and `head` identify its columns; `exists` marks those that exist."""

    tile: TileWork
    query: Indices
    head: Indices
    exists: npt.NDArray[np.bool_]
    steps: tuple[TracedStep, ...]


@dataclass(frozen=True)
class JudgedTrace:
    """A traced warp of a block: `tiles` has the registers of the mma kernel, `stages` everything else.

    `shared` is the number of warps that work on its columns. `fragments` is None except for the mma kernel. `row` is
    the output row that was followed through memory, None without stages; `missing` is the reason if `row` is None.
    `assumed` names the model's assumptions about the GPU. `stopped` says why the program stopped early, or is empty.
    """

    block: tuple[int, int, int]
    warp: int
    shared: int
    fragments: WarpFragments | None
    places: Mapping[str, str]
    tiles: tuple[TracedTile, ...]
    stopped: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    row: Row | None = None
    missing: str = ""
    assumed: str = ""

    @property
    def deviation(self) -> StepDeviation | StageDeviation | None:
        """The first deviation, in the order in which the kernel computes; None if there is none."""
        steps = (deviation for tile in self.tiles for step in tile.steps for deviation in step.deviations)
        stages = (stage.deviation for stage in self.stages)
        return next(steps, None) or next((deviation for deviation in stages if deviation is not None), None)


def judge_trace(
    document: Mapping[str, Any],
    case: Case,
    inputs: Inputs,
    *,
    block: Sequence[int],
    warp: int,
    tiles: Sequence[TileWork],
    offset: float,
    least: float = 0.0,
) -> JudgedTrace:
    """Judge the `read_trace` document of a warp of `block`; `tiles` are the block's tiles, in order.

    `least` is the smallest magnitude of an operand that the GPU's matrix instructions do not treat as 0.
    """
    fragments = WarpFragments.of(document, warp)
    operands = TracedOperands.of(case, inputs, least)
    read: dict[int, list[Step]] = {}
    for step in steps_of(document):
        read.setdefault(step.tile, []).append(step)
    traced = []
    for number, work in enumerate(tiles):
        if number in read:
            columns = warp_inputs(operands, work, fragments)
            exact = _Exact(columns, offset, work.kb0_start)
            steps = (WarpStep(step, fragments, columns, offset, step.kb0 == work.kb0_start) for step in read[number])
            judged = tuple(_step(step, exact) for step in steps)
            traced.append(TracedTile(work, columns.query, columns.head, columns.exists, judged))
    x, y, z = block
    stopped = tuple(document["stopped"])
    return JudgedTrace((x, y, z), warp, fragments.np, fragments, document["places"], tuple(traced), stopped)


class _Exact:
    """The online softmax of a warp's columns over its KV rows, step by step."""

    def __init__(self, inputs: WarpInputs, offset: float, kb0: int) -> None:
        self._inputs, self._offset, self._next = inputs, offset, kb0
        self.state = RunningSoftmax.empty(inputs.Q.shape[0], inputs.V.shape[1])
        self.known = True
        self.KQ = np.zeros((0, 0))

    def reach(self, step: WarpStep) -> None:
        """Add all steps up to this one; if the kernel gathers its rows, steps that were not read cannot be added."""
        self.known = self.known and (step.step.indices is None or step.step.kb0 <= self._next)
        for kb0 in range(self._next, step.step.kb0 + 1):
            inputs, rows = self._inputs, step.kv_rows + (kb0 - step.step.kb0) * step.nbatch_fa
            at, valid = inputs.rows(rows)
            self.KQ, _ = logits(inputs, rows)
            masked = np.where(valid, self.KQ if inputs.mask is None else self.KQ + inputs.mask[:, at], -np.inf)
            shift = self.state.raise_maximum(masked.max(axis=1) + self._offset)
            P = np.exp(masked - shift[:, None])
            self.state.total += P.sum(axis=1)
            self.state.weighted += factors(P, inputs.least) @ (inputs.V[at] * valid[:, None])
        self._next = step.step.kb0 + 1


def _step(step: WarpStep, exact: _Exact) -> TracedStep:
    with np.errstate(invalid="ignore", over="ignore"):
        exact.reach(step)
    unknown = 1.0 if exact.known else np.nan

    def read(name: str, arrange: Callable[[F64], F64]) -> F64:
        """Registers arranged by column; NaN where they were not read."""
        if name in step.step.registers:
            return arrange(step.step[name])
        return np.full((step.fragments.cols_per_warp, *([1] if "KQ_C" in name else [])), np.nan)

    judged = [_judged(step, quantity) for quantity in quantities(step)]
    return TracedStep(
        kb0=step.step.kb0,
        kv_rows=step.kv_rows,
        KQ=read("before.KQ_C", step.KQ_matrix),
        P=read("softmax.KQ_C", step.KQ_matrix),
        KQ_max=read("softmax.KQ_max", step.by_column),
        KQ_rowsum=read("softmax.KQ_rowsum", step.sum_by_column),
        KQ_max_scale=read("softmax.KQ_max_scale", step.by_column),
        VKQ_before=read("before.VKQ_C", step.VKQ_matrix),
        VKQ=read("after.VKQ_C", step.VKQ_matrix),
        exact_KQ=exact.KQ,
        exact_KQ_max=exact.state.maximum * unknown,
        exact_KQ_rowsum=exact.state.total * unknown,
        exact_VKQ=exact.state.weighted * unknown,
        checked=tuple(checked for checked, _ in judged),
        deviations=tuple(deviation for _, deviation in judged if deviation is not None),
    )


def _judged(step: WarpStep, quantity: Quantity) -> tuple[Checked, StepDeviation | None]:
    """Summarise a quantity's errors in existing columns; also returns the worst error if it exceeds its bound."""
    exists = step.inputs.exists[step.column(quantity.places.column)]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(quantity.error == 0.0, 0.0, quantity.error / quantity.bound)
    ratio = np.where(exists, ratio, 0.0)
    largest = (np.abs(quantity.values[exists]), quantity.error[exists], ratio)
    checked = Checked(quantity.name, *(float(part.max(initial=0.0)) for part in largest))
    beyond = ~(ratio <= 1.0 + SLACK)
    if not beyond.any():
        return checked, None
    lane, register = np.unravel_index(np.argmax(np.where(np.isnan(ratio), np.inf, ratio)), ratio.shape)
    column, along = quantity.places.column[lane, register], int(quantity.places.along[lane, register])
    of_warp, d = step.column(column), quantity.name.startswith("VKQ")
    return checked, StepDeviation(
        tile=step.step.tile,
        kb0=step.step.kb0,
        quantity=quantity.name,
        anchor=quantity.anchor,
        lane=int(lane),
        register=int(register),
        query=int(step.inputs.query[of_warp]),
        head=int(step.inputs.head[of_warp]),
        kv_row=along if along >= 0 and not d else None,
        d=along if along >= 0 and d else None,
        found=float(quantity.values[lane, register]),
        expected=float(quantity.expected[lane, register]),
        bound=float(quantity.bound[lane, register]),
        count=int(beyond.sum()),
    )
