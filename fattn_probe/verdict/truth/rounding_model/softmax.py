"""The arithmetic of the running softmax that all kernels share."""

from dataclasses import dataclass

import numpy as np

from fattn_probe.base.arrays import F32

FLUSH = np.float32(-20)
"""The exponential of a difference below this is flushed to zero (SOFTMAX_FTZ_THRESHOLD)."""
LOWEST = np.float32(-np.finfo(np.float32).max / 2)
"""The initial value of a running maximum."""


@dataclass(frozen=True)
class Turn:
    """One KV step of each block of a column in the tile or vec kernel; arrays are (columns, blocks, ...).

    `KQ` has the masked logits, `P` their weights. The running maximum, row sum and VKQ are those at its end.
    """

    KQ: F32
    P: F32
    maximum: F32
    sums: F32
    VKQ: F32


@dataclass(frozen=True)
class Parts:
    """The sums that blocks pass to the kernel that combines them; arrays are (columns, blocks, ...)."""

    VKQ: F32
    maximum: F32
    rowsum: F32


def total(parts: F32) -> F32:
    """The sum over the last axis, added pairwise as in a butterfly shuffle across lanes."""
    while parts.shape[-1] > 1:
        middle = parts.shape[-1] // 2
        parts = parts[..., :middle] + parts[..., middle:]
    return parts[..., 0]
