"""Find patterns in the wrong elements, and put them into words: the shortest description first.

Errors may depend on properties of rows and columns: axes, remainders, tiles, blocks, seams, masks. A hypothesis is a
region of the output, rows times columns. Its cost is the number of bits to name the region, plus the bits to list the
wrong elements inside and outside it (Rissanen's two-part code, Automatica 14, 1978). A region that is too large, too
small or too complicated therefore costs more than the best one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import Bools, Indices, Numbers
from fattn_probe.base.figures import first_of
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.verdict.diagnose.constants import FEW, KEPT, LEAST_BITS, MORE, WORTH
from fattn_probe.verdict.measure.wrong_rows import ranges

Shape = tuple[int, int, int, int]
"""(n_seq, n_q, n_head, hsv)."""


@dataclass(frozen=True, eq=False)
class Labelling:
    """A property of rows or columns that errors may depend on.

    `labels` gives each row (n_seq, n_q, n_head) or column (hsv,) a number from 0 to `size` - 1; `words` puts a set of
    these numbers, sorted and not empty, into words. `bits` is the cost of naming the property, higher for an unlikely
    one. `ordered`: neighbouring numbers belong together.
    """

    axis: Literal["rows", "columns"]
    labels: Indices
    size: int
    words: Callable[[Sequence[int]], str]
    bits: float = 4.0
    ordered: bool = True


@dataclass(frozen=True, eq=False)
class Region:
    """Rows times columns; `cost` is the total in bits; `named` are the properties that it uses."""

    rows: Bools
    columns: Bools
    words: tuple[str, ...]
    named: tuple[Labelling, ...]
    bits: float
    cost: float
    wrong: int
    size: int

    @property
    def effort(self) -> float:
        """How hard the description is to understand: its bits, plus extra for unusual properties."""
        return self.bits + 4 * sum(labelling.bits for labelling in self.named)


@dataclass(frozen=True)
class Pattern:
    """A region in words; `precision`: how much of it is wrong; `recall`: its share of all wrong elements.

    `also` contains other descriptions of the same region; `saved` is the number of bits that the pattern saves.
    """

    words: str
    precision: float
    recall: float
    saved: float
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        plain = self.precision <= 0.95 or self.words.startswith("every")
        whole = "" if plain else "all " if self.words.startswith(("rows", "tiles")) else "all of "
        also = f" (that is: {'; '.join(self.also)})" if self.also else ""
        part = "" if self.precision > 0.95 else f"; {100 * self.precision:.2g} % of it is wrong"
        rest = "" if self.recall > 0.995 else f"; it has {100 * self.recall:.3g} % of the wrong elements"
        return f"{whole}{self.words}{also}{part}{rest}"


def find_patterns(wrong: Bools, labellings: Sequence[Labelling]) -> list[Pattern]:
    """The patterns in the wrong elements (n_seq, n_q, n_head, hsv), best explanation first; empty if there are none.

    A second and third pattern explain wrong elements outside the previous ones.
    """
    found: list[Pattern] = []
    considered, left, total = np.ones(wrong.shape, np.bool_), wrong, int(wrong.sum())
    rows, columns = np.ones(wrong.shape[:3], np.bool_), np.ones(wrong.shape[3], np.bool_)
    for _ in range(3):
        number, size = int(left.sum()), int(considered.sum())
        cost = float(code_length(np.array(number), np.array(size)))
        whole = Region(rows, columns, (), (), 0.0, cost, number, size)
        region = _best(whole, left, considered, labellings)
        if region is None or whole.cost - region.cost < max(LEAST_BITS, WORTH * whole.cost):
            return found
        box = np.asarray(region.rows[..., None] & region.columns)
        # The region must contain far more than its share of the wrong elements, or nearly all of them.
        if region.wrong / region.size < MORE * whole.wrong / whole.size and region.wrong < 0.995 * whole.wrong:
            return found
        hit, said = int((wrong & box).sum()), dict[int, str]()
        # Up to two other properties that alone describe exactly the same elements, in few words.
        others = [one for one in labellings if one not in region.named]
        for other in _inside(whole, left, considered, others):
            if np.array_equal(other.rows, region.rows) and np.array_equal(other.columns, region.columns):
                said.setdefault(id(other.named[0]), other.words[0])
        also = dict.fromkeys(word for word in said.values() if word not in region.words and len(word) <= 60)
        words, short = " of ".join(region.words), tuple(sorted(also, key=len)[:2])
        found.append(Pattern(words, hit / int(box.sum()), hit / total, whole.cost - region.cost, short))
        left, considered = left & ~box, considered & ~box
        if left.sum() < WORTH * total:
            return found
    return found


def _best(whole: Region, wrong: Bools, considered: Bools, labellings: Sequence[Labelling]) -> Region | None:
    """The cheapest region with one to three conditions, not the whole output."""
    frontier, best = [whole], None
    for _ in range(3):
        grown = [child for region in frontier for child in _inside(region, wrong, considered, labellings)]
        if not grown:
            break
        kept: dict[tuple[bytes, bytes], Region] = {}  # each set of rows and columns once, in the most common words
        for region in sorted(grown, key=lambda region: region.cost)[: 8 * KEPT]:
            key = (np.packbits(region.rows).tobytes(), np.packbits(region.columns).tobytes())
            other = kept.get(key)
            if other is None or region.effort < other.effort:
                kept[key] = region if other is None else replace(region, cost=other.cost)
        frontier = list(kept.values())[:KEPT]
        if frontier[0].cost >= (whole.cost if best is None else best.cost * (1 - WORTH) - 2):
            break
        best = frontier[0]
    return best


def _inside(region: Region, wrong: Bools, considered: Bools, labellings: Sequence[Labelling]) -> Iterator[Region]:
    """The region restricted by one more condition."""
    rows, columns = region.rows, region.columns
    whole = bool(columns.all())
    outside = (int(wrong.sum()) - region.wrong, int(considered.sum()) - region.size)
    numbers: dict[str, list[Numbers]] = {"rows": [], "columns": []}
    for of in (wrong, considered):
        numbers["rows"].append(np.asarray(of.sum(axis=3)[rows] if whole else of[rows][:, columns].sum(axis=1)))
        by_column = np.asarray(of.sum(axis=(0, 1, 2)) if rows.all() else of[rows].sum(axis=0))
        numbers["columns"].append(by_column[columns])
    for labelling in labellings:
        if any(labelling is used for used in region.named):
            continue
        labels = labelling.labels[rows if labelling.axis == "rows" else columns]
        of_label = [np.bincount(labels, one.astype(np.float64), labelling.size) for one in numbers[labelling.axis]]
        for chosen, its_bits, cost in label_sets(of_label[0], of_label[1], outside, labelling.ordered):
            member = np.zeros(labelling.size, np.bool_)
            member[chosen] = True
            part, bits = member[labelling.labels], region.bits + labelling.bits
            yield Region(
                region.rows & part if labelling.axis == "rows" else region.rows,
                region.columns if labelling.axis == "rows" else region.columns & part,
                (labelling.words(chosen.tolist()), *region.words),
                (*region.named, labelling),
                bits + its_bits,
                bits + cost,
                int(of_label[0][chosen].sum()),
                int(of_label[1][chosen].sum()),
            )


def code_length(wrong: Numbers, size: Numbers) -> Numbers:
    """Bits to list the wrong elements of a set: entropy, plus half the logarithm of the set's size."""
    mixed = (wrong > 0) & (wrong < size)
    share = np.where(mixed, wrong, 0.5) / np.where(mixed, size, 1.0)
    entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share))
    return np.asarray(np.where(mixed, size * entropy, 0.0) + 0.5 * np.log2(size + 1))


