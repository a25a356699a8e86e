"""Draw conclusions about wrong rows by linear algebra, if no known fault explains them.

A correct output is o = sum of w_i v_i, where w are the softmax's weights. If the wrong output is a sum of the same v_i
with different weights, V is correct and the weights are wrong; otherwise V or the summation is wrong. Weights are
fitted for sets of KV rows, such as KV steps, or for single rows, but only if a fit has fewer unknowns than the row has
columns: a wrong conclusion then leaves most of the error unexplained.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fattn_probe.base.arrays import F64, Bools, Indices
from fattn_probe.base.figures import first_of, times
from fattn_probe.verdict.diagnose.constants import (
    AGREED,
    BETTER,
    F16_ULP,
    LEFT,
    MOST,
    NEAR,
    ROUNDING,
    SAME,
    SIGMAS,
    UNKNOWNS,
    WHOLE,
)
from fattn_probe.verdict.diagnose.row import AttentionRow, Cause, WrongRow, unlike
from fattn_probe.verdict.measure.wrong_rows import ranges

WARPS = (2, 4, 8)
SLICES = (32, 16, 8)


def is_large(wrong: WrongRow) -> bool:
    """Whether the error is much larger than the kernel's own, in a row that is not too long to fit."""
    return bool(wrong.off > SIGMAS * wrong.rounding / ROUNDING and wrong.affords(64))


def other_answer(wrong: WrongRow) -> Iterator[Cause]:
    """The output is a different row's answer, divided by a different sum of weights."""
    for name, other in wrong.others:
        size = float(other @ other)
        if size and wrong.explained(float(wrong.out @ other) / size * other):
            yield Cause("", "", name)
            return


def other_rows(wrong: WrongRow) -> Iterator[Cause]:
    """The mask, K or V comes from a different KV row of the same KV step; tries several numbers of warps and slices."""
    row, n_kv = wrong.row, len(wrong.row.V)
    for name, index in _maps(n_kv, wrong.step or n_kv) if wrong.affords(2048) else ():
        if row.mask.any() and wrong.explained(row.answer(mask=row.mask[index])):
            yield Cause("mask-elsewhere", "the mask is read from the wrong place", name)
        if wrong.explained(row.answer(raw=row.raw[index])):
            yield Cause("k-elsewhere", "K is read from the wrong place", name)
        if len(np.unique(index)) >= MOST * n_kv and wrong.explained(row.p @ row.V[index]):  # nearly one-to-one
            yield Cause("v-elsewhere", "V is read from the wrong place", name)
        if wrong.explained(row.answer(mask=row.mask[index], raw=row.raw[index])):
            yield Cause("weights", "KV rows have the weights of other rows", name)


def _maps(n_kv: int, step: int) -> Iterator[tuple[str, Indices]]:
    """Possible misreadings: for each KV row, the row that is read instead (the row itself if that is out of range)."""
    i = np.arange(n_kv)
    found: dict[str, Indices] = {}
    for rows in (8, 16, 32, 64):
        for warps in WARPS:
            if step % (rows * warps) == 0:
                warp, words = i // rows % warps, f"slices of {rows} KV rows, {warps} warps"
                found[f"{words}: the slice of the first warp"] = i - warp * rows
                found[f"{words}: warp w begins at row w + {rows}, not at w * {rows}"] = i - warp * rows + warp + rows
                found[f"{words}: the slice of the neighbouring warp"] = i + (warp ^ 1) * rows - warp * rows
    for shift in (1, 2, 4, 8, 16, 32, 64, step):
        found |= {f"{shift} KV rows later": i + shift, f"{shift} KV rows earlier": i - shift}
        found[f"{shift} KV rows later and earlier, alternately"] = i ^ shift
    for rows in (2, 4, 8, 16, 32):
        found[f"the first of {rows} KV rows"] = i - i % rows
        found[f"the last of {rows} KV rows"] = i - i % rows + rows - 1
    for name, index in found.items():
        inside = (index >= 0) & (index < n_kv)
        if inside.mean() > AGREED:
            yield name, np.where(inside, index, i)


