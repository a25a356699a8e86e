"""Compare one row of a running kernel with the papers' m, l and rescale factor: each KV step, each stored part, dst."""

# ruff: noqa: E741  (O and l are the papers' names)

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from fattn_probe.base.arrays import F64, Indices
from fattn_probe.base.errors import InputError, LostError
from fattn_probe.base.tables import Table
from fattn_probe.daily.inspect.trace.reference import JudgedTrace
from fattn_probe.daily.inspect.trace.show import NOTHING_SEEN
from fattn_probe.daily.inspect.trace.stages import Row, StoredRow
from fattn_probe.daily.inspect.trace.tracer import Tracer
from fattn_probe.lab.study.problem import StudyHead, exp_below
from fattn_probe.llama.launch.families import TILE


@dataclass(frozen=True)
class Beside:
    """The state of a row after some KV rows, [first, last + 1), according to the papers and in the kernel.

    The kernel's maximum is without FATTN_KQ_MAX_OFFSET, and its sum is relative to that. `where` is a step of a warp or
    a part that a block stores. A rescale factor is None at the first step, and where it was not read.
    """

    where: str
    kv: tuple[int, int]
    m: float
    kernel_m: float
    l: float
    kernel_l: float
    rescale: float | None = None
    kernel_rescale: float | None = None


@dataclass(frozen=True)
class Against:
    """A row (sequence, query, head) of a kernel on a target, and its output (d_v).

    `left` is the number of the row's warps that were not read, because there were enough steps.
    """

    row: Row
    on: str
    kernel: str
    states: tuple[Beside, ...]
    out: tuple[float, ...]
    left: int


def read_against(tracer: Tracer, head: StudyHead, row: Row, most: int) -> Against:
    """Read a row's warps, until there are `most` steps, then its parts and its output.

    InputError if the row cannot be followed: on a real GPU, or with gathered KV rows. LostError if dst is not reached.
    """
    label, query = f"{tracer.case.name} on {tracer.target}", row[1]
    if tracer.case.op.params.n_kv_max:
        raise InputError(f"{label}: --against does not follow kernels that gather KV rows (n_kv_max)")
    model, missing = tracer.model()
    if model is None:
        raise InputError(f"{label}: {missing}")
    kernel, stored = model[0].kernel, StoredRow(*model, row)
    warps = [(block, warp) for block in stored.parts for warp in stored.warps]
    states: list[Beside] = []
    read = 0
    while read < len(warps) and len(states) < most:
        block, warp = warps[read]
        seen, shared, before = np.zeros(0, np.intp), np.zeros(0, np.intp), -np.inf
        for kb0, own, maximum, total, scale in steps_of(tracer.warp(model, block, warp), row):
            seen = np.concatenate([seen, own[own < head.n_kv]])
            if kernel.family is TILE:  # warps that share a column share its maximum
                step = kb0 * kernel.nbatch_fa + np.arange(kernel.nbatch_fa)
                shared = np.concatenate([shared, step[step < head.n_kv]])
            m, l = exact(head, query, seen, shared)
            rescale = None if np.isneginf(before) else float(np.exp(before - m))
            where = f"block {block}, warp {warp}, kb0 {kb0}"
            numbers = m, maximum - kernel.max_offset, l, total * np.exp(kernel.max_offset)
            states.append(Beside(where, span(own), *numbers, rescale, None if rescale is None else scale))
            before = m
        read += 1
    stages, stopped = tracer.in_memory(stored)
    found = {(stage.where, stage.quantity): stage.found for stage in stages}
    if stopped or ("dst", "output") not in found:
        raise LostError(f"{label} ended before its output was written: {' '.join(stopped)}")
    for block, work in stored.parts.items() if np.isneginf(head.rule.sink) else ():  # with a sink, one part contains it
        where = f"stored by block {block}"
        if (where, "KQ_max") in found:
            own = (np.array(work.steps)[:, None] * kernel.nbatch_fa + np.arange(kernel.nbatch_fa)).ravel()
            m, l = exact(head, query, own[own < head.n_kv])
            maximum, total = (float(found[where, name][0]) for name in ("KQ_max", "row sum"))
            numbers = m, maximum - kernel.max_offset, l, total * np.exp(kernel.max_offset)
            states.append(Beside(where, span(own), *numbers))
    out = tuple(map(float, found["dst", "output"]))
    return Against(row, str(tracer.target), kernel.spelling, tuple(states), out, len(warps) - read)


