"""The masks, generated in blocks of rows, so that a huge mask exists only in f16."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fattn_probe.arrays import I64, Halves

from .data import STREAMS, Positive, stream
from .spec import Spec

BLOCK = 64  # rows generated at a time; random masks depend on it
Count = Annotated[int, Field(ge=0, lt=2**31)]


class NoMask(Spec):
    """The op gets no mask tensor."""

    kind: Literal["none"] = "none"


class _Past(Spec):
    past: Count | None = None
    """KV rows before the first query's position; default: n_kv - n_q, so that the last query sees every row."""


class Causal(_Past):
    """0 up to a query's own position, -inf after it."""

    kind: Literal["causal"]


class SlidingWindow(_Past):
    """0 on the `window` positions up to a query's own, -inf elsewhere."""

    kind: Literal["sliding_window"]
    window: int = Field(ge=1)
    """Positions that a query sees, including its own."""


class Sequences(Spec):
    """Several sequences share the KV rows, as in a unified cache: a query sees only its own sequence."""

    kind: Literal["sequences"]
    count: int = Field(ge=1)
    """Number of sequences; queries and KV rows are divided evenly."""
    interleaved: bool = False
    """Whether the sequences' KV rows alternate instead of being contiguous."""
    causal: bool = True
    """Whether the mask is causal within a sequence, whose last query sees all of it."""


class Blocks(Spec):
    """0, with random blocks of -inf on a grid."""

    kind: Literal["blocks"]
    q: int = Field(default=64, ge=1)
    """Queries in a block."""
    kv: int = Field(default=128, ge=1)
    """KV rows in a block."""
    fraction: float = Field(default=0.5, ge=0, le=1)
    """Probability that a block is -inf."""


class MaskedTiles(Spec):
    """-inf for every query on the first and last KV rows, 0 between: whole tiles that a kernel may skip."""

    kind: Literal["masked_tiles"]
    leading: Count = 0
    """KV rows masked at the start."""
    trailing: Count = 0
    """KV rows masked at the end."""


class MaskedRows(Spec):
    """-inf on every KV row for some queries, whose softmax sum is then zero; 0 for the others."""

    kind: Literal["masked_rows"]
    every: int = Field(default=2, ge=1)
    """One in this many queries is fully masked; 1 masks all."""
    first: Count = 0
    """The first masked query."""


class Random(Spec):
    """test-backend-ops' mask: uniform in [-scale, scale], with blocks of 64 queries x 128 KV rows of -inf or 0."""

    kind: Literal["random"]
    scale: Positive = 1.0
    """Half the width of the finite values."""
    blocks: float = Field(default=0.2, ge=0, le=1)
    """Share of the mask's area that the blocks cover."""


class Alibi(_Past):
    """Minus the distance between query and key; the op multiplies it by each head's slope, from `max_bias`."""

    kind: Literal["alibi"]
    causal: bool = True
    """Whether entries after a query's own position are -inf."""


class Sparse(Spec):
    """A few random finite entries per row, the rest -inf, for use with `n_kv_max`: test-backend-ops' sparse mask."""

    kind: Literal["sparse"]
    finite: int | None = Field(default=None, ge=1)
    """Finite entries per row; some rows have up to 16 fewer. Default: n_kv_max."""


class Sum(Spec):
    """The sum of several masks: -inf where any of them is."""

    kind: Literal["sum"]
    of: list["Mask"] = Field(min_length=2)
    """The masks."""


Mask = Annotated[
    NoMask | Causal | SlidingWindow | Sequences | Blocks | MaskedTiles | MaskedRows | Random | Alibi | Sparse | Sum,
    Field(discriminator="kind"),
]
AnyMask = (
    NoMask | Causal | SlidingWindow | Sequences | Blocks | MaskedTiles | MaskedRows | Random | Alibi | Sparse | Sum
)
Sum.model_rebuild()


@dataclass(frozen=True)
class MaskShape:
    """The size of a mask without its padded rows, and the seed of its random numbers."""

    n_kv: int
    n_q: int
    n_seq: int
    seed: int
    n_kv_max: int = 0


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
            own = _past(mask, shape) + queries
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


def sees_something(mask: AnyMask) -> bool:
    """Whether every query with a nonempty `visible` range sees a KV row."""
    return isinstance(mask, NoMask | Causal | SlidingWindow | MaskedTiles | MaskedRows | Sparse)


