"""Attention in f16 and FP8, with the rounding of FlashAttention and of a standard implementation, against float64.

It also repeats FlashAttention-3's table 3: the errors on data with outliers. The paper (arXiv 2407.08608, section
4.3) gives the distribution and the RMSE. It does not give the sizes; they are taken from its previous section (4.2,
table 2): 8448 rows, head size 128, no mask. The paper's RMSE for f16 includes the rounding of Q, K and V to f16, so the
reference uses the unrounded float32 values.
"""

# ruff: noqa: E741  (O and l are the papers' names)
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.arrays import F32, F64
from fattn_probe.cases.op import Params
from fattn_probe.cases.scenario.data import Fa3Outliers
from fattn_probe.cases.scenario.draw import STREAMS, draw, stream
from fattn_probe.lab.study.papers import standard
from fattn_probe.lab.study.problem import MaskRule, StudyHead, exp_below, rows_divided, tiles
from fattn_probe.verdict.truth.rounding_model.tensor_core import E4M3_LEAST, HOPPER_FP8, Factors, matrix_sum

LARGEST = 448.0
"""The largest e4m3 value; e4m3 has no infinities."""
FRACTION = 3
"""Bits after the leading one."""


@dataclass(frozen=True, eq=False)
class ScaledBlocks:
    """A matrix in e4m3, stored as float32, and the scale of each of its rows: it represents value * scale."""

    value: F32
    scale: F32


def e4m3(x: F32) -> F32:
    """Round to e4m3, ties to even, held as float32; values beyond 448 become 448, as in a saturating conversion."""
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

    If d is not a power of two, groups of columns are transformed; their size is the largest power of two dividing d.
    """
    size = d & -d
    hadamard = np.ones((1, 1))
    while len(hadamard) < size:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], d)
    return signs[:, None] * np.kron(np.eye(d // size), hadamard / np.sqrt(size))


Sums = Callable[[F32, F32, F32], F32]
"""A function that computes c + a @ b from a, b and c."""


def in_float32(a: F32, b: F32, c: F32) -> F32:
    """c + a @ b, in float32 by the host's library."""
    return c + a @ b


def on_hopper(a: F32, b: F32, c: F32) -> F32:
    """c + a @ b, as on Hopper's FP8 tensor cores."""
    return matrix_sum(Factors(a, E4M3_LEAST), Factors(b, E4M3_LEAST), c, HOPPER_FP8)


P_OFFSET = 2.0**8
"""P is between 0 and 1; the kernel multiplies it by this before rounding it to e4m3 (`Max_offset`, 2^8)."""
Round = Callable[[F64], F64]
Operands = tuple[ScaledBlocks, ScaledBlocks, ScaledBlocks]
"""Q, K and V."""


@dataclass(frozen=True)
class Scheme:
    """How FP8 attention prepares its operands, and how it adds products.

    `blocks`: a scale for each block of rows, or for each tensor. `rotated`: incoherent processing of Q and K.
    """

    blocks: bool = True
    rotated: bool = True
    sums: Sums = on_hopper


SCHEMES: Mapping[str, Scheme] = {
    "fp8-fa3": Scheme(),
    "fp8-no-blocks": Scheme(blocks=False),
    "fp8-no-rotation": Scheme(rotated=False),
    "fp8-float32-sums": Scheme(sums=in_float32),
}
"""FlashAttention-3 in FP8: complete, without one of its parts, or with more accurate sums than on tensor cores."""
VARIANTS = ("f16-standard", "f16-flash", "fp8-standard", *SCHEMES)


def errors(head: StudyHead, exact: F64, B_r: int, B_c: int, *, seed: int = 0, step: Step = quiet) -> dict[str, float]:
    """The mean square error of every variant on a head whose exact output is given, (n_q, hsv), in float64."""
    found = {}
    for variant in VARIANTS:
        step(variant)
        with np.errstate(over="ignore", invalid="ignore"):
            out = output(variant, head, B_r, B_c, seed)
            found[variant] = float(np.mean((out - exact) ** 2))
    return found


