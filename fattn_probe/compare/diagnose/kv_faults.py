"""Faults in which KV rows count: left out, counted twice, behind the last, or hidden by the mask."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fattn_probe.arrays import F64, Bools, Indices
from fattn_probe.compare.diagnose.attention_row import AttentionRow
from fattn_probe.compare.diagnose.candidates import Cause, Family, Suspect, answers
from fattn_probe.compare.judge.wrong_rows import ranges, span
from fattn_probe.figures import times
from fattn_probe.launch.geometry import Part

MOST_KEYS = 1 << 16
WHOLE = 0.1
"""How far a number of times may be from a whole one."""
LEFT_OUT = "KV steps are left out"
MOST_TIMES = 4
"""Most times that a KV step may count."""
SEAMS = 8.0
"""Rarity of faults at all seams."""
Name = Callable[[int], Cause]


def kv_faults(error: F64, suspect: Suspect) -> Iterator[Family]:
    """All faults in which KV rows count."""
    row, step = suspect.row, suspect.step
    p = row.weights(row.logits)
    out = p @ row.V
    pulls = p[:, None] * (row.V - out)
    if len(p) <= MOST_KEYS:
        yield from _weighted(pulls, p, _key(p))
        yield from _edges(pulls, p, step)
        yield from _hidden(row, out)
    if step:
        starts = np.arange(0, len(p), step)
        by_step = np.add.reduceat(pulls, starts), np.add.reduceat(p, starts)
        yield from _weighted(*by_step, _step(step, len(p)))
        yield from _step_sets(*by_step, row, suspect)
        yield from _any_steps(error, row, p, step)
        yield from _shares(pulls, p, suspect)
        yield from _behind(suspect, out)


def _weighted(pulls: F64, weights: F64, name: Name, rarity: float = 0.0) -> Iterator[Family]:
    """Faults in the weight of sets of KV rows, from how far the output moved: e = (f-1)/(1+(f-1)W) u."""

    def say(index: int, factor: float) -> Cause | None:
        change = 1 - factor * weights[index]
        f = 1 + factor / change if change else np.inf
        found = name(index)
        share = found.kind == "share"
        if abs(f) < WHOLE:
            return replace(found, words=f"{found.words} is left out", kind="share" if share else "kv-left-out")
        if f < 0 or not np.isfinite(f):
            return None
        if abs(f - 2) < WHOLE:
            return replace(found, words=f"{found.words} is counted twice", kind="kv-weight")
        detail = f"{found.detail}, {times(f)} times its own"
        kind = "share" if share else "kv-weight"
        return replace(found, words=f"{found.words} has the wrong weight", detail=detail, kind=kind, factor=float(f))

    yield Family(pulls, say, free=True, rarity=rarity)


def _key(p: F64) -> Name:
    last = int(np.flatnonzero(p)[-1]) if p.any() else -1

    def name(index: int) -> Cause:
        words, place = ("the last visible KV row", "") if index == last else ("one KV row", f"{index}")
        return Cause("", words, f"KV row {index}", place=place)

    return name


def _step(step: int, n_kv: int) -> Name:
    last = (n_kv - 1) // step

    def name(index: int) -> Cause:
        words = "the last KV tile" if index == last > 0 else "one KV tile"
        rows = f"KV step {index}, rows {index * step}..{min(n_kv, (index + 1) * step) - 1}"
        return Cause("", words, rows, step=index)

    return name


def _left_out(pulls: F64, weights: F64, say: Callable[[int], Cause]) -> Family:
    """Sets of KV rows that are left out: o' - o = -W/(1-W) (o_S - o) for the set's weight W."""
    left = 1 - weights
    errors = np.divide(-pulls, left[:, None], out=np.full_like(pulls, np.nan), where=left[:, None] > 1e-9)
    return Family(errors, lambda index, _: say(index))


def _edges(pulls: F64, p: F64, step: int) -> Iterator[Family]:
    """All KV rows from one on are left out, or all before one."""
    seen = np.flatnonzero(p)
    if len(seen) < 3:
        return
    total, weight = np.cumsum(pulls[seen], axis=0), np.cumsum(p[seen])
    last = len(p) - 1

    def rows(first: int, stop: int) -> str:
        steps = f" (KV steps {span(first // step, stop // step)})" if step else ""
        return f"rows {span(first, stop)}{steps}"

    def ending(at: int) -> Cause:
        return Cause("kv-left-out", "the last KV rows are left out", rows(int(seen[at + 1]), last))

    def beginning(at: int) -> Cause:
        return Cause("kv-left-out", "the first KV rows are left out", rows(0, int(seen[at])))

    yield _left_out((total[-1] - total)[:-1], (weight[-1] - weight)[:-1], ending)
    yield _left_out(total[:-1], weight[:-1], beginning)


def _step_sets(pulls: F64, weights: F64, row: AttentionRow, suspect: Suspect) -> Iterator[Family]:
    """Some KV steps are left out: every n-th, all but every n-th, a range of them, or those behind a masked one."""
    steps = np.arange(len(weights))
    last = len(steps) - 1
    sets: list[tuple[str, Bools]] = []
    for every in (2, 3, 4, 8):
        for first in range(every if last + 1 > every else 0):
            sets.append((f"every KV step {every} n + {first}", steps % every == first))
            sets.append((f"all KV steps but {every} n + {first}", steps % every != first))
    for first in range(min(last + 1, 64)):
        stops = range(first + 1, min(last, first + 16) + 1)
        sets += [(f"KV steps {first}..{stop}", (steps >= first) & (steps <= stop)) for stop in stops]
    masked = np.flatnonzero(np.bincount(np.arange(len(row.mask)) // suspect.step, ~np.isneginf(row.mask)) == 0)
    for part in suspect.parts:
        hidden = masked[np.isin(masked, range(part.start, part.stop, part.every))]
        if len(hidden):
            own = np.isin(steps, range(int(hidden[0]), part.stop, part.every))
            sets.append((f"those of block {part.block} from its masked step {hidden[0]} on", own))
    if sets:
        member = np.array([which for _, which in sets], np.float64)
        yield _left_out(member @ pulls, member @ weights, lambda at: Cause("kv-left-out", LEFT_OUT, sets[at][0]))


def _any_steps(error: F64, row: AttentionRow, p: F64, step: int) -> Iterator[Family]:
    """Any whole number of times for each KV step, if the row has at least twice as many columns as steps.

    The output o' that counts step s f_s times solves sum of f_s (v_s - o') = 0, for the sum v_s of its weighted rows:
    the f that comes nearest is the eigenvector with the smallest eigenvalue.
    """
    starts = np.arange(0, len(p), step)
    weights, sums = np.add.reduceat(p, starts), np.add.reduceat(p[:, None] * row.V, starts)
    out = sums.sum(axis=0)
    terms = sums - weights[:, None] * (out + error)
    known = np.flatnonzero(weights > 1e-6)
    sink = 1 - weights.sum()  # its share of the softmax counts once
    if not 2 <= len(known) <= len(out) // 2 or sink > 1e-6:
        return
    f = np.linalg.eigh(terms[known] @ terms[known].T)[1][:, 0]
    best, often = np.inf, np.ones(len(known))
    for unit in f[np.abs(f) > 1e-3 * np.abs(f).max()]:
        rounded = np.rint(f / unit)
        if rounded.min() >= 0 and rounded.max() <= MOST_TIMES and (total := rounded @ weights[known]) > 0:
            left = float(((rounded @ sums[known] / total - out - error) ** 2).sum())
            if left < best:
                best, often = left, rounded
    if np.isinf(best) or (often == 1).all():
        return
    answer = often @ sums[known] / (often @ weights[known])
    yield Family((answer - out)[None], lambda _, __: _counted(known, often), rarity=2 * len(known))


def _counted(known: Indices, often: F64) -> Cause:
    """The KV steps that do not count once."""
    missing, more = known[often == 0], known[often > 1]
    if len(missing):
        return Cause("kv-left-out", LEFT_OUT, f"KV steps {ranges(missing.tolist())}")
    return Cause("kv-weight", "KV steps are counted several times", f"KV steps {ranges(more.tolist())}")


def _shares(pulls: F64, p: F64, suspect: Suspect) -> Iterator[Family]:
    """Faults in the share of one of several CUDA blocks, and at the seams between shares."""
    parts = [part for part in suspect.parts if part.start < part.stop]  # a launch may have more blocks than KV steps
    if len(parts) < 2:
        return
    steps = np.arange(len(p)) // suspect.step
    member = np.array([np.isin(steps, range(part.start, part.stop, part.every)) for part in parts])

    def name(index: int) -> Cause:
        part = parts[index]
        where = f"block {part.block}, KV steps {span(part.start, part.stop - 1)}"
        return Cause("share", "one CUDA block's share of the tile", where)

    yield from _weighted(member @ pulls, member @ p, name)
    seams = _seams(steps, parts)
    where = f"blocks {parts[0].block}..{parts[-1].block}"
    sums, weights = (np.array([part @ of for part in seams.values()]) for of in (pulls, p))
    yield from _weighted(sums, weights, lambda index: Cause("share", list(seams)[index], where), rarity=SEAMS)


def _seams(steps: Indices, parts: Sequence[Part]) -> dict[str, Bools]:
    """Faults in KV rows next to the seams between blocks."""
    ends = [range(part.start, part.stop, part.every)[-1] for part in parts]
    longer = [end for end, part in zip(ends, parts, strict=True) if end > part.start]
    whole = {end + 1 for end in ends[:-1]}
    return {
        "the KV step before each seam of CUDA blocks": np.isin(steps, ends[:-1]),
        "the KV step before each seam, of CUDA blocks with several": np.isin(
            steps, [e for e in longer if e + 1 in whole]
        ),
        "the KV step after each seam of CUDA blocks": np.isin(steps, [part.start for part in parts[1:]]),
        "all but the last CUDA block's share": np.isin(steps, range(parts[-1].start, parts[-1].stop), invert=True),
    }


def _hidden(row: AttentionRow, out: F64) -> Iterator[Family]:
    """KV rows that the mask hides count: one of them, any number of times, or all from one to another."""
    hidden = np.flatnonzero(np.isneginf(row.mask))
    seen = np.flatnonzero(~np.isneginf(row.mask))
    if not len(hidden) or not len(seen):
        return
    logits = replace(row, mask=np.zeros_like(row.mask)).logits
    top = logits[seen].max() if row.sink is None else max(logits[seen].max(), row.sink)
    total = np.exp(logits[seen] + row.mask[seen] - top).sum() + (0.0 if row.sink is None else np.exp(row.sink - top))
    r = np.exp(np.minimum(logits[hidden] - top, 300.0)) / total
    moves = r[:, None] * (row.V[hidden] - out)

    def say(index: int, factor: float) -> Cause | None:
        times_ = _times(factor, r[index])
        if times_ is None:
            return None
        after = hidden[index] == seen[-1] + 1
        words = "the KV row after the last visible one is seen" if after else "a KV row that the mask hides is seen"
        often = f", {times(times_)} times" if abs(times_ - 1) > WHOLE else ""
        return Cause("kv-hidden", words, f"KV row {hidden[index]}{often}")

    yield Family(moves / (1 + r)[:, None], lambda index, _: say(index, 1 / (1 + r[index])))
    yield Family(moves, say, free=True)
    run, weight = np.cumsum(moves, axis=0), np.cumsum(r)
    first = f"{hidden[0]}.."
    yield Family(
        run / (1 + weight)[:, None],
        lambda at, _: Cause("kv-hidden", "KV rows that the mask hides are seen", f"hidden rows {first}{hidden[at]}"),
    )


def _times(factor: float, r: float) -> float | None:
    """How often a row of relative weight r counts if the output moved by `factor` of r (v - o)."""
    rest = 1 - factor * r
    times_ = factor / rest if rest > 0 else -1.0
    return times_ if times_ > WHOLE else None


def _behind(suspect: Suspect, out: F64) -> Iterator[Family]:
    """The memory behind the last KV row counts, to the end of the KV step; or rows of zeros do."""
    row, around = suspect.row, suspect.around
    count = -len(row.V) % suspect.step
    if not count or around is None:
        return
    found: list[tuple[str, F64]] = []
    K, V = around.behind("K", count), around.behind("V", count)
    masks = {"as visible": np.zeros(count), "by what follows the mask's row": around.mask_behind(count)}
    memory = {} if K is None or V is None else {"the memory behind the last KV row counts": (K, V)}
    zeros = {
        "rows of zeros behind the last KV row count": tuple(np.zeros((count, of.shape[1])) for of in (row.K, row.V))
    }
    for words, (keys, values) in {**memory, **zeros}.items():
        for how, mask in masks.items():
            if mask is not None and not np.isnan(mask).any():
                longer = replace(
                    row,
                    V=np.vstack([row.V, values]),
                    raw=np.concatenate([row.raw, around.raw(keys)]),
                    mask=np.concatenate([row.mask, mask]),
                )
                with np.errstate(all="ignore"):
                    found.append((f"{words}, {how}", longer.output(longer.logits)))
    detail = f"rows {len(row.V)}..{len(row.V) + count - 1}"
    for words, answer in found:
        yield from answers("kv-beyond", out, [(detail, answer)], words)