def max_finite(mask: AnyMask, shape: MaskShape) -> int:
    """An upper bound on the finite entries of a row; `n_kv_max` must be at least this."""
    match mask:
        case SlidingWindow():
            bound = mask.window
        case Causal():
            bound = _past(mask, shape) + shape.n_q
        case Sequences():
            bound = -(-shape.n_kv // mask.count)
        case MaskedTiles():
            bound = max(0, shape.n_kv - mask.leading - mask.trailing)
        case Sparse():
            bound = mask.finite or shape.n_kv_max
        case Sum():
            bound = min(max_finite(part, shape) for part in mask.of)
        case _:
            bound = shape.n_kv
    return min(bound, shape.n_kv)


def _by_blocks(mask: AnyMask) -> bool:
    """Whether a row can only be generated together with its block, because they share random numbers."""
    return any(map(_by_blocks, mask.of)) if isinstance(mask, Sum) else isinstance(mask, Random | Sparse)


def _past(mask: _Past, shape: MaskShape) -> int:
    return max(0, shape.n_kv - shape.n_q) if mask.past is None else mask.past


def _rows(mask: AnyMask, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    """Rows of a mask; `level` numbers the parts of a sum, so that equal kinds draw different numbers."""
    if isinstance(mask, Sum):
        total = np.zeros((len(queries), shape.n_kv), np.float16)
        for number, part in enumerate(mask.of, level + 1):
            total += _rows(part, shape, sequence, queries, number)
        return total
    made: Halves = _MAKE[mask.kind](mask, shape, sequence, queries, level)
    return made


def _hide(hidden: npt.NDArray[np.bool_]) -> Halves:
    return np.where(hidden, np.float16(-np.inf), np.float16(0))


def _none(mask: NoMask, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    return np.zeros((len(queries), shape.n_kv), np.float16)


def _causal(mask: Causal, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    return _hide(np.arange(shape.n_kv) > (_past(mask, shape) + queries)[:, None])


def _window(mask: SlidingWindow, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    behind = (_past(mask, shape) + queries)[:, None] - np.arange(shape.n_kv)
    return _hide((behind < 0) | (behind >= mask.window))


def _sequences(mask: Sequences, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    keys = np.arange(shape.n_kv)
    owner = keys % mask.count if mask.interleaved else keys * mask.count // shape.n_kv
    everyone = np.arange(shape.n_q) * mask.count // shape.n_q
    hidden = owner != everyone[queries][:, None]
    if mask.causal:
        left = np.stack([np.cumsum((owner == s)[::-1])[::-1] - (owner == s) for s in range(mask.count)])  # rows to come
        after = np.searchsorted(everyone, everyone[queries], "right") - 1 - queries
        hidden |= left[everyone[queries]] < after[:, None]
    return _hide(hidden)


def _blocks(mask: Blocks, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    grid = (-(-shape.n_q // mask.q), -(-shape.n_kv // mask.kv))
    hidden = stream(shape.seed, STREAMS["mask"], (level, sequence)).random(grid) < mask.fraction
    return _hide(hidden[queries // mask.q].repeat(mask.kv, axis=1)[:, : shape.n_kv])


def _tiles(mask: MaskedTiles, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    keys = np.arange(shape.n_kv)
    hidden = (keys < mask.leading) | (keys >= shape.n_kv - mask.trailing)
    return _hide(np.broadcast_to(hidden, (len(queries), shape.n_kv)))


def _masked_rows(mask: MaskedRows, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    hidden = _is_masked(mask, queries)
    return _hide(np.broadcast_to(hidden[:, None], (len(queries), shape.n_kv)))


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


def _alibi(mask: Alibi, shape: MaskShape, sequence: int, queries: I64, level: int) -> Halves:
    behind = (_past(mask, shape) + queries)[:, None] - np.arange(shape.n_kv)
    with np.errstate(over="ignore"):
        distance = -np.abs(behind).astype(np.float32).astype(np.float16)
    return np.where(mask.causal & (behind < 0), np.float16(-np.inf), distance)


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


_MAKE: dict[str, Callable[..., Halves]] = {
    "none": _none,
    "causal": _causal,
    "sliding_window": _window,
    "sequences": _sequences,
    "blocks": _blocks,
    "masked_tiles": _tiles,
    "masked_rows": _masked_rows,
    "random": _random,
    "alibi": _alibi,
    "sparse": _sparse,
}
