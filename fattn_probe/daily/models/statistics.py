"""Statistics of a recorded op's values by head, and the distance of a kernel's values from the limits of f16.

The terminal shows them as a table, a browser as a self-contained page.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from fattn_probe.base.activity import Step
from fattn_probe.base.arrays import F64, Bytes
from fattn_probe.base.documents import plain
from fattn_probe.base.files import write_text
from fattn_probe.base.tables import Table
from fattn_probe.base.view.marks import Drawing, Look, Stroke
from fattn_probe.base.view.svg import svg
from fattn_probe.cases.op import Op
from fattn_probe.cases.op.case_file import read_case
from fattn_probe.cases.op.values import logits_of
from fattn_probe.daily.inspect.view.page import environment
from fattn_probe.daily.models.recorded_op import Index
from fattn_probe.verdict.truth.reference.adapter import operand_values
from fattn_probe.verdict.truth.reference.attention import alibi_slopes

LARGEST, SMALLEST, SUBNORMAL = 65504.0, 2.0**-24, 2.0**-14
"""The largest, the smallest positive, and the smallest normal f16 number."""
FIRST_BIN, LAST_BIN = -25, 16
"""Bins b for |x| in [2^b, 2^(b+1)); the first also counts all smaller values, the last all larger values."""
TILE = 64
"""Queries, and KV rows, in a tile of the mask."""
MOST = 1 << 22
"""The largest number of logits in memory at once."""


@dataclass(frozen=True)
class Range:
    """The minimum and maximum of `count` values, their mean and standard deviation, and the number in each bin."""

    count: int
    least: float
    greatest: float
    mean: float
    std: float
    bins: tuple[int, ...]

    @classmethod
    def of(cls, values: F64) -> "Range":
        """The range of an array of any shape; ignores non-finite values."""
        found = values[np.isfinite(values)]
        if not found.size:
            return cls(0, 0.0, 0.0, 0.0, 0.0, (0,) * (LAST_BIN - FIRST_BIN + 1))
        return cls(
            found.size, float(found.min()), float(found.max()), float(found.mean()), float(found.std()), bins_of(found)
        )

    @classmethod
    def joined(cls, parts: "Sequence[Range]") -> "Range":
        """The range of all values in several ranges."""
        parts = [part for part in parts if part.count] or [*parts[:1]]
        count = sum(part.count for part in parts)
        if not count:
            return parts[0]
        mean = sum(part.count * part.mean for part in parts) / count
        square = sum(part.count * (part.std**2 + (part.mean - mean) ** 2) for part in parts) / count
        bins = tuple(map(sum, zip(*(part.bins for part in parts), strict=True)))
        least, greatest = min(part.least for part in parts), max(part.greatest for part in parts)
        return cls(count, least, greatest, mean, math.sqrt(square), bins)


@dataclass(frozen=True)
class Weights:
    """P for some queries of a head: counts of positive elements, and of those that are subnormal or zero in f16.

    `largest_sum` is the largest sum of P |V|; infinity also stands for NaN.
    """

    positive: int
    subnormal: int
    zero: int
    largest_sum: float

    @classmethod
    def of(cls, P: F64, V: F64) -> "Weights":
        """The weights from P (queries, n_kv) and V (n_kv, hsv)."""
        positive = P[P > 0]
        zero = int(np.count_nonzero(positive < SMALLEST / 2))
        largest = float((P @ np.abs(V)).max(initial=0.0))
        few = int(np.count_nonzero(positive < SUBNORMAL)) - zero
        return cls(positive.size, few, zero, largest if math.isfinite(largest) else math.inf)


@dataclass(frozen=True)
class HeadStatistics:
    """A head of a sequence: its operands, its logits at the softmax, and the values that a kernel stores in f16.

    P is exp(logit - m), where m is the largest logit of the row. `row_sums` are the sums of P. `largest_sum` is the
    largest sum of P |V|, which no partial sum of P V exceeds. `subnormal` and `zero` are the shares of the positive
    elements of P that are subnormal or zero in f16.
    """

    sequence: int
    head: int
    Q: Range
    K: Range
    V: Range
    logits: Range
    row_sums: Range
    largest_sum: float
    subnormal: float
    zero: float


@dataclass(frozen=True)
class OpStatistics:
    """The heads of an op, and the shares of its mask's tiles that hide everything, something or nothing."""

    heads: tuple[HeadStatistics, ...]
    hidden: float
    partly: float
    clean: float

    @property
    def nearest(self) -> HeadStatistics:
        """The head whose sums are closest to the largest f16."""
        return max(self.heads, key=lambda head: head.largest_sum)


