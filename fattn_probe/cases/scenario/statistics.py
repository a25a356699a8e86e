"""Statistics of the parts of an op's operands that attention reads, and of the logits."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fattn_probe.base.arrays import F64, I64, Bools, Bytes, Floats
from fattn_probe.cases.op import Op, TensorView
from fattn_probe.cases.op.encoding import decode
from fattn_probe.cases.op.values import cap, row_bytes

MOST_KV, MOST_QUERIES = 4096, 64
"""The number of KV rows in total, and of queries per sequence, in a sample; evenly spaced."""
FAR = 4.0
"""An element this many standard deviations from the mean is far out."""


@dataclass(frozen=True)
class Spread:
    """The distribution of `count` sampled elements of a tensor.

    `median` is that of |element - mean|. `kurtosis` is 3 for normal and 1.8 for uniform numbers, `far` the share of
    elements more than FAR standard deviations from the mean. `heads` is the largest standard deviation of a head as a
    multiple of the smallest, `channels` the root mean square of the channels' means, after subtracting the overall mean
    and the effect of chance.
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

    `logit_std` is the standard deviation of unmasked logits within a row, because softmax ignores a common offset.
    `largest_weight` is the largest softmax weight of a row, averaged over rows; `unseen` the share of KV rows that no
    query sees.
    """

    tensors: Mapping[str, Spread]
    logit_std: float
    logit_largest: float
    largest_weight: float
    unseen: float


@dataclass(frozen=True, eq=False)
class ScenarioSample:
    """A sample of one sequence: values (heads, rows, elements), and which KV rows each query sees.

    `visible` is (planes, queries, rows); head h reads plane h % planes of the mask.
    """

    Q: F64
    K: F64
    V: F64
    visible: Bools


def statistics_of(op: Op, inputs: Mapping[str, Bytes]) -> Statistics:
    """The statistics of an op with its bytes."""
    seen = []  # the KV rows that some query of a sequence sees, in any head; all, if every query is fully masked
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
    """Some queries of a sequence, and some of the KV rows that they see."""
    rows = spaced(np.flatnonzero(seen), MOST_KV // op.sizes.n_seq)
    queries = spaced(np.arange(op.sizes.n_q), MOST_QUERIES)
    visible = np.ones((1, queries.size, rows.size), np.bool_)
    if op.has_mask:
        visible = np.isfinite(mask_of(op, inputs, sequence)[:, queries[:, None], rows])
    Q = values_of(op.tensors["Q"], inputs, sequence, queries)
    K, V = (values_of(op.tensors[name], inputs, sequence, rows) for name in "KV")
    return ScenarioSample(Q, K, V, visible)


def mask_of(op: Op, inputs: Mapping[str, Bytes], sequence: int) -> Floats:
    """The mask of a sequence, (planes, queries, KV rows), without padding; head h reads plane h % planes."""
    view = op.operands["mask"]
    memory = np.ascontiguousarray(row_bytes(view, inputs)[sequence % view.ne[3], :, : op.sizes.n_q])
    return memory.view(np.float16)


def spaced(places: I64, most: int) -> I64:
    """At most `most` of some places, evenly spaced."""
    if places.size <= most:
        return places
    return places[np.linspace(0, places.size - 1, max(1, most)).astype(np.int64)]


def values_of(view: TensorView, inputs: Mapping[str, Bytes], sequence: int, rows: I64) -> F64:
    """Some rows of a sequence, (heads, rows, elements)."""
    packed = np.ascontiguousarray(row_bytes(view, inputs)[sequence][:, rows])
    return decode(packed.reshape(-1), view.type).reshape(*packed.shape[:2], view.ne[0]).astype(np.float64)


def spread(values: F64) -> Spread:
    """The distribution of values (heads, rows, elements)."""
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
    """Over the rows that see a KV row: RMS of the standard deviations, the largest |logit|, mean of largest weights."""
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
