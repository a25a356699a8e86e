"""One output row in detail: its logits and weights in float64, to identify an error by its direction."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fattn_probe.arrays import F64, Bytes
from fattn_probe.scenario import Case
from fattn_probe.truth.reference.adapter import stored_rows
from fattn_probe.truth.reference.attention import alibi_slopes


@dataclass(frozen=True, eq=False)
class Head:
    """The data that the rows of one K/V head share: K (n_kv, hsk) and V (n_kv, hsv) as stored, in float64."""

    case: Case
    inputs: Mapping[str, Bytes]
    sequence: int
    kv_head: int
    K: F64
    V: F64

    @classmethod
    def of(cls, case: Case, inputs: Mapping[str, Bytes], sequence: int, kv_head: int) -> "Head":
        """One head of the op."""
        K, V = (_values(case, inputs, name, sequence, kv_head) for name in "KV")
        return cls(case, inputs, sequence, kv_head, K, V)


@dataclass(frozen=True, eq=False)
class AttentionRow:
    """A row: `raw` logits before softcap and mask; `mask` as added, -inf where hidden; `sink` or None.

    `slope` is ALiBi's, 1 without it; `mask` is already multiplied by it.
    """

    K: F64
    V: F64
    raw: F64
    mask: F64
    softcap: float
    sink: float | None
    slope: float = 1.0

    @classmethod
    def of(cls, head: Head, query: int, q_head: int) -> "AttentionRow":
        """The row of a query in a head of Q."""
        case, params = head.case, head.case.op.params.stored
        q = np.asarray(stored_rows(case.op.tensors["Q"], head.inputs))[head.sequence, q_head, query].astype(np.float64)
        mask, slope = np.zeros(case.op.sizes.n_kv), 1.0
        if "mask" in case.op.tensors:
            stored = np.asarray(stored_rows(case.op.operands["mask"], head.inputs))
            mask = stored[head.sequence % len(stored), q_head % stored.shape[1], query].astype(np.float64)
            slope = float(alibi_slopes(case.op.sizes.n_head, params.max_bias)[q_head])
            mask = mask * slope
        sink = None
        if "sinks" in case.op.tensors:
            sink = float(np.asarray(stored_rows(case.op.tensors["sinks"], head.inputs)).ravel()[q_head])
        return cls(head.K, head.V, head.K @ q * params.scale, mask, params.logit_softcap, sink, slope)

    @property
    def logits(self) -> F64:
        """The logits that enter the softmax: -inf where hidden, also if `raw` is infinite or NaN there."""
        raw = self.softcap * np.tanh(self.raw / self.softcap) if self.softcap else self.raw
        hidden = np.isneginf(self.mask)
        return np.where(hidden, -np.inf, raw + np.where(hidden, 0.0, self.mask))

    def weights(self, logits: F64) -> F64:
        """The softmax; all 0 if the mask hides everything, and NaN where a visible logit is +inf, as in a kernel."""
        top = logits.max() if self.sink is None else max(logits.max(), self.sink)
        if np.isneginf(top):
            return np.zeros_like(logits)
        with np.errstate(invalid="ignore"):  # inf - inf
            p = np.exp(logits - top)
        total = p.sum() + (0.0 if self.sink is None else np.exp(self.sink - top))
        return np.asarray(p / total)

    def output(self, logits: F64) -> F64:
        """The exact output for some logits."""
        return np.asarray(self.weights(logits) @ self.V)


def _values(case: Case, inputs: Mapping[str, Bytes], name: str, sequence: int, kv_head: int) -> F64:
    rows = stored_rows(case.op.tensors[name], inputs)
    return np.asarray(rows[sequence, kv_head, slice(0, case.op.sizes.n_kv)], np.float64)
