"""Reproducible random numbers for the tensors' distributions, and the rows of masks.

Masks are generated in blocks of rows, so that a huge mask never exists in a wider type than f16.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, I64, Halves
from fattn_probe.cases.scenario.cases import Case
from fattn_probe.cases.scenario.data import (
    AnyData,
    Constant,
    Extreme,
    Fa3Outliers,
    FarBelowZero,
    LargeLogits,
    Normal,
    Uniform,
)
from fattn_probe.cases.scenario.mask import (
    Alibi,
    AnyMask,
    Blocks,
    Causal,
    MaskedRows,
    MaskedTiles,
    MaskShape,
    Random,
    Sequences,
    SlidingWindow,
    Sparse,
    Sum,
    past_of,
)

STREAMS = {"Q": 1, "K": 2, "V": 3, "mask": 4, "sinks": 5}

FLOATS_A_STEP = 8  # float32 values per step of Philox, which yields four 64-bit numbers

UNUSED = 16  # added to a tensor's stream number for the memory outside its view


def stream(seed: int, number: int, counter: tuple[int, int] = (0, 0), *, steps: int = 0) -> np.random.Generator:
    """The random stream for (seed, tensor number, two counters): the same on every machine; streams are independent.

    It skips the first `steps` steps of Philox, each of which yields FLOATS_A_STEP uniform float32 values.
    """
    position = np.array([steps, 0, *counter], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array([seed, number], dtype=np.uint64), counter=position))


@dataclass
class Window:
    """Part of each run of `length` uniform numbers, without generating the numbers before it.

    `run` is the next run; the part begins at number `first` of the run. A number is the upper 24 of 32 bits: the same
    value as Generator.random returns, but generated faster.
    """

    seed: int
    number: int
    run: int
    length: int
    first: int

    def random(self, size: tuple[int, ...], dtype: type[np.float32]) -> F32:
        """The part of the next run, as numbers of shape `size`."""
        steps, beside = divmod(self.run * self.length + self.first, FLOATS_A_STEP)
        self.run += 1
        count = math.prod(size)
        numbers = stream(self.seed, self.number, steps=steps).integers(0, 2**64, (beside + count + 1) // 2, np.uint64)
        bits = numbers.astype("<u8", copy=False).view("<u4")[beside : beside + count] >> np.uint32(8)
        values = bits.astype(dtype)
        values *= np.float32(2**-24)
        return values.reshape(size)


def draw(data: AnyData, name: str, shape: tuple[int, ...], rng: np.random.Generator, *, scale: float, hsk: int) -> F32:
    """Random float32 numbers from a tensor's distribution, in any shape; for kinds in RUNS, `rng` can be a `Window`.

    The op's `scale` and head size relate the elements of Q and K to the logits.
    """
    match data:
        case Uniform():
            values = rng.random(shape, np.float32)
            values *= 2
            values -= 1
        case Normal():
            values = rng.standard_normal(shape, np.float32)
        case Constant():
            return np.full(shape, data.value, np.float32)
        case Fa3Outliers():
            chosen = rng.random(shape, np.float32) < data.probability
            values = rng.standard_normal(shape, np.float32)
            values += chosen * np.float32(data.outlier) * rng.standard_normal(shape, np.float32)
        case LargeLogits():
            width = data.logit / (scale * np.sqrt(hsk))
            return np.float32(width) * rng.standard_normal(shape, np.float32)
        case FarBelowZero():
            mean = np.sqrt(-data.logit / (scale * hsk)) * (1 if name == "Q" else -1)
            return np.float32(mean) + np.float32(data.scale) * rng.standard_normal(shape, np.float32)
        case Extreme():
            values = np.float32(data.scale) * (2 * rng.random(shape, np.float32) - 1)
            chosen = rng.random(shape, np.float32) < data.probability
            return np.where(chosen, np.copysign(np.float32(data.magnitude), values), values)
    if data.scale != 1.0:  # mean + scale * values, in float32 and in place
        values *= np.float32(data.scale)
    if data.mean != 0.0:
        values += np.float32(data.mean)
    return values


RUNS = {"constant": 0, "uniform": 1, "extreme": 2}
"""Number of uniform numbers per element, by kind; other kinds draw normal numbers, in a varying number of steps."""

SEVERAL_RUNS = {"fa3_outliers"}
"""Kinds that need several passes over a head's elements, so they cannot be generated row by row."""


