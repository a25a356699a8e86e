"""Faults that make NaN and infinities: the rows in which each would, compared with those that have them.

A row without a number says nothing about its fault, but the set of such rows does. Each fault needs something rare in
the op, such as NaN in the memory behind the last KV row, and predicts the rows that it spoils. Two faults show in the
bits of a NaN, which arithmetic on a CPU passes on: elements that nobody wrote, and fresh memory of a simulated GPU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fattn_probe.arrays import F32, F64, Bools, Bytes
from fattn_probe.compare.diagnose.around import Around
from fattn_probe.compare.diagnose.attention_row import AttentionRow, Head
from fattn_probe.compare.diagnose.candidates import Cause
from fattn_probe.launch.geometry import Geometry
from fattn_probe.scenario import Case
from fattn_probe.truth.rounding_model.softmax import FLUSH

FRESH = 0xFFFFE000
"""Bits that a float of a simulated GPU's fresh memory has, whose bytes are 0xff; f16 has as many. A GPU's arithmetic
gives 0x7fffffff, a CPU's 0xffc00000."""
INVALID, OPERAND = 0xFFC00000, 0x7FC00000
"""Bits of a NaN that arithmetic of a CPU makes, and those of one that f16 operands bring along."""
LARGEST_F16 = 65504.0
SHIFTS = (1.0, 0.5, 0.25, 0.125)
"""Factors by which a kernel may scale weights down, by its offset of the maximum."""
ALIKE = 0.02
"""The share of rows in which a prediction may be wrong."""
RowIndex = tuple[int, int, int]
Sign = tuple[str, str, str]
"""A fault's kind, its words, and the variant of how it is looked for."""


@dataclass(frozen=True, eq=False)
class Spoiled:
    """Rows of an output: their places (rows, 3), and which of them are spoiled, that is, not finite."""

    case: Case
    inputs: Mapping[str, Bytes]
    geometry: Geometry | None
    places: list[RowIndex]
    spoiled: Bools

    @property
    def step(self) -> int:
        """KV rows of a step; 0 if unknown."""
        return 0 if self.geometry is None or self.geometry.kernel.sparse else self.geometry.rows

    def rows(self) -> Iterator[tuple[AttentionRow, Around]]:
        """Every row, with its surroundings."""
        heads: dict[tuple[int, int], Head] = {}
        for sequence, query, head in self.places:
            at = sequence, head // self.case.op.sizes.group
            if at not in heads:
                heads[at] = Head.of(self.case, self.inputs, *at)
            yield AttentionRow.of(heads[at], query, head), Around(self.case, self.inputs, sequence, query, head)


def from_fresh_memory(dst: F32) -> Bools:
    """The elements that are NaN because a simulated GPU's fresh memory is."""
    return np.asarray((np.ascontiguousarray(dst).view(np.uint32) & FRESH) == FRESH)


def with_bits(dst: F32, bits: int) -> Bools:
    """The elements that are NaN with these bits."""
    return np.asarray(np.ascontiguousarray(dst).view(np.uint32) == bits)


def not_finite(spoiled: Spoiled) -> list[Cause]:
    """The faults that spoil exactly these rows."""
    if not spoiled.spoiled.any():
        return []
    signs: dict[Sign, list[bool]] = {}
    with np.errstate(all="ignore"):
        for (row, around), place in zip(spoiled.rows(), spoiled.places, strict=True):
            for sign, shown in _signs(row, around, spoiled, place):
                signs.setdefault(sign, []).append(shown)
    found = [sign for sign, shown in signs.items() if any(shown) and _alike(np.array(shown), spoiled.spoiled)]
    return [Cause(kind, words, "") for kind, words in dict.fromkeys(sign[:2] for sign in found)]


def _alike(predicted: Bools, found: Bools) -> bool:
    return bool((predicted != found).mean() <= ALIKE and (predicted & found).any())


