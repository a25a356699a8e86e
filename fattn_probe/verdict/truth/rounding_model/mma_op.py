"""fattn-mma-f16 on a whole op: divides the columns into blocks that fit in a cache, computed on all cores."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, Bools, Indices
from fattn_probe.base.workers import spread
from fattn_probe.cases.op import Sizes
from fattn_probe.llama.launch.geometry import gathered, grid_of
from fattn_probe.llama.launch.tiles import Grid, ntiles, tile_index
from fattn_probe.verdict.truth.reference.engine import slices
from fattn_probe.verdict.truth.rounding_model.functions import half_of
from fattn_probe.verdict.truth.rounding_model.mma_f16 import Columns, MmaMachine
from fattn_probe.verdict.truth.rounding_model.mma_plan import MmaPlan
from fattn_probe.verdict.truth.rounding_model.operands import KernelOperands

COLUMNS = 256
"""Columns computed together: enough for long vectors, few enough to keep several cores busy."""


@dataclass(frozen=True)
class Batch:
    """Columns of one K/V head of one sequence that read the same KV rows, and their positions.

    `rows` are the KV rows that the columns read, in order, with -1 for masked padding; None means all rows. `queries`,
    `heads` and `tiles` give each column's query, head and output tile.
    """

    sequence: int
    head_kv: int
    queries: Indices
    heads: Indices
    tiles: Indices
    rows: Indices | None = None


def mma_f16(operands: KernelOperands, plan: MmaPlan, n_kv_max: int, wanted: Bools | None) -> F32:
    """The op's output as fattn-mma-f16 computes it, (n_seq, n_q, n_head, hsv).

    `wanted` (n_seq, n_q, n_head) marks the rows to compute; the others are NaN. `n_kv_max` bounds the KV rows that a
    query sees, for a launch that gathers them.
    """
    n_seq, n_head, n_q, _ = operands.Q.shape
    out = np.full((n_seq, n_q, n_head, plan.kernel.DV), np.nan, np.float32)

    @np.errstate(over="ignore", invalid="ignore")  # values beyond f16 overflow as in the kernel
    def compute(work: tuple[Sequence[Batch], Callable[[], MmaMachine]]) -> None:
        batches, machine = work
        for batch, values in zip(batches, machine().run(), strict=True):
            out[batch.sequence, batch.queries, batch.heads] = values

    spread(compute, list(mma_machines(operands, plan, n_kv_max, wanted)))
    return out


def mma_machines(
    operands: KernelOperands, plan: MmaPlan, n_kv_max: int, wanted: Bools | None
) -> Iterator[tuple[Sequence[Batch], Callable[[], MmaMachine]]]:
    """The batches of an op's columns, in groups; each group has a function that builds the machine to compute it."""
    n_seq, n_head, n_q, _ = operands.Q.shape
    Q = half_of(half_of(operands.Q) * np.float32(np.float16(operands.scale)))
    operands = replace(operands, Q=Q, K=half_of(operands.K), V=half_of(operands.V))
    sizes = Sizes(n_seq, n_head, operands.K.shape[1], n_q, operands.K.shape[2], plan.kernel.DKQ, plan.kernel.DV)
    grid = grid_of(
        sizes, plan.kernel.ncols1, plan.kernel.ncols2, plan.kernel.nbatch_fa, _limit(operands, plan, n_kv_max)
    )
    begins = plan.begins(ntiles(grid), grid.iter_k)

    def machine(batches: Sequence[Batch]) -> MmaMachine:
        return MmaMachine(plan, _side_by_side([_columns(operands, plan, batch, begins) for batch in batches]))

    for batches in _together(_batches(operands, plan, grid, n_kv_max, wanted)):
        yield batches, partial(machine, batches)


def _limit(operands: KernelOperands, plan: MmaPlan, n_kv_max: int) -> int:
    """The number of KV rows that a tile reads."""
    n_kv = operands.K.shape[2]
    return gathered(n_kv, n_kv_max, plan.kernel.ncols1) if plan.kernel.sparse else n_kv


def _batches(
    operands: KernelOperands, plan: MmaPlan, grid: Grid, n_kv_max: int, wanted: Bools | None
) -> Iterator[Batch]:
    """Blocks of columns: from all queries, or from a single query tile if each tile gathers its KV rows."""
    n_seq, _, n_q, _ = operands.Q.shape
    group, n_head_kv = operands.group, operands.K.shape[1]
    limit = _limit(operands, plan, n_kv_max)
    for sequence, head_kv in np.ndindex(n_seq, n_head_kv):
        for part in slices(n_q, plan.kernel.ncols1 if plan.kernel.sparse else n_q):
            place = np.arange(group * (part.stop - part.start))
            head, query = place // (part.stop - part.start), part.start + place % (part.stop - part.start)
            tile = np.asarray(
                tile_index(sequence, head_kv, head // plan.kernel.ncols2, query // plan.kernel.ncols1, grid)
            )
            rows = None
            if plan.kernel.sparse:  # the first KV rows that any of the queries sees, padded with -1
                assert operands.mask is not None
                seen = np.isfinite(operands.mask[sequence % len(operands.mask), part]).any(axis=0)
                found = np.flatnonzero(seen)[:limit]
                rows = np.concatenate([found, np.full(limit - len(found), -1, np.intp)])
            if wanted is not None:
                some = wanted[sequence, query, head_kv * group + head]
                head, query, tile = head[some], query[some], tile[some]
            for block in slices(len(query), COLUMNS):
                yield Batch(sequence, head_kv, query[block], head_kv * group + head[block], tile[block], rows)


def _together(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Group batches with the same number of columns, up to COLUMNS columns in total."""
    found: list[Batch] = []
    for batch in batches:
        size = len(batch.queries)
        if found and (size != len(found[0].queries) or (len(found) + 1) * size > COLUMNS):
            yield found
            found = []
        found.append(batch)
    if found:
        yield found


def _side_by_side(columns: Sequence[Columns]) -> Columns:
    """Join columns along the batch axis."""
    if len(columns) == 1:
        return columns[0]
    joined: dict[str, Any] = {}
    for name in ("Q", "K", "V", "mask", "slope", "sink", "begins"):
        parts = [getattr(each, name) for each in columns]
        joined[name] = None if parts[0] is None else np.concatenate(parts)
    return replace(columns[0], **joined)


def _columns(operands: KernelOperands, plan: MmaPlan, batch: Batch, begins: npt.NDArray[np.bool_]) -> Columns:
    place = (batch.sequence, batch.head_kv)
    K, V = operands.K[place], operands.V[place]
    mask = np.zeros((len(batch.queries), len(K)), np.float32)
    if operands.mask is not None:
        mask = operands.mask[batch.sequence % len(operands.mask), batch.queries]
    if batch.rows is not None:
        K, V, mask = K[batch.rows], V[batch.rows], np.where(batch.rows < 0, -np.inf, mask[:, batch.rows])
    padding = begins.shape[1] * plan.kernel.nbatch_fa - len(K)
    if padding:
        K, V = (np.pad(each, [(0, padding), (0, 0)]) for each in (K, V))
        mask = np.pad(mask, [(0, 0), (0, padding)], constant_values=-np.inf)
    sinks = operands.sinks
    return Columns(
        Q=operands.Q[batch.sequence, batch.heads, batch.queries][None],
        K=K[None],
        V=V[None],
        mask=mask[None].astype(np.float32),
        slope=operands.slopes[batch.heads][None],
        sink=None if sinks is None else sinks[batch.heads][None],
        begins=begins[batch.tiles][None],
        softcap=operands.logit_softcap,
    )
