"""Faults in what is read for K, V and the mask."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fattn_probe.arrays import F64
from fattn_probe.compare.diagnose.around import Around
from fattn_probe.compare.diagnose.attention_row import AttentionRow
from fattn_probe.compare.diagnose.candidates import Cause, Family, Suspect, answers

MOST_VALUES = 1 << 21
"""Largest K/V head, in values, for which other places are tried."""
CANDIDATES = 24
"""Rows of V from each end that are searched for a swapped pair."""
SWIZZLED = 8  # chunks of 8 columns that change places
ZERO_POINTS = {"q4_0": 8, "q5_0": 16}
Named = list[tuple[str, F64]]


def read_faults(error: F64, suspect: Suspect) -> Iterator[Family]:
    """All faults in what is read."""
    row, around = suspect.row, suspect.around
    p = row.weights(row.logits)
    out = p @ row.V
    yield _swaps(error, p, row.V)
    yield from answers("mask-ignored", out, _without_mask(row))
    if around is None or row.V.size > MOST_VALUES:
        return
    yield from v_faults(suspect)
    yield from answers("k-elsewhere", out, _other_K(around, row), "K is read at another place")
    yield from answers("k-elsewhere", out, _both(around, row), "K and V are read at another place")
    yield from answers("k-values", out, _zero_points(around, row), "K's values are unpacked wrongly")
    yield from answers("tile-layout", out, _swizzled(around, row))
    if row.mask.any():
        words = "the mask is read at another place"
        masks = [
            (name, replace(row, mask=mask * row.slope)) for name, mask in around.masks() if not np.isnan(mask).any()
        ]
        yield from answers("mask-elsewhere", out, [(name, one.output(one.logits)) for name, one in masks], words)


def v_faults(suspect: Suspect) -> Iterator[Family]:
    """Other places and other tensors that are read for V."""
    row, around = suspect.row, suspect.around
    if around is not None and row.V.size <= MOST_VALUES:
        p = row.weights(row.logits)
        yield from answers("v-elsewhere", p @ row.V, _other_V(around, suspect.step, p), "V is read at another place")


def _swaps(error: F64, p: F64, V: F64) -> Family:
    """Two rows of V swapped: the output moves by (p_a - p_b)(v_b - v_a)."""
    along = V @ error
    order = np.argsort(np.where(p > 0, along, 0.0))
    ends = np.unique(np.concatenate([order[:CANDIDATES], order[-CANDIDATES:]]))
    a, b = (ends[index] for index in np.triu_indices(len(ends), 1))
    errors = (p[a] - p[b])[:, None] * (V[b] - V[a])

    def say(index: int, _: float) -> Cause:
        rows = f"KV rows {a[index]} and {b[index]}"
        return Cause("v-elsewhere", "two rows of V are swapped", rows, place=rows)

    return Family(errors, say)


def _without_mask(row: AttentionRow) -> Named:
    finite = np.where(np.isneginf(row.mask), 0.0, row.mask)
    variants = [
        ("the mask is ignored", row.mask.any(), replace(row, mask=np.zeros_like(row.mask))),
        ("the mask's finite part is ignored", finite.any(), replace(row, mask=row.mask - finite)),
    ]
    return [(words, other.output(other.logits)) for words, there_is, other in variants if there_is]


def _elsewhere(around: Around, name: str) -> Iterator[tuple[str, F64]]:
    """A tensor read with other strides, or of another head or sequence, in words."""
    sizes, view = around.case.op.sizes, around.view(name)
    for words, other in around.strides(name):
        if (rows := around.rows(other)) is not None:
            yield words, rows
    for head in range(min(sizes.n_head_kv, 64)):
        if head != around.kv_head and (rows := around.rows(view, kv_head=head)) is not None:
            yield f"head {head}", rows
    for sequence in range(min(sizes.n_seq, 64)):
        if sequence != around.sequence and (rows := around.rows(view, sequence=sequence)) is not None:
            yield f"sequence {sequence}", rows


def _other_V(around: Around, step: int, p: F64) -> Named:
    found = [(words, p @ rows) for words, rows in _elsewhere(around, "V")]
    found += [(f"columns {shift:+d}", p @ rows) for shift, rows in around.shifted("V")]
    view, K = around.view("V"), around.rows(around.view("K"))
    if K is not None and K.shape[1] >= view.ne[0]:
        found.append(("K's values stand for V", p @ K[:, : view.ne[0]]))
    if step:
        found += [(f"{words}, from KV step to KV step", p @ rows) for words, rows in _stepped(around, step)]
    return found


def _stepped(around: Around, step: int) -> Iterator[tuple[str, F64]]:
    """V whose KV steps begin by another stride, while rows within a step have their own."""
    view, n_kv = around.view("V"), around.case.op.sizes.n_kv
    for words, other in around.strides("V"):
        if other.nb[1] == view.nb[1]:
            continue
        parts = []
        for start in range(0, n_kv, step):
            size = (view.ne[0], min(step, n_kv - start), *view.ne[2:])
            rows = around.rows(replace(view, ne=size, offset=view.offset + start * other.nb[1]))
            if rows is None:
                break
            parts.append(rows)
        else:
            yield words, np.concatenate(parts)


def _other_K(around: Around, row: AttentionRow) -> Named:
    places = [*_elsewhere(around, "K"), *((f"columns {shift:+d}", rows) for shift, rows in around.shifted("K"))]
    return [(words, _with_K(around, row, rows)) for words, rows in places]


def _with_K(around: Around, row: AttentionRow, K: F64) -> F64:
    with np.errstate(all="ignore"):
        other = replace(row, raw=around.raw(K))
        return other.output(other.logits)


def _both(around: Around, row: AttentionRow) -> Named:
    """K and V of the same other place, such as another head."""
    values = dict(_elsewhere(around, "V"))
    found = []
    for words, K in _elsewhere(around, "K"):
        if words in values:
            found.append((words, _with_K(around, replace(row, V=values[words]), K)))
    return found


def _zero_points(around: Around, row: AttentionRow) -> Named:
    """The zero point of K's blocks subtracted another number of times."""
    zero, scales = ZERO_POINTS.get(around.view("K").type), around.scales("K")
    if zero is None or scales is None:
        return []
    step = zero * np.repeat(scales, row.K.shape[1] // scales.shape[1], axis=1)
    return [
        (f"the zero point counts {often} times", _with_K(around, row, row.K - (often - 1) * step))
        for often in (0, 2, 4, 8, 16)
    ]


def _swizzled(around: Around, row: AttentionRow) -> Named:
    """Chunks of 8 columns stand where the swizzle of row i, an exclusive or with i, would have put them."""
    K, V = (_swizzle(rows) for rows in (row.K, row.V))
    found: Named = []
    if K is not None:
        found.append(("K's tile is written and read in different layouts", _with_K(around, row, K)))
    if V is not None:
        found.append(("V's tile is written and read in different layouts", row.weights(row.logits) @ V))
    if K is not None and V is not None:
        words = "the tiles of K and V are written and read in different layouts"
        found.append((words, _with_K(around, replace(row, V=V), K)))
    return found


def _swizzle(rows: F64) -> F64 | None:
    if rows.shape[1] % (8 * SWIZZLED):
        return None
    chunks = rows.reshape(len(rows), -1, SWIZZLED, 8)
    order = np.arange(SWIZZLED)[None, :] ^ (np.arange(len(rows)) % SWIZZLED)[:, None]
    return np.take_along_axis(chunks, order[:, None, :, None], axis=2).reshape(rows.shape)