def bins_of(values: F64) -> tuple[int, ...]:
    """The number of values in each bin, by magnitude; 0 is in the first bin."""
    exponents = np.frexp(np.abs(values))[1] - 1
    places = np.where(values == 0.0, FIRST_BIN, np.clip(exponents, FIRST_BIN, LAST_BIN)) - FIRST_BIN
    return tuple(map(int, np.bincount(places.reshape(-1), minlength=LAST_BIN - FIRST_BIN + 1)))


def statistics_of(op: Op, inputs: Mapping[str, Bytes]) -> OpStatistics:
    """The statistics of an op, given the bytes of its operands, over all queries and KV rows."""
    values, sizes = operand_values(op, inputs), op.sizes
    slopes = alibi_slopes(sizes.n_head, op.params.max_bias)
    heads = []
    for sequence in range(sizes.n_seq):
        for head in range(sizes.n_head):
            mask = mask_of(op, values, sequence, head)
            heads.append(head_statistics(op, values, (sequence, head), None if mask is None else slopes[head] * mask))
    return OpStatistics(tuple(heads), *tiles_of(op, values))


def mask_of(op: Op, values: Mapping[str, object], sequence: int, head: int) -> F64 | None:
    """The mask (n_q, n_kv) of a head of a sequence."""
    if not op.has_mask:
        return None
    mask = np.asarray(values["mask"])
    return mask[sequence % mask.shape[0], head % mask.shape[1], : op.sizes.n_q, : op.sizes.n_kv].astype(np.float64)


