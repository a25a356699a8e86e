"""A pattern in a mask of wrong elements, in words: hypotheses by description length, the shortest first.

A hypothesis names a region of the output, rows times columns. Its cost, in bits, is that of saying it, and then that
of saying which elements are wrong inside and outside of it (Rissanen's two-part code, Automatica 14, 1978). So a region
too large, one too small and one that takes many words all lose to the one that fits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fattn_probe.arrays import Bools, Indices, Numbers
from fattn_probe.compare.diagnose.label_sets import Counts, code_length, subsets

Spelling = Callable[[Sequence[int]], str]
"""How a set of labels is said, which is sorted and not empty."""

KEPT = 6
"""Regions that are looked into further, at each depth."""
DEEPEST = 3
"""Conditions that a pattern may join."""
WORTH = 0.15
"""The share of the bits left that a further condition, or a further pattern, must save."""
LEAST = 12.0
"""Bits that a pattern must save, so that a few chance errors make none."""
MOST_PATTERNS = 3
UNUSUAL = 4
"""How much the bits of a property count when words are chosen for a region that has several."""
LONGEST = 60
"""Letters of other words for a region; longer ones explain nothing."""
MORE, ALL = 1.25, 0.995
"""How much denser than the whole a region must be, or which share of all that is wrong it must hold."""


@dataclass(frozen=True, eq=False)
class Labelling:
    """A property of rows or columns that errors may follow.

    `labels` number the rows (n_seq, n_q, n_head) or the columns (hsv,) by it, 0 .. `size` - 1; `words` says a set of
    these numbers, and `bits` is what it takes to name the property, more for one that is rarely the reason. Where
    `ordered`, neighbouring numbers belong together.
    """

    axis: Literal["rows", "columns"]
    labels: Indices
    size: int
    words: Spelling
    bits: float = 4.0
    ordered: bool = True


@dataclass(frozen=True, eq=False)
class Region:
    """Rows times columns; `cost` in bits, of everything; `named` are the properties it uses."""

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
        """How hard the words are to understand: their bits, and unusual properties once more."""
        return self.bits + UNUSUAL * sum(labelling.bits for labelling in self.named)


@dataclass(frozen=True)
class Pattern:
    """A region in words: the share of it that is wrong, the share of all that is wrong that lies in it.

    `also` says the same region in other words; `saved` is the number of bits that the pattern saves.
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
        rest = "" if self.recall > 0.995 else f"; {100 * self.recall:.3g} % of what is wrong is there"
        return f"{whole}{self.words}{also}{part}{rest}"


def find_patterns(wrong: Bools, labellings: Sequence[Labelling]) -> list[Pattern]:
    """What the wrong elements (n_seq, n_q, n_head, hsv) have in common, best explanation first; empty if nothing.

    A second and third pattern explain what is wrong outside of those before them.
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
    """Whether a region holds far more than its share of what is wrong, or all of it."""
    share = evidence.wrong.sum() / evidence.considered.sum()
    return bool(region.wrong / region.size >= MORE * share or region.wrong >= ALL * evidence.wrong.sum())


@dataclass(frozen=True, eq=False)
class _Evidence:
    """Which elements are wrong, and which are still to be explained, right or wrong."""

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
    """The wrong elements and all elements of a region, by its rows and by its columns; `outside` as in Counts."""

    region: Region
    rows: tuple[Numbers, Numbers]
    columns: tuple[Numbers, Numbers]
    outside: tuple[int, int]

    def counts(self, labelling: Labelling) -> Counts:
        """By label of a property."""
        rows = labelling.axis == "rows"
        labels = labelling.labels[self.region.rows if rows else self.region.columns]
        wrong, size = (
            np.bincount(labels, weights.astype(np.float64), labelling.size)
            for weights in (self.rows if rows else self.columns)
        )
        return Counts(wrong, size, self.outside)


def _best(evidence: _Evidence, labellings: Sequence[Labelling]) -> tuple[Region | None, float]:
    """The cheapest region but the whole, and what the errors cost without any."""
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
    """Each set of rows and columns once, in the words that are the most usual."""
    kept: dict[tuple[bytes, bytes], Region] = {}
    for region in regions[: 8 * KEPT]:
        key = (np.packbits(region.rows).tobytes(), np.packbits(region.columns).tobytes())
        other = kept.get(key)
        if other is None or region.effort < other.effort:
            kept[key] = region if other is None else replace(region, cost=other.cost)
    return list(kept.values())


def _inside(region: Region, evidence: _Evidence, labellings: Sequence[Labelling]) -> Iterator[Region]:
    """The region with one more condition."""
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
    """Other properties that alone name the very same elements, each once; at most two."""
    said: dict[int, str] = {}
    others = [one for one in labellings if one not in region.named]
    for other in _inside(_everything(evidence), evidence, others):
        same = np.array_equal(other.rows, region.rows) and np.array_equal(other.columns, region.columns)
        if same:
            said.setdefault(id(other.named[0]), other.words[0])
    words = dict.fromkeys(word for word in said.values() if word not in region.words and len(word) <= LONGEST)
    return tuple(sorted(words, key=len)[:2])
