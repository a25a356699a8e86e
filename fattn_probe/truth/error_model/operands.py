"""What the kernel's own copies of Q, K and V are off by, and the moments of the data that errors are weighed with."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F32, F64, Floats
from fattn_probe.truth.error_model.kernel import Kernel, QForm
from fattn_probe.truth.error_model.rounding import HALF

QK8_1 = 32
AT_ONCE = 2048
"""KV rows whose values are float64 at one time."""


def kernel_q(q: Floats, factor: float, form: QForm) -> F64:
    """Q times the factor as the kernel has it, q (rows, hsk) f32 values.

    `f16 twice`: half2(q) * half2(scale), so that a scale which is no power of two is a systematic factor on every
    logit. `q8_1`: blocks of 32 with a common step of their largest/127 (quantize_q8_1_to_shared).
    """
    scaled = (q.astype(np.float32) * np.float32(factor)).astype(np.float32)
    if form == "f32":
        return scaled.astype(np.float64)
    if form == "f16":
        return scaled.astype(np.float16).astype(np.float64)
    if form == "f16 twice":
        halves = q.astype(np.float16) * np.float16(factor)
        return halves.astype(np.float64)
    blocks = scaled.reshape(len(q), -1, QK8_1).astype(np.float64)
    step = np.abs(blocks).max(axis=2, keepdims=True) / 127
    whole = np.rint(blocks / np.where(step == 0.0, 1.0, step))
    return np.asarray((whole * step).reshape(q.shape))


@dataclass(frozen=True)
class QRows:
    """Rows of Q, float32: times the factor exactly, and as the kernel has them; `square` is |q|^2."""

    exact: F32
    kernel: F32
    square: F64

    def blocks_off(self) -> F32:
        """How far the sum of each block of 32 is off, (rows, hsk/32)."""
        return np.asarray((self.kernel - self.exact).reshape(len(self.exact), -1, QK8_1).sum(axis=2))

    @classmethod
    def of(cls, q: Floats, factor: float, form: QForm) -> "QRows":
        """Of q (rows, hsk)."""
        exact = q.astype(np.float64) * factor
        own = kernel_q(q, factor, form)
        return cls(exact.astype(np.float32), own.astype(np.float32), np.einsum("rk,rk->r", exact, exact))


@dataclass(frozen=True)
class KVMoments:
    """K and V of one K/V head: K float32 (n_kv, hsk), exactly and as the kernel has it, and moments of K and V.

    `offset_K` (n_kv, hsk/32), where the kernel works on quantised blocks: what it adds to K before the product with its
    own Q and takes off again with the exact sum of Q (the 8 of q4_0, the minimum of q4_1).

    By KV row, means over the head's dimensions: `square_K` of K^2, `spread_V` of (V - its channel's mean)^2, `error_V`
    of the square of what conversion changes, less its channel's mean. Of the head: `mean_V` the mean over all of V,
    `mean_square_V` that of the squared channel means; `mean_error_V` and `mean_square_error_V` likewise of what
    conversion changes. By channel: `channel_square` the mean of V^2, `channel_mean`, `channel_largest` the largest |V|.
    `V_in_K`: where V is the beginning of K's rows, how many dimensions of them; else 0.
    """

    k: F32
    kernel_k: F32
    offset_K: F32 | None
    square_K: F64
    spread_V: F64
    error_V: F64
    mean_V: float
    mean_square_V: float
    mean_error_V: float
    mean_square_error_V: float
    channel_square: F64
    channel_mean: F64
    channel_largest: F64
    V_in_K: int = 0

    @classmethod
    def of(
        cls, k: Floats, v: Floats, kernel: Kernel, types: tuple[str, str], *, V_is_K_view: bool = False
    ) -> "KVMoments":
        """Of k (n_kv, hsk) and v (n_kv, hsv), which are stored in these types."""
        converts_K, converts_V = kernel.converts_K and types[0] != "f16", kernel.converts_V and types[1] != "f16"
        k = np.asarray(k, np.float32)
        mean, spread, mean_square = _about_mean(v, lambda values: values)
        none = (np.zeros(v.shape[1]), np.zeros(len(v)), 0.0)
        error = _about_mean(v, lambda values: _in_f16(values) - values) if converts_V else none
        power, largest = np.zeros(v.shape[1]), np.zeros(v.shape[1])
        for part in parts_of(len(v)):
            block = v[part].astype(np.float64)
            power += np.einsum("nd,nd->d", block, block)
            np.maximum(largest, np.abs(block).max(axis=0), out=largest)
        return cls(
            k=k,
            kernel_k=_in_f16(k).astype(np.float32) if converts_K else k,
            offset_K=_offset(k, types[0]) if kernel.q == "q8_1" else None,
            square_K=np.einsum("nk,nk->n", k, k).astype(np.float64) / k.shape[1],
            spread_V=spread,
            error_V=error[1],
            mean_V=float(mean.mean()),
            mean_square_V=mean_square,
            mean_error_V=float(error[0].mean()),
            mean_square_error_V=error[2],
            channel_square=power / len(v),
            channel_mean=mean,
            channel_largest=largest,
            V_in_K=v.shape[1] if V_is_K_view else 0,
        )

    def without_rows(self) -> "KVMoments":
        """The head's own moments; what there is by KV row is large, and left out."""
        none, nothing = np.empty((0, 0), np.float32), np.empty(0)
        return replace(self, k=none, kernel_k=none, offset_K=None, square_K=nothing, spread_V=nothing, error_V=nothing)

    def some(self, rows: npt.NDArray[np.intp]) -> "KVMoments":
        """The same for some of the KV rows."""
        names = ("k", "kernel_k", "square_K", "spread_V", "error_V")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


def _about_mean(rows: Floats, of: Callable[[F64], F64]) -> tuple[F64, F64, float]:
    """The mean of each channel of what `of` makes of rows, the mean square about it by row, and the mean square of the
    channels' true means; some rows at a time.

    The mean of n values with no mean has 1/n of their variance as its mean square, which is taken off.
    """
    parts = parts_of(len(rows))
    mean = np.sum([of(rows[part].astype(np.float64)).sum(axis=0) for part in parts], axis=0) / len(rows)
    spread = np.empty(len(rows))
    for part in parts:
        off = of(rows[part].astype(np.float64)) - mean
        spread[part] = np.einsum("nd,nd->n", off, off) / len(mean)
    chance = float(spread.mean()) / len(rows) if len(rows) > 1 else 0.0
    return mean, spread, max(0.0, float(np.square(mean).mean()) - chance)


def parts_of(length: int) -> list[slice]:
    """Rows that are worked on at once: few enough for the cache."""
    return [slice(first, first + AT_ONCE) for first in range(0, length, AT_ONCE)]


def _offset(k: F32, type_K: str) -> F32 | None:
    """What a block's integers are away from symmetric, as ggml quantises: q4_0's 0 is the largest in magnitude."""
    blocks = k.reshape(len(k), -1, QK8_1)
    if type_K in {"q4_1", "q5_1"}:
        return np.asarray(-blocks.min(axis=2))
    if type_K in {"q4_0", "q5_0"}:
        return -np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)[..., 0]
    return None


def _in_f16(values: Floats) -> F64:
    return np.clip(values, -HALF.largest, HALF.largest).astype(np.float16).astype(np.float64)
