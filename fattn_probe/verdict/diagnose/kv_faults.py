"""Faults in the choice of KV rows: left out, counted twice, past the end, or hidden by the mask.

Each fault moves the output o in its own way. Leaving out KV row i moves it along v_i - o; leaving out a KV step moves
it along the sum of p (v - o) over the rows of the step.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from fattn_probe.base.arrays import F64, Bools
from fattn_probe.base.figures import times
from fattn_probe.verdict.diagnose.constants import SEARCHED, WHOLE
from fattn_probe.verdict.diagnose.row import Cause, Moves, WrongRow
from fattn_probe.verdict.measure.wrong_rows import ranges, span


def _weighted(pulls: F64, weights: F64, name: Callable[[int], Cause], rarity: float = 0.0) -> Moves:
    """Wrong weights of sets of KV rows: factor f on a set of weight W moves the output by e = (f-1)/(1+(f-1)W) u."""

    def say(index: int, factor: float) -> Cause | None:
        change = 1 - factor * weights[index]
        f = 1 + factor / change if change else np.inf
        found = name(index)
        if abs(f) < WHOLE:
            return replace(found, words=f"{found.words} is left out", kind=found.kind or "kv-left-out")
        if f < 0 or not np.isfinite(f):
            return None
        if abs(f - 2) < WHOLE:
            return replace(found, words=f"{found.words} is counted twice", kind="kv-weight")
        words, detail = f"{found.words} has the wrong weight", f"{found.detail}, {times(f)} times its own"
        return replace(found, words=words, detail=detail, kind=found.kind or "kv-weight", factor=float(f))

    return Moves(pulls, say, free=True, rarity=rarity)


def _left_out(pulls: F64, weights: F64, say: Callable[[int], Cause]) -> Moves:
    """Sets of KV rows that are left out: o' - o = -W/(1-W) (o_S - o) for the set's weight W."""
    left = 1 - weights
    errors = np.divide(-pulls, left[:, None], out=np.full_like(pulls, np.nan), where=left[:, None] > 1e-9)
    return Moves(errors, lambda index, _: say(index))


def one_row(wrong: WrongRow) -> Iterator[Moves]:
    """One KV row has a wrong weight."""
    row = wrong.row
    last = int(np.flatnonzero(row.p)[-1]) if row.p.any() else -1

    def name(index: int) -> Cause:
        words, place = ("the last visible KV row", "") if index == last else ("one KV row", f"{index}")
        return Cause("", words, f"KV row {index}", place=place)

    if wrong.affords(4):
        yield _weighted(row.pulls, row.p, name)


def ends(wrong: WrongRow) -> Iterator[Moves]:
    """All KV rows from one row on, or all before it, are left out."""
    row, step, seen = wrong.row, wrong.step, np.flatnonzero(wrong.row.p)
    if len(seen) < 3 or not wrong.affords(4):
        return
    total, weight = np.cumsum(row.pulls[seen], axis=0), np.cumsum(row.p[seen])

    def cause(words: str, first: int, last: int) -> Cause:
        steps = f" (KV steps {span(first // step, last // step)})" if step else ""
        return Cause("", words, f"rows {span(first, last)}{steps}")

    last, first = "the last KV rows are left out", "the first KV rows are left out"
    last += ": KV_max may be too small" if wrong.scanned else ""
    pulls, weights = (total[-1] - total)[:-1], (weight[-1] - weight)[:-1]
    yield _left_out(pulls, weights, lambda at: cause(last, int(seen[at + 1]), len(row.p) - 1))
    yield _left_out(total[:-1], weight[:-1], lambda at: cause(first, 0, int(seen[at])))


def hidden(wrong: WrongRow) -> Iterator[Moves]:
    """KV rows that the mask hides are counted: one of them, any number of times, or a range of them."""
    row = wrong.row
    unseen, seen = np.flatnonzero(np.isneginf(row.mask)), np.flatnonzero(~np.isneginf(row.mask))
    if not len(unseen) or not len(seen) or not wrong.affords(4):
        return
    logits = replace(row, mask=np.zeros_like(row.mask)).logits
    top = logits[seen].max() if row.sink is None else max(logits[seen].max(), row.sink)
    total = np.exp(logits[seen] + row.mask[seen] - top).sum() + (0.0 if row.sink is None else np.exp(row.sink - top))
    r = np.exp(np.minimum(logits[unseen] - top, 300.0)) / total
    moves = r[:, None] * (row.V[unseen] - row.out)

    def say(index: int, factor: float) -> Cause | None:
        rest = 1 - factor * r[index]  # a row of relative weight r that is counted n times moves o by n / (1 + n r)
        often = factor / rest if rest > 0 else -1.0
        if often <= WHOLE:
            return None
        after = unseen[index] == seen[-1] + 1
        words = "the KV row after the last visible one is seen" if after else "a KV row that the mask hides is seen"
        return Cause("", words, f"KV row {unseen[index]}{f', {times(often)} times' if abs(often - 1) > WHOLE else ''}")

    yield Moves(moves / (1 + r)[:, None], lambda index, _: say(index, 1 / (1 + r[index])))
    yield Moves(moves, say, free=True)
    run = np.cumsum(moves, axis=0) / (1 + np.cumsum(r))[:, None]
    words = "KV rows that the mask hides are seen"
    yield Moves(run, lambda at, _: Cause("", words, f"hidden rows {unseen[0]}..{unseen[at]}"))


def one_step(wrong: WrongRow) -> Iterator[Moves]:
    """One KV step has a wrong weight."""
    n_kv, step = len(wrong.row.V), wrong.step
    last = (n_kv - 1) // max(step, 1)

    def name(index: int) -> Cause:
        words = "the last KV tile" if index == last > 0 else "one KV tile"
        rows = f"KV step {index}, rows {index * step}..{min(n_kv, (index + 1) * step) - 1}"
        return Cause("", words, rows, step=index)

    if step:
        yield _weighted(wrong.by_step(wrong.row.pulls), wrong.by_step(wrong.row.p), name)


def some_steps(wrong: WrongRow) -> Iterator[Moves]:
    """Some KV steps are left out: every n-th, all but every n-th, a range, or all of a block after a masked step."""
    if not wrong.step:
        return
    row, last = wrong.row, int(wrong.steps[-1])
    steps = np.arange(last + 1)
    sets: list[tuple[str, Bools]] = []
    for every in (2, 3, 4, 8):
        for first in range(every if last + 1 > every else 0):
            sets.append((f"every KV step {every} n + {first}", steps % every == first))
            sets.append((f"all KV steps but {every} n + {first}", steps % every != first))
    for first in range(min(last + 1, 64)):
        stops = range(first + 1, min(last, first + 16) + 1)
        sets += [(f"KV steps {first}..{stop}", (steps >= first) & (steps <= stop)) for stop in stops]
    masked = wrong.by_step(~np.isneginf(row.mask) * 1.0) == 0
    for block, work in wrong.parts.items():
        own = np.isin(steps, work.steps)
        unseen = steps[masked & own]
        if len(unseen):
            sets.append((f"the steps of block {block} from its masked step {unseen[0]} on", own & (steps >= unseen[0])))
    if sets:
        member = np.array([which for _, which in sets], np.float64)
        pulls, weights = member @ wrong.by_step(row.pulls), member @ wrong.by_step(row.p)
        yield _left_out(pulls, weights, lambda at: Cause("", "", sets[at][0]))


def steps_often(wrong: WrongRow) -> Iterator[Moves]:
    """Each KV step is counted a whole number of times; searched if there are at least twice as many columns as steps.

    If step s is counted f_s times, the output o' solves sum of f_s (v_s - o') = 0, where v_s is the sum of the step's
    weighted rows: the best f is the eigenvector with the smallest eigenvalue.
    """
    row, error = wrong.row, wrong.error
    if not wrong.step:
        return
    weights, sums = wrong.by_step(row.p), wrong.by_step(row.p[:, None] * row.V)
    out = sums.sum(axis=0)
    terms = sums - weights[:, None] * (out + error)
    known = np.flatnonzero(weights > 1e-6)
    sink = 1 - weights.sum()  # the sink's share of the softmax counts once
    if not 2 <= len(known) <= len(out) // 2 or sink > 1e-6:
        return
    f = np.linalg.eigh(terms[known] @ terms[known].T)[1][:, 0]
    best, often = np.inf, np.ones(len(known))
    for unit in f[np.abs(f) > 1e-3 * np.abs(f).max()]:
        rounded = np.rint(f / unit)
        if rounded.min() >= 0 and rounded.max() <= 4 and (total := rounded @ weights[known]) > 0:
            left = float(((rounded @ sums[known] / total - out - error) ** 2).sum())
            if left < best:
                best, often = left, rounded
    missing, more = (f"KV steps {ranges(known[which].tolist())}" for which in (often == 0, often > 1))
    if np.isfinite(best) and (often != 1).any():
        answer = often @ sums[known] / (often @ weights[known])
        left_out = Cause("", "", missing)
        cause = left_out if (often == 0).any() else Cause("kv-weight", "KV steps are counted several times", more)
        yield Moves.to([(cause, answer)], out, rarity=2 * len(known))


def one_share(wrong: WrongRow) -> Iterator[Moves]:
    """The share of one of several CUDA blocks has a wrong weight."""
    shares = wrong.shares

    def name(index: int) -> Cause:
        block, work, _ = shares[index]
        where = f"block {block}, KV steps {span(work.kb0_start, work.kb0_stop - 1)}"
        return Cause("share", "one block's share of the tile", where)

    if len(shares) > 1:
        member = np.array([rows for _, _, rows in shares])
        yield _weighted(member @ wrong.row.pulls, member @ wrong.row.p, name)


def seams(wrong: WrongRow) -> Iterator[Moves]:
    """KV rows next to the seams between shares have wrong weights; blocks that take turns have no seams."""
    shares, steps, row = wrong.shares, wrong.steps, wrong.row
    if len(shares) < 2 or any(work.kb0_step > 1 for _, work, _ in shares):
        return
    own = [work.steps for _, work, _ in shares]
    ends = [some[-1] for some in own[:-1]]
    longer = {some[-1] + 1 for some in own if len(some) > 1} & {end + 1 for end in ends}
    sets = {
        "the KV step before each seam between blocks": np.isin(steps, ends),
        "the KV step before each seam, in blocks with several steps": np.isin(steps + 1, [*longer]),
        "the KV step after each seam between blocks": np.isin(steps, [some[0] for some in own[1:]]),
        "all but the last block's share": ~shares[-1][2],
    }
    if tail := len(row.V) % wrong.step:  # the last KV step is shorter; another step may stop at the same row
        after = np.isin(steps, ends) & (np.arange(len(row.V)) % wrong.step >= tail)
        sets["the end of the KV step before each seam, after as many rows as the last step has,"] = after
    where = f"blocks {shares[0][0]}..{shares[-1][0]}"
    sums, weights = (np.array([part @ of for part in sets.values()]) for of in (row.pulls, row.p))
    yield _weighted(sums, weights, lambda index: Cause("share", [*sets][index], where), rarity=SEARCHED)


def beyond(wrong: WrongRow) -> Iterator[Moves]:
    """The memory after the last KV row, up to the end of the KV step, or rows of zeros are counted as KV rows."""
    row, around = wrong.row, wrong.around
    count = -len(row.V) % wrong.step if wrong.step else 0
    if not count:
        return
    follows = around.mask_entries(around.mask_start + len(row.V), count) if around.has("mask") else None
    masks = {"as visible": np.zeros(count), "with the mask values that follow the row": follows}
    pairs = {
        "the memory after the last KV row is counted": (around.behind("K", count), around.behind("V", count)),
        "rows of zeros after the last KV row are counted": (np.zeros((count, of.shape[1])) for of in (row.K, row.V)),
    }
    for words, (K, V) in pairs.items():
        for how, mask in masks.items():
            if K is not None and V is not None and mask is not None and not np.isnan(mask).any():
                raw, longer = np.concatenate([row.raw, around.raw(K)]), np.concatenate([row.mask, mask])
                cause = Cause("", f"{words}, {how}", f"rows {len(row.V)}..{len(row.V) + count - 1}")
                yield Moves.to([(cause, row.answer(V=np.vstack([row.V, V]), raw=raw, mask=longer))], row.out)


def nan_beyond(wrong: WrongRow) -> Iterator[Cause]:
    """Memory after the last KV row, within the last KV step, contains NaN."""
    count = -len(wrong.row.V) % wrong.step if wrong.step else 0
    behind = [wrong.around.behind(name, count) for name in "KV"] if count else []
    if any(rows is not None and np.isnan(rows).any() for rows in behind):
        yield Cause("", "", "")
