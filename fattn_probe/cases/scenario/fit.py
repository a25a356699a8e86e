"""Fit a scenario's distributions, layouts and mask to a recorded op, from statistics of what attention reads."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fattn_probe.base.arrays import F64, I64, Bools, Bytes, Floats
from fattn_probe.cases.op import Op, TensorView
from fattn_probe.cases.op.op import block_size, row_size, type_size
from fattn_probe.cases.op.values import cap, decode, row_bytes
from fattn_probe.cases.scenario.draw import some_rows
from fattn_probe.cases.scenario.layout import Contiguous, MaskLayout, View, place, place_mask
from fattn_probe.cases.scenario.mask import (
    Alibi,
    AnyMask,
    Causal,
    MaskedTiles,
    MaskShape,
    Sequences,
    SlidingWindow,
    Sparse,
)

MOST_KV, MOST_QUERIES = 4096, 64
"""Limits on a sample: KV rows in total, and queries per sequence; KV rows and queries are evenly spaced."""
FAR = 4.0
"""An element is `far` if it is more than this many standard deviations from the mean."""


@dataclass(frozen=True)
class Spread:
    """The distribution of `count` sampled elements of a tensor.

    `median` is the median of |element - mean|. `kurtosis` is 3 for a normal and 1.8 for a uniform one. `far` is the
    share of elements more than FAR standard deviations from the mean. `heads` is the largest standard deviation of a
    head as a multiple of the smallest. `channels` is the root mean square of the channels' means, after subtracting
    the overall mean and the effect of chance.
    """

    count: int
    mean: float
    std: float
    largest: float
    median: float
    kurtosis: float
    far: float
    heads: float
    channels: float


@dataclass(frozen=True)
class Statistics:
    """The spreads of the operands by name, and of the logits before softcap and mask.

    `logit_std` is the standard deviation of a row's unmasked logits; softmax ignores an offset common to the row.
    `largest_weight`: a row's largest softmax weight, averaged over rows. `unseen`: share of KV rows that no query sees.
    """

    tensors: Mapping[str, Spread]
    logit_std: float
    logit_largest: float
    largest_weight: float
    unseen: float


@dataclass(frozen=True, eq=False)
class ScenarioSample:
    """A sample of one sequence: values (heads, rows, elements), and the KV rows that each query sees.

    `visible` has shape (planes, queries, rows); head h reads plane h % planes of the mask.
    """

    Q: F64
    K: F64
    V: F64
    visible: Bools


def statistics_of(op: Op, inputs: Mapping[str, Bytes]) -> Statistics:
    """The statistics of an op and its input bytes."""
    seen = []  # the KV rows seen by at least one query and head of a sequence; all rows if every query is fully masked
    for sequence in range(op.sizes.n_seq):
        every = np.ones(op.sizes.n_kv, np.bool_)
        rows = np.isfinite(mask_of(op, inputs, sequence)).any(axis=(0, 1)) if op.has_mask else every
        seen.append(np.asarray(rows) if rows.any() else every)
    samples = [sample_of(op, inputs, sequence, rows) for sequence, rows in enumerate(seen)]
    tensors = {name: spread(np.concatenate([getattr(one, name) for one in samples], axis=1)) for name in "QKV"}
    if op.has_sinks:
        tensors["sinks"] = spread(values_of(op.tensors["sinks"], inputs, 0, np.arange(1)))
    unseen = 1 - sum(int(one.sum()) for one in seen) / sum(one.size for one in seen)
    return Statistics(tensors, *logits_of(op, samples), unseen)


def sample_of(op: Op, inputs: Mapping[str, Bytes], sequence: int, seen: Bools) -> ScenarioSample:
    """A sample of a sequence's queries, and of the KV rows in `seen`."""
    rows = spaced(np.flatnonzero(seen), MOST_KV // op.sizes.n_seq)
    queries = spaced(np.arange(op.sizes.n_q), MOST_QUERIES)
    visible = np.ones((1, queries.size, rows.size), np.bool_)
    if op.has_mask:
        visible = np.isfinite(mask_of(op, inputs, sequence)[:, queries[:, None], rows])
    Q = values_of(op.tensors["Q"], inputs, sequence, queries)
    K, V = (values_of(op.tensors[name], inputs, sequence, rows) for name in "KV")
    return ScenarioSample(Q, K, V, visible)


def mask_of(op: Op, inputs: Mapping[str, Bytes], sequence: int) -> Floats:
    """The mask of a sequence without padding, shape (planes, queries, KV rows); head h reads plane h % planes."""
    view = op.operands["mask"]
    memory = np.ascontiguousarray(row_bytes(view, inputs)[sequence % view.ne[3], :, : op.sizes.n_q])
    return memory.view(np.float16)


def spaced(places: I64, most: int) -> I64:
    """At most `most` of the positions, evenly spaced."""
    if places.size <= most:
        return places
    return places[np.linspace(0, places.size - 1, max(1, most)).astype(np.int64)]


def values_of(view: TensorView, inputs: Mapping[str, Bytes], sequence: int, rows: I64) -> F64:
    """Some rows of a sequence, shape (heads, rows, elements)."""
    packed = np.ascontiguousarray(row_bytes(view, inputs)[sequence][:, rows])
    return decode(packed.reshape(-1), view.type).reshape(*packed.shape[:2], view.ne[0]).astype(np.float64)


def spread(values: F64) -> Spread:
    """The spread of values of shape (heads, rows, elements)."""
    with np.errstate(invalid="ignore"):
        mean, std = float(values.mean()), float(values.std())
    if std == 0.0 or not math.isfinite(std):
        return Spread(values.size, mean, std, abs(mean), 0.0, 3.0, 0.0, 1.0, 0.0)
    off = (values - mean) / std
    heads = values.std(axis=(1, 2))
    means, chance = values.mean(axis=1) - mean, std**2 / values.shape[1]
    return Spread(
        count=values.size,
        mean=mean,
        std=std,
        largest=float(np.abs(values).max()),
        median=float(np.median(np.abs(off)) * std),
        kurtosis=float(np.mean(off**4)),
        far=float(np.mean(np.abs(off) > FAR)),
        heads=float(heads.max() / heads.min()) if heads.min() > 0 else float("inf"),
        channels=float(np.sqrt(max(0.0, np.mean(means**2) - chance))),
    )


def logits_of(op: Op, samples: Sequence[ScenarioSample]) -> tuple[float, float, float]:
    """The RMS of the rows' standard deviations, the largest |logit|, and the mean of the rows' largest weights."""
    rows, softcap = [], op.params.logit_softcap
    for sample in samples:
        for head, Q in enumerate(sample.Q):
            logits = op.params.scale * Q @ sample.K[head // op.sizes.group].T
            for row, sees in zip(logits, sample.visible[head % len(sample.visible)], strict=True):
                if (seen := row[sees]).size:
                    capped = cap(seen / softcap, softcap) if softcap else seen
                    rows.append((seen.std(), np.abs(seen).max(), 1 / np.exp(capped - capped.max()).sum()))
    if not rows:
        return 0.0, 0.0, 0.0
    std, largest, weight = np.array(rows).T
    return float(np.sqrt(np.mean(std**2))), float(largest.max()), float(weight.mean())


Settings = dict[str, Any]
FLAT, HEAVY = 2.2, 3.3
"""Elements are uniform if their kurtosis is below the first value, and have outliers if it is above the second."""
CHANCE = 4.0
"""A deviation of at most this many standard errors is attributed to chance."""
MOST_PASTS = 4
"""The number of positions of the first query that are tried, beginning with the most common one."""
MOST_SEQUENCES = 16
"""The largest number of sequences in one cache that is considered."""
LARGEST_F16, MOST_STDS = 65500.0, 6.0
"""The largest f16, rounded down; and the number of standard deviations that a normally distributed value may reach."""
SHARES = np.geomspace(1e-4, 0.3, 60)
DIGITS = 4


def data_of(found: Spread) -> Settings:
    """A distribution with the mean, standard deviation and tails of a tensor's elements."""
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
    """A few large elements of equal size among small ones, for tensors whose normal outliers would overflow f16."""
    share = min(1.0, max(found.far, found.std**2 / LARGEST_F16**2))
    magnitude = min(found.std / math.sqrt(share), LARGEST_F16)
    return {
        "kind": "extreme",
        "scale": rounded(2 * found.median or found.std),
        "magnitude": rounded(magnitude),
        "probability": rounded(share),
    }


def outliers(kurtosis: float, far: float) -> tuple[float, float]:
    """The share p and size s of outliers that give this kurtosis and about this share of elements far from the mean.

    A sum of N(0, 1) and, for a share p, N(0, s^2) has variance 1 + p s^2 and fourth moment 3 (1 + 2 p s^2 + p s^4). For
    each p < 3/kurtosis, this gives an s; p is chosen to match the share of far elements.
    """
    found = [(share, size_of_outliers(kurtosis, share)) for share in SHARES if 3 / kurtosis > share]
    return min(found, key=lambda pair: abs(math.log((far_share(*pair) + 1e-9) / (far + 1e-9))))


def size_of_outliers(kurtosis: float, share: float) -> float:
    """The size of outliers for a given share, from 3 (1 + 2 t + t^2 / p) = kurtosis (1 + t)^2 with t = p s^2."""
    a, b, c = 3 / share - kurtosis, 6 - 2 * kurtosis, 3 - kurtosis
    return math.sqrt((-b + math.sqrt(b * b - 4 * a * c)) / (2 * a) / share)


def far_share(share: float, size: float) -> float:
    """The share of elements more than FAR standard deviations from the mean, for outliers of this share and size."""
    limit = FAR * math.sqrt(1 + share * size**2) / math.sqrt(2)
    return (1 - share) * math.erfc(limit) + share * math.erfc(limit / math.sqrt(1 + size**2))


def rounded(value: float) -> float:
    """A number, rounded to DIGITS significant digits for the file."""
    return float(f"{value:.{DIGITS}g}")


def layouts(view: TensorView) -> Iterator[Settings]:
    """Candidate layouts of a view: contiguous memory, then views in both orders of rows and heads."""
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
    """Whether a layout reproduces a view's offset, and its strides in all dimensions larger than 1."""
    if settings.get("pad", 0) < 0:
        return False
    layout = Contiguous() if settings["kind"] == "contiguous" else View.model_validate(settings)
    _, made = place(view.name, view.type, view.ne, layout)
    pairs = zip(made.nb[1:], view.nb[1:], view.ne[1:], strict=True)
    return made.offset == view.offset and all(a == b for a, b, n in pairs if n > 1)


def offset_in_K(op: Op) -> int | None:
    """The index of V's first element in K's rows; None if V is not part of them."""
    K, V = op.tensors["K"], op.tensors["V"]
    beside = V.offset - K.offset
    if K.root != V.root or K.nb != V.nb or not 0 <= beside <= row_size(K.type, K.ne[0]) - row_size(V.type, V.ne[0]):
        return None
    return beside // type_size(K.type) * block_size(K.type)


def mask_layout_of(op: Op) -> Settings | None:
    """The settings of the mask's layout; None if no layout has its shape and offset."""
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
    """The mask of a known kind that matches the most recorded entries in all planes, for a sample of the queries.

    Also returns the share of matching entries, and whether the recorded mask differs between heads.
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
    """Masks that may match a recorded mask (sequences, queries, KV rows), the simplest first."""
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
    """The first and last KV rows seen by each query of the first sequence; the most rows seen by any query."""
    first = seen[0].argmax(axis=1)
    last = seen.shape[2] - 1 - seen[0, :, ::-1].argmax(axis=1)
    return first, last, int(seen.sum(axis=2).max())
