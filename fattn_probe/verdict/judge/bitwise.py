"""Check whether an output's bits depend on the run, or on the other rows of the batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, Bytes
from fattn_probe.cases.op import Op, Root, TensorView
from fattn_probe.cases.scenario import Case
from fattn_probe.verdict.measure.metrics import nmse, unequal
from fattn_probe.verdict.truth.reference.adapter import stored_rows

MINUS_INFINITY = np.float16(-np.inf)
PADDED = 64
"""GGML_KQ_MASK_PAD of the releases that have it."""


@dataclass(frozen=True)
class Check:
    """A check of a correct output, such as `roundings` or `order`, or `support` for a refused op.

    `passes`: the bits are the same. `fails`: they differ although they should not. Repeated runs must agree; a query
    computed alone may differ, because the dispatch may choose a different kernel. With `roundings`, at least 90 % of
    the elements must have the rounding model's bits. With `kernels`, the kernels must be those of the release. A check
    that could not be made neither passes nor fails; its reason says why.
    """

    name: str
    passes: bool
    fails: bool
    reason: str
    made: bool = True


def not_made(name: str, reason: str) -> Check:
    """A check that could not be made."""
    return Check(name, False, False, reason, made=False)


def repeated(first: F32, others: Sequence[F32], how: str) -> Check:
    """Whether repeated runs gave the same bits; `how` says what differed between the runs."""
    name, runs = "deterministic", len(others) + 1
    different = [number for number, other in enumerate(others, 2) if unequal(first, other).any()]
    if not different:
        return Check(name, True, False, f"the same bits in {runs} runs{how}")
    where = unequal(first, others[different[0] - 2])
    rows = int(where.any(axis=3).sum())
    words = f"{len(different)} of {runs} runs{how} differ from the first"
    reason = f"not deterministic: {words}: run {different[0]} differs in {int(where.sum())} elements, in {rows} rows"
    return Check(name, False, True, reason)


@dataclass(frozen=True)
class Alone:
    """A query computed alone: the kernel of that run, and its output compared with that of the batch."""

    query: int
    kernel: str
    equal: bool
    nmse: float


def batch_invariance(alone: Sequence[Alone], kernel: str) -> Check:
    """The check of queries computed alone; `kernel` is the batch's kernel."""
    name = "batch invariant"
    if not alone:
        return not_made(name, "no row could be computed alone")
    other = [row for row in alone if not row.equal]
    by = f"alone with {', '.join(sorted({row.kernel for row in alone}))}, in the batch with {kernel}"
    if not other:
        return Check(name, True, False, f"{len(alone)} queries have the same bits alone as in the batch, {by}")
    worst = max(row.nmse for row in other)
    queries = ", ".join(str(row.query) for row in other[:6])
    reason = f"{len(other)} of {len(alone)} queries have different bits alone ({queries}), NMSE up to {worst:.1e}: {by}"
    return Check(name, False, False, reason)


def slice_of(case: Case, inputs: Mapping[str, Bytes], query: int) -> tuple[Case, dict[str, Bytes]]:
    """A case reduced to a single query, and its inputs; K and V share the case's memory."""
    q = np.asarray(stored_rows(case.op.tensors["Q"], inputs))[:, :, query : query + 1]
    made: dict[str, tuple[Root, npt.NDArray[np.generic]]] = {
        "Q": (Root("Q", "f32", (case.op.sizes.hsk, 1, case.op.sizes.n_head, case.op.sizes.n_seq)), q)
    }
    if "mask" in case.op.tensors:
        stored = np.asarray(stored_rows(case.op.operands["mask"], inputs))
        pad = mask_pad(case)
        mask = np.full((len(stored), 1, pad, case.op.sizes.n_kv), MINUS_INFINITY)
        mask[:, :, 0] = stored[:, :, query]
        made["mask"] = (Root("mask", "f16", (case.op.sizes.n_kv, pad, 1, len(stored))), mask)
    roots = {name: root for name, (root, _) in made.items()}
    views = {name: TensorView(name, root.type, name, root.ne, root.nb, 0) for name, (root, _) in made.items()}
    memory = {name: np.ascontiguousarray(values).reshape(-1).view(np.uint8) for name, (_, values) in made.items()}
    op = Op(case.op.params, {**case.op.tensors, **views}, {**case.op.roots, **roots})
    return replace(case, name=f"{case.name}-query={query}", op=op), dict(inputs) | memory


def mask_pad(case: Case) -> int:
    """The multiple to which mask rows are padded; for a recorded case `PADDED` if its mask appears padded."""
    if not case.recorded:
        return case.recipe.layout.mask.pad
    rows = case.op.tensors["mask"].ne[1]
    return PADDED if rows > case.op.sizes.n_q and rows % PADDED == 0 else 1


def beside(query: int, alone: F32, batch: F32, kernel: str) -> Alone:
    """Compare the output of a query computed alone (n_seq, 1, n_head, hsv) with its rows in the batch's output."""
    rows: F32 = batch[:, query : query + 1]
    return Alone(query, kernel, not unequal(alone, rows).any(), nmse(alone, rows.astype(np.float64)))