def _signs(row: AttentionRow, around: Around, spoiled: Spoiled, place: RowIndex) -> Iterator[tuple[Sign, bool]]:
    """Each fault, and whether it spoils a row."""
    step = spoiled.step
    if step:
        behind = -len(row.V) % step
        yield (
            ("kv-beyond", "NaN behind the last KV row is read", ""),
            behind > 0 and any(_has_nan(around.behind(name, behind)) for name in "KV"),
        )
        low = bool(row.logits.max() < FLUSH)
        words = "the softmax's exponents are not the row's logits below its maximum"
        yield ("maximum", words, ""), low and behind > 0
    yield ("mask-elsewhere", "the mask is read at another row, which hides everything", ""), _other_mask(around)
    yield from _first_steps(row, spoiled, place)
    yield from _overflows(row, around, spoiled, place)


def _has_nan(rows: F64 | None) -> bool:
    return rows is not None and bool(np.isnan(rows).any())


def _other_mask(around: Around) -> bool:
    """Whether the mask hides all at row sequence * n_q + query, where this row's would be without padding."""
    op = around.case.op
    if "mask" not in op.tensors or op.roots[around.view("mask").root].period is not None:
        return False
    view = around.view("mask")
    flat = around.inputs[view.root][view.offset :].view(np.float16)
    start = (around.sequence % view.ne[3] * op.sizes.n_q + around.query) * (view.nb[1] // 2)
    return not np.isfinite(flat[start : start + op.sizes.n_kv]).any()


def _first_steps(row: AttentionRow, spoiled: Spoiled, place: RowIndex) -> Iterator[tuple[Sign, bool]]:
    """A block whose first KV step the mask hides; with all of its steps hidden, or some visible."""
    if spoiled.geometry is None or not spoiled.step:
        return
    hidden = np.isneginf(row.mask)
    if not spoiled.case.op.has_mask:
        return
    steps = np.array([hidden[at : at + spoiled.step].all() for at in range(0, len(hidden), spoiled.step)])
    parts = [part for part in spoiled.geometry.parts_of(spoiled.geometry.tile_of(*place)) if part.start < part.stop]
    first = [bool(steps[part.start]) for part in parts]
    seen = [not steps[part.start : part.stop : part.every].all() for part in parts]
    words = "a block's first KV step is fully masked"
    yield ("masked-tile", words, ""), any(first)
    yield (
        ("masked-tile", words, "with a visible step behind it"),
        any(a and b for a, b in zip(first, seen, strict=True)),
    )


def _overflows(row: AttentionRow, around: Around, spoiled: Spoiled, place: RowIndex) -> Iterator[tuple[Sign, bool]]:
    """Products of Q and K, and sums of weights times V, beyond the largest f16."""
    seen = ~np.isneginf(row.mask)
    scale = around.case.op.params.stored.scale
    products = np.abs(row.K[seen] * around.q).max(initial=0.0) * scale
    yield ("overflow", "products of Q and K exceed f16", ""), bool(products > LARGEST_F16)
    yield ("overflow", "logits exceed f16", ""), bool(np.abs(row.raw[seen]).max(initial=0.0) > LARGEST_F16)
    largest = max((_largest_sum(row, which) for which in _shares(row, spoiled, place)), default=0.0)
    for shift in SHIFTS:
        yield ("overflow", "the accumulators of P V exceed f16", str(shift)), shift * largest > LARGEST_F16


def _largest_sum(row: AttentionRow, which: Bools) -> float:
    logits = row.logits[which]
    top = logits.max(initial=-np.inf)
    return 0.0 if np.isneginf(top) else float(np.abs(np.exp(logits - top) @ row.V[which]).max())


def _shares(row: AttentionRow, spoiled: Spoiled, place: RowIndex) -> Iterator[Bools]:
    """The KV rows of each block that works on a row."""
    if spoiled.geometry is None or not spoiled.step:
        yield np.ones(len(row.V), np.bool_)
        return
    steps = np.arange(len(row.V)) // spoiled.step
    for part in spoiled.geometry.parts_of(spoiled.geometry.tile_of(*place)):
        yield np.isin(steps, range(part.start, part.stop, part.every))
