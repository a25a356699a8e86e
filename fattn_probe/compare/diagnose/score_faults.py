"""Faults in the logits and in the softmax, and other answers in place of the right one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fattn_probe.arrays import F64
from fattn_probe.compare.diagnose.attention_row import AttentionRow
from fattn_probe.compare.diagnose.candidates import UNLIKELY, Cause, Family, Suspect, answers
from fattn_probe.figures import factor as factor_of

FACTORS = (0.0, 0.125, 0.25, 0.5, 0.9, 1.1, 2.0, 4.0, 8.0)
NEWTON = 8  # steps
ALIKE = 0.02
"""How near a factor may be to that of another fault."""
SEARCHED = 10.0
"""Rarity of a fault with a factor of its own."""
WHOLE, WHOLE_OF_MANY = 0.1, 0.02
"""How far a number of times may be from a whole one; and as a share of many times, which rounding shows less well."""
SINKS = (-1, 256)
"""The least and the most times that a sink can count."""
ZERO = -UNLIKELY
"""Rarity of an output of zeros: weights that lose everything are no better a cause."""
LOWER = "or a far lower one is read"
"""What an output without its sink shows as well."""
LEAST_FACTOR = 0.01
"""A smaller factor makes the output zero."""


def score_faults(error: F64, suspect: Suspect) -> Iterator[Family]:
    """All faults of these kinds."""
    row = suspect.row
    out = row.output(row.logits)
    yield Family(out[None], _output_scaled(), free=True, rarity=2.0)  # a sink does the same
    if row.sink is not None:
        yield from answers("sink", out, [(LOWER, _without_sink(row))], "the sink is ignored")
        yield Family(out[None], _sink_often(row), free=True)
    caps = (row.softcap, 1 / row.softcap) if row.softcap else ()
    yield from _searched(("scale", "the logits are scaled"), error, out, lambda f: _scaled(row, f), caps)
    if row.softcap:
        yield from answers("softcap", out, _softcaps(row))
    if row.slope != 1.0:
        yield from _searched(("alibi", "the slope of ALiBi is wrong"), error, out, lambda f: _sloped(row, f))
    yield from answers("rounding", out, _rounded(row), rarity=2.0)
    yield from answers("zero", out, [("the output is zero", np.zeros_like(out))], rarity=ZERO)
    yield from answers("row-elsewhere", out, list(suspect.others), "another row's answer stands there")


def _output_scaled() -> Callable[[int, float], Cause | None]:
    def say(_: int, a: float) -> Cause | None:
        zero = abs(1 + a) < LEAST_FACTOR
        return None if zero else Cause("output-scale", "the output is scaled", f"by {factor_of(1 + a)}", factor=1 + a)

    return say


def _without_sink(row: AttentionRow) -> F64:
    other = replace(row, sink=None)
    return other.output(other.logits)


def _sink_often(row: AttentionRow) -> Callable[[int, float], Cause | None]:
    """The sink adds its weight s to the sum; n times, it scales the output by 1 / (1 + (n - 1) s)."""
    s = 1 - float(row.weights(row.logits).sum())

    def say(_: int, a: float) -> Cause | None:
        often = (1 / (1 + a) - 1) / s + 1 if a > -1 and s > 0 else np.inf
        if not SINKS[0] - WHOLE < often < SINKS[1] or round(often) == 1:
            return None
        if abs(often - round(often)) > max(WHOLE, min(WHOLE_OF_MANY * often, 0.25)):
            return None
        if round(often) == 0:
            return Cause("sink", "the sink is ignored", LOWER)
        return Cause("sink", "the sink counts a wrong number of times", f"{round(often)} times")

    return say


def _scaled(row: AttentionRow, factor: float) -> F64:
    other = replace(row, raw=row.raw * factor)
    return other.output(other.logits)


def _sloped(row: AttentionRow, factor: float) -> F64:
    other = replace(
        row, mask=np.where(np.isneginf(row.mask), -np.inf, np.where(np.isneginf(row.mask), 0, row.mask) * factor)
    )
    return other.output(other.logits)


def _searched(
    said: tuple[str, str], error: F64, out: F64, answer: Callable[[float], F64], others: Sequence[float] = ()
) -> Iterator[Family]:
    """A fault with one factor: the factor whose answer is nearest, by Gauss and Newton from several starts.

    `said` are its kind and words; nothing is said of a factor near `others`, which other faults have.
    """
    kind, words = said

    def distance(factor: float) -> float:
        return float(((answer(factor) - out - error) ** 2).sum())

    best = min((*FACTORS, 1.0), key=distance)
    for _ in range(NEWTON):
        width = 1e-4 * max(abs(best), 1e-2)
        slope = (answer(best + width) - answer(best - width)) / (2 * width)
        size = float(slope @ slope)
        step = float(slope @ (error + out - answer(best))) / size if size else 0.0
        if abs(step) < 1e-7 or distance(best + step) >= distance(best):
            break
        best += step
    if all(abs(best / factor - 1) > ALIKE for factor in others):
        yield Family(
            (answer(best) - out)[None],
            lambda _, __: Cause(kind, words, f"by {factor_of(best)}", factor=best if kind == "scale" else None),
            rarity=SEARCHED,
        )


def _softcaps(row: AttentionRow) -> list[tuple[str, F64]]:
    cap = row.softcap
    variants = {
        "the softcap is ignored": replace(row, softcap=0.0),
        "the logits are not divided by the softcap": replace(row, raw=row.raw * cap),
        "the logits are divided by the softcap twice": replace(row, raw=row.raw / cap),
        "the logits are not multiplied by the softcap": replace(row, softcap=1.0, raw=row.raw / cap),
    }
    return [(words, other.output(other.logits)) for words, other in variants.items()]


def _rounded(row: AttentionRow) -> list[tuple[str, F64]]:
    """Logits or the softmax's sum rounded to f16, where the rounding can be repeated."""
    cap = row.softcap or 1.0
    logits = replace(row, raw=_f16(row.raw / cap) * cap)
    found = [("the logits are rounded to f16", logits.output(logits.logits))]
    before = replace(row, raw=_f16(row.raw))
    found.append(("the logits are rounded to f16", before.output(before.logits)))
    top = row.logits.max()
    if np.isfinite(top):
        total = float(np.exp(row.logits - top).sum())
        found.append(("1/sum is rounded to f16", row.output(row.logits) * float(_f16(np.array(1 / total))) * total))
    return found


def _f16(values: F64) -> F64:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float64)