def label_sets(
    wrong: Numbers, size: Numbers, outside: tuple[int, int], ordered: bool
) -> Iterator[tuple[Indices, float, float]]:
    """The cheapest set of labels of each shape, the bits to name it, and its total cost.

    The shapes are a single label, all but one, and any set; if `ordered`, also a beginning, an end and a range. Each
    label has `size` elements, of which `wrong` are wrong; `outside` (wrong, size) counts the elements without a label.
    """
    labels, all_wrong, all_sizes = len(size), wrong.sum(), size.sum()

    def cost_of(its_wrong: Numbers, its_size: Numbers) -> Numbers:
        """The cost of sets; infinite for a set that is less dense than the rest."""
        other_wrong, other_size = all_wrong + outside[0] - its_wrong, all_sizes + outside[1] - its_size
        bits = code_length(its_wrong, its_size) + code_length(other_wrong, other_size)
        return np.where(its_wrong * other_size > other_wrong * its_size, bits, np.inf)

    if labels < 2:
        return
    each, choice, sets = np.arange(labels), math.log2(labels), list[tuple[Indices, float]]()
    sets.append((each[[cost_of(wrong, size).argmin()]], choice))
    if 3 < labels <= FEW:
        sets.append((np.delete(each, cost_of(all_wrong - wrong, all_sizes - size).argmin()), choice + 1))
    rates = wrong / np.maximum(size, 1)
    if ordered and labels > 2:
        before, its_size = np.cumsum(wrong)[:-1], np.cumsum(size)[:-1]
        sets.append((each[: cost_of(before, its_size).argmin() + 1], choice + 1))
        sets.append((each[cost_of(all_wrong - before, all_sizes - its_size).argmin() + 1 :], choice + 1))
        # The range with the largest surplus over half the density of the densest label (Kadane's algorithm).
        limit = (rates.max() + all_wrong / max(all_sizes, 1)) / 2
        surplus = np.concatenate([[0], np.cumsum(wrong - limit * size)])
        gain = surplus - np.minimum.accumulate(surplus)
        stop = int(gain.argmax())
        start = int(surplus[:stop].argmin()) if stop else 0
        if gain[stop] > 0 and start > 0 and stop < labels:
            sets.append((each[start:stop], 2 * choice + 1))
    if labels > 2:  # the labels with the most errors, as long as each lowers the cost, if they form few runs
        order = np.argsort(-rates, kind="stable")[:-1]
        bits = choice + 2 + np.array([_log2_choices(labels, k) for k in range(1, labels)])
        best = int((cost_of(np.cumsum(wrong[order]), np.cumsum(size[order])) + bits).argmin())
        chosen = np.sort(order[: best + 1])
        most_runs = 6 if labels <= FEW or 2 * len(chosen) <= labels else 1
        if best > 0 and 1 + int((np.diff(chosen) > 1).sum()) <= most_runs:
            sets.append((chosen, float(bits[best])))
    costs = cost_of(*(np.array([of[chosen].sum() for chosen, _ in sets]) for of in (wrong, size)))
    for (chosen, naming), cost in zip(sets, costs.tolist(), strict=True):
        if math.isfinite(cost):
            yield chosen, naming, naming + cost