def column_gains(wrong: WrongRow) -> Iterator[Cause]:
    """Blocks of columns of Q and K are counted the wrong number of times: an integer such as 0 or 2."""
    terms = _terms(wrong)
    if terms is None:
        return
    for width in (64, 32, 16, 8):
        number = terms.shape[1] // width
        if terms.shape[1] % width or not 2 <= number <= len(wrong.out) / 3 or wrong.rows_that_count < 2 * number:
            continue
        parts = terms.reshape(len(terms), number, width).sum(axis=2)
        gains = _fitted(wrong, np.zeros(len(terms)), parts, 25)
        whole = np.rint(gains)
        near = np.abs(gains - whole).max() <= WHOLE and whole.min() >= 0 and whole.max() <= 4 and (whole != 1).any()
        if near and wrong.explained(wrong.row.answer(raw=parts @ whole)):
            often = np.repeat(whole, width)
            said = [f"d {ranges(np.flatnonzero(often == gain).tolist())}: {_often(gain)}" for gain in {*whole} - {1.0}]
            yield Cause("", "", ", ".join(sorted(said)))
            return


def sets_of_rows(wrong: WrongRow) -> Iterator[Cause]:
    """The weights of sets of KV rows are off by a factor, for example if part of the sum is lost or rescaled."""
    p, seen = wrong.row.p, np.flatnonzero(wrong.row.p)
    found: list[tuple[float, Cause]] = []
    summands = p[seen, None] * wrong.row.V[seen]
    for kind, words, name, labels in _divisions(wrong):
        number = int(labels.max()) + 1
        if not 2 <= number <= UNKNOWNS * min(len(wrong.out), wrong.rows_that_count):
            continue
        sums = (labels[seen] == np.arange(number)[:, None]).astype(np.float64) @ summands
        factors, answer = _summed(sums, wrong.out)
        size = np.linalg.norm(sums, axis=1) * np.maximum(1.0, np.abs(factors))
        known = SAME * size > wrong.rounding / ROUNDING
        some = factors[known] if known.any() else np.ones(1)
        if wrong.explained(answer) and np.ptp(some) > SAME * np.abs(some).max():
            left = max(float(np.linalg.norm(wrong.out - answer)), wrong.rounding / ROUNDING)
            found.append((left, Cause(kind, words, _by_factor(name, factors, np.flatnonzero(known)))))
    least = min((left for left, _ in found), default=0.0)
    yield from (cause for left, cause in found if left <= BETTER * least)


def _divisions(wrong: WrongRow) -> Iterator[tuple[str, str, str, Indices]]:
    """Divisions of the KV rows, as (kind, words, name of a set, number of each row's set); coarse ones first."""
    i, block = np.arange(len(wrong.row.V)), _blocks(wrong)
    if block.any():
        yield "share", "the shares of blocks have wrong weights", "share", block
    if wrong.step and wrong.step < len(i):
        yield "kv-parts", "KV steps have wrong weights", "KV step", wrong.steps
    for warps in WARPS:
        for rows in SLICES:
            words = f"slices of {rows} KV rows have wrong weights, depending on their number modulo {warps}"
            yield "kv-parts", words, f"slice n % {warps} =", i // rows % warps
        words = f"KV rows have wrong weights, depending on their number modulo {warps}"
        yield "weights", words, f"KV row n % {warps} =", i % warps
    for rows in SLICES:
        yield "kv-parts", f"slices of {rows} KV rows have wrong weights", "slice", i // rows


def _blocks(wrong: WrongRow) -> Indices:
    """The block of each KV row, as an index among the blocks of the tile."""
    block = np.zeros(len(wrong.row.V), np.intp)
    for number, (_, _, rows) in enumerate(wrong.shares):
        block[rows] = number
    return block


def _by_factor(name: str, factors: F64, known: Indices) -> str:
    """The sets of KV rows with known factors, in words; the factors farthest from 1 come first."""
    groups: list[list[int]] = []
    for number in known[np.argsort(factors[known], kind="stable")]:
        if groups and abs(factors[number] - factors[groups[-1][0]]) <= SAME * max(1.0, abs(factors[number])):
            groups[-1].append(int(number))
        else:
            groups.append([int(number)])
    groups.sort(key=lambda group: -abs(float(factors[group[0]]) - 1))
    said = [f"{name} {ranges(sorted(group))}: {_often(float(factors[group[0]]))}" for group in groups[:4]]
    return first_of(said, 3, counted=False)


def _often(factor: float) -> str:
    return "left out" if abs(factor) < 0.005 else f"{times(factor)} times"


