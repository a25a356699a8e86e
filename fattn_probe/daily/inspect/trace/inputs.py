"""The inputs of a tile of the mma kernel: Q, K and V as the kernel rounds them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F64, Indices
from fattn_probe.cases.op.values import view_values
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.trace.fragments import WarpFragments
from fattn_probe.llama.launch.tiles import TileWork
from fattn_probe.verdict.truth.reference.adapter import Inputs
from fattn_probe.verdict.truth.reference.attention import alibi_slopes

FLT_MAX_HALF = float(np.float32(np.finfo(np.float32).max) / np.float32(2))


@dataclass(frozen=True)
class TracedOperands:
    """An op's tensors as float64 in NumPy's order, and its parameters.

    `least` is the smallest factor that the GPU's matrix instructions do not treat as 0.
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
        """The operands of a case, from its bytes; K and V of any type are rounded to f16, as the kernels do."""
        Q, K, V = (view_values(case.op.tensors[name], inputs) for name in "QKV")
        mask = view_values(case.op.operands["mask"], inputs) if "mask" in case.op.tensors else None
        sinks = view_values(case.op.tensors["sinks"], inputs).ravel() if case.op.has_sinks else None
        return cls(case, Q, factors(K, least), factors(V, least), mask, sinks, least)


@dataclass(frozen=True)
class WarpInputs:
    """The columns of a warp: scaled Q (columns, DKQ), K and V of their K/V head, slope * mask (columns, n_kv).

    `sink` is that of each column, None if the warp adds no sinks: only the first of the warps that share a column does,
    where the tile ends. `query` and `head` identify each column; columns past the last query or head do not exist.
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
    """The inputs of the warp's columns of a tile."""
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
    mask = None if operands.mask is None else _mask(operands, work.sequence, heads, queries)
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


def _mask(operands: TracedOperands, sequence: int, heads: Indices, queries: Indices) -> F64:
    mask, case = operands.mask, operands.case
    assert mask is not None
    slopes = alibi_slopes(case.op.sizes.n_head, case.op.params.max_bias)[heads]
    rows: F64 = mask[sequence % mask.shape[0], heads % mask.shape[1], queries]
    return rows if (slopes == 1.0).all() else rows * slopes[:, None]


def factors(values: npt.NDArray[np.floating[Any]], least: float) -> F64:
    """The values rounded to f16; 0 for those below `least`."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16).astype(np.float64)
    return np.where(np.abs(rounded) < least, 0.0, rounded)