def exact(head: StudyHead, query: int, rows: Indices, more: Indices | None = None) -> tuple[float, float]:
    """m and l of a query over some KV rows, in float64, without the sink; `more` rows count only for m."""
    every = rows if more is None else np.concatenate([rows, more])
    mask = None if head.mask is None else head.mask[query : query + 1, every]
    S = head.rule.logits(head.Q[query : query + 1], head.K[every], mask)[0]
    m = S.max()
    return float(m), float(exp_below(S[: len(rows)], m).sum())


def steps_of(traced: JudgedTrace, row: Row) -> Iterator[tuple[int, Indices, float, float, float | None]]:
    """A row's steps in a warp: kb0, the KV rows of the warp, KQ_max, the row sum, and the rescale factor if read."""
    for tile in traced.tiles:
        at = np.flatnonzero((tile.query == row[1]) & (tile.head == row[2]) & (tile.tile.sequence == row[0]))
        for step in tile.steps if len(at) else ():
            maximum, total, scale = (float(of[at[0]]) for of in (step.KQ_max, step.KQ_rowsum, step.KQ_max_scale))
            yield step.kb0, step.kv_rows, maximum, total, scale
    for kb0 in sorted({stage.kb0 for stage in traced.stages if stage.kb0 is not None}):
        stages = {stage.quantity: stage for stage in traced.stages if stage.kb0 == kb0}
        if {"KQ", "KQ_max", "KQ_sum"} <= stages.keys():
            labels = stages["KQ"].labels
            column = np.flatnonzero((labels["query"].ravel() == row[1]) & (labels["head"].ravel() == row[2]))[0]
            maximum, sums = (stages[name].found[column] for name in ("KQ_max", "KQ_sum"))
            yield kb0, np.unique(labels["KV row"]), float(maximum.flat[0]), float(sums.sum()), None


def span(rows: Indices) -> tuple[int, int]:
    """The first KV row, and one past the last."""
    return int(rows.min()), int(rows.max()) + 1


def against_lines(found: Against, O: F64) -> Iterator[RenderableType]:
    """The table, and the largest difference between dst and the row's O (d_v)."""
    columns = ("where", "KV rows", "m", "kernel", "l", "kernel", "rescale", "kernel")
    lines = []
    for one in found.states:
        numbers = (one.m, one.kernel_m, one.l, one.kernel_l, one.rescale, one.kernel_rescale)
        words = ("" if number is None else "-inf" if number < NOTHING_SEEN else f"{number:.4g}" for number in numbers)
        lines.append((one.where, f"{one.kv[0]}-{one.kv[1] - 1}", *words))
    yield Text(f"{found.kernel} on {found.on}: sequence {found.row[0]}, query {found.row[1]}, head {found.row[2]}")
    yield Table(columns, tuple(lines), frozenset(columns[1:]))
    more = f" {found.left} more warps of this row were not read (--steps)." if found.left else ""
    yield Text(
        "kernel: KQ_max without FATTN_KQ_MAX_OFFSET, the row sum relative to that, and KQ_max_scale where it is a"
        f" variable of its own.{more}",
        "dim",
    )
    difference, largest = float(np.abs(O - np.array(found.out)).max()), float(np.abs(O).max())
    yield Text(f"dst differs from O by at most {difference:.2g}; the largest of |O| is {largest:.3g}.")
