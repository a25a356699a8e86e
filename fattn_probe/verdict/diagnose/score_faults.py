"""Faults in the logits and in the softmax: wrong factors, roundings to f16, sinks, and causes of NaN."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fattn_probe.base.arrays import F64, Bools
from fattn_probe.base.figures import factor as factor_of
from fattn_probe.verdict.diagnose.constants import ALIKE, NAMED, SEARCHED, WHOLE
from fattn_probe.verdict.diagnose.row import AttentionRow, Cause, Moves, Named, WrongRow
from fattn_probe.verdict.truth.reference.adapter import stored_rows
from fattn_probe.verdict.truth.rounding_model.softmax import FLUSH

LARGEST_F16 = 65504.0
LOWER = "or a far lower one is read"
"""The detail of an ignored sink: reading a far lower sink gives the same output."""


def output_scaled(wrong: WrongRow) -> Iterator[Moves]:
    """The output is scaled; with a constant V, any wrong weights do this."""

    def say(_: int, a: float) -> Cause | None:
        if abs(1 + a) < 0.01:
            return None
        if wrong.constant:
            return Cause("row-sum", "the sum of the weights is wrong; V is constant, so the output shows only that", "")
        return Cause("", "", f"by {factor_of(1 + a)}", factor=1 + a)

    yield Moves(wrong.row.out[None], say, free=True, rarity=2.0)  # a sink has the same effect


def no_sink(wrong: WrongRow) -> Iterator[Named]:
    """The sink is ignored."""
    if wrong.row.sink is not None:
        yield LOWER, wrong.row.answer(sink=None)


def other_sinks(wrong: WrongRow) -> Iterator[Named]:
    """The sinks of other heads."""
    if wrong.row.sink is not None:
        stored = np.asarray(stored_rows(wrong.around.view("sinks"), wrong.around.inputs), np.float64).ravel()
        for head, sink in enumerate(stored.tolist()):
            if head != wrong.around.head:
                yield f"head {head}", wrong.row.answer(sink=sink)


def sink_as_logit(wrong: WrongRow) -> Iterator[Named]:
    """The sink, which is added as it is, goes through the softcap or the scale, as logits do."""
    row, params = wrong.row, wrong.around.case.op.params.stored
    if row.sink is not None:
        yield "it is multiplied by the scale", row.answer(sink=row.sink * params.scale)
        if row.softcap:
            yield "the softcap is applied to it", row.answer(sink=row.softcap * np.tanh(row.sink / row.softcap))


def sink_often(wrong: WrongRow) -> Iterator[Moves]:
    """The sink adds its weight s to the sum; if it is counted n times, the output is scaled by 1 / (1 + (n - 1) s)."""
    s = 1 - float(wrong.row.p.sum())

    def say(_: int, a: float) -> Cause | None:
        often = (1 / (1 + a) - 1) / s + 1 if a > -1 and s > 0 else np.inf
        if not -1 - WHOLE < often < 256 + WHOLE or round(often) == 1:
            return None
        if abs(often - round(often)) > max(WHOLE, min(ALIKE * often, 0.25)):  # rounding hides larger numbers
            return None
        return Cause("", "", f"{round(often)} times") if round(often) else Cause("", "the sink is ignored", LOWER)

    if wrong.row.sink is not None:
        yield Moves(wrong.row.out[None], say, free=True)


@dataclass(frozen=True)
class Factor:
    """A fault with one factor: `logits` computes the logits of a row for a factor, in the KV rows of `within`.

    A factor close to one of `others`, which belong to other faults, is ignored. `names` has names for some factors.
    `same`: the factor is the same in all rows.
    """

    kind: str
    words: str
    row: AttentionRow
    logits: Callable[[float], F64]
    others: Sequence[float] = ()
    names: Mapping[str, float] = field(default_factory=dict)
    same: bool = True
    within: Bools | None = None

    def answer(self, factor: float) -> F64:
        """The output for a factor."""
        logits = self.logits(factor)
        return self.row.output(logits if self.within is None else np.where(self.within, logits, self.row.logits))


def factors(wrong: WrongRow) -> Iterator[Factor]:
    """A wrong factor applied to the products of Q and K, the mask, the softcap, the result of tanh, or all logits."""
    row, cap, scale = wrong.row, wrong.row.softcap, wrong.around.scale
    visible = ~np.isneginf(row.mask)
    mask = np.where(visible, row.mask, 0.0)
    capped = cap * np.tanh(row.raw / cap) if cap else row.raw

    def of(raw: F64, mask: F64) -> F64:
        return np.where(visible, raw + mask, -np.inf)

    before, caps = (" before the softcap", (cap, 1 / cap)) if cap else ("", ())
    words, zero = f"the logits are scaled{before}", {"as if Q or K were zero": 0.0}
    yield Factor("scale", words, row, lambda f: replace(row, raw=f * row.raw).logits, caps, zero)
    if cap:
        words = "the result of the softcap's tanh is multiplied by a wrong factor"
        yield Factor("softcap", words, row, lambda f: of(f * capped, mask), (1 / cap,))
        yield Factor("softcap", "the softcap has a wrong value", row, lambda f: replace(row, softcap=f * cap).logits)
    bases = {
        "ln 2, as in exponentials to base 2": math.log(2),
        "log2(e), as in exponentials to base 2": 1 / math.log(2),
    }
    if mask.any() and row.slope != 1.0:
        yield Factor("alibi", "the slope of ALiBi is wrong", row, lambda f: of(capped, f * mask), same=False)
    elif mask.any():
        names = {"it is added twice": 2.0, **bases}
        for name, factor in (("scale", scale), ("softcap", cap)):
            if factor not in (0.0, 1.0):
                names |= {f"the {name}": factor, f"1 / the {name}": 1 / factor}
        words = "the mask is multiplied by a wrong factor"
        yield Factor("mask-scale", words, row, lambda f: of(capped, f * mask), names=names)
    if row.sink is None and (mask.any() or cap):
        words = "the exponents of the softmax are scaled, including the mask"
        yield Factor("scale", words, row, lambda f: of(f * capped, f * mask), names=bases)


def in_shares(factor: Factor, wrong: WrongRow) -> Iterator[Factor]:
    """The factor in only some shares: those of blocks that write dst, or those that a second kernel adds."""
    for writes, whose in ((True, "the blocks that write dst"), (False, "blocks that another kernel adds")):
        own = [rows for _, work, rows in wrong.shares if work.writes == writes]
        if own and len(own) < len(wrong.shares):
            yield replace(factor, words=f"{factor.words} in the shares of {whose}", within=np.any(own, axis=0))


def searched(wrong: WrongRow) -> Iterator[Moves]:
    """The factors with the closest answers, by the Gauss-Newton method from several starts."""
    target = wrong.row.out + wrong.error
    for factor in (one for base in factors(wrong) for one in (base, *in_shares(base, wrong))):
        answer = factor.answer

        def distance(f: float, answer: Callable[[float], F64] = answer) -> float:
            return float(((answer(f) - target) ** 2).sum())

        best = min((0.0, 0.125, 0.25, 0.5, 0.9, 1.1, 2.0, 4.0, 8.0, 1.0), key=distance)
        for _ in range(8):
            width = 1e-4 * max(abs(best), 1e-2)
            slope = (answer(best + width) - answer(best - width)) / (2 * width)
            size = float(slope @ slope)
            step = float(slope @ (target - answer(best))) / size if size else 0.0
            if abs(step) < 1e-7 or distance(best + step) >= distance(best):
                break
            best += step
        if not any(abs(best / other - 1) <= ALIKE for other in factor.others):
            near = ((at, f": {name}") for name, at in factor.names.items() if abs(best - at) < NAMED * abs(at or 1))
            shown, name = next(near, (best, ""))
            detail = f"by {factor_of(shown)}{name}"
            cause = Cause(factor.kind, factor.words, detail, factor=best if factor.same else None)
            yield Moves.to([(cause, answer(best))], wrong.row.out, rarity=SEARCHED)


def softcaps(wrong: WrongRow) -> Iterator[Named]:
    """The softcap is ignored, applied partly, or applied to something else."""
    row, cap = wrong.row, wrong.row.softcap
    if not cap:
        return
    yield "the softcap is ignored", row.answer(softcap=0.0)
    yield "the logits are not divided by the softcap", row.answer(raw=row.raw * cap)
    yield "the logits are divided by the softcap twice", row.answer(raw=row.raw / cap)
    yield "the logits are not multiplied by the softcap", row.answer(softcap=1.0, raw=row.raw / cap)
    yield "the softcap cuts the logits off", row.answer(softcap=0.0, raw=np.clip(row.raw, -cap, cap))
    if row.mask.any():
        after, inside = (row.raw + row.mask) / cap, row.raw / cap + row.mask
        yield "the softcap is applied after the mask", row.output(cap * np.tanh(after))
        yield "the mask is added before tanh", row.output(cap * np.tanh(inside))


def rounded(wrong: WrongRow) -> Iterator[Named]:
    """The outputs with logits, products of Q and K, weights or the sum of weights rounded to f16."""
    row, around = wrong.row, wrong.around
    cap, top = row.softcap or 1.0, row.logits.max()
    yield "the logits are rounded to f16", row.answer(raw=_f16(row.raw / cap) * cap)
    yield "the logits are rounded to f16", row.answer(raw=_f16(row.raw))
    if wrong.affords(32):
        q = _f16(around.q * around.scale / cap)
        with np.errstate(all="ignore"):  # beyond the range of f16
            raw = np.asarray(_f16(_f16(row.K) * q).sum(axis=1) * cap)
        yield "the products of Q and K are rounded to f16", row.answer(raw=raw)
    if np.isfinite(top):
        total = float(np.exp(row.logits - top).sum())
        yield "1/sum is rounded to f16", row.out * float(_f16(np.array(1 / total))) * total
    if wrong.step and row.sink is None and np.isfinite(top):
        # The weights are rounded relative to the maximum of the KV steps so far, block by block.
        logits, steps, offset, weights = row.logits, wrong.steps, wrong.max_offset, np.zeros_like(row.raw)
        for block in [work.steps for work in wrong.parts.values()] or [range(int(steps[-1]) + 1)]:
            highest = -np.inf
            for step in block:
                rows = steps == step
                highest = max(highest, logits[rows].max(initial=-np.inf))
                if np.isfinite(highest):
                    weights[rows] = _f16(np.exp(logits[rows] - highest - offset)) * np.exp(highest + offset - top)
        q = weights / np.exp(logits - top).sum()
        yield "the weights are rounded to f16", q @ row.V
        yield "the weights are rounded to f16", q @ row.V * row.p.sum() / q.sum()


def _f16(values: F64) -> F64:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float64)


def zeros(wrong: WrongRow) -> Iterator[Named]:
    """An output of zeros."""
    yield "", np.zeros_like(wrong.row.out)


def low_maximum(wrong: WrongRow) -> Iterator[Cause]:
    """All logits are below the smallest exponent that does not underflow, and the last KV step is not full."""
    if wrong.step and len(wrong.row.V) % wrong.step and wrong.row.logits.max() < FLUSH:
        yield Cause("", "", "")


def masked_step(wrong: WrongRow) -> Iterator[Cause]:
    """The mask hides a block's first KV step, whether or not it also hides the block's other steps."""
    if wrong.step and wrong.around.case.op.has_mask:
        hidden = np.isneginf(wrong.row.mask)
        steps = np.logical_and.reduceat(hidden, np.arange(0, len(hidden), wrong.step))
        first = [work.steps for _, work, _ in wrong.shares if steps[work.kb0_start]]
        words = "a block's first KV step is fully masked, or KV_max hides all of its steps" if wrong.scanned else ""
        if first:
            yield Cause("", words, "")
        if any(not steps[own].all() for own in first):
            yield Cause("", words, "followed by a visible step")


def overflows(wrong: WrongRow) -> Iterator[Cause]:
    """Products of Q and K, logits, or sums of weights times V exceed the largest f16 number."""
    row, around, seen = wrong.row, wrong.around, ~np.isneginf(wrong.row.mask)
    if np.abs(row.K[seen] * around.q).max(initial=0.0) * around.scale > LARGEST_F16:
        yield Cause("", "products of Q and K exceed the range of f16", "")
    if np.abs(row.raw[seen]).max(initial=0.0) > LARGEST_F16:
        yield Cause("", "logits exceed the range of f16", "")
    largest = 0.0
    for rows in [rows for _, _, rows in wrong.shares] if wrong.step else [np.ones(len(row.V), np.bool_)]:
        top = row.logits[rows].max(initial=-np.inf)
        if not np.isneginf(top):
            largest = max(largest, float(np.abs(np.exp(row.logits[rows] - top) @ row.V[rows]).max()))
    for shift in (1.0, 0.5, 0.25, 0.125):  # a kernel's offset of the maximum scales the weights down
        if shift * largest > LARGEST_F16:
            yield Cause("", "the accumulators of P V exceed the range of f16", str(shift))
