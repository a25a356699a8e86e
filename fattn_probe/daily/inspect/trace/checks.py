"""Check one step of the mma kernel, quantity by quantity, from inputs rounded as in the kernel.

Each quantity is computed in float64 from the kernel's own earlier quantities, so an error shows where it arises. The
bound covers the rounding of that quantity alone, and is as tight at the thousandth step as at the first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F64, Indices
from fattn_probe.cases.op.values import view_values
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.trace.fragments import Places, Step, WarpFragments
from fattn_probe.llama.launch.tiles import TileWork
from fattn_probe.verdict.truth.reference.adapter import Inputs
from fattn_probe.verdict.truth.reference.attention import alibi_slopes

Float = TypeVar("Float", np.float32, np.float64)
FLT_MAX_HALF = float(np.float32(np.finfo(np.float32).max) / np.float32(2))


@dataclass(frozen=True)
class TracedOperands:
    """An op's tensors as float64 in NumPy's order, and its parameters.

    `least` is the smallest magnitude of an operand that the GPU's matrix instructions do not treat as 0.
    """

    case: Case
    Q: F64
    K: F64
    V: F64
    mask: F64 | None
    sinks: F64 | None = None
    least: float = 0.0

    @classmethod
    def of(cls, case: Case, inputs: Inputs, least: float = 0.0) -> "TracedOperands":
        """The operands of a case, from its bytes; K and V of any type are rounded to f16, as in the kernels."""
        Q, K, V = (view_values(case.op.tensors[name], inputs) for name in "QKV")
        mask = view_values(case.op.operands["mask"], inputs) if "mask" in case.op.tensors else None
        sinks = view_values(case.op.tensors["sinks"], inputs).ravel() if case.op.has_sinks else None
        return cls(case, Q, factors(K, least), factors(V, least), mask, sinks, least)


@dataclass(frozen=True)
class WarpInputs:
    """The columns of a warp: scaled Q (columns, DKQ), K and V of their K/V head, slope * mask (columns, n_kv).

    `sink` is each column's sink, None if the warp adds none: only the first of the warps that share a column adds it,
    in the block that ends the tile. `query` and `head` identify each column; `exists`: both are in range.
    """

    Q: F64
    K: F64
    V: F64
    mask: F64 | None
    softcap: float
    query: Indices
    head: Indices
    exists: npt.NDArray[np.bool_]
    first_column: int
    sink: F64 | None = None
    least: float = 0.0

    def rows(self, numbers: Indices) -> tuple[Indices, npt.NDArray[np.bool_]]:
        """The KV rows clipped to valid indices, and which of them exist."""
        valid = (numbers >= 0) & (numbers < self.K.shape[0])
        return np.where(valid, numbers, 0), valid


def warp_inputs(operands: TracedOperands, work: TileWork, fragments: WarpFragments) -> WarpInputs:
    """The inputs of a warp's columns in a tile."""
    case = operands.case
    group = case.op.sizes.group
    columns = fragments.first_column + np.arange(fragments.cols_per_warp)
    query = work.jt * fragments.ncols1 + columns // fragments.ncols2
    in_group = work.zt_gqa * fragments.ncols2 + columns % fragments.ncols2
    exists = (query < case.op.sizes.n_q) & (in_group < group)
    head = work.z_KV * group + in_group
    heads, queries = np.where(exists, head, 0), np.where(exists, query, 0)
    Q = operands.Q[work.sequence, heads, queries] * exists[:, None]
    scale = np.float32(case.op.params.scale)
    if case.op.params.logit_softcap:
        scale = scale / np.float32(case.op.params.logit_softcap)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = factors(np.float16(scale) * Q.astype(np.float16), operands.least)
    mask = None
    if operands.mask is not None:
        slopes = alibi_slopes(case.op.sizes.n_head, case.op.params.max_bias)[heads]
        mask = operands.mask[work.sequence % operands.mask.shape[0], heads % operands.mask.shape[1], queries]
        mask = mask if (slopes == 1.0).all() else mask * slopes[:, None]
    return WarpInputs(
        scaled,
        operands.K[work.sequence, work.z_KV],
        operands.V[work.sequence, work.z_KV],
        mask,
        case.op.params.logit_softcap,
        query,
        head,
        exists,
        fragments.first_column,
        None if operands.sinks is None or work.is_fixup or fragments.warp % fragments.np else operands.sinks[heads],
        operands.least,
    )