def output(variant: str, head: StudyHead, B_r: int, B_c: int, seed: int = 0) -> F64:
    """A variant's output, (n_q, hsv), rounded to f16."""
    if variant == "f16-standard":
        return in_f16(standard_rounded(head, halves(head), B_r, in_f16))
    if variant == "f16-flash":
        return in_f16(flash(head, halves(head), (B_r, B_c), in_f16, in_float32))
    if variant == "fp8-standard":
        return in_f16(standard_rounded(head, eights(head, Scheme(False, False), B_r, B_c, seed), B_r, per_tensor))
    scheme = SCHEMES[variant]
    operands, rounded = eights(head, scheme, B_r, B_c, seed), lambda P: e4m3(_f32(P * P_OFFSET)).astype(np.float64)
    return in_f16(flash(head, operands, (B_r, B_c), rounded, scheme.sums) / P_OFFSET)


def halves(head: StudyHead) -> Operands:
    """Q, K and V in f16."""
    Q, K, V = (ScaledBlocks(_f32(in_f16(x)), np.ones(len(x), np.float32)) for x in (head.Q, head.K, head.V))
    return Q, K, V


def eights(head: StudyHead, scheme: Scheme, B_r: int, B_c: int, seed: int) -> Operands:
    """Q, K and V in e4m3; Q and K have the same rotation, which does not change Q K^T."""
    Q, K = head.Q, head.K
    if scheme.rotated:
        M = rotation(head.hsk, seed)
        Q, K = Q @ M, K @ M
    q_rows, kv_rows = (B_r, B_c) if scheme.blocks else (head.n_q, head.n_kv)
    return quantised(_f32(Q), q_rows), quantised(_f32(K), kv_rows), quantised(_f32(head.V), kv_rows)


def standard_rounded(head: StudyHead, operands: Operands, B_r: int, round_P: Round) -> F64:
    """One operation after the other, each with a result in f16: Q K^T, its scaling, its softmax, then P V.

    Products are added in float32; the softmax of the rounded S is exact until its result is rounded.
    """
    Q, K, V = operands
    P = np.empty((head.n_q, head.n_kv))
    for i in tiles(head.n_q, B_r):
        every = slice(0, head.n_kv)
        S = in_f16(head.rule.of_products(in_f16(_products((Q, K), i, every, in_float32)), mask_of(head, i, every)))
        _, l, m = head.rule.start(head.Q[i], head.hsv)
        before, m = m, np.maximum(m, S.max(axis=-1))
        P[i] = exp_below(S, m[:, None])
        P[i] = in_f16(rows_divided(P[i], exp_below(before, m) * l + P[i].sum(axis=-1)))
    weights, values = _f32(round_P(P)), V.value * V.scale[:, None]
    return (weights @ values).astype(np.float64)


def flash(head: StudyHead, operands: Operands, sizes: tuple[int, int], round_P: Round, sums: Sums) -> F64:
    """FlashAttention-2 and 3, tiles of B_r x B_c: the softmax is not rounded, but P is; O stays in the accumulators.

    O is kept in units of V's current scale; the change of unit is part of rescaling O, so V's scales cost nothing.
    """
    Q, K, V = operands
    B_r, B_c = sizes
    out = np.empty((head.n_q, head.hsv))
    for i in tiles(head.n_q, B_r):
        O_i, l, m = head.rule.start(head.Q[i], head.hsv)
        O, scale = _f32(O_i), V.scale[0]
        for j in tiles(head.n_kv, B_c):
            S = head.rule.of_products(_products((Q, K), i, j, sums), mask_of(head, i, j))
            before, m = m, np.maximum(m, S.max(axis=-1))
            P = exp_below(S, m[:, None])
            l = exp_below(before, m) * l + P.sum(axis=-1)
            rescale = exp_below(before, m)[:, None] * (scale / V.scale[j.start])
            scale = V.scale[j.start]
            O = sums(_f32(round_P(P)), V.value[j], _f32(rescale * O))
        out[i] = rows_divided(O * np.float64(scale), l)
    return out


