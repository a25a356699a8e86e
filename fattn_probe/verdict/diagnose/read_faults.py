"""Faults in reading Q, K, V and the mask."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.cases.op import TensorView
from fattn_probe.cases.op.op import block_size, row_size, type_size
from fattn_probe.cases.op.values import row_bytes
from fattn_probe.verdict.diagnose.constants import NEAR, WORK
from fattn_probe.verdict.diagnose.row import Around, Cause, Moves, Named, WrongRow
from fattn_probe.verdict.truth.reference.adapter import stored_rows


def swapped(wrong: WrongRow) -> Iterator[Moves]:
    """Two rows of V swapped: the output moves by (p_a - p_b)(v_b - v_a)."""
    p, V = wrong.row.p, wrong.row.V
    order = np.argsort(np.where(p > 0, V @ wrong.error, 0.0))
    ends = np.unique(np.concatenate([order[:24], order[-24:]]))
    a, b = (ends[index] for index in np.triu_indices(len(ends), 1))

    def say(index: int, _: float) -> Cause:
        rows = f"KV rows {a[index]} and {b[index]}"
        return Cause("", "", rows, place=rows)

    yield Moves((p[a] - p[b])[:, None] * (V[b] - V[a]), say)


def no_mask(wrong: WrongRow) -> Iterator[Named]:
    """The mask is ignored, or only its finite part is ignored."""
    row = wrong.row
    finite = np.where(np.isneginf(row.mask), 0.0, row.mask)
    if row.mask.any():
        yield "the mask is ignored", row.answer(mask=np.zeros_like(row.mask))
    if finite.any():
        yield "the mask's finite part is ignored", row.answer(mask=row.mask - finite)


def next_steps(wrong: WrongRow) -> Iterator[Moves]:
    """Blocks that advance by several KV steps read consecutive steps for the mask, K or V."""
    row, step = wrong.row, wrong.step
    index = np.arange(len(row.V))
    for work in wrong.parts.values():
        for turn, number in enumerate(work.steps):
            rows = index[number * step : (number + 1) * step]
            index[number * step : (number + 1) * step] = rows - (number - work.kb0_start - turn) * step
    if wrong.affords(64) and (index != np.arange(len(index))).any():
        read = {
            "mask-elsewhere": ("the mask", row.answer(mask=row.mask[index])),
            "k-elsewhere": ("K", row.answer(raw=row.raw[index])),
            "v-elsewhere": ("V", row.p @ row.V[index]),
        }
        for kind, (name, answer) in read.items():
            cause = Cause(kind, f"{name} is read from the wrong place", "blocks advance by one KV step, not by several")
            yield Moves.to([(cause, answer)], row.out)


def other_V(wrong: WrongRow) -> Iterator[Named]:
    """The answers if V is read from a different place, or if K is read instead of V."""
    row, around = wrong.row, wrong.around
    if wrong.affords(64):
        for words, rows in (*_elsewhere(around, "V"), *_shifted(around, "V"), *_stepped(wrong, "V")):
            yield words, row.answer(V=rows)
        K = around.rows(around.view("K"))
        if K is not None and K.shape[1] >= row.V.shape[1]:
            yield "K's values are used as V", row.answer(V=K[:, : row.V.shape[1]])


def other_Q(wrong: WrongRow) -> Iterator[Named]:
    """The answers for other rows of Q with this row's mask: nearby queries, other heads, sequences and strides."""
    around, row = wrong.around, wrong.row
    sizes, (sequence, query, head) = around.case.op.sizes, (around.sequence, around.query, around.head)
    near = range(max(0, query - NEAR), min(sizes.n_q, query + NEAR + 1))
    places = [(f"query {q}", (sequence, q, head)) for q in near if q != query]
    places += [(f"head {h}", (sequence, query, h)) for h in range(sizes.n_head) if h != head]
    places += [(f"sequence {s}", (s, query, head)) for s in range(sizes.n_seq) if s != sequence]
    # The heads of a tile begin at any head.
    strides = ((query + head - first, first) for first in range(head))
    places += [("its heads with the stride nb[1]", (sequence, q, first)) for q, first in strides if q < sizes.n_q]
    if places and wrong.affords(64) and wrong.affords(len(places)):
        raw = np.array([around.q_of(*place) for _, place in places]) @ row.K.T * around.scale
        yield from ((name, row.answer(raw=products)) for (name, _), products in zip(places, raw, strict=True))


