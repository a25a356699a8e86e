"""Coarse causes: what follows from wrong rows by linear algebra, if no known fault explains them.

A right output is o = sum of w_i v_i, with the softmax's weights w. If the wrong one is a sum of the same v_i with other
weights, V is right and the weights are not; if it is no such sum, V or the sum is wrong. Weights are fitted for sets of
KV rows, such as KV steps, or for single rows, only where a fit has fewer unknowns than the row has columns: an output
that the statement does not describe leaves most of its error.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fattn_probe.arrays import F64, Bools, Indices
from fattn_probe.compare.diagnose.attention_row import AttentionRow
from fattn_probe.compare.diagnose.candidates import ROUNDING, Cause, Suspect
from fattn_probe.compare.diagnose.causes import AGREED, Said
from fattn_probe.compare.diagnose.gains import column_gains, column_sets, other_columns
from fattn_probe.compare.diagnose.hull import is_outside
from fattn_probe.compare.judge.wrong_rows import ranges
from fattn_probe.figures import times

LEFT, WIDE_LEFT = 0.1, 0.02
"""The share of a row's error that a fit may leave, if that is as small as rounding; less with many unknowns."""
UNITS = 4.0
"""An error must be so many times the kernel's own."""
UNKNOWNS, FEWER = 0.5, 0.75
"""Unknowns of a fit as a share of a row's columns, for sets of KV rows and for single ones."""
MOST_VALUES, MOST_TRIED = 1 << 21, 1 << 16
"""Largest V, in values, and the largest that is tried in many ways."""
SAME, ZERO = 0.03, 0.005
"""How far factors of one group of sets may be apart, and a factor of 0."""
BETTER = 1.5
"""How much more than the best division of the KV rows another may leave."""
MOST_HULL, MANY = 1 << 15, 6
"""Largest V whose hull is looked at, and rows per column from which on it holds nearly everything."""
NO_SUM = 0.1
"""The share of the error that a sum of V's rows must leave, for the output to be none."""
RIGHT = 0.1
"""The error of right columns as a share of that of wrong ones."""
V_ROUNDED = 2**-10
"""Relative rounding of V's values to f16."""
WARPS = (2, 4, 8)
SLICES = (32, 16, 8)


@dataclass(frozen=True, eq=False)
class WrongRow:
    """A wrong row: its output `out`, the right one `base`, the columns that are wrong, and rows of the same tile."""

    suspect: Suspect
    out: F64
    base: F64
    wrong: Bools
    near: Sequence[tuple[str, AttentionRow]] = ()

    @property
    def row(self) -> AttentionRow:
        """The row's data."""
        return self.suspect.row

    @cached_property
    def p(self) -> F64:
        """The right weights."""
        return self.row.weights(self.row.logits)

    @cached_property
    def off(self) -> float:
        """The size of the error."""
        return float(np.linalg.norm(self.out - self.base))

    @cached_property
    def rounding(self) -> float:
        """The size of an error that the kernel's rounding can make, here."""
        own, size = float(ROUNDING * self.suspect.unit * len(self.out) ** 0.5), float(np.linalg.norm(self.out))
        larger = size / (float(np.linalg.norm(self.base)) or 1e-30)
        return max(own * max(1.0, larger), 1e-6 * size)

    def rows_that_count(self) -> int:
        """The number of KV rows of which each moves the output by more than rounding."""
        return int((self.p * np.linalg.norm(self.row.V, axis=1) > self.rounding).sum())

    def large(self) -> bool:
        """Whether the error is much larger than the kernel's own."""
        return bool(self.off > UNITS * self.rounding / ROUNDING and self.row.V.size <= MOST_VALUES)

    def explained(self, answer: F64, *, wide: bool = False) -> bool:
        """Whether an answer leaves no more than rounding; `wide` if many numbers were fitted."""
        left = float(np.linalg.norm(self.out - answer))
        return left <= min(self.rounding, (WIDE_LEFT if wide else LEFT) * self.off)


Finder = Callable[[WrongRow], Iterator[Cause]]


def coarse_causes(rows: Sequence[WrongRow], share: float) -> list[Said]:
    """The first statement that holds in at least half of all wrong rows; `share` is that of those these stand for."""
    large = [row for row in rows if row.large()]
    if not large or len(large) < AGREED * len(rows):
        return []
    for find in FINDERS:
        found: dict[tuple[str, str], list[Cause]] = {}
        for row in large:
            for cause in dict((one.words, one) for one in find(row)).values():
                found.setdefault((cause.kind, cause.words), []).append(cause)
        most = max(found.values(), key=len, default=[])
        if share * len(most) >= AGREED * len(rows):
            return [Said(most[0], len(most), len(rows), share * len(most) / len(rows))]
    return wrong_in_columns(large, len(rows), share)


