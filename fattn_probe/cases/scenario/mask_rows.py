"""The rows of masks, generated in blocks, so that a huge mask exists only in f16."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import I64, Halves
from fattn_probe.cases.scenario.cases import Case
from fattn_probe.cases.scenario.draw import STREAMS, stream
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

BLOCK = 64  # rows generated at a time; random masks depend on it


def blocks(mask: AnyMask, shape: MaskShape) -> Iterator[tuple[int, int, Halves]]:
    """(sequence, first row, f16 [rows, n_kv]) for every `BLOCK` rows of a mask."""
    for sequence in range(shape.n_seq):
        for first in range(0, shape.n_q, BLOCK):
            queries = np.arange(first, min(first + BLOCK, shape.n_q))
            yield sequence, first, _rows(mask, shape, sequence, queries, 0)


def some_rows(mask: AnyMask, shape: MaskShape, sequence: int, queries: I64) -> Halves:
    """The mask rows of some queries, f16 (queries, n_kv), the same as in the whole mask."""
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
    """The first KV row that each query sees, and one past the last; equal if it sees none.

    They are only bounds if KV rows in between are masked at random or belong to another sequence.
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
    """Whether a row can only be generated together with its block, because they share random numbers."""
    return any(map(_by_blocks, mask.of)) if isinstance(mask, Sum) else isinstance(mask, Random | Sparse)


def _rows(mask: AnyMask, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    """Rows of a mask; `level` numbers the parts of a sum, so that equal kinds draw different numbers."""
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
            hidden = _of_other_sequences(mask, shape, queries)
        case Blocks():
            grid = (-(-shape.n_q // mask.q), -(-shape.n_kv // mask.kv))
            chosen = stream(shape.seed, STREAMS["mask"], (level, sequence)).random(grid) < mask.fraction
            hidden = chosen[queries // mask.q].repeat(mask.kv, axis=1)[:, : shape.n_kv]
        case MaskedTiles():
            hidden[:] = (keys < mask.leading) | (keys >= shape.n_kv - mask.trailing)
        case MaskedRows():
            hidden[:] = _is_masked(mask, queries)[:, None]
    return np.where(hidden, np.float16(-np.inf), np.float16(0))


def _of_other_sequences(mask: Sequences, shape: MaskShape, queries: I64) -> npt.NDArray[np.bool_]:
    """The KV rows that each query does not see."""
    keys = np.arange(shape.n_kv)
    owner = keys % mask.count if mask.interleaved else keys * mask.count // shape.n_kv
    everyone = np.arange(shape.n_q) * mask.count // shape.n_q
    hidden = owner != everyone[queries][:, None]
    if mask.causal:
        left = np.stack([np.cumsum((owner == s)[::-1])[::-1] - (owner == s) for s in range(mask.count)])  # rows to come
        after = np.searchsorted(everyone, everyone[queries], "right") - 1 - queries
        hidden |= left[everyone[queries]] < after[:, None]
    return np.asarray(hidden)


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
    """The sequence and the query whose mask row is read for a query (arrays).

    These are the same sequence and query, unless the mask repeats. Then row r of a period of n rows has the mask of
    query r * n_q / n of the first sequence, so that a period is an evenly spaced sample of the whole mask.
    """
    root, view = case.op.roots["mask"], case.op.tensors["mask"]
    if root.period is None:
        return sequence % view.ne[3], query
    place = view.offset + sequence % view.ne[3] * view.nb[3] + query * view.nb[1]
    rows = root.period // root.nb[1]
    return 0 * sequence, place // root.nb[1] % rows * case.op.sizes.n_q // rows


def queries_read(case: Case) -> I64:
    """The queries whose mask rows are in memory, in order."""
    root, n_q = case.op.roots.get("mask"), case.op.sizes.n_q
    if root is None or root.period is None:
        return np.arange(n_q)
    rows = root.period // root.nb[1]
    return np.arange(rows) * n_q // rows
