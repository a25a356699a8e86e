"""The mask rows in memory of a large mask, which represent the rows of all queries."""

import numpy as np

from fattn_probe.base.arrays import I64

from .cases import Case


def mask_rows_read(case: Case, sequence: I64, query: I64) -> tuple[I64, I64]:
    """The sequence and the query whose mask row is read for a query (arrays).

    These are the same sequence and query, unless the mask repeats. Then row r of a period of n rows has the mask of
    query r * n_q / n of the first sequence, so that a period is an evenly spaced sample of the whole mask.
    """
    root, view = case.op.roots["mask"], case.op.tensors["mask"]
    if root.period is None:
        return sequence % view.ne[3], query
    place = view.offset + sequence % view.ne[3] * view.nb[3] + query * view.nb[1]
    rows = root.period // root.nb[1]
    return 0 * sequence, place // root.nb[1] % rows * case.op.sizes.n_q // rows


def queries_read(case: Case) -> I64:
    """The queries whose mask rows are in memory, in order."""
    root, n_q = case.op.roots.get("mask"), case.op.sizes.n_q
    if root is None or root.period is None:
        return np.arange(n_q)
    rows = root.period // root.nb[1]
    return np.arange(rows) * n_q // rows
