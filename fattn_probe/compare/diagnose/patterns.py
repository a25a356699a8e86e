"""Find patterns in the wrong elements, and put them into words: the shortest description first.

A hypothesis names a region of the output, rows times columns. Its cost in bits is that of naming the region plus that
of saying which elements are wrong inside and outside of it (Rissanen's two-part code, Automatica 14, 1978). So a region
that is too large, too small or too complicated costs more than the one that fits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fattn_probe.arrays import Bools, Indices, Numbers
from fattn_probe.compare.diagnose.label_sets import Counts, code_length, subsets

Spelling = Callable[[Sequence[int]], str]
"""Puts a set of labels, sorted and not empty, into words."""

KEPT = 6
"""Regions that are refined at each depth."""
DEEPEST = 3
"""Most conditions that a pattern combines."""
WORTH = 0.15
"""The share of the remaining bits that another condition or pattern must save."""
LEAST = 12.0
"""Bits that a pattern must save, so that a few chance errors do not form one."""
MOST_PATTERNS = 3
UNUSUAL = 4
"""Weight of a property's bits in the choice between several descriptions of a region."""
LONGEST = 60
"""Longest other description of a region, in letters; longer ones explain nothing."""
MORE, ALL = 1.25, 0.995
"""A region must be denser than the whole by the first factor, or hold the second share of all wrong elements."""


@dataclass(frozen=True, eq=False)
class Labelling:
    """A property of rows or columns that errors may depend on.

    `labels` gives each row (n_seq, n_q, n_head) or column (hsv,) a number from 0 to `size` - 1; `words` puts a set of
    these numbers into words. `bits` is the cost of naming the property, higher for an unlikely one. `ordered`:
    neighbouring numbers belong together.
    """

    axis: Literal["rows", "columns"]
    labels: Indices
    size: int
    words: Spelling
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
        return self.bits + UNUSUAL * sum(labelling.bits for labelling in self.named)


