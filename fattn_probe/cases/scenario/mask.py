"""The schema of masks; `draw` generates their rows."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from fattn_probe.cases.scenario.data import Positive
from fattn_probe.cases.scenario.spec import Spec

Count = Annotated[int, Field(ge=0, lt=2**31)]


class NoMask(Spec):
    """The op has no mask tensor."""

    kind: Literal["none"] = "none"


class _Past(Spec):
    past: Count | None = None
    """KV rows before the first query's position; default: n_kv - n_q, so that the last query sees every row."""


class Causal(_Past):
    """0 up to a query's own position, -inf after that position."""

    kind: Literal["causal"]


class SlidingWindow(_Past):
    """0 at the `window` positions that end with a query's own position, -inf elsewhere."""

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
    """Whether the mask is causal within each sequence; the last query of a sequence sees all its KV rows."""


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
    """-inf for every query on the first and last KV rows, 0 in between: whole tiles that a kernel may skip."""

    kind: Literal["masked_tiles"]
    leading: Count = 0
    """KV rows masked at the start."""
    trailing: Count = 0
    """KV rows masked at the end."""


class MaskedRows(Spec):
    """-inf on every KV row for some queries, whose softmax sum is then zero; 0 for the others."""

    kind: Literal["masked_rows"]
    every: int = Field(default=2, ge=1)
    """N masks every N-th query fully; 1 masks all queries."""
    first: Count = 0
    """The first masked query."""


class Random(Spec):
    """test-backend-ops' mask: uniform in [-scale, scale], with blocks of 64 queries x 128 KV rows of -inf or 0."""

    kind: Literal["random"]
    scale: Positive = 1.0
    """Half the width of the range of finite values."""
    blocks: float = Field(default=0.2, ge=0, le=1)
    """Total area of the blocks, relative to the mask's area."""


class Alibi(_Past):
    """Minus the distance between query and key; the op multiplies it by each head's slope, from `max_bias`."""

    kind: Literal["alibi"]
    causal: bool = True
    """Whether entries after a query's own position are -inf."""


class Sparse(Spec):
    """A few random finite entries per row, the rest -inf, as in test-backend-ops; for use with `n_kv_max`."""

    kind: Literal["sparse"]
    finite: int | None = Field(default=None, ge=1)
    """Finite entries per row; some rows have up to 16 fewer. Default: n_kv_max."""


class Sum(Spec):
    """The sum of several masks: -inf where any of the masks is -inf."""

    kind: Literal["sum"]
    of: list["Mask"] = Field(min_length=2)
    """The masks."""


AnyMask = (
    NoMask | Causal | SlidingWindow | Sequences | Blocks | MaskedTiles | MaskedRows | Random | Alibi | Sparse | Sum
)
Mask = Annotated[AnyMask, Field(discriminator="kind")]
Sum.model_rebuild()


@dataclass(frozen=True)
class MaskShape:
    """The size of a mask without its padded rows, and the seed of its random numbers."""

    n_kv: int
    n_q: int
    n_seq: int
    seed: int
    n_kv_max: int = 0


def sees_something(mask: AnyMask) -> bool:
    """Whether every query with a nonempty range from `draw.visible` sees at least one KV row."""
    return isinstance(mask, NoMask | Causal | SlidingWindow | MaskedTiles | MaskedRows | Sparse)


def max_finite(mask: AnyMask, shape: MaskShape) -> int:
    """An upper bound on the finite entries in a row, which is also the smallest valid `n_kv_max`."""
    match mask:
        case SlidingWindow():
            bound = mask.window
        case Causal():
            bound = past_of(mask, shape) + shape.n_q
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


def past_of(mask: _Past, shape: MaskShape) -> int:
    """The number of KV rows before the first query's position."""
    return max(0, shape.n_kv - shape.n_q) if mask.past is None else mask.past