def wrong_in_columns(large: Sequence[WrongRow], of: int, share: float) -> list[Said]:
    """Products of Q and K that are wrong in some columns, the same in half of all rows; the slowest to find."""
    first, *others = large  # the first is searched, the others confirm
    for words, columns in column_sets(first.row.K.shape[1], len(first.out)):
        if _other_columns(first, columns):
            number = 1 + sum(_other_columns(row, columns) for row in others)
            if share * number >= AGREED * of:
                cause = Cause("k-columns", "some columns of Q and K are multiplied wrongly", words)
                return [Said(cause, number, of, share * number / of)]
    return []


def _other_columns(wrong: WrongRow, columns: Bools) -> bool:
    terms = _terms(wrong)
    if terms is None or wrong.rows_that_count() < 2 * columns.sum():  # few rows' weights can be anything
        return False
    return wrong.explained(other_columns(wrong.row, terms, wrong.out, columns), wide=True)


def _terms(wrong: WrongRow) -> F64 | None:
    """The products of Q and K by column, (n_kv, hsk); None if they are many."""
    around = wrong.suspect.around
    if around is None or wrong.row.K.size > MOST_TRIED:
        return None
    return np.asarray(wrong.row.K * around.q * around.case.op.params.stored.scale)


def labels_of(n_kv: int, suspect: Suspect) -> Iterator[tuple[str, str, str, Indices]]:
    """Divisions of the KV rows: kind, words, the name of a set, and the number of each row's set; few sets first."""
    i, step = np.arange(n_kv), suspect.step
    block = _blocks(n_kv, suspect)
    if block.any():
        yield "share", "the shares of CUDA blocks have wrong weights", "share", block
    if step and step < n_kv:
        yield "kv-parts", "KV steps have wrong weights", "KV step", i // step
    for warps in WARPS:
        for rows in SLICES:
            words = f"slices of {rows} KV rows have wrong weights, by their number modulo {warps}"
            yield "kv-parts", words, f"slice n % {warps} =", i // rows % warps
        words = f"KV rows have wrong weights, by their number modulo {warps}"
        yield "weights", words, f"KV row n % {warps} =", i % warps
    for rows in SLICES:
        yield "kv-parts", f"slices of {rows} KV rows have wrong weights", "slice", i // rows


def sets_of_rows(wrong: WrongRow) -> Iterator[Cause]:
    """Sets of KV rows with a factor for the weight of each, as when a part of the sum is lost or rescaled."""
    n_kv, seen = len(wrong.p), np.flatnonzero(wrong.p)
    found: list[tuple[float, Cause]] = []
    summands = wrong.p[seen, None] * wrong.row.V[seen]
    for kind, words, name, labels in labels_of(n_kv, wrong.suspect):
        number = int(labels.max()) + 1
        if not 2 <= number <= UNKNOWNS * min(len(wrong.out), wrong.rows_that_count()):
            continue
        sums = (labels[seen] == np.arange(number)[:, None]).astype(np.float64) @ summands
        factors = np.linalg.lstsq(sums.T, wrong.out, rcond=1e-9)[0]
        size = np.linalg.norm(sums, axis=1) * np.maximum(1.0, np.abs(factors))
        known = SAME * size > wrong.rounding / ROUNDING
        some = factors[known] if known.any() else np.ones(1)
        if wrong.explained(factors @ sums) and np.ptp(some) > SAME * np.abs(some).max():
            left = max(float(np.linalg.norm(wrong.out - factors @ sums)), wrong.rounding / ROUNDING)
            found.append((left, Cause(kind, words, _factors(name, factors, np.flatnonzero(known)))))
    least = min((left for left, _ in found), default=0.0)
    yield from (cause for left, cause in found if left <= BETTER * least)


def _factors(name: str, factors: F64, known: Indices) -> str:
    """Sets of KV rows by their factor, those that are furthest from one first; of some it is known."""
    groups: list[list[int]] = []
    for number in known[np.argsort(factors[known], kind="stable")]:
        if groups and abs(factors[number] - factors[groups[-1][0]]) <= SAME * max(1.0, abs(factors[number])):
            groups[-1].append(int(number))
        else:
            groups.append([int(number)])
    groups.sort(key=lambda group: -abs(float(factors[group[0]]) - 1))
    said = [f"{name} {ranges(sorted(group))}: {_often(float(factors[group[0]]))}" for group in groups[:3]]
    return ", ".join(said) + (", ..." if len(groups) > len(said) else "")


