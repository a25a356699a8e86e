"""The errors of the kernel's own copies of Q, K and V, and the moments of the data that weight these errors."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fattn_probe.base.arrays import F32, F64, Floats, Indices
from fattn_probe.verdict.truth.error_model.kernel import Kernel, QForm
from fattn_probe.verdict.truth.error_model.rounding import HALF

QK8_1 = 32
AT_ONCE = 2048
"""KV rows converted to float64 at once."""


def kernel_q(q: Floats, factor: float, form: QForm, least: float) -> F64:
    """Q times the factor as the kernel computes it, for q (rows, hsk) f32; f16 values below `least` become 0.

    `f16 twice`: half2(q) * half2(scale), so a scale that is not a power of two changes every logit by the same factor.
    `q8_1`: blocks of 32 with a common step, their largest magnitude / 127 (quantize_q8_1_to_shared).
    """
    scaled = (q.astype(np.float32) * np.float32(factor)).astype(np.float32)
    if form == "f32":
        return scaled.astype(np.float64)
    if form == "f16":
        return scaled.astype(np.float16).astype(np.float64)
    if form == "f16 twice":
        halves = q.astype(np.float16) * np.float16(factor)
        return _without_less(halves.astype(np.float64), least)
    blocks = scaled.reshape(len(q), -1, QK8_1).astype(np.float64)
    step = np.abs(blocks).max(axis=2, keepdims=True) / 127
    whole = np.rint(blocks / np.where(step == 0.0, 1.0, step))
    return np.asarray((whole * step).reshape(q.shape))


@dataclass(frozen=True)
class QRows:
    """Rows of Q times the factor, float32: exact, and as the kernel computes them; `square` is |q|^2."""

    exact: F32
    kernel: F32
    square: F64

    @classmethod
    def of(cls, q: Floats, factor: float, kernel: Kernel) -> "QRows":
        """Compute the rows from q (rows, hsk)."""
        exact = q.astype(np.float64) * factor
        own = kernel_q(q, factor, kernel.q, kernel.least_factor)
        return cls(exact.astype(np.float32), own.astype(np.float32), np.einsum("rk,rk->r", exact, exact))


@dataclass(frozen=True)
class KVMoments:
    """K and V of one K/V head: K float32 (n_kv, hsk), exact and as in the kernel, and moments of K and V.

    `offset_K` (n_kv, hsk/32), for kernels that work on quantised blocks: the offset of a block's unsigned integers (8
    for q4_0, the minimum for q4_1). The kernel subtracts it again, using the exact sum of Q.

    Per KV row, means over the head's dimensions: `square_K` of K^2, `spread_V` of (V - channel mean)^2, `error_V` of
    the squared deviation of V's conversion error from its channel mean. Per head: `mean_V` is the mean of V,
    `mean_square_V` the mean of the squared channel means; `mean_error_V` and `mean_square_error_V` are the same for the
    conversion error. Per channel: `channel_square` is the sum of V^2, `channel_mean` the mean, `channel_largest` the
    largest |V|. `V_in_K`: the number of dimensions at the start of K's rows that are V; 0 if V is not a view of K.
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
    V_in_K: int

    @classmethod
    def of(cls, k: Floats, v: Floats, kernel: Kernel, types: tuple[str, str], *, V_is_K_view: bool) -> "KVMoments":
        """Compute the moments from k (n_kv, hsk) and v (n_kv, hsv), whose stored types are `types`."""
        least = kernel.least_factor
        converts_K = kernel.converts_K and (types[0] != "f16" or least > 0)
        converts_V = kernel.converts_V and (types[1] != "f16" or least > 0)
        k = np.asarray(k, np.float32)
        mean, spread, mean_square = _about_mean(v, lambda values: values)
        none = (np.zeros(v.shape[1]), np.zeros(len(v)), 0.0)
        error = _about_mean(v, lambda values: _in_f16(values, least) - values) if converts_V else none
        power, largest = np.zeros(v.shape[1]), np.zeros(v.shape[1])
        for part in parts_of(len(v)):
            block = v[part].astype(np.float64)
            power += np.einsum("nd,nd->d", block, block)
            np.maximum(largest, np.abs(block).max(axis=0), out=largest)
        return cls(
            k=k,
            kernel_k=_in_f16(k, least).astype(np.float32) if converts_K else k,
            offset_K=_offset(k, types[0]) if kernel.q == "q8_1" else None,
            square_K=np.einsum("nk,nk->n", k, k).astype(np.float64) / k.shape[1],
            spread_V=spread,
            error_V=error[1],
            mean_V=float(mean.mean()),
            mean_square_V=mean_square,
            mean_error_V=float(error[0].mean()),
            mean_square_error_V=error[2],
            channel_square=power,
            channel_mean=mean,
            channel_largest=largest,
            V_in_K=v.shape[1] if V_is_K_view else 0,
        )

    def some(self, rows: Indices) -> "KVMoments":
        """The same moments per head and channel, with the arrays per KV row cut to some of the rows."""
        names = ("k", "kernel_k", "square_K", "spread_V", "error_V")
        offset_K = None if self.offset_K is None else self.offset_K[rows]
        return replace(self, offset_K=offset_K, **{name: getattr(self, name)[rows] for name in names})


def _about_mean(rows: Floats, of: Callable[[F64], F64]) -> tuple[F64, F64, float]:
    """Moments of `of(rows)`: each channel's mean, each row's mean square about these, the mean of the squared means.

    The last moment is corrected for sampling: the mean of n random values has a mean square of 1/n of their variance.
    """
    parts = parts_of(len(rows))
    mean = np.sum([of(rows[part].astype(np.float64)).sum(axis=0) for part in parts], axis=0) / len(rows)
    spread = np.empty(len(rows))
    for part in parts:
        off = of(rows[part].astype(np.float64)) - mean
        spread[part] = np.einsum("nd,nd->n", off, off) / len(mean)
    return mean, spread, max(0.0, float(np.square(mean).mean()) - float(spread.mean()) / len(rows))


def parts_of(length: int) -> list[slice]:
    """Slices of rows that are processed at once, small enough for the CPU's cache."""
    return [slice(first, min(first + AT_ONCE, length)) for first in range(0, length, AT_ONCE)]


def _offset(k: F32, type_K: str) -> F32 | None:
    """The offset of each block's unsigned integers, as ggml quantises them; None for symmetric types."""
    blocks = k.reshape(len(k), -1, QK8_1)
    if type_K in {"q4_1", "q5_1"}:
        return np.asarray(-blocks.min(axis=2))
    if type_K in {"q4_0", "q5_0"}:
        return -np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2).squeeze(2)
    return None


def _in_f16(values: Floats, least: float) -> F64:
    return _without_less(np.clip(values, -HALF.largest, HALF.largest).astype(np.float16).astype(np.float64), least)


def _without_less(values: F64, least: float) -> F64:
    """The values, with 0 in place of magnitudes below `least`."""
    return np.where(np.abs(values) < least, 0.0, values) if least else values
