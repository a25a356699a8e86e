"""What the kernels' running softmax has in common."""

from collections.abc import Iterator

import numpy as np

from fattn_probe.arrays import F32

FLUSH = np.float32(-20)
"""Scales of e to less than this are zero (SOFTMAX_FTZ_THRESHOLD)."""
LOWEST = np.float32(-np.finfo(np.float32).max / 2)
"""The maximum of nothing."""


def total(parts: F32) -> F32:
    """The sum over the last axis as lanes that exchange halves add it up."""
    while parts.shape[-1] > 1:
        middle = parts.shape[-1] // 2
        parts = parts[..., :middle] + parts[..., middle:]
    return parts[..., 0]


def slices(length: int, size: int) -> Iterator[slice]:
    """Ranges of at most `size`."""
    return (slice(first, min(first + size, length)) for first in range(0, length, size))
