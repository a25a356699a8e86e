"""Fit a scenario's settings to a recorded op: distributions, layouts, the mask."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fattn_probe.base.arrays import I64, Bools, Bytes, Floats
from fattn_probe.cases.op import Op, TensorView
from fattn_probe.cases.op.ggml_types import block_size, row_size, type_size

from .layout import Contiguous, MaskLayout, View, place, place_mask
from .mask import Alibi, AnyMask, Causal, MaskedTiles, MaskShape, Sequences, SlidingWindow, Sparse
from .mask_rows import some_rows
from .statistics import FAR, MOST_QUERIES, Spread, mask_of, spaced

Settings = dict[str, Any]
FLAT, HEAVY = 2.2, 3.3
"""Elements are uniform if their kurtosis is below the first number, and have outliers if it is above the second."""
CHANCE = 4.0
"""Deviations of the kurtosis, in standard errors, that count as chance."""
MOST_PASTS = 4
"""The number of positions of the first query to try, the most common first."""
MOST_SEQUENCES = 16
"""The largest number of sequences in one cache to try."""
LARGEST_F16, MOST_STDS = 65500.0, 6.0
"""The largest f16, rounded down, and the number of standard deviations that no normal number exceeds."""
SHARES = np.geomspace(1e-4, 0.3, 60)
DIGITS = 4


def data_of(found: Spread) -> Settings:
    """A distribution with the mean, the standard deviation and the tails of a tensor's elements."""
    mean = {"mean": rounded(found.mean)} if found.mean else {}
    if found.std == 0.0:
        return {"kind": "constant", "value": rounded(found.mean)}
    if found.kurtosis < FLAT:
        return {"kind": "uniform", "scale": rounded(found.std * math.sqrt(3)), **mean}
    if found.kurtosis <= HEAVY + CHANCE * math.sqrt(24 / found.count):
        return {"kind": "normal", "scale": rounded(found.std), **mean}
    share, outlier = outliers(found.kurtosis, found.far)
    scale = found.std / math.sqrt(1 + share * outlier**2)
    if MOST_STDS * scale * outlier > LARGEST_F16:
        return extreme(found)
    return {
        "kind": "fa3_outliers",
        "scale": rounded(scale),
        **mean,
        "outlier": rounded(outlier),
        "probability": rounded(share),
    }


def extreme(found: Spread) -> Settings:
    """A few large elements of equal size among small ones, if normal outliers would exceed f16."""
    share = min(1.0, max(found.far, found.std**2 / LARGEST_F16**2))
    magnitude = min(found.std / math.sqrt(share), LARGEST_F16)
    return {
        "kind": "extreme",
        "scale": rounded(2 * found.median or found.std),
        "magnitude": rounded(magnitude),
        "probability": rounded(share),
    }


def outliers(kurtosis: float, far: float) -> tuple[float, float]:
    """Share and size of outliers with this kurtosis, and about this share of elements far from the mean.

    N(0, 1) + N(0, size^2) for a share p has variance 1 + p s^2 and fourth moment 3 (1 + 2 p s^2 + p s^4). That gives s
    for each p, which exists for p < 3/kurtosis; the tails choose p.
    """
    found = [(share, size_of_outliers(kurtosis, share)) for share in SHARES if 3 / kurtosis > share]
    return min(found, key=lambda pair: abs(math.log((far_share(*pair) + 1e-9) / (far + 1e-9))))


def size_of_outliers(kurtosis: float, share: float) -> float:
    """The size of outliers for a given share, from 3 (1 + 2 t + t^2 / p) = kurtosis (1 + t)^2 with t = p s^2."""
    a, b, c = 3 / share - kurtosis, 6 - 2 * kurtosis, 3 - kurtosis
    return math.sqrt((-b + math.sqrt(b * b - 4 * a * c)) / (2 * a) / share)


def far_share(share: float, size: float) -> float:
    """The share of these elements that are more than FAR standard deviations from the mean."""
    limit = FAR * math.sqrt(1 + share * size**2) / math.sqrt(2)
    return (1 - share) * math.erfc(limit) + share * math.erfc(limit / math.sqrt(1 + size**2))


def rounded(value: float) -> float:
    """A number, rounded to the digits that a file should show."""
    return float(f"{value:.{DIGITS}g}")


def layout_of(view: TensorView) -> Settings | None:
    """A layout that gives an operand's strides and offset; None if there is none."""
    return next((settings for settings in layouts(view) if lies(view, settings)), None)