def _products(operands: tuple[ScaledBlocks, ScaledBlocks], i: slice, j: slice, sums: Sums) -> F64:
    """Q K^T of a tile, with the scales of the blocks of Q and K."""
    Q, K = operands
    nothing = np.zeros((i.stop - i.start, j.stop - j.start), np.float32)
    product = sums(Q.value[i], np.ascontiguousarray(K.value[j].T), nothing)
    return product.astype(np.float64) * Q.scale[i, None] * K.scale[j]


def mask_of(head: StudyHead, i: slice, j: slice) -> F64 | None:
    """The mask of a tile."""
    return None if head.mask is None else head.mask[i, j]


def in_f16(x: F64) -> F64:
    """Round to f16."""
    return x.astype(np.float16).astype(np.float64)


def per_tensor(P: F64) -> F64:
    """Round to e4m3 with one scale."""
    blocks = quantised(_f32(P), len(P))
    return blocks.value.astype(np.float64) * blocks.scale[:, None]


def _f32(x: F64) -> F32:
    return x.astype(np.float32)


ROWS, HEAD_SIZE, TILE = 8448, 128, 128
QUERIES = 256
"""Queries per head: this is enough, because the error of a query does not depend on the others."""
PAPER: Mapping[str, float] = {
    "f16-standard": 3.2e-4,
    "f16-flash": 1.9e-4,
    "fp8-standard": 2.4e-2,
    "fp8-fa3": 9.1e-3,
    "fp8-no-blocks": 9.3e-3,
    "fp8-no-rotation": 2.4e-2,
}


Figures = dict[str, Any]


def measure(heads: int, step: Step = quiet, *, rows: int = ROWS, queries: int = QUERIES, d: int = HEAD_SIZE) -> Figures:
    """Measure every variant on a number of heads; returns the sizes and the `table`."""
    found = [_measured(number, heads, step, (rows, queries, d)) for number in range(heads)]
    table = [row_of(name, [head[name] for head in found]) for name in VARIANTS]
    return {"heads": heads, "queries": queries, "rows": rows, "head_size": d, "table": table}


def row_of(variant: str, squares: list[float]) -> Figures:
    """A row from the mean square errors of the heads: `variant`, `rmse`, its standard error, and the paper's value.

    The standard error, `spread`, is that of the mean, to first order.
    """
    mean = float(np.mean(squares))
    spread = float(np.std(squares, ddof=1) / np.sqrt(len(squares)) / (2 * np.sqrt(mean))) if len(squares) > 1 else 0.0
    return {"variant": variant, "rmse": float(np.sqrt(mean)), "spread": spread, "paper": PAPER.get(variant)}


def _measured(number: int, heads: int, step: Step, sizes: tuple[int, int, int]) -> dict[str, float]:
    words = f"head {number + 1} of {heads}"
    step(f"{words}: float64")
    head = drawn(number, *sizes)
    exact = standard(head, TILE).out
    return errors(head, exact, TILE, TILE, seed=number, step=lambda variant: step(f"{words}: {variant}"))


def drawn(number: int, rows: int, queries: int, d: int) -> StudyHead:
    """A head of N(0, 1) + N(0, 100) Bernoulli(0.001), scaled by 1 / sqrt(d)."""
    scale = 1.0 / float(np.sqrt(d))

    def tensor(name: str, length: int) -> F64:
        data = Fa3Outliers(kind="fa3_outliers")
        values = draw(data, name, (length, d), stream(0, STREAMS[name], (number, 0)), scale=scale, hsk=d)
        return values.astype(np.float64)

    return StudyHead(tensor("Q", queries), tensor("K", rows), tensor("V", rows), None, MaskRule(Params(scale)))