def factors(values: npt.NDArray[np.floating[Any]], least: float) -> F64:
    """Round values to f16; those below `least` in magnitude become 0."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16).astype(np.float64)
    return np.where(np.abs(rounded) < least, 0.0, rounded)


ULP_F32 = 2.0**-23
TINY_F16 = 2.0**-24
F16_MAX = 65504.0
TANH_APPROX = 2.0**-10.9  # tanh.approx.f32: PTX ISA, maximum relative error 2^-11
EX2_APPROX = 2.0**-22
FLUSHED = 2.1e-9  # slightly more than exp(SOFTMAX_FTZ_THRESHOLD): a smaller rescale factor is set to 0


def distance(found: npt.NDArray[Float], expected: npt.NDArray[Float]) -> npt.NDArray[Float]:
    """The distance between values: 0 for equal infinities or two NaNs, infinite if only one is finite."""
    with np.errstate(invalid="ignore"):
        error = np.abs(found - expected)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    return np.where(same, 0, np.where(np.isnan(error), np.inf, error)).astype(found.dtype)


@dataclass(frozen=True)
class Quantity:
    """A variable's registers and their expected values, [lane][number].

    The values are read at `anchor`. `places` has each value's column in the tile, and its KV row in the op, d, or -1.
    """

    name: str
    anchor: str
    values: F64
    expected: F64
    bound: F64
    places: Places

    @property
    def error(self) -> F64:
        """The distance from the expected value."""
        return distance(self.values, self.expected)


@dataclass(frozen=True)
class WarpStep:
    """A step's registers, its fragments, its inputs, and the offset that the kernel adds to a logit for the maximum."""

    step: Step
    fragments: WarpFragments
    inputs: WarpInputs
    offset: float
    first: bool
    """Whether the tile begins with this step."""

    @cached_property
    def KQ_places(self) -> Places:
        """The positions of KQ's values; KV rows are counted from the first row of the step."""
        return self.fragments.KQ_places(self.step["before.KQ_C"].shape[1])

    @cached_property
    def own_rows(self) -> Indices:
        """The KV rows of this warp, counted from the step's first KV row."""
        return np.unique(self.KQ_places.along)

    @cached_property
    def kv_rows(self) -> Indices:
        """The KV rows of this warp, counted from the op's first KV row."""
        if self.step.indices is not None:
            return self.step.indices[self.own_rows]
        return self.own_rows + self.step.kb0 * self.nbatch_fa

    @property
    def half(self) -> bool:
        """Whether VKQ is f16."""
        return self.fragments.VKQ.T == "half2"

    @property
    def nbatch_fa(self) -> int:
        """The number of KV rows in a step, for all warps together."""
        return self.fragments.nbatch_fa(self.step["before.KQ_C"].shape[1])

    @cached_property
    def at_KQ(self) -> tuple[Indices, Indices]:
        """The indices of KQ's values in this warp's matrix (columns, own rows)."""
        return self.column(self.KQ_places.column), np.searchsorted(self.own_rows, self.KQ_places.along)

    @cached_property
    def VKQ_places(self) -> Places:
        """The positions of VKQ's values."""
        return self.fragments.VKQ_places(self.step["before.VKQ_C"].shape[1])

    @cached_property
    def at_VKQ(self) -> tuple[Indices, Indices]:
        """The indices of VKQ's values in this warp's matrix (columns, DV)."""
        return self.column(self.VKQ_places.column), self.VKQ_places.along

    @cached_property
    def at_state(self) -> Indices:
        """The warp's column of each KQ_max and KQ_rowsum, [lane][index]."""
        return self.column(self.state_places.column)

    @cached_property
    def state_places(self) -> Places:
        """The positions of KQ_max and KQ_rowsum, which have neither a KV row nor a d."""
        return self.fragments.places("KQ_max", 2)

    def column(self, of_block: Indices) -> Indices:
        """Convert columns of the block to columns counted from the warp's first column."""
        return of_block - self.fragments.first_column

    def KQ_matrix(self, values: F64) -> F64:
        """Arrange the values of KQ or P as a matrix (columns, own rows)."""
        matrix = np.zeros((self.fragments.cols_per_warp, len(self.own_rows)))
        matrix[self.at_KQ] = values
        return matrix

    def VKQ_matrix(self, values: F64) -> F64:
        """Arrange the values of VKQ as a matrix (columns, DV)."""
        matrix = np.zeros((self.fragments.cols_per_warp, self.inputs.V.shape[1]))
        matrix[self.at_VKQ] = values
        return matrix

    def by_column(self, values: F64) -> F64:
        """Take one value per column from registers that have the same value in all lanes of a column."""
        result = np.zeros(self.fragments.cols_per_warp)
        result[self.at_state] = values
        return result

    def sum_by_column(self, values: F64) -> F64:
        """Sum registers over the lanes of each column."""
        result = np.zeros(self.fragments.cols_per_warp)
        np.add.at(result, self.at_state, values)
        return result

    @cached_property
    def masked(self) -> F64:
        """The kernel's KQ plus the mask, [lane][number]; -inf for rows past the end of K."""
        at, valid = self.inputs.rows(self.kv_rows)
        mask = np.zeros(self.fragments.cols_per_warp)[:, None] if self.inputs.mask is None else self.inputs.mask[:, at]
        return self.step["before.KQ_C"] + np.where(valid, mask, -np.inf)[self.at_KQ]