@dataclass(frozen=True)
class Pattern:
    """A region in words; `precision` is its share of wrong elements, `recall` its share of all wrong elements.

    `also` has other descriptions of the same region; `saved` is the number of bits that the pattern saves.
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
    """What the wrong elements (n_seq, n_q, n_head, hsv) have in common, best explanation first; empty if nothing.

    A second and third pattern explain wrong elements outside the patterns before them.
    """
    found: list[Pattern] = []
    evidence, total = _Evidence(wrong, np.ones(wrong.shape, np.bool_)), int(wrong.sum())
    for _ in range(MOST_PATTERNS):
        region, null = _best(evidence, labellings)
        if region is None or null - region.cost < max(LEAST, WORTH * null):
            return found
        box = np.asarray(region.rows[..., None] & region.columns)
        if not _tells(region, evidence):
            return found
        hit = int((wrong & box).sum())
        words, also = " of ".join(region.words), _other_words(region, evidence, labellings)
        found.append(Pattern(words, hit / int(box.sum()), hit / total, null - region.cost, also))
        evidence = _Evidence(evidence.wrong & ~box, evidence.considered & ~box)
        if evidence.wrong.sum() < WORTH * total:
            return found
    return found


def _tells(region: Region, evidence: "_Evidence") -> bool:
    """Whether a region holds far more than its share of the wrong elements, or nearly all of them."""
    share = evidence.wrong.sum() / evidence.considered.sum()
    return bool(region.wrong / region.size >= MORE * share or region.wrong >= ALL * evidence.wrong.sum())


@dataclass(frozen=True, eq=False)
class _Evidence:
    """The wrong elements, and the elements (right or wrong) that no pattern explains yet."""

    wrong: Bools
    considered: Bools

    def within(self, region: Region) -> "_Within":
        """The content of a region."""
        columns, rows = region.columns, region.rows
        whole = bool(columns.all())

        def by_row(of: Bools) -> Numbers:
            return np.asarray(of.sum(axis=3)[rows] if whole else of[rows][:, columns].sum(axis=1))

        def by_column(of: Bools) -> Numbers:
            return np.asarray(of.sum(axis=(0, 1, 2)) if rows.all() else of[rows].sum(axis=0))[columns]

        outside = (int(self.wrong.sum()) - region.wrong, int(self.considered.sum()) - region.size)
        by_rows, by_columns = ((by(self.wrong), by(self.considered)) for by in (by_row, by_column))
        return _Within(region, by_rows, by_columns, outside)


@dataclass(frozen=True, eq=False)
class _Within:
    """The numbers of wrong and of all elements of a region by row and by column; `outside` as in Counts."""

    region: Region
    rows: tuple[Numbers, Numbers]
    columns: tuple[Numbers, Numbers]
    outside: tuple[int, int]

    def counts(self, labelling: Labelling) -> Counts:
        """The counts by label of a property."""
        rows = labelling.axis == "rows"
        labels = labelling.labels[self.region.rows if rows else self.region.columns]
        wrong, size = (
            np.bincount(labels, weights.astype(np.float64), labelling.size)
            for weights in (self.rows if rows else self.columns)
        )
        return Counts(wrong, size, self.outside)


def _best(evidence: _Evidence, labellings: Sequence[Labelling]) -> tuple[Region | None, float]:
    """The cheapest region other than the whole, and the cost of the errors without a region."""
    whole = _everything(evidence)
    frontier, best = [whole], None
    for _ in range(DEEPEST):
        grown = [child for region in frontier for child in _inside(region, evidence, labellings)]
        if not grown:
            break
        frontier = _distinct(sorted(grown, key=lambda region: region.cost))[:KEPT]
        limit = whole.cost if best is None else best.cost * (1 - WORTH) - 2
        if frontier[0].cost >= limit:
            break
        best = frontier[0]
    return best, whole.cost


def _everything(evidence: _Evidence) -> Region:
    rows, columns = np.ones(evidence.wrong.shape[:3], np.bool_), np.ones(evidence.wrong.shape[3], np.bool_)
    wrong, size = int(evidence.wrong.sum()), int(evidence.considered.sum())
    return Region(rows, columns, (), (), 0.0, float(code_length(np.array(wrong), np.array(size))), wrong, size)


def _distinct(regions: Sequence[Region]) -> list[Region]:
    """Each set of rows and columns once, in its most usual words."""
    kept: dict[tuple[bytes, bytes], Region] = {}
    for region in regions[: 8 * KEPT]:
        key = (np.packbits(region.rows).tobytes(), np.packbits(region.columns).tobytes())
        other = kept.get(key)
        if other is None or region.effort < other.effort:
            kept[key] = region if other is None else replace(region, cost=other.cost)
    return list(kept.values())


def _inside(region: Region, evidence: _Evidence, labellings: Sequence[Labelling]) -> Iterator[Region]:
    """The region restricted by one more condition."""
    within = evidence.within(region)
    for labelling in labellings:
        if any(labelling is used for used in region.named):
            continue
        counts = within.counts(labelling)
        for chosen in subsets(counts, labelling.ordered):
            yield _narrowed(region, labelling, counts, chosen.labels, chosen.bits)


def _narrowed(region: Region, labelling: Labelling, counts: Counts, chosen: Indices, bits: float) -> Region:
    member = np.zeros(labelling.size, np.bool_)
    member[chosen] = True
    part = member[labelling.labels]
    bits += region.bits + labelling.bits
    narrowed = replace(
        region,
        words=(labelling.words(chosen.tolist()), *region.words),
        named=(*region.named, labelling),
        bits=bits,
        cost=bits + float(counts.cost(member)),
        wrong=int(counts.wrong[chosen].sum()),
        size=int(counts.size[chosen].sum()),
    )
    if labelling.axis == "rows":
        return replace(narrowed, rows=region.rows & part)
    return replace(narrowed, columns=region.columns & part)


def _other_words(region: Region, evidence: _Evidence, labellings: Sequence[Labelling]) -> tuple[str, ...]:
    """Up to two other properties that alone name exactly the same elements."""
    said: dict[int, str] = {}
    others = [one for one in labellings if one not in region.named]
    for other in _inside(_everything(evidence), evidence, others):
        same = np.array_equal(other.rows, region.rows) and np.array_equal(other.columns, region.columns)
        if same:
            said.setdefault(id(other.named[0]), other.words[0])
    words = dict.fromkeys(word for word in said.values() if word not in region.words and len(word) <= LONGEST)
    return tuple(sorted(words, key=len)[:2])
