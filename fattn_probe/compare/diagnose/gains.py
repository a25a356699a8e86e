"""Products of Q and K that are wrong in some columns, fitted by the method of Levenberg and Marquardt."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fattn_probe.arrays import F64, Bools
from fattn_probe.compare.diagnose.attention_row import AttentionRow

WIDTHS = (64, 32, 16, 8)
FEWEST, UNKNOWNS, MOST_COLUMNS = 2, 1 / 3, 0.75
"""Blocks at least, and at most as a share of the output's columns; and so for single columns."""
STEPS, SLOW = 25, 60
"""Steps of a fit, for blocks and for single columns."""
WHOLE, MOST = 0.1, 4
"""How far a gain may be from a whole number, and the largest."""
FIRST_DAMPING, LAST_DAMPING = 1e-3, 1e6
NEAR = 1e-6
"""A relative error at which a fit ends."""


def column_gains(row: AttentionRow, terms: F64, out: F64) -> Iterator[tuple[int, F64, F64]]:
    """For blocks of each width: their number of columns, how often each counts, and the output that follows.

    `terms` (n_kv, hsk) are the summands of the raw logits. Gains that are no whole numbers are left out.
    """
    hsk = terms.shape[1]
    for width in WIDTHS:
        if hsk % width == 0 and FEWEST <= hsk // width <= UNKNOWNS * len(out):
            parts = terms.reshape(len(terms), -1, width).sum(axis=2)
            gains = _fitted(row, np.zeros(len(terms)), parts, out, STEPS)
            whole = np.rint(gains)
            if np.abs(gains - whole).max() <= WHOLE and whole.min() >= 0 and whole.max() <= MOST and (whole != 1).any():
                other = replace(row, raw=parts @ whole)
                yield width, whole, other.output(other.logits)


def column_sets(hsk: int, hsv: int) -> Iterator[tuple[str, Bools]]:
    """Columns that may be wrong together, in words; few of them first, and fewer than the output has."""
    d = np.arange(hsk)
    found = [(f"d % {m} in {lo}..{hi - 1}", (d % m >= lo) & (d % m < hi)) for m, lo, hi in _ranges() if m <= hsk]
    found += [(f"d < {hsk // 2}", d < hsk // 2), (f"d >= {hsk // 2}", d >= hsk // 2)]
    for words, columns in sorted(found, key=lambda one: int(one[1].sum())):
        if columns.sum() <= MOST_COLUMNS * hsv:
            yield words, columns


def _ranges() -> Iterator[tuple[int, int, int]]:
    for m in (4, 8, 16, 32, 64):
        yield from ((m, 0, m // 2), (m, m // 2, m))
        if m <= 16:
            yield from ((m, m // 4, m), (m, 0, m - m // 4))


def other_columns(row: AttentionRow, terms: F64, out: F64, columns: Bools) -> F64:
    """The nearest output with other values of Q, any ones, in some columns."""
    fixed, parts = terms[:, ~columns].sum(axis=1), terms[:, columns]
    other = replace(row, raw=fixed + parts @ _fitted(row, fixed, parts, out, SLOW))
    return other.output(other.logits)


def _fitted(row: AttentionRow, fixed: F64, parts: F64, out: F64, steps: int) -> F64:
    """The gains of parts of the raw logits, besides fixed ones, for which the output is nearest."""
    gains, damping = np.ones(parts.shape[1]), FIRST_DAMPING
    answer, slopes = _linear(row, fixed, parts, gains)
    for _ in range(steps):
        if np.linalg.norm(out - answer) <= NEAR * np.linalg.norm(out):
            break
        square = slopes.T @ slopes
        diagonal = np.diag(np.diag(square) + 1e-12)
        step = np.linalg.solve(square + damping * diagonal, slopes.T @ (out - answer))
        tried, its_slopes = _linear(row, fixed, parts, gains + step)
        if np.linalg.norm(out - tried) < np.linalg.norm(out - answer):
            gains, answer, slopes, damping = gains + step, tried, its_slopes, damping / 5
        elif (damping := damping * 5) > LAST_DAMPING:
            break
    return gains


def _linear(row: AttentionRow, fixed: F64, parts: F64, gains: F64) -> tuple[F64, F64]:
    """The output for some gains, and its derivative (hsv, parts)."""
    raw = fixed + parts @ gains
    p = row.weights(replace(row, raw=raw).logits)
    out = p @ row.V
    slope = 1 - np.tanh(raw / row.softcap) ** 2 if row.softcap else np.ones_like(raw)
    return out, (p[:, None] * (row.V - out)).T @ (slope[:, None] * parts)