def _log2_choices(n: int, k: int) -> float:
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def hidden_steps(mask: npt.NDArray[Any], n_seq: int, n_q: int, rows: int) -> Bools:
    """The steps of `rows` KV rows that the shared mask hides completely from each row, (n_seq, n_q, steps)."""
    seen = ~np.isneginf(mask[:, 0, :n_q])
    hidden = ~np.logical_or.reduceat(seen, np.arange(0, seen.shape[2], rows), axis=2)
    return np.asarray(hidden[np.arange(n_seq) % len(hidden)])


def labellings(shape: Shape, group: int, geometry: Geometry | None, hidden: Bools | None) -> list[Labelling]:
    """All properties of an output with `group` query heads per K/V head; `hidden` is from `hidden_steps`."""
    found = [*_axes(shape, group)]
    if geometry is not None:
        found += _tiles(shape, geometry)
    if hidden is not None:
        late = np.any(hidden[..., :-1] & ~hidden[..., 1:], axis=2)
        for yes, no, which in (
            ("fully masked rows", "rows that are not fully masked", np.all(hidden, axis=2)),
            ("rows whose first KV tile is fully masked", "rows that see their first KV tile", hidden[..., 0]),
            ("rows that see the last KV tile", "rows whose last KV tile is fully masked", ~hidden[..., -1]),
            ("rows with a masked tile before a visible one", "rows with no masked tile before a visible one", late),
        ):
            if 0 < which.sum() < which.size:
                labels, words = which[..., None].astype(np.intp), partial(either, yes, no)
                found.append(_rows(labels, shape, words, 2, 4.0, ordered=False))
    return [labelling for labelling in found if labelling.size > 1]