def _often(factor: float) -> str:
    return "left out" if abs(factor) < ZERO else f"{times(factor)} times"


def other_weights(wrong: WrongRow) -> Iterator[Cause]:
    """Slices of V's rows summed with the weights of other slices of the same KV step, the same in all steps."""
    step, V = wrong.suspect.step, wrong.row.V
    pad = -len(V) % step if step else 0
    p, V = np.pad(wrong.p, (0, pad)), np.pad(V, ((0, pad), (0, 0)))
    for rows in SLICES:
        number = step // rows
        if number < 2 or step % rows or number**2 > UNKNOWNS * len(wrong.out):
            continue
        sums = np.einsum("nsi,ntid->std", p.reshape(-1, number, rows), V.reshape(-1, number, rows, V.shape[1]))
        sums = sums.reshape(number**2, -1)
        factors = np.linalg.lstsq(sums.T, wrong.out, rcond=1e-9)[0]
        if wrong.explained(factors @ sums):
            words = f"slices of {rows} rows of V are summed with the weights of other KV rows"
            yield Cause("kv-parts", words, "")


def other_answer(wrong: WrongRow) -> Iterator[Cause]:
    """The answer of another row with another sum of weights."""
    for name, other in wrong.suspect.others:
        size = float(other @ other)
        if size and wrong.explained(float(wrong.out @ other) / size * other):
            yield Cause("row-elsewhere", "another row's answer stands there, scaled", name)
            return


def other_share(wrong: WrongRow) -> Iterator[Cause]:
    """A CUDA block's share of another row is added to this one's."""
    own = _shares(wrong.row, wrong.suspect)
    if wrong.explained(np.linalg.lstsq(own.T, wrong.out, rcond=1e-9)[0] @ own):
        return
    for name, row in wrong.near if len(own) > 1 else ():
        shares = np.vstack([own, _shares(row, wrong.suspect)])
        if len(shares) > UNKNOWNS * min(len(wrong.out), wrong.rows_that_count()):
            return
        if wrong.explained(np.linalg.lstsq(shares.T, wrong.out, rcond=1e-9)[0] @ shares):
            yield Cause("share", "another row's share of a CUDA block is added", name)
            return


def _shares(row: AttentionRow, suspect: Suspect) -> F64:
    """The weighted sums of V of each block, (blocks, hsv)."""
    label = _blocks(len(row.V), suspect)
    return np.asarray((label == np.unique(label)[:, None]) @ (row.weights(row.logits)[:, None] * row.V))


def _blocks(n_kv: int, suspect: Suspect) -> Indices:
    """The block of each KV row, by its number among those of the tile."""
    steps, block = np.arange(n_kv) // max(suspect.step, 1), np.zeros(n_kv, np.intp)
    for number, part in enumerate(part for part in suspect.parts if part.start < part.stop):
        block[np.isin(steps, range(part.start, part.stop, part.every))] = number
    return block


def single_rows(wrong: WrongRow) -> Iterator[Cause]:
    """Single KV rows with wrong weights, where the row has more columns than KV rows that count."""
    seen = np.flatnonzero(wrong.p > 0)
    for which, rows in (("", seen), (", also of rows that the mask hides", np.arange(len(wrong.p)))):
        if not 2 <= len(rows) <= FEWER * len(wrong.out):
            continue
        V = wrong.row.V[rows]
        weights = np.linalg.lstsq(V.T, wrong.out, rcond=1e-9)[0]
        least = float(np.linalg.svd(V, compute_uv=False)[-1])
        apart = np.abs(weights - wrong.p[rows])
        if not wrong.explained(weights @ V, wide=True) or least * float(apart.max()) <= wrong.rounding:
            continue
        off = rows[apart >= min(max(3 * wrong.rounding / least, 0.02 * float(apart.max())), float(apart.max()))]
        yield Cause("weights", f"V is right, the weights are wrong{which}", f"KV rows {ranges(off.tolist())}")
        return


def columns(wrong: WrongRow) -> Iterator[Cause]:
    """Some columns are wrong, the others right: weights that are wrong would show in all."""
    right = ~wrong.wrong
    if not 1 - FEWER <= right.mean() < 1:
        return
    error = (wrong.out - wrong.base) ** 2
    if error[right].mean() <= RIGHT**2 * error[wrong.wrong].mean():
        where = ranges(np.flatnonzero(wrong.wrong).tolist())
        yield Cause("columns", "only some columns are wrong, so Q K^T and the softmax are right", f"d {where}")