def logits(inputs: WarpInputs, rows: Indices) -> tuple[F64, F64]:
    """KQ in float64 (columns, rows), softcapped, before the mask; and a bound on the tensor cores' error."""
    at, valid = inputs.rows(rows)
    with np.errstate(invalid="ignore"):
        products = inputs.Q[:, None, :] * (inputs.K[at] * valid[:, None])[None, :, :]
        sums = np.cumsum(products, axis=2)
    largest = np.maximum(np.abs(products).max(axis=2), np.abs(sums).max(axis=2))
    KQ, bound = sums[:, :, -1], 1.5 * products.shape[2] * ULP_F32 * largest
    if not inputs.softcap:
        return KQ, bound
    capped = np.tanh(KQ)
    return inputs.softcap * capped, inputs.softcap * (bound + TANH_APPROX * np.abs(capped))


def accumulate(start: F64, P: F64, V: F64, roundings: int, *, half: bool = True) -> tuple[F64, F64]:
    """start + P @ V, and a bound on the error of f16 or float32 sums with `roundings` roundings per 16 KV rows."""
    total, bound = start, np.zeros_like(start)
    for first in range(0, P.shape[1], 16):
        part = P[:, None, first : first + 16] * V.T[None, :, first : first + 16]
        sums = total[:, :, None] + np.cumsum(part, axis=2)
        largest = np.abs(sums).max(axis=2) * 1.001
        bound += roundings * (half_ulp(largest) if half else ULP_F32 * largest)
        total = sums[:, :, -1]
    return total, bound


