"""Arithmetic that the kernels' running softmax share."""

import numpy as np

from fattn_probe.base.arrays import F32

FLUSH = np.float32(-20)
"""The exponential of a smaller difference is flushed to zero (SOFTMAX_FTZ_THRESHOLD)."""
LOWEST = np.float32(-np.finfo(np.float32).max / 2)
"""The initial value of a running maximum."""


def total(parts: F32) -> F32:
    """The sum over the last axis, added pairwise as lanes do with butterfly shuffles."""
    while parts.shape[-1] > 1:
        middle = parts.shape[-1] // 2
        parts = parts[..., :middle] + parts[..., middle:]
    return parts[..., 0]
