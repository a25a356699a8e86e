"""FP8 attention as FlashAttention-3 does it: e4m3 with a scale for each block, rotated Q and K, Hopper's sums."""

from dataclasses import dataclass

import numpy as np

from fattn_probe.base.arrays import F32, F64
from fattn_probe.lab.study.problem import tiles
from fattn_probe.verdict.truth.rounding_model.tensor_core import E4M3_LEAST, HOPPER_FP8, Factors, matrix_sum

LARGEST = 448.0
"""The largest number of e4m3, which has no infinities."""
FRACTION = 3
"""Bits after the leading one."""


@dataclass(frozen=True, eq=False)
class ScaledBlocks:
    """A matrix in e4m3, stored as float32, and the scale of each of its rows: it represents value * scale."""

    value: F32
    scale: F32


def e4m3(x: F32) -> F32:
    """Round to e4m3, ties to even, held as float32; numbers beyond 448 become 448, as in a saturating conversion."""
    _, exponent = np.frexp(x)
    ulp = np.ldexp(np.float32(1), np.maximum(exponent - 1, E4M3_LEAST) - FRACTION)
    rounded: F32 = np.clip(np.rint(x / ulp) * ulp, -LARGEST, LARGEST)
    return rounded


def quantised(matrix: F32, rows: int) -> ScaledBlocks:
    """A matrix in blocks of `rows` rows, each scaled so that its largest magnitude becomes 448."""
    value, scale = np.empty_like(matrix), np.empty(len(matrix), np.float32)
    for block in tiles(len(matrix), rows):
        largest = np.float32(np.abs(matrix[block]).max(initial=0.0))
        scale[block] = largest / np.float32(LARGEST) if largest else 1.0
        value[block] = e4m3(matrix[block] / scale[block, None])
    return ScaledBlocks(value, scale)


def rotation(d: int, seed: int) -> F64:
    """A random orthogonal matrix, d x d: random signs, then a Hadamard transform.

    If d is not a power of two, groups of columns are transformed, whose size is the largest power of two that divides
    d.
    """
    size = d & -d
    hadamard = np.ones((1, 1))
    while len(hadamard) < size:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], d)
    return signs[:, None] * np.kron(np.eye(d // size), hadamard / np.sqrt(size))


@dataclass(frozen=True)
class Fp8Sums:
    """The sum of products: as on Hopper's FP8 tensor cores, or in float32 (`exact`) by the host's library."""

    exact: bool = False

    def __call__(self, a: F32, b: F32, c: F32) -> F32:
        """c + a @ b."""
        if self.exact:
            return c + a @ b
        return matrix_sum(Factors(a, E4M3_LEAST), Factors(b, E4M3_LEAST), c, HOPPER_FP8)
