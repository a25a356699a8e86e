"""The statistics of captured ops: a table for the terminal, and a self-contained page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fattn_probe.base.activity import Step
from fattn_probe.base.documents import plain
from fattn_probe.base.files import write_text
from fattn_probe.base.tables import Table
from fattn_probe.base.view.marks import Drawing, Look, Stroke
from fattn_probe.base.view.svg import svg
from fattn_probe.cases.op.case_file import read_case
from fattn_probe.daily.inspect.view.page import environment
from fattn_probe.daily.models.recorded_op import Index, Offer
from fattn_probe.daily.models.statistics import FIRST_BIN, LARGEST, OpStatistics, Range, statistics_of

PAGE = "statistics.html"
COLUMNS = ("op", "logits", "row sums\nup to", "VKQ up to\nof f16's end", "P zero\nin f16", "tiles\nhidden")
KINDS = ("hidden", "partly", "clean")
"""The kinds of mask tiles: they hide everything, something, or nothing."""
NEAR = 0.1
"""Sums above this share of the largest f16 are highlighted."""


@dataclass(frozen=True)
class Described:
    """A captured op and its statistics."""

    offer: Offer
    statistics: OpStatistics


def described(index: Index, folder: Path, step: Step) -> list[Described]:
    """The captured ops of a folder with their statistics."""
    found = []
    for entry in index.entries:
        step(f"looking at the values of {entry.offer.name}")
        file = read_case(folder / entry.file)
        found.append(Described(entry.offer, statistics_of(file.op, file.inputs)))
    return found


def write_page(ops: Sequence[Described], index: Index, folder: Path) -> None:
    """Write the page into the folder of the captured ops."""
    write_text(folder / PAGE, page(ops, f"{index.run['model']['description']}: {len(ops)} captured ops."))


def table(ops: Sequence[Described]) -> Table:
    """A row for each op: its widest logits, and the head whose sums are closest to the largest f16."""
    return Table(COLUMNS, tuple(tuple(cells(one)) for one in ops), frozenset(COLUMNS[2:]), heading=("op",))


def cells(one: Described) -> Iterator[str]:
    """An op's cells."""
    heads, nearest = one.statistics.heads, one.statistics.nearest
    yield one.offer.name
    yield f"{min(head.logits.least for head in heads):.3g} to {max(head.logits.greatest for head in heads):.3g}"
    yield f"{max(head.row_sums.greatest for head in heads):.4g}"
    yield f"{nearest.largest_sum:.3g}\n{percent(nearest.largest_sum / LARGEST)}"
    yield percent(sum(head.zero for head in heads) / len(heads))
    yield percent(one.statistics.hidden)


def percent(share: float) -> str:
    """`12 %`, `0.03 %`, `0`."""
    return f"{100 * share:.2g} %" if share else "0"


def page(ops: Sequence[Described], about: str) -> str:
    """The page: a section for each op, with the ranges of each head and the sizes of its numbers."""
    words: dict[str, Any] = {"title": "Values of captured attention ops", "about": about, "ops": []}
    for one in ops:
        hidden, partly, clean = (percent(getattr(one.statistics, kind)) for kind in KINDS)
        tiles = f"{hidden} of the mask's tiles hide all, {partly} hide some, {clean} hide nothing."
        words["ops"].append({"name": one.offer.name, "about": tiles, "heads": rows(one)})
    return environment("fattn_probe.daily.models").get_template("statistics.html.j2").render(words)


def rows(one: Described) -> list[dict[str, Any]]:
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
        for head in one.statistics.heads
    ]


def range_of(found: Range) -> dict[str, str]:
    """A range and a picture of its nonempty bins, where the fullest is 20 high."""
    most = max(found.bins) or 1
    bins = [(place, max(1.0, 20 * count / most)) for place, count in enumerate(found.bins) if count]
    bars = tuple(Stroke(((place, 20), (place, 20 - height)), Look("bar")) for place, height in bins)
    drawn = Markup(svg(Drawing("sizes", 42, 20, bars, "sizes"), fixed=False))
    first, last = f"{found.least:.3g}", f"{found.greatest:.3g}"
    return {"text": f"{first} to {last}", "std": f"{found.mean:.2g} ± {found.std:.3g}", "bars": drawn}


def document(ops: Sequence[Described]) -> list[dict[str, Any]]:
    """The statistics for JSON: of each op its name, the shares of tiles, and its heads; null for a sum of infinity."""
    return [
        {
            "op": one.offer.name,
            "tiles": {kind: getattr(one.statistics, kind) for kind in KINDS},
            "first_bin": FIRST_BIN,
            "heads": plain(one.statistics.heads),
        }
        for one in ops
    ]