def no_sum(wrong: WrongRow) -> Iterator[Cause]:
    """The output is no sum of V's rows, whatever their weights; said if V has half as many rows as columns."""
    V = wrong.row.V
    if len(V) > UNKNOWNS * len(wrong.out):
        return
    left = float(np.linalg.norm(wrong.out - np.linalg.lstsq(V.T, wrong.out, rcond=1e-9)[0] @ V))
    if left > NO_SUM * wrong.off and left > 2 * wrong.rounding:
        yield Cause("v-sum", "the output is no weighted sum of V's rows", "")


def no_average(wrong: WrongRow) -> Iterator[Cause]:
    """The output is outside the convex hull of V's rows, or of these and 0 with a sink."""
    V = wrong.row.V if wrong.row.sink is None else np.vstack([wrong.row.V, np.zeros(len(wrong.out))])
    slack = ROUNDING * wrong.rounding / len(wrong.out) ** 0.5 + V_ROUNDED * np.abs(V).max(axis=0)
    if V.size <= MOST_HULL and len(V) <= MANY * V.shape[1] and is_outside(V, wrong.out, slack):
        yield Cause("outside", "the output is no average of V's rows", "")


def other_rows(wrong: WrongRow) -> Iterator[Cause]:
    """The mask, K or V of another KV row of the same KV step, by the numbers of warps and slices."""
    row, p = wrong.row, wrong.p
    if row.V.size > MOST_TRIED:
        return
    for name, index in _maps(len(p), wrong.suspect.step or len(p)):
        masked, other = replace(row, mask=row.mask[index]), replace(row, raw=row.raw[index])
        if row.mask.any() and wrong.explained(masked.output(masked.logits)):
            yield Cause("mask-elsewhere", "the mask is read at another place", name)
        if wrong.explained(other.output(other.logits)):
            yield Cause("k-elsewhere", "K is read at another place", name)
        if len(np.unique(index)) > FEWER * len(p) and wrong.explained(p @ row.V[index]):  # else, weights add up
            yield Cause("v-elsewhere", "V is read at another place", name)
        both = replace(masked, raw=row.raw[index])
        if wrong.explained(both.output(both.logits)):
            yield Cause("weights", "KV rows have the weights of others", name)


def _maps(n_kv: int, step: int) -> Iterator[tuple[str, Indices]]:
    """For each KV row the one that is read instead; rows out of range are read at their own place."""
    i = np.arange(n_kv)
    found: list[tuple[str, Indices]] = []
    for rows in (8, 16, 32, 64):
        for warps in WARPS:
            if step % (rows * warps) == 0:
                warp = i // rows % warps
                words = f"slices of {rows} KV rows, {warps} warps"
                found.append((f"{words}: that of the first warp", i - warp * rows))
                found.append(
                    (f"{words}: warp w begins at row w + {rows}, not at w * {rows}", i - warp * rows + warp + rows)
                )
                found.append((f"{words}: those of neighbours", i + (warp ^ 1) * rows - warp * rows))
    for shift in (1, 2, 4, 8, 16, 32, 64, step):
        found += [(f"{shift} KV rows later", i + shift), (f"{shift} KV rows earlier", i - shift)]
        found.append((f"{shift} KV rows later and earlier, in turns", i ^ shift))
    for rows in (2, 4, 8, 16, 32):
        found += [
            (f"the first of {rows} KV rows", i - i % rows),
            (f"the last of {rows} KV rows", i - i % rows + rows - 1),
        ]
    for name, index in found:
        inside = (index >= 0) & (index < n_kv)
        if inside.mean() > AGREED:
            yield name, np.where(inside, index, i)


def column_gains_of(wrong: WrongRow) -> Iterator[Cause]:
    """Columns of Q and K that count a wrong number of times."""
    terms = _terms(wrong)
    for width, gains, answer in () if terms is None else column_gains(wrong.row, terms, wrong.out):
        if wrong.explained(answer) and wrong.rows_that_count() >= 2 * len(gains):
            often = np.repeat(gains, width)
            said = [f"d {ranges(np.flatnonzero(often == gain).tolist())}: {_often(gain)}" for gain in {*gains} - {1.0}]
            yield Cause("k-columns", "some columns of Q and K count a wrong number of times", ", ".join(sorted(said)))
            return


FINDERS: tuple[Finder, ...] = (
    other_answer,
    other_rows,
    column_gains_of,
    sets_of_rows,
    other_weights,
    other_share,
    single_rows,
    columns,
    no_sum,
    no_average,
)
"""What is tried, the most precise first."""