def layouts(view: TensorView) -> Iterator[Settings]:
    """Contiguous memory, and views in the order of the strides."""
    yield {"kind": "contiguous"}
    (_, n_rows, n_heads, n_seq), (_, *strides) = view.ne, view.nb
    for order in ((1, 2, 3), (2, 1, 3)):
        permute = [0, *(order.index(dimension) + 1 for dimension in (1, 2, 3))]
        row = strides[order[0] - 1]
        inner = strides[order[1] - 1] // row if row else 0
        outer = strides[2] // strides[order[1] - 1] if strides[order[1] - 1] and n_seq > 1 else 0
        offset, beside = divmod(view.offset, strides[0])
        if beside or row % type_size(view.type):
            continue
        rows, heads = (inner, outer) if order[0] == 1 else (outer, inner)
        yield {
            "kind": "view",
            **({"permute": permute} if order[0] != 1 else {}),
            **({"rows": rows} if rows > offset + n_rows else {}),
            **({"heads": heads} if heads > n_heads else {}),
            **({"offset": offset} if offset else {}),
            **({"pad": pad} if (pad := row // type_size(view.type) * block_size(view.type) - view.ne[0]) else {}),
        }


def lies(view: TensorView, settings: Settings) -> bool:
    """Whether a layout gives a view's offset, and its strides wherever there is more than one."""
    if settings.get("pad", 0) < 0:
        return False
    layout = Contiguous() if settings["kind"] == "contiguous" else View.model_validate(settings)
    _, made = place(view.name, view.type, view.ne, layout)
    pairs = zip(made.nb[1:], view.nb[1:], view.ne[1:], strict=True)
    return made.offset == view.offset and all(a == b for a, b, n in pairs if n > 1)


def offset_in_K(op: Op) -> int | None:
    """The first element of V in K's rows; None if V is not a part of them."""
    K, V = op.tensors["K"], op.tensors["V"]
    beside = V.offset - K.offset
    if K.root != V.root or K.nb != V.nb or not 0 <= beside <= row_size(K.type, K.ne[0]) - row_size(V.type, V.ne[0]):
        return None
    return beside // type_size(K.type) * block_size(K.type)


def mask_layout_of(op: Op) -> Settings | None:
    """A layout of the mask; None if there is none with its shape and its offset."""
    view, sizes = op.tensors["mask"], op.sizes
    settings = {
        **({"columns": view.ne[0]} if view.ne[0] != sizes.n_kv else {}),
        **({"pad": view.ne[1]} if view.ne[1] != sizes.n_q else {}),
        **({"offset": view.offset // view.nb[1]} if view.offset else {}),
        **({"per_sequence": False} if view.ne[3] != sizes.n_seq else {}),
    }
    _, made = place_mask(sizes.n_kv, sizes.n_q, sizes.n_seq, MaskLayout.model_validate(settings))
    return settings if (made.ne, made.nb, made.offset) == (view.ne, view.nb, view.offset) else None


def mask_like(op: Op, inputs: Mapping[str, Bytes]) -> tuple[AnyMask, float, bool]:
    """The mask of a known kind that matches most recorded entries, in all planes; from a sample of the queries.

    Also returns the share of equal entries, and whether the recorded mask differs by head.
    """
    queries = spaced(np.arange(op.sizes.n_q), MOST_QUERIES)
    recorded = np.stack([mask_of(op, inputs, s)[:, queries] for s in range(op.tensors["mask"].ne[3])])
    by_head = bool((recorded != recorded[:, :1]).any())
    shape = MaskShape(op.sizes.n_kv, op.sizes.n_q, len(recorded), 0, op.params.n_kv_max)
    best: tuple[AnyMask, float] = MaskedTiles(kind="masked_tiles"), -1.0
    for mask in kinds(recorded[:, 0], queries, op.params.n_kv_max):
        made = np.stack([some_rows(mask, shape, sequence, queries) for sequence in range(shape.n_seq)])
        share = float(np.mean(made[:, None] == recorded))
        best = (mask, share) if share > best[1] else best
        if share == 1.0:
            break
    return *best, by_head


def kinds(recorded: Floats, queries: I64, n_kv_max: int) -> Iterator[AnyMask]:
    """The masks that a recorded one (sequences, queries, KV rows) may be, the simplest first."""
    seen = np.isfinite(recorded)
    n_seq, _, n_kv = seen.shape
    first, last, most = ends(seen)
    if seen.all():
        yield MaskedTiles(kind="masked_tiles")
    for past, _ in Counter(np.maximum(0, last - queries).tolist()).most_common(MOST_PASTS):
        yield Causal(kind="causal", past=past)
        yield SlidingWindow(kind="sliding_window", past=past, window=max(1, most))
        yield Alibi(kind="alibi", past=past)
        yield Alibi(kind="alibi", past=past, causal=False)
    yield MaskedTiles(kind="masked_tiles", leading=int(first.min()), trailing=int(n_kv - 1 - last.max()))
    if n_seq == 1:
        for count in range(2, min(MOST_SEQUENCES, int(queries[-1]) + 1) + 1):
            for interleaved, causal in ((False, True), (True, True), (False, False), (True, False)):
                yield Sequences(kind="sequences", count=count, interleaved=interleaved, causal=causal)
    if n_kv_max:
        yield Sparse(kind="sparse", finite=max(1, most))


def ends(seen: Bools) -> tuple[I64, I64, int]:
    """The first and last KV row that each query sees in the first sequence; the most KV rows that any query sees."""
    first = seen[0].argmax(axis=1)
    last = seen.shape[2] - 1 - seen[0, :, ::-1].argmax(axis=1)
    return first, last, int(seen.sum(axis=2).max())
