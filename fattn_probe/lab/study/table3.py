"""FlashAttention-3's table 3 measured again: the error of f16 and FP8 attention on data with outliers.

The paper (arXiv 2407.08608, section 4.3) gives the distribution and the RMSE. It does not give the sizes; they are
taken from its previous section (4.2, table 2): 8448 rows, head size 128, no mask. Its RMSE of f16 includes the rounding
of Q, K and V to f16, so the reference uses the unrounded float32 numbers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.arrays import F64
from fattn_probe.cases.op import Params
from fattn_probe.cases.scenario.data import Fa3Outliers
from fattn_probe.cases.scenario.draw import STREAMS, Logits, draw, stream
from fattn_probe.lab.study.papers import standard
from fattn_probe.lab.study.precisions import VARIANTS, Rounded, errors
from fattn_probe.lab.study.problem import MaskRule, StudyHead

ROWS, HEAD_SIZE, TILE = 8448, 128, 128
QUERIES = 256
"""Queries of each head: this is enough, because the error of a query does not depend on the others."""
PAPER: Mapping[str, float] = {
    "f16-standard": 3.2e-4,
    "f16-flash": 1.9e-4,
    "fp8-standard": 2.4e-2,
    "fp8-fa3": 9.1e-3,
    "fp8-no-blocks": 9.3e-3,
    "fp8-no-rotation": 2.4e-2,
}


Figures = dict[str, Any]


def measure(heads: int, step: Step = quiet, *, rows: int = ROWS, queries: int = QUERIES, d: int = HEAD_SIZE) -> Figures:
    """Measure every variant on a number of heads: the sizes, and the `table`."""
    found = [_measured(number, heads, step, (rows, queries, d)) for number in range(heads)]
    table = [row_of(name, [head[place].mean_square for head in found]) for place, name in enumerate(VARIANTS)]
    return {"heads": heads, "queries": queries, "rows": rows, "head_size": d, "table": table}


def row_of(variant: str, squares: list[float]) -> Figures:
    """A row from the mean square errors of the heads: `variant`, `rmse`, its standard error, and the paper's figure.

    The standard error, `spread`, is that of the mean, to first order.
    """
    mean = float(np.mean(squares))
    spread = float(np.std(squares, ddof=1) / np.sqrt(len(squares)) / (2 * np.sqrt(mean))) if len(squares) > 1 else 0.0
    return {"variant": variant, "rmse": float(np.sqrt(mean)), "spread": spread, "paper": PAPER.get(variant)}


def _measured(number: int, heads: int, step: Step, sizes: tuple[int, int, int]) -> tuple[Rounded, ...]:
    words = f"head {number + 1} of {heads}"
    step(f"{words}: float64")
    head = drawn(number, *sizes)
    exact = standard(head, TILE).out
    return errors(head, exact, TILE, TILE, seed=number, step=lambda variant: step(f"{words}: {variant}"))


def drawn(number: int, rows: int, queries: int, d: int) -> StudyHead:
    """A head of N(0, 1) + N(0, 100) Bernoulli(0.001), scaled by 1 / sqrt(d)."""
    scale = 1.0 / float(np.sqrt(d))

    def tensor(name: str, length: int) -> F64:
        data = Fa3Outliers(kind="fa3_outliers")
        values = draw(data, name, (length, d), stream(0, STREAMS[name], (number, 0)), Logits(scale, d))
        return values.astype(np.float64)

    return StudyHead(tensor("Q", queries), tensor("K", rows), tensor("V", rows), None, MaskRule(Params(scale)))