def other_K(wrong: WrongRow) -> Iterator[Named]:
    """The answers if K is read from a different place."""
    if wrong.affords(64):
        around = wrong.around
        for words, rows in (*_elsewhere(around, "K"), *_shifted(around, "K"), *_stepped(wrong, "K")):
            yield words, wrong.row.answer(raw=around.raw(rows))


def other_K_and_V(wrong: WrongRow) -> Iterator[Named]:
    """The answers if K and V are both read from the same wrong place, such as a different head, and both change."""
    row, around = wrong.row, wrong.around
    values = dict(_elsewhere(around, "V")) if wrong.affords(64) else {}
    for words, K in _elsewhere(around, "K") if values else ():
        if words in values and not np.array_equal(K, row.K) and not np.array_equal(values[words], row.V):
            yield words, row.answer(V=values[words], raw=around.raw(K))


def zero_points(wrong: WrongRow) -> Iterator[Named]:
    """The zero point of K's blocks is subtracted the wrong number of times."""
    row, around = wrong.row, wrong.around
    view = around.view("K")
    zero = {"q4_0": 8, "q5_0": 16}.get(view.type)
    if zero is None or not around.has("K") or not wrong.affords(64):
        return
    packed = np.ascontiguousarray(row_bytes(view, around.inputs)[around.sequence, around.kv_head])
    blocks = packed.reshape(len(packed), -1, type_size(view.type))  # each block begins with its scale
    scales = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[..., 0].astype(np.float64)
    step = zero * np.repeat(scales, row.K.shape[1] // scales.shape[1], axis=1)
    for often in (0, 2, 4, 8, 16):
        yield f"the zero point is subtracted {often} times", row.answer(raw=around.raw(row.K - (often - 1) * step))


def swizzled(wrong: WrongRow) -> Iterator[Named]:
    """Chunks of 8 columns are at the positions of a swizzle: in row i, their index is XORed with i."""
    row, around, each = wrong.row, wrong.around, dict[str, F64]()
    for name, rows in (("K", row.K), ("V", row.V)) if wrong.affords(64) else ():
        if rows.shape[1] % 64 == 0:
            order = np.arange(8)[None, :] ^ (np.arange(len(rows)) % 8)[:, None]
            chunks = rows.reshape(len(rows), -1, 8, 8)
            each[name] = np.take_along_axis(chunks, order[:, None, :, None], axis=2).reshape(rows.shape)
    if "K" in each:
        yield "K's tile is written and read in different layouts", row.answer(raw=around.raw(each["K"]))
    if "V" in each:
        yield "V's tile is written and read in different layouts", row.p @ each["V"]
    if len(each) == 2:
        words = "the tiles of K and V are written and read in different layouts"
        yield words, row.answer(V=each["V"], raw=around.raw(each["K"]))


def other_masks(wrong: WrongRow) -> Iterator[Named]:
    """The answers with wrong rows or columns of the mask."""
    if wrong.row.mask.any() and wrong.affords(64):
        for name, mask in wrong.around.masks():
            if not np.isnan(mask).any():
                yield name, wrong.row.answer(mask=mask * wrong.row.slope)


def hiding_mask(wrong: WrongRow) -> Iterator[Cause]:
    """The mask hides everything in row sequence * n_q + query, where this row would be without padding."""
    around, sizes = wrong.around, wrong.around.case.op.sizes
    if around.has("mask"):
        view = around.view("mask")
        start = (around.sequence % view.ne[3] * sizes.n_q + around.query) * (view.nb[1] // 2)
        entries = around.mask_entries(start, sizes.n_kv)
        if entries is not None and not np.isfinite(entries).any():
            yield Cause("", "", "")


def _elsewhere(around: Around, name: str) -> Iterator[Named]:
    """A tensor read with wrong strides, or from a different head or sequence, and the mistake in words."""
    sizes, view = around.case.op.sizes, around.view(name)
    for words, other in _strides(around, name):
        if (rows := around.rows(other)) is not None:
            yield words, rows
    yield from _converted(around, name)
    for head in range(min(sizes.n_head_kv, 64)):
        if head != around.kv_head and (rows := around.rows(view, kv_head=head)) is not None:
            yield f"head {head}", rows
    for sequence in range(min(sizes.n_seq, 64)):
        if sequence != around.sequence and (rows := around.rows(view, sequence=sequence)) is not None:
            yield f"sequence {sequence}", rows


def _strides(around: Around, name: str) -> Iterator[tuple[str, TensorView]]:
    """A tensor with one of its strides replaced by a different stride of K or V, or by that of a contiguous tensor."""
    view, tensors = around.view(name), around.case.op.tensors
    row = row_size(view.type, view.ne[0])
    contiguous = (view.nb[0], row, row * view.ne[1], row * view.ne[1] * view.ne[2])
    known = {f"the stride nb[{axis}] of {other}": tensors[other].nb[axis] for other in "KV" for axis in (1, 2, 3)}
    known |= {"the stride of a contiguous tensor": 0}
    for axis, of, index in ((1, "rows", 1), (2, "heads", around.kv_head), (3, "sequences", around.sequence)):
        for words, stride in sorted(known.items(), key=lambda one: f"nb[{axis}]" not in one[0]):
            nb = [*view.nb]
            nb[axis] = stride or contiguous[axis]
            if index and nb[axis] != view.nb[axis]:
                yield f"its {of} with {words}", replace(view, nb=(nb[0], nb[1], nb[2], nb[3]))
    yield "as if it were contiguous", replace(view, nb=contiguous)


def _converted(around: Around, name: str) -> Iterator[Named]:
    """A tensor converted to f16, which is contiguous, read with a wrong stride; not for very large tensors."""
    view = around.view(name)
    row, n_kv, heads, n_seq = view.ne
    if view.type == "f16" or 32 * math.prod(view.ne) > WORK or not around.has(name):
        return
    stored = stored_rows(view, around.inputs)
    each = [
        np.asarray(stored[sequence, head, slice(0, n_kv)], np.float64) for sequence, head in np.ndindex(n_seq, heads)
    ]
    flat = np.concatenate(each).ravel()
    plane, space = n_kv * row, heads * n_kv * row
    before = [stride // 2 for stride in view.nb]
    strides = {
        "its rows with the stride from before the conversion": (before[1], plane, space),
        "its heads with the stride from before the conversion": (row, before[2], space),
        "its sequences with the stride from before the conversion": (row, plane, before[3]),
        "its heads with a stride of ne[2] rows": (row, heads * row, heads * heads * row),
    }
    for words, (along, by_head, by_sequence) in strides.items():
        start = around.sequence * by_sequence + around.kv_head * by_head
        index = start + along * np.arange(n_kv)[:, None] + np.arange(row)
        if index[-1, -1] < flat.size and (along, start) != (row, around.sequence * space + around.kv_head * plane):
            yield f"after its conversion to f16, {words}", flat[index]


def _shifted(around: Around, name: str) -> Iterator[Named]:
    """A tensor read at shifted columns: by whole blocks of a quantised type, otherwise by 8 columns."""
    view = around.view(name)
    if 256 * view.ne[0] * view.ne[1] > WORK:
        return
    columns = max(8, block_size(view.type))
    unit = row_size(view.type, columns)
    first = view.offset + around.sequence * view.nb[3] + around.kv_head * view.nb[2]
    last = first + (view.ne[1] - 1) * view.nb[1] + row_size(view.type, view.ne[0])
    most = 2 * view.ne[0] // columns
    before, behind = min(most, first // unit), min(most, (around.inputs[view.root].size - last) // unit)
    wide = view.ne[0] + (before + behind) * columns
    rows = around.rows(replace(view, ne=(wide, *view.ne[1:]), offset=view.offset - before * unit))
    for shift in range(-before, behind + 1):
        if shift and rows is not None:
            start = (before + shift) * columns
            yield f"columns {shift * columns:+d}", rows[:, start : start + view.ne[0]]


def _stepped(wrong: WrongRow, name: str) -> Iterator[Named]:
    """K or V with a wrong stride from step to step, and the correct stride within a step."""
    around, step = wrong.around, wrong.step
    view, n_kv = around.view(name), around.case.op.sizes.n_kv
    for words, other in _strides(around, name) if step else ():
        if other.nb[1] != view.nb[1]:
            starts = range(0, n_kv, step)
            sizes = ((view.ne[0], min(step, n_kv - start), *view.ne[2:]) for start in starts)
            views = (
                replace(view, ne=size, offset=view.offset + start * other.nb[1])
                for start, size in zip(starts, sizes, strict=True)
            )
            parts = [rows for one in views if (rows := around.rows(one)) is not None]
            if len(parts) == len(starts):
                yield f"{words}, from KV step to KV step", np.concatenate(parts)
