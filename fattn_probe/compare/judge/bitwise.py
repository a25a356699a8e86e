"""Whether an output's bits depend on what they should not: on the run, on the other rows of the batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F32, F64, Bytes
from fattn_probe.compare.judge.metrics import unequal
from fattn_probe.op import Op, Root, TensorView
from fattn_probe.scenario import Case
from fattn_probe.truth.reference.adapter import stored_rows

MINUS_INFINITY = np.float16(-np.inf)


@dataclass(frozen=True)
class Check:
    """A bitwise check: `deterministic` or `batch invariant`.

    `passes` if the bits are the same; `fails` if they should have been: what a row is computed with may depend on how
    many there are, as another kernel is chosen, but never on the run.
    """

    name: str
    passes: bool
    fails: bool
    reason: str


def repeated(first: F32, others: Sequence[F32], how: str) -> Check:
    """Whether runs of the same gave the same bits; `how` says what was different about them."""
    name, runs = "deterministic", len(others) + 1
    different = [number for number, other in enumerate(others, 2) if unequal(first, other).any()]
    if not different:
        return Check(name, True, False, f"the same bits in {runs} runs{how}")
    where = unequal(first, others[different[0] - 2])
    rows = int(where.any(axis=3).sum())
    words = f"{len(different)} of {runs} runs{how} gave other bits than the first"
    reason = f"not deterministic: {words}: run {different[0]} in {int(where.sum())} elements of {rows} rows"
    return Check(name, False, True, reason)


@dataclass(frozen=True)
class Alone:
    """A query computed by itself: the kernels of that run, and how its output compares with that of the batch."""

    query: int
    kernels: tuple[str, ...]
    equal: bool
    nmse: float


def batch_invariance(alone: Sequence[Alone], kernel: str, name_of: Mapping[int, str]) -> Check:
    """What rows computed alone say; `kernel` did the batch, `name_of` gives the kernel of each query's own run."""
    name = "batch invariant"
    if not alone:
        return Check(name, False, False, "no row could be computed alone")
    other = [row for row in alone if not row.equal]
    used = sorted({name_of[row.query] for row in alone})
    by = f"alone by {', '.join(used)}, in the batch by {kernel}"
    if not other:
        return Check(name, True, False, f"{len(alone)} queries have the same bits alone as in the batch, {by}")
    worst = max(row.nmse for row in other)
    queries = ", ".join(str(row.query) for row in other[:6])
    reason = f"{len(other)} of {len(alone)} queries have other bits alone ({queries}), NMSE up to {worst:.1e}: {by}"
    return Check(name, False, False, reason)


def chosen_queries(n_q: int, number: int) -> list[int]:
    """So many queries from all over the batch, the first and the last among them."""
    return sorted({int(query) for query in np.linspace(0, n_q - 1, min(number, n_q)).round()})


def slice_of(case: Case, inputs: Mapping[str, Bytes], query: int) -> tuple[Case, dict[str, Bytes]]:
    """The op with one query of a case alone, and its inputs; K and V are the same memory."""
    q = np.asarray(stored_rows(case.op.tensors["Q"], inputs))[:, :, query : query + 1]
    made: dict[str, tuple[Root, npt.NDArray[np.generic]]] = {
        "Q": (Root("Q", "f32", (case.op.sizes.hsk, 1, case.op.sizes.n_head, case.op.sizes.n_seq)), q)
    }
    if "mask" in case.op.tensors:
        stored = np.asarray(stored_rows(case.op.tensors["mask"], inputs))
        pad = case.layout.mask.pad
        mask = np.full((len(stored), 1, pad, case.op.sizes.n_kv), MINUS_INFINITY)
        mask[:, :, 0] = stored[:, :, query]
        made["mask"] = (Root("mask", "f16", (case.op.sizes.n_kv, pad, 1, len(stored))), mask)
    roots = {name: root for name, (root, _) in made.items()}
    views = {name: TensorView(name, root.type, name, root.ne, root.nb, 0) for name, (root, _) in made.items()}
    memory = {name: np.ascontiguousarray(values).reshape(-1).view(np.uint8) for name, (_, values) in made.items()}
    op = Op(case.op.params, {**case.op.tensors, **views}, {**case.op.roots, **roots})
    return replace(case, name=f"{case.name}-query={query}", op=op), dict(inputs) | memory


def beside(query: int, alone: F32, batch: F32, kernels: tuple[str, ...]) -> Alone:
    """A query's output alone (n_seq, 1, n_head, hsv) beside its rows of the batch's."""
    rows: F32 = batch[:, query : query + 1]
    difference: F64 = (alone - rows).astype(np.float64)
    power = float(np.vdot(rows, rows))
    return Alone(query, kernels, not unequal(alone, rows).any(), float(np.vdot(difference, difference)) / power)
