"""The inputs of the algorithms: one head with its K/V head, or a whole op."""

# ruff: noqa: E741  (O and l are the papers' names)

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fattn_probe.base.arrays import F64, Floats
from fattn_probe.cases.op import Params, Sizes
from fattn_probe.cases.op.values import logits_of
from fattn_probe.lab.study.memory import SlowMemory
from fattn_probe.verdict.truth.reference.attention import alibi_slopes
from fattn_probe.verdict.truth.reference.shapes import check_shapes

NO_SINK = -np.inf


@dataclass(frozen=True)
class MaskRule:
    """How q.k becomes a logit, the same for all algorithms: scale, softcap, mask with ALiBi's slope, sink.

    `slope` and `sink` are numbers, or arrays (heads, 1, 1) and (heads, 1) when several heads are computed at once.
    """

    params: Params
    slope: F64 | float = 1.0
    sink: F64 | float = NO_SINK

    def logits(self, Q_i: F64, K_j: F64, mask_ij: F64 | None) -> F64:
        """S of a tile: Q_i (..., queries, hsk), K_j (kv, hsk), mask (..., queries, kv); S (..., queries, kv)."""
        return self.of_products(Q_i @ K_j.T, mask_ij)

    def of_products(self, product: F64, mask_ij: F64 | None) -> F64:
        """S of a tile whose products Q_i K_j^T are given."""
        return logits_of(product, self.params, None if mask_ij is None else self.slope * mask_ij)

    def start(self, Q_i: F64, hsv: int, *, with_sink: bool = True) -> tuple[F64, F64, F64]:
        """Initial O, l and m: 0, 0 and -inf; with a sink 0, 1 and the sink's logit.

        A sink is a logit whose V row is 0: it enters the maximum and the sum l, and adds nothing to O.
        """
        rows = Q_i.shape[:-1]
        m = np.broadcast_to(self.sink if with_sink else NO_SINK, rows).astype(np.float64)
        return np.zeros((*rows, hsv)), np.where(np.isneginf(m), 0.0, 1.0), m


@dataclass(frozen=True)
class StudyHead:
    """One head of one sequence: Q (n_q, hsk), K (n_kv, hsk), V (n_kv, hsv), mask (n_q, n_kv) or None."""

    Q: F64
    K: F64
    V: F64
    mask: F64 | None
    rule: MaskRule

    @property
    def n_q(self) -> int:
        """Queries."""
        return len(self.Q)

    @property
    def n_kv(self) -> int:
        """KV rows."""
        return len(self.K)

    @property
    def hsk(self) -> int:
        """Head size of Q and K, the papers' d."""
        return int(self.Q.shape[1])

    @property
    def hsv(self) -> int:
        """Head size of V and O, also d in the papers."""
        return int(self.V.shape[1])

    def slow_memory(self) -> SlowMemory:
        """Slow memory with Q, K, V and the mask, and space for O and L."""
        hbm = SlowMemory(Q=self.Q, K=self.K, V=self.V, **({} if self.mask is None else {"mask": self.mask}))
        hbm.allocate("O", self.n_q, self.hsv)
        hbm.allocate("L", self.n_q)
        return hbm


@dataclass(frozen=True)
class OpArrays:
    """A whole FLASH_ATTN_EXT op, with arrays as `truth.reference.attention.attention` takes them, in float64."""

    Q: F64
    K: F64
    V: F64
    mask: F64 | None
    params: Params
    sinks: F64 | None = None

    @property
    def shape(self) -> Sizes:
        """The sizes; InputError if they are inconsistent."""
        return check_shapes(self.Q, self.K, self.V, self.mask, self.sinks)

    def rule(self, heads: slice) -> MaskRule:
        """The rule for several heads at once."""
        slopes = alibi_slopes(self.Q.shape[1], self.params.max_bias)[heads]
        sinks = NO_SINK if self.sinks is None else self.sinks[heads, None].astype(np.float64)
        return MaskRule(self.params, slopes[:, None, None], sinks)

    def head(self, sequence: int, head: int) -> StudyHead:
        """One head with its K/V head (h // group) and its mask."""
        kv = head // self.shape.group
        mask = None if self.mask is None else self.mask[self.mask_plane(sequence, head)]
        mask = None if mask is None else mask[: self.shape.n_q]
        slope = float(alibi_slopes(self.Q.shape[1], self.params.max_bias)[head])
        rule = MaskRule(self.params, slope, NO_SINK if self.sinks is None else float(self.sinks[head]))
        return StudyHead(self.Q[sequence, head], self.K[sequence, kv], self.V[sequence, kv], mask, rule)

    def mask_plane(self, sequence: int, head: int) -> tuple[int, int]:
        """The mask plane that a head reads."""
        assert self.mask is not None
        return sequence % self.mask.shape[0], head % self.mask.shape[1]


def op_arrays(
    Q: Floats,
    K: Floats,
    V: Floats,
    mask: Floats | None,
    *,
    params: Params,
    sinks: Floats | None = None,
) -> OpArrays:
    """An op from arrays of any float dtype."""
    Q, K, V = (array.astype(np.float64) for array in (Q, K, V))
    extra = [None if array is None else array.astype(np.float64) for array in (mask, sinks)]
    return OpArrays(Q, K, V, extra[0], params, extra[1])


def tiles(length: int, size: int, start: int = 0) -> Iterator[slice]:
    """`range(start, length)` in tiles of `size`; the last may be smaller."""
    return (slice(first, min(first + size, length)) for first in range(start, length, size))


def count(length: int, size: int) -> int:
    """The number of tiles: T_r, T_c."""
    return -(-length // size)


def exp_below(x: F64, m: F64) -> F64:
    """e^(x - m) for x <= m, and 0 where x is -inf, even if m is -inf too (no unmasked KV row yet)."""
    return np.exp(x - np.where(np.isneginf(m), 0.0, m))


def rows_divided(O: F64, l: F64) -> F64:
    """diag(l)^-1 O, and 0 for a fully masked row."""
    return O / np.where(l == 0.0, 1.0, l)[..., None]


def log_sum_exp(m: F64, l: F64) -> F64:
    """L = m + log l, and -inf for a fully masked row."""
    with np.errstate(divide="ignore"):
        return m + np.log(l)