def other_weights(wrong: WrongRow) -> Iterator[Cause]:
    """Slices of V's rows are summed with the weights of other slices of their KV step, in the same way in every step.

    The warps that share a column may need several passes for a step.
    """
    step, V = wrong.step, wrong.row.V
    pad = -len(V) % step if step else 0
    p, V = np.pad(wrong.row.p, (0, pad)), np.pad(V, ((0, pad), (0, 0)))
    turns = [(rows, number) for rows in SLICES for number in dict.fromkeys((step // rows, *reversed(WARPS)))]
    for rows, number in turns:
        if 2 <= number <= (UNKNOWNS * len(wrong.out)) ** 0.5 and step % (rows * number) == 0:
            sums = np.einsum("nsi,ntid->std", p.reshape(-1, number, rows), V.reshape(-1, number, rows, V.shape[1]))
            if wrong.explained(_summed(sums.reshape(number**2, -1), wrong.out)[1]):
                yield Cause("", f"slices of {rows} rows of V are summed with the weights of other KV rows", "")


def other_share(wrong: WrongRow) -> Iterator[Cause]:
    """A CUDA block's share of a different row of the tile, or of a neighbouring tile, is added to this row."""
    block, around, row = _blocks(wrong), wrong.around, wrong.row
    member = block == np.unique(block)[:, None]
    own = member @ (row.p[:, None] * row.V)
    if len(own) < 2 or wrong.explained(_summed(own, wrong.out)[1]):
        return
    sizes = around.case.op.sizes
    queries = range(max(0, around.query - NEAR // 2), min(sizes.n_q, around.query + NEAR // 2 + 1))
    heads = range(around.kv_head * sizes.group, (around.kv_head + 1) * sizes.group)
    near = [(q, h) for h in heads for q in queries if (q, h) != (around.query, around.head)]
    for q, h in near[:48]:
        other = AttentionRow.of(replace(around, query=q, head=h), (row.K, row.V))
        shares = np.vstack([own, member @ (other.p[:, None] * other.V)])
        if len(shares) > UNKNOWNS * min(len(wrong.out), wrong.rows_that_count):
            return
        if wrong.explained(_summed(shares, wrong.out)[1]):
            yield Cause("", "", unlike((around.sequence, around.query, around.head), (around.sequence, q, h)))
            return


def single_rows(wrong: WrongRow) -> Iterator[Cause]:
    """Single KV rows have wrong weights; searched only if there are more columns than KV rows to fit."""
    p, rounding = wrong.row.p, wrong.rounding
    for which, rows in (("", np.flatnonzero(p > 0)), (", for hidden KV rows too", np.arange(len(p)))):
        if not 2 <= len(rows) <= MOST * len(wrong.out):
            continue
        V = wrong.row.V[rows]
        weights, answer = _summed(V, wrong.out)
        least = float(np.linalg.svd(V, compute_uv=False)[-1])
        apart = np.abs(weights - p[rows])
        if wrong.explained(answer, many=True) and least * float(apart.max()) > rounding:
            off = rows[apart >= min(max(3 * rounding / least, 0.02 * float(apart.max())), float(apart.max()))]
            yield Cause("", f"V is correct, the weights are wrong{which}", f"KV rows {ranges(off.tolist())}")
            return


def columns(wrong: WrongRow) -> Iterator[Cause]:
    """Some columns are wrong and the others correct: wrong weights would affect all columns."""
    right, error = ~wrong.wrong, wrong.error**2
    if 1 - MOST <= right.mean() < 1 and error[right].mean() <= LEFT**2 * error[wrong.wrong].mean():
        yield Cause("", "", f"d {ranges(np.flatnonzero(wrong.wrong).tolist())}")


def no_sum(wrong: WrongRow) -> Iterator[Cause]:
    """The output is not a sum of V's rows with any weights; needs at least twice as many columns of V as rows."""
    if len(wrong.row.V) <= UNKNOWNS * len(wrong.out):
        left = float(np.linalg.norm(wrong.out - _summed(wrong.row.V, wrong.out)[1]))
        if left > LEFT * wrong.off and left > 2 * wrong.rounding:
            yield Cause("", "", "")


def no_average(wrong: WrongRow) -> Iterator[Cause]:
    """The output is outside the convex hull of V's rows; with a sink, of V's rows and 0."""
    V = wrong.row.V if wrong.row.sink is None else np.vstack([wrong.row.V, np.zeros(len(wrong.out))])
    slack = ROUNDING * wrong.rounding / len(wrong.out) ** 0.5 + F16_ULP * np.abs(V).max(axis=0)
    # If there are many more rows than columns, the hull contains nearly everything.
    if wrong.affords(4096) and len(V) <= 6 * V.shape[1] and is_outside(V, wrong.out, slack):
        yield Cause("", "", "")


def is_outside(points: F64, point: F64, slack: F64) -> bool:
    """Whether a plane has `point` (n,) on one side and all `points` (number, n) on the other.

    Each coordinate may be off by `slack` (n,). The nearest point of the hull: Gilbert, SIAM J. Control 4, 1966.
    """
    if ((point > points.max(axis=0) + slack) | (point < points.min(axis=0) - slack)).any():
        return True
    nearest = points[((points - point) ** 2).sum(axis=1).argmin()]
    for _ in range(2000):
        along = point - nearest
        corner = points[(points @ along).argmax()]
        if float(along @ (point - corner)) > float(np.abs(along) @ slack):
            return True
        edge = corner - nearest
        size, ahead = float(edge @ edge), float(along @ edge)
        if ahead <= 1e-12 * size:
            break
        nearest = nearest + min(ahead / size, 1.0) * edge
    return False


def other_columns(rows: Sequence[WrongRow]) -> Iterator[list[list[Cause]]]:
    """For each set of columns in which wrong Q values explain the first row: a cause for each row that they explain.

    Small sets come first. This is the slowest search: the first row selects the sets, and the other rows confirm them.
    """
    d = np.arange(rows[0].row.K.shape[1])
    half, sets = len(d) // 2, dict[str, Bools]()
    for m in (2, 4, 8, 16, 32, 64):
        parts = [(0, m // 2), (m // 2, m), *([(m // 4, m), (0, m - m // 4)] if 2 < m <= 16 else [])]
        sets |= {f"d % {m} in {lo}..{hi - 1}": (d % m >= lo) & (d % m < hi) for lo, hi in parts if m <= len(d)}
    sets |= {f"d < {half}": d < half, f"d >= {half}": d >= half}
    for words, chosen in sorted(sets.items(), key=lambda one: int(one[1].sum())):
        if _other_values(rows[0], chosen):
            found = [True, *(_other_values(row, chosen) for row in rows[1:])]
            cause = Cause("k-columns", "some columns of Q and K are multiplied wrongly", words)
            yield [[cause] if explains else [] for explains in found]


def _other_values(wrong: WrongRow, chosen: Bools) -> bool:
    """Whether different values of Q in some columns explain a row; False if any weights fit, as with few KV rows."""
    terms = _terms(wrong)
    if terms is None or chosen.sum() > min(MOST * len(wrong.out), wrong.rows_that_count / 2):
        return False
    fixed, parts = terms[:, ~chosen].sum(axis=1), terms[:, chosen]
    return wrong.explained(wrong.row.answer(raw=fixed + parts @ _fitted(wrong, fixed, parts, 60)), many=True)


def _terms(wrong: WrongRow) -> F64 | None:
    """The products of Q and K for each column, (n_kv, hsk); None if there are too many."""
    return np.asarray(wrong.row.K * wrong.around.q * wrong.around.scale) if wrong.affords(2048) else None


def _summed(terms: F64, out: F64) -> tuple[F64, F64]:
    """The factors for these terms (number, hsv) that bring their sum closest to an output, and that sum."""
    factors = np.asarray(np.linalg.lstsq(terms.T, out, rcond=1e-9)[0], np.float64)
    return factors, np.asarray(factors @ terms)


def _fitted(wrong: WrongRow, fixed: F64, parts: F64, steps: int) -> F64:
    """The gains for parts of the raw logits, added to a fixed part, that bring the output closest.

    Uses the method of Levenberg and Marquardt.
    """
    row, target = wrong.row, wrong.out

    def at(gains: F64) -> tuple[AttentionRow, float]:
        """The row with these gains, and the distance of its output from the wrong one."""
        other = replace(row, raw=fixed + parts @ gains)
        return other, float(np.linalg.norm(target - other.out))

    gains, damping = np.ones(parts.shape[1]), 1e-3
    best, off = at(gains)
    for _ in range(steps):
        if off <= 1e-6 * np.linalg.norm(target):
            break
        slope = 1 - np.tanh(best.raw / row.softcap) ** 2 if row.softcap else np.ones_like(best.raw)
        slopes = best.pulls.T @ (slope[:, None] * parts)  # the derivative (hsv, parts)
        square = slopes.T @ slopes
        diagonal = np.diag(np.diag(square) + 1e-12)
        tried = gains + np.linalg.solve(square + damping * diagonal, slopes.T @ (target - best.out))
        other, distance = at(tried)
        if abs(off - distance) <= 1e-9 * off:  # at the minimum
            break
        if distance < off:
            gains, damping, best, off = tried, damping / 5, other, distance
        elif (damping := damping * 5) > 1e6:
            break
    return gains