def _axes(shape: Shape, group: int) -> Iterator[Labelling]:
    """The axes, groups of heads, and remainders."""
    n_seq, n_q, n_head, hsv = shape
    sequence, query, head = np.ogrid[:n_seq, :n_q, :n_head]
    d = np.arange(hsv)
    yield _rows(sequence, shape, partial(along, "sequence", "sequences", n_seq), n_seq, 3.0)
    yield _rows(query, shape, partial(along, "query", "queries", n_q), n_q, 3.0)
    yield _rows(head, shape, partial(along, "head", "heads", n_head), n_head, 3.0)
    if group > 1:
        n_head_kv = n_head // group
        yield _rows(head // group, shape, partial(along, "K/V head", "K/V heads", n_head_kv), n_head_kv, 3.5)
        yield _rows(head % group, shape, partial(within, "head", "group", group), group, 4.0, ordered=False)
    yield Labelling("columns", d, hsv, partial(along, "d", "d", hsv), 3.0)
    for step in (2, 4, 8, 16, 32, 64, 128):
        if 2 * step <= hsv:
            yield Labelling("columns", d % step, step, partial(every, "column", "d", step), 5.0)
        if 2 * step <= n_q:
            yield _rows(query % step, shape, partial(every, "query", "query", step), step, 5.0)


def _tiles(shape: Shape, geometry: Geometry) -> Iterator[Labelling]:
    """Tiles, the block that computes the end of a tile, and the seams inside tiles."""
    _, n_q, n_head, _ = shape
    query, head = np.arange(n_q)[None, :, None], np.arange(n_head)[None, None]
    ncols1, ncols2 = geometry.kernel.ncols1, geometry.kernel.ncols2
    if 1 < ncols1 < n_q:
        yield _rows(query % ncols1, shape, partial(within, "query", "tile", ncols1), ncols1, 4.0)
        count = geometry.grid.iter_j
        yield _rows(query // ncols1, shape, partial(along, "query tile", "query tiles", count), count, 4.0)
    if 1 < ncols2 < geometry.group:
        group, count = head % geometry.group // ncols2, geometry.grid.iter_z_gqa
        yield _rows(group, shape, partial(along, "head group", "head groups", count), count, 4.0)
    index, shares = geometry.indices(shape[:3]), geometry.parts
    last = np.array([[*parts][-1] if parts else 0 for parts in shares])
    if len(np.unique(last)) > 1:
        size = int(last.max()) + 1
        yield _rows(last[index], shape, partial(along, "block", "blocks", size), size, 5.0)
    shared = np.array([len(parts) > 1 for parts in shares], np.intp)
    if not geometry.kernel.family.stream_k or not shared.any():
        return
    if not shared.all():
        words = partial(either, "tiles that several blocks share", "tiles that one block computes alone")
        yield _rows(shared[index], shape, words, 2, 4.0, ordered=False)
    seams = [_seam(list(parts)) for parts in shares]
    names = ["tiles without a seam", *dict.fromkeys(seam for seam in seams if seam)]
    place = np.array([names.index(seam) if seam else 0 for seam in seams])
    yield _rows(place[index], shape, partial(named, tuple(names)), len(names), 5.0)


def _seam(blocks: list[int]) -> str:
    if len(blocks) < 2:
        return ""
    if len(blocks) == 2:
        return f"the seam between blocks {blocks[0]} and {blocks[1]}"
    return f"the seams of blocks {blocks[0]} to {blocks[-1]}"


def _rows(
    labels: Indices,
    shape: Shape,
    words: Callable[[Sequence[int]], str],
    size: int,
    bits: float,
    *,
    ordered: bool = True,
) -> Labelling:
    return Labelling("rows", np.broadcast_to(labels, shape[:3]), size, words, bits, ordered)


def along(one: str, many: str, total: int, chosen: Sequence[int]) -> str:
    """Positions on an axis: `head 3`, `queries >= 64`, `every head but 2`."""
    first, last, number = chosen[0], chosen[-1], len(chosen)
    if number == 1:
        return f"{one} {first}" + (f", the last of {total}" if first == total - 1 > 1 else "")
    missing = total * (total - 1) // 2 - sum(chosen)
    if number == total - 1 and 0 < missing < total - 1:
        return f"every {one} but {missing}"
    if last - first == number - 1:
        if last == total - 1:
            return f"{many} >= {first}"
        return f"{many} < {last + 1}" if first == 0 else f"{many} {first}..{last}"
    return f"{many} {ranges(chosen)}"


def every(one: str, symbol: str, step: int, chosen: Sequence[int]) -> str:
    """Remainders: `every 8th column (d % 8 = 3)`."""
    if len(chosen) == 1:
        ending = {2: "nd", 32: "nd"}.get(step, "th")
        return f"every {step}{ending} {one} ({symbol} % {step} = {chosen[0]})"
    return f"{symbol} % {step} in {ranges(chosen)}"


def within(one: str, group: str, size: int, chosen: Sequence[int]) -> str:
    """Positions within groups: `the last query of each tile of 8`."""
    if list(chosen) in ([0], [size - 1]):
        return f"the {'last' if chosen[0] else 'first'} {one} of each {group} of {size}"
    return f"{one} {ranges(chosen)} of each {group} of {size}"


def either(yes: str, no: str, chosen: Sequence[int]) -> str:
    """A property that rows have (label 1) or lack (label 0)."""
    return yes if 1 in chosen else no


def named(each: Sequence[str], chosen: Sequence[int]) -> str:
    """Labels with individual names: `the seam between blocks 46 and 47`."""
    return first_of([each[label] for label in chosen], 4)
