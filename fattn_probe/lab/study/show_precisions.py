"""The errors of f16 and FP8 attention as text and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.arrays import F64
from fattn_probe.base.tables import Table, Word
from fattn_probe.lab.study.precisions import Rounded
from fattn_probe.lab.study.table3 import Table3

TITLES: Mapping[str, str] = {
    "f16-standard": "standard, f16",
    "f16-flash": "FlashAttention-2 and 3, f16",
    "fp8-standard": "standard, FP8, a scale for each tensor",
    "fp8-fa3": "FlashAttention-3, FP8",
    "fp8-no-blocks": "  without block quantisation",
    "fp8-no-rotation": "  without incoherent processing",
    "fp8-float32-sums": "  if sums were float32",
}
RULES = (
    "RMSE against float64 from Q, K and V as they were given. FP8 is e4m3; FlashAttention-3 adds its products as"
    " Hopper's tensor cores do, with 13 bits after the leading one, the others in float32."
)


def precision_lines(found: Sequence[Rounded], exact: F64) -> Iterator[RenderableType]:
    """The variants' errors on a scenario's head."""
    size = float(np.sqrt(np.mean(exact**2)))
    rows = [(TITLES[one.variant], f"{one.rmse:.2e}", _share(one.rmse, size)) for one in found]
    yield Table(("attention", "RMSE", "of RMS(O)"), tuple(rows), frozenset({"RMSE", "of RMS(O)"}))
    yield Text(RULES, "dim")


def _share(rmse: float, size: float) -> str:
    return f"{rmse / size:.3%}" if size else ""


def precisions_json(found: Sequence[Rounded]) -> list[dict[str, Any]]:
    """The variants with their errors; an overflow is null."""
    return [{"variant": one.variant, "rmse": one.rmse if np.isfinite(one.rmse) else None} for one in found]


def render_table3(found: Table3) -> RenderableType:
    """Table 3 beside that of the paper."""
    rows: list[tuple[Word, ...]] = []
    for row in found.table:
        paper = ("", "") if row.paper is None else (f"{row.paper:.1e}", f"{row.rmse / row.paper - 1:+.0%}")
        rows.append((TITLES[row.variant], f"{row.rmse:.2e}", f"{row.spread:.0e}", *paper))
    columns = ("attention", "RMSE", "±", "paper", "")
    words = (
        f"{found.heads} heads, {found.queries} queries each, {found.rows} KV rows, head size {found.head_size}, no mask"
    )
    return Group(
        Text.assemble(("Table 3 of FlashAttention-3", "bold green"), ("  Shah et al. 2024, arXiv 2407.08608", "dim")),
        Text(f"Q, K, V from N(0, 1) + N(0, 100) Bernoulli(0.001); {words}"),
        Table(columns, tuple(rows), frozenset(columns) - {"attention"}),
        Text(f"± is a standard error over the heads. {RULES}", "dim"),
    )


def table3_json(found: Table3) -> dict[str, Any]:
    """The JSON document of `--table3`."""
    return {"table3": asdict(found)}