def half_ulp(values: F64) -> F64:
    """Half an f16 ulp at |values|."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.floor(np.log2(np.minimum(np.abs(values), F16_MAX)))
    return np.where(np.isfinite(exponent), np.maximum(2.0 ** (exponent - 11), TINY_F16 / 2), TINY_F16 / 2)


def quantities(step: WarpStep) -> list[Quantity]:
    """The quantities of a step that can be checked, in the order of computation."""
    with np.errstate(invalid="ignore", over="ignore"):
        return [*_start(step), *_softmax(step), *_VKQ(step), *_end(step)]


def _start(step: WarpStep) -> Iterator[Quantity]:
    """Check the state at the beginning of a tile."""
    for name, value in {"KQ_max": -FLT_MAX_HALF, "KQ_rowsum": 0.0, "VKQ_C": 0.0}.items():
        values = step.step.registers.get(f"before.{name}")
        if values is not None and step.first:
            expected = np.full_like(values, value)
            places = step.VKQ_places if name == "VKQ_C" else step.state_places
            yield Quantity(f"{name} at the start", "logits", values, expected, np.abs(expected) * ULP_F32, places)


def _softmax(step: WarpStep) -> Iterator[Quantity]:
    read, state, at = step.step.registers, step.state_places, step.at_state
    rows = Places(step.KQ_places.column, step.kv_rows[step.at_KQ[1]])
    KQ, old, new = (read.get(name) for name in ("before.KQ_C", "before.KQ_max", "softmax.KQ_max"))
    P, scale = read.get("softmax.KQ_C"), read.get("softmax.KQ_max_scale")
    if KQ is not None:
        exact, bound = logits(step.inputs, step.kv_rows)
        yield Quantity("KQ", "logits", KQ, exact[step.at_KQ], bound[step.at_KQ], rows)
    if KQ is not None and old is not None and new is not None:
        # the larger of the old maximum and the largest masked logit plus an offset, over all lanes of a column
        expected = np.fmax(step.by_column(old), step.KQ_matrix(step.masked).max(axis=1) + step.offset)
        bound = 4 * ULP_F32 * (np.abs(expected) + step.offset)
        yield Quantity("KQ_max", "softmax", new, expected[at], bound[at], state)
    if old is not None and new is not None and scale is not None:
        change = step.by_column(old) - step.by_column(new)
        expected = np.exp(change)
        bound = _exp_error(change) * expected + FLUSHED * (expected < FLUSHED)
        yield Quantity("KQ_max_scale", "softmax", scale, expected[at], bound[at], state)
    if KQ is not None and new is not None and P is not None:
        change = step.masked - step.by_column(new)[step.at_KQ[0]]
        expected = np.where(np.isneginf(step.masked), 0.0, np.exp(change))
        masked = np.where(np.isfinite(step.masked), np.abs(step.masked), 0.0)
        rounding = 2 * ULP_F32 * (np.abs(KQ) + masked)
        bound = np.where(expected > 0, (_exp_error(change) + rounding) * expected, 0.0) + 2.0**-125
        yield Quantity("P", "softmax", P, expected, bound, rows)
    before, after = read.get("before.KQ_rowsum"), read.get("softmax.KQ_rowsum")
    if before is not None and after is not None and scale is not None and P is not None:
        # per lane, because the kernel sums over the lanes only after the last step
        own = [np.where(step.at_KQ[0] == at[:, index, None], P, 0.0).sum(axis=1) for index in range(at.shape[1])]
        expected = scale * before + np.stack(own, axis=1)
        yield Quantity("KQ_rowsum", "softmax", after, expected, P.shape[1] * ULP_F32 * np.abs(expected), state)


def _VKQ(step: WarpStep) -> Iterator[Quantity]:
    """Check VKQ after the rescale, and after adding V times P (rounded to f16); f16 may overflow to infinity."""
    read, places = step.step.registers, step.VKQ_places
    rescaled, scale = read.get("rescaled.VKQ_C"), read.get("softmax.KQ_max_scale")
    if rescaled is not None and scale is not None:
        by_column = step.by_column(scale)
        by_column = by_column.astype(np.float16).astype(np.float64) if step.half else by_column
        expected = read["before.VKQ_C"] * by_column[step.at_VKQ[0]]
        bound = half_ulp(expected) if step.half else ULP_F32 * np.abs(expected)
        yield _f16(Quantity("VKQ rescaled", "rescaled", rescaled, expected, bound, places))
    P, after = read.get("softmax.KQ_C"), read.get("after.VKQ_C")
    if rescaled is not None and P is not None and after is not None:
        rows, valid = step.inputs.rows(step.kv_rows)
        halves = factors(step.KQ_matrix(P), step.inputs.least)
        V = step.inputs.V[rows] * valid[:, None]
        # per 16 KV rows: on AMD (where the order of sums is assumed), on Volta, and at most on later GPUs
        roundings = 16 if step.fragments.KQ.layout else 4 if step.fragments.KQ.I == 32 else 2
        total, bound = accumulate(step.VKQ_matrix(rescaled), halves, V, roundings, half=step.half)
        yield _f16(Quantity("VKQ", "accumulated", after, total[step.at_VKQ], bound[step.at_VKQ], places))


def _end(step: WarpStep) -> Iterator[Quantity]:
    """Check the state after a tile's last step: row sums over the lanes of a column, and the sinks."""
    read, places, at, sink = step.step.registers, step.state_places, step.at_state, step.inputs.sink
    if not read.keys() >= {
        f"{phase}.{name}" for phase in ("after", "sunk") for name in ("KQ_max", "KQ_rowsum", "VKQ_C")
    }:
        return
    old, rowsum = step.by_column(read["after.KQ_max"]), step.sum_by_column(read["after.KQ_rowsum"])
    new = old if sink is None else np.fmax(old, sink)
    scale, added = np.exp(old - new), np.zeros_like(old) if sink is None else np.exp(sink - new)
    halves = scale.astype(np.float16).astype(np.float64)[step.at_VKQ[0]]
    VKQ, flushed = read["after.VKQ_C"] * halves, scale < FLUSHED
    error = (
        32 * ULP_F32 * (rowsum * scale + added) + _exp_error(old - new) * scale * rowsum + flushed * FLUSHED * rowsum
    )
    if sink is not None:
        error += _exp_error(sink - new) * added
    yield Quantity("KQ_max at the end", "sunk", read["sunk.KQ_max"], new[at], ULP_F32 * np.abs(new[at]), places)
    expected = (scale * rowsum + added)[at]
    yield Quantity("KQ_rowsum at the end", "sunk", read["sunk.KQ_rowsum"], expected, error[at], places)
    bound = half_ulp(VKQ) + np.abs(VKQ) * (0.0 if sink is None else 2.0**-10)
    yield _f16(Quantity("VKQ at the end", "sunk", read["sunk.VKQ_C"], VKQ, bound, step.VKQ_places))


def _f16(quantity: Quantity) -> Quantity:
    """Allow overflows in a quantity: a value beyond f16's range may be an infinity."""
    beyond = np.abs(quantity.expected) + quantity.bound > F16_MAX
    overflown = beyond & np.isinf(quantity.values) & (np.sign(quantity.values) == np.sign(quantity.expected))
    return replace(quantity, expected=np.where(overflown, quantity.values, quantity.expected))


def _exp_error(argument: F64) -> F64:
    """A bound on the relative error of ex2.approx(argument * log2(e)), with the argument rounded to f32 twice."""
    return (2.0 + np.minimum(np.abs(argument), 1e4)) * EX2_APPROX