def head_statistics(op: Op, values: Mapping[str, object], at: tuple[int, int], bias: F64 | None) -> HeadStatistics:
    """The statistics of the head `at` (sequence, head); `bias` is added to its logits."""
    sequence, head = at
    sizes, every = op.sizes, slice(0, op.sizes.n_kv)
    Q = np.asarray(values["Q"][sequence, head], np.float64)  # type: ignore[index]
    K, V = (
        np.asarray(values[name][sequence, head // sizes.group, every], np.float64)  # type: ignore[index]
        for name in "KV"
    )
    sink = float(np.asarray(values["sinks"]).reshape(-1)[head]) if op.has_sinks else -np.inf
    logits, sums, weights = list[Range](), list[Range](), list[Weights]()
    rows = max(1, MOST // len(K))
    with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite are left out
        for first in range(0, len(Q), rows):
            here = slice(first, first + rows)
            logit = logits_of(Q[here] @ K.T, op.params, None if bias is None else bias[here])
            largest = np.maximum(logit.max(axis=1), sink)
            largest = np.where(np.isfinite(largest), largest, 0.0)  # in fully masked rows, P = 0
            P = np.exp(logit - largest[:, None])
            logits.append(Range.of(logit))
            sums.append(Range.of(P.sum(axis=1) + np.exp(sink - largest)))
            weights.append(Weights.of(P, V))
    positive = max(1, sum(part.positive for part in weights))
    return HeadStatistics(
        *(sequence, head, Range.of(Q), Range.of(K), Range.of(V), Range.joined(logits), Range.joined(sums)),
        max(part.largest_sum for part in weights),
        sum(part.subnormal for part in weights) / positive,
        sum(part.zero for part in weights) / positive,
    )


def tiles_of(op: Op, values: Mapping[str, object]) -> tuple[float, float, float]:
    """The shares of the mask's tiles that hide everything, something or nothing."""
    if not op.has_mask:
        return 0.0, 0.0, 1.0
    hidden = np.isneginf(np.asarray(values["mask"])[:, :, : op.sizes.n_q, : op.sizes.n_kv])
    kinds = [
        (bool(tile.all()), bool(tile.any()))
        for plane in hidden.reshape(-1, *hidden.shape[2:])
        for rows in np.array_split(plane, range(TILE, plane.shape[0], TILE))
        for tile in np.array_split(rows, range(TILE, plane.shape[1], TILE), axis=1)
    ]
    every = len(kinds)
    all_of, some = sum(full for full, _ in kinds), sum(part and not full for full, part in kinds)
    return all_of / every, some / every, (every - all_of - some) / every


PAGE = "statistics.html"
COLUMNS = ("op", "logits", "row sums\nup to", "VKQ up to\nof f16's max", "P zero\nin f16", "tiles\nhidden")
KINDS = ("hidden", "partly", "clean")
"""The kinds of mask tiles: they hide everything, something, or nothing."""
NEAR = 0.1
"""Sums above this share of the largest f16 are highlighted."""


Statistics = Mapping[str, OpStatistics]
"""The statistics of captured ops by name."""


def described(index: Index, folder: Path, step: Step) -> Statistics:
    """The statistics of the captured ops of a folder."""
    found = {}
    for entry in index.entries:
        step(f"looking at the values of {entry.offer.name}")
        file = read_case(folder / entry.file)
        found[entry.offer.name] = statistics_of(file.op, file.inputs)
    return found


def write_page(ops: Statistics, index: Index, folder: Path) -> None:
    """Write the page into the folder of the captured ops."""
    write_text(folder / PAGE, page(ops, f"{index.run['model']['description']}: {len(ops)} captured ops."))


def table(ops: Statistics) -> Table:
    """A row for each op: its widest logits, and the head whose sums are closest to the largest f16."""
    return Table(
        COLUMNS, tuple((name, *cells(found)) for name, found in ops.items()), frozenset(COLUMNS[2:]), heading=("op",)
    )


def cells(found: OpStatistics) -> Iterator[str]:
    """The table cells that follow an op's name."""
    heads, nearest = found.heads, found.nearest
    yield f"{min(head.logits.least for head in heads):.3g} to {max(head.logits.greatest for head in heads):.3g}"
    yield f"{max(head.row_sums.greatest for head in heads):.4g}"
    yield f"{nearest.largest_sum:.3g}\n{percent(nearest.largest_sum / LARGEST)}"
    yield percent(sum(head.zero for head in heads) / len(heads))
    yield percent(found.hidden)


def percent(share: float) -> str:
    """`12 %`, `0.03 %`, `0`."""
    return f"{100 * share:.2g} %" if share else "0"


def page(ops: Statistics, about: str) -> str:
    """The page: a section for each op, with the ranges of each head and the magnitudes of its values."""
    words: dict[str, Any] = {"title": "Values of captured attention ops", "about": about, "ops": []}
    for name, found in ops.items():
        hidden, partly, clean = (percent(getattr(found, kind)) for kind in KINDS)
        tiles = f"{hidden} of the mask's tiles hide everything, {partly} hide something, {clean} hide nothing."
        words["ops"].append({"name": name, "about": tiles, "heads": rows(found.heads)})
    return environment("fattn_probe.daily.models").get_template("statistics.html.j2").render(words)


def rows(heads: Sequence[HeadStatistics]) -> list[dict[str, Any]]:
    """The heads of an op, in the form that the template needs."""
    return [
        {
            "name": f"{head.sequence}, {head.head}",
            "ranges": [range_of(found) for found in (head.Q, head.K, head.V, head.logits, head.row_sums)],
            "sum": f"{head.largest_sum:.4g}",
            "share": percent(head.largest_sum / LARGEST),
            "near": head.largest_sum > NEAR * LARGEST,
            "P": f"{percent(head.subnormal)}, {percent(head.zero)}",
        }
        for head in heads
    ]


def range_of(found: Range) -> dict[str, str]:
    """A range as text, with bars for its nonempty bins; the fullest bin is 20 units high."""
    most = max(found.bins) or 1
    bins = [(place, max(1.0, 20 * count / most)) for place, count in enumerate(found.bins) if count]
    bars = tuple(Stroke(((place, 20), (place, 20 - height)), Look("bar")) for place, height in bins)
    drawn = Markup(svg(Drawing("sizes", 42, 20, bars, "sizes"), fixed=False))
    first, last = f"{found.least:.3g}", f"{found.greatest:.3g}"
    return {"text": f"{first} to {last}", "std": f"{found.mean:.2g} ± {found.std:.3g}", "bars": drawn}


def document(ops: Statistics) -> list[dict[str, Any]]:
    """The statistics for JSON: each op's name, shares of tiles and heads; an infinite sum is null."""
    return [
        {
            "op": name,
            "tiles": {kind: getattr(found, kind) for kind in KINDS},
            "first_bin": FIRST_BIN,
            "heads": plain(found.heads),
        }
        for name, found in ops.items()
    ]