BLOCK = 64  # rows generated at a time; random masks depend on this value


def blocks(mask: AnyMask, shape: MaskShape) -> Iterator[tuple[int, int, Halves]]:
    """(sequence, first row, f16 values (rows, n_kv)) for every `BLOCK` rows of a mask."""
    for sequence in range(shape.n_seq):
        for first in range(0, shape.n_q, BLOCK):
            queries = np.arange(first, min(first + BLOCK, shape.n_q))
            yield sequence, first, _rows(mask, shape, sequence, queries, 0)


def some_rows(mask: AnyMask, shape: MaskShape, sequence: int, queries: I64) -> Halves:
    """The mask rows of some queries, f16 (queries, n_kv), with the same values as in the whole mask."""
    rows = np.empty((len(queries), shape.n_kv), np.float16)
    for number in np.unique(queries // BLOCK):
        inside = np.flatnonzero(queries // BLOCK == number)
        if _by_blocks(mask):
            block = np.arange(number * BLOCK, min((number + 1) * BLOCK, shape.n_q))
            rows[inside] = _rows(mask, shape, sequence, block, 0)[queries[inside] - block[0]]
        else:
            rows[inside] = _rows(mask, shape, sequence, queries[inside], 0)
    return rows


def visible(mask: AnyMask, shape: MaskShape, queries: I64) -> tuple[I64, I64]:
    """The first KV row that each query sees, and one past the last; the two are equal if the query sees no row.

    Rows in between may be masked at random or belong to another sequence; then the two values are only bounds.
    """
    first, stop = (np.broadcast_to(np.int64(bound), queries.shape) for bound in (0, shape.n_kv))
    match mask:
        case Causal() | Alibi() | SlidingWindow():
            own = past_of(mask, shape) + queries
            stop = shape.n_kv + 0 * own if isinstance(mask, Alibi) and not mask.causal else own + 1
            first = own - mask.window + 1 if isinstance(mask, SlidingWindow) else first
        case Sequences(interleaved=False):
            owner = queries * mask.count // shape.n_q
            first, stop = (-(-part * shape.n_kv // mask.count) for part in (owner, owner + 1))
        case MaskedTiles():
            first, stop = first + mask.leading, stop - mask.trailing
        case MaskedRows():
            stop = np.where(_is_masked(mask, queries), 0, stop)
        case Sum():
            parts = [visible(part, shape, queries) for part in mask.of]
            first = np.max([part[0] for part in parts], axis=0)
            stop = np.min([part[1] for part in parts], axis=0)
    first = np.clip(first, 0, shape.n_kv)
    return first, np.maximum(first, np.minimum(stop, shape.n_kv))


def _by_blocks(mask: AnyMask) -> bool:
    """Whether a row can only be generated with its whole block, because the block's rows share random numbers."""
    return any(map(_by_blocks, mask.of)) if isinstance(mask, Sum) else isinstance(mask, Random | Sparse)


def _rows(mask: AnyMask, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    """Rows of a mask; `level` numbers the parts of a sum, so that parts of the same kind draw different numbers."""
    keys = np.arange(shape.n_kv)
    hidden = np.zeros((len(queries), shape.n_kv), np.bool_)
    match mask:
        case Sum():
            total = np.zeros((len(queries), shape.n_kv), np.float16)
            for number, part in enumerate(mask.of, level + 1):
                total += _rows(part, shape, sequence, queries, number)
            return total
        case Random():
            return _random(mask, shape, sequence, queries, level)
        case Sparse():
            return _sparse(mask, shape, sequence, queries, level)
        case Causal() | SlidingWindow() | Alibi():
            behind = (past_of(mask, shape) + queries)[:, None] - keys
            hidden = (behind < 0) & (not isinstance(mask, Alibi) or mask.causal)
            if isinstance(mask, SlidingWindow):
                hidden |= behind >= mask.window
            if isinstance(mask, Alibi):
                with np.errstate(over="ignore"):
                    distance = -np.abs(behind).astype(np.float32).astype(np.float16)
                return np.where(hidden, np.float16(-np.inf), distance)
        case Sequences():
            owner = keys % mask.count if mask.interleaved else keys * mask.count // shape.n_kv
            everyone = np.arange(shape.n_q) * mask.count // shape.n_q
            own = everyone[queries]
            hidden = owner != own[:, None]
            if mask.causal:
                mine = (owner == s for s in range(mask.count))
                left = np.stack([np.cumsum(rows[::-1])[::-1] - rows for rows in mine])  # the sequence's later rows
                hidden |= left[own] < (np.searchsorted(everyone, own, "right") - 1 - queries)[:, None]
        case Blocks():
            grid = (-(-shape.n_q // mask.q), -(-shape.n_kv // mask.kv))
            chosen = stream(shape.seed, STREAMS["mask"], (level, sequence)).random(grid) < mask.fraction
            hidden = chosen[queries // mask.q].repeat(mask.kv, axis=1)[:, : shape.n_kv]
        case MaskedTiles():
            hidden[:] = (keys < mask.leading) | (keys >= shape.n_kv - mask.trailing)
        case MaskedRows():
            hidden[:] = _is_masked(mask, queries)[:, None]
    return np.where(hidden, np.float16(-np.inf), np.float16(0))


def _is_masked(mask: MaskedRows, queries: I64) -> npt.NDArray[np.bool_]:
    masked: npt.NDArray[np.bool_] = (queries >= mask.first) & ((queries - mask.first) % mask.every == 0)
    return masked


def _random(mask: Random, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    number = int(queries[0]) // BLOCK
    rng = stream(shape.seed, STREAMS["mask"], (level << 32 | number + 1, sequence))
    size = (len(queries), shape.n_kv)
    values = (np.float32(mask.scale) * (2 * rng.random(size, np.float32) - 1)).astype(np.float16)
    places = stream(shape.seed, STREAMS["mask"], (level << 32, sequence))
    corners = places.integers(0, [shape.n_q, shape.n_kv, 2], (int(mask.blocks * shape.n_q * shape.n_kv / 8192), 3))
    touching = (corners[:, 0] <= queries[-1]) & (corners[:, 0] + 64 > queries[0])
    for row, column, infinite in corners[touching]:
        first = max(0, row - queries[0])
        values[first : row + 64 - queries[0], column : column + 128] = -np.inf if infinite else 0
    return values


def _sparse(mask: Sparse, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    finite = mask.finite or shape.n_kv_max
    rng = stream(shape.seed, STREAMS["mask"], (level << 32 | int(queries[0]) // BLOCK, sequence))
    values = np.full((len(queries), shape.n_kv), -np.inf, np.float16)
    for row, query in zip(values, queries, strict=True):
        number = sequence * shape.n_q + int(query)
        count = finite - number % min(finite, 17)
        places = np.sort(rng.permutation(shape.n_kv)[:count])
        row[places] = -0.03125 * (1 + (np.arange(count) + number) % 7)
    return values


def mask_rows_read(case: Case, sequence: I64, query: I64) -> tuple[I64, I64]:
    """For each sequence and query (arrays), the sequence and the query whose mask row is read.

    Without repetition, they are the given ones. With it, row r of a period of n rows has the mask of query r * n_q / n
    of the first sequence, so that a period is an evenly spaced sample of the whole mask.
    """
    root, view = case.op.roots["mask"], case.op.tensors["mask"]
    if root.period is None:
        return sequence % view.ne[3], query
    place = view.offset + sequence % view.ne[3] * view.nb[3] + query * view.nb[1]
    rows = root.period // root.nb[1]
    return 0 * sequence, place // root.nb[1] % rows * case.op.sizes.n_q // rows


def queries_read(case: Case) -> I64:
    """The queries whose mask rows are stored in memory, in order."""
    root, n_q = case.op.roots.get("mask"), case.op.sizes.n_q
    if root is None or root.period is None:
        return np.arange(n_q)
    rows = root.period // root.nb[1]
    return np.arange(rows) * n_q // rows
