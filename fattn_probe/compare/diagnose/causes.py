"""Find the fault in a row from the direction of its error.

Each fault moves the output o in its own direction. Leaving out KV row i moves it by a multiple of v_i - o, leaving out
a KV step by a multiple of the sum of p (v - o) over its rows, and so on. The most likely fault is the one whose
direction explains most of the error, given its number of alternatives (Schwarz' criterion, Annals of Statistics 6,
1978).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F64
from fattn_probe.compare.diagnose.attention_row import AttentionRow
from fattn_probe.figures import times
from fattn_probe.launch.geometry import Part

EXPLAINED = 0.8
"""The share of a row's square error that its cause must explain."""
MOST_KEYS = 1 << 16
CANDIDATES = 24
"""Rows of V from each end that are searched for a swapped pair."""


@dataclass(frozen=True)
class Cause:
    """A fault in words; `detail` is the part that differs from row to row, `step` the KV step, if it is one."""

    words: str
    detail: str
    explained: float
    step: int | None = None


@dataclass(frozen=True, eq=False)
class Family:
    """Faults of one kind: the directions (n, hsv) of the error; `fixed` if the error's length must match too.

    `rarity` is how much better a fault of this kind must fit than another, by Schwarz' criterion.
    """

    directions: F64
    say: Callable[[int, float], Cause]
    fixed: bool = False
    rarity: float = 0.0


@dataclass(frozen=True, eq=False)
class Suspect:
    """A wrong row, and what the search for its fault needs.

    `step` is the number of KV rows of a KV step, 0 if unknown; `parts` are the CUDA blocks' shares of the row's tile;
    `others` are the answers of other rows, by name, which may have been written to this row.
    """

    row: AttentionRow
    step: int = 0
    parts: Sequence[Part] = ()
    others: Sequence[tuple[str, F64]] = ()


def cause_of(error: F64, suspect: Suspect) -> Cause | None:
    """The fault that explains a row's error (hsv,); None if none does."""
    power, best, found = float(error @ error), np.inf, None
    for family in _families(error, suspect) if power else ():
        if len(family.directions):
            index, factor, left = _fit(error, family)
            freedom = 2 * np.log(len(family.directions)) + (0 if family.fixed else 4) + family.rarity
            score = len(error) * np.log(max(left / power, 1e-12)) + freedom
            if score < best and left < (1 - EXPLAINED) * power:
                best, found = score, replace(family.say(index, factor), explained=1 - left / power)
    return found


def _fit(error: F64, family: Family) -> tuple[int, float, float]:
    """The index of the best direction, its factor, and the remaining square error."""
    u, power = family.directions, float(error @ error)
    if family.fixed:
        left = ((u - error) ** 2).sum(axis=1)
        index = int(left.argmin())
        return index, 1.0, float(left[index])
    along, length = u @ error, (u**2).sum(axis=1)
    gain = np.divide(along**2, length, out=np.zeros_like(along), where=length > 0)
    index = int(gain.argmax())
    return index, float(along[index] / length[index]) if length[index] else 0.0, max(power - float(gain[index]), 0.0)


def _families(error: F64, suspect: Suspect) -> Iterator[Family]:
    row, step = suspect.row, suspect.step
    p = row.weights(row.logits)
    out = p @ row.V
    pulls = p[:, None] * (row.V - out)
    raw = np.where(p > 0, row.raw, 0.0)
    yield Family(out[None], lambda _, a: Cause("the output is scaled", f"by {1 + a:.4g}", 0.0))
    scaled = (p * raw) @ row.V - (p @ raw) * out
    yield Family(scaled[None], lambda _, a: Cause("the logits are scaled", f"by {1 + a:.4g}", 0.0))
    if len(p) <= MOST_KEYS:
        yield Family(pulls, _weighted(p, _key_words(p)))
        yield _swaps(error, p, row.V)
        yield from _unmasked(row, out)
    if step:
        starts = np.arange(0, len(p), step)
        yield Family(np.add.reduceat(pulls, starts), _weighted(np.add.reduceat(p, starts), _step_words(step, len(p))))
        yield from _shares(pulls, p, suspect)
    yield from _instead(row, out, suspect.others)


def _weighted(weights: F64, name: Callable[[int], Cause]) -> Callable[[int, float], Cause]:
    """Words for a fault in KV rows of total weight W, from how far the output moved: e = (f-1)/(1+(f-1)W) u."""

    def say(index: int, factor: float) -> Cause:
        change = 1 - factor * weights[index]
        f = 1 + factor / change if change else np.inf
        found = name(index)
        if abs(f) < 0.1:
            return replace(found, words=f"{found.words} is left out")
        if abs(f - 2) < 0.1:
            return replace(found, words=f"{found.words} is counted twice")
        return replace(
            found, words=f"{found.words} has the wrong weight", detail=f"{found.detail}, {times(f)} times its own"
        )

    return say


def _key_words(p: F64) -> Callable[[int], Cause]:
    last = int(np.flatnonzero(p)[-1]) if p.any() else -1
    return lambda index: Cause("the last visible KV row" if index == last else "one KV row", f"KV row {index}", 0.0)


def _step_words(step: int, n_kv: int) -> Callable[[int], Cause]:
    last = (n_kv - 1) // step

    def name(index: int) -> Cause:
        words = "the last KV tile" if index == last > 0 else "one KV tile"
        rows = f"KV step {index}, rows {index * step}..{min(n_kv, (index + 1) * step) - 1}"
        return Cause(words, rows, 0.0, index)

    return name


def _shares(pulls: F64, p: F64, suspect: Suspect) -> Iterator[Family]:
    """Faults in the share of one of several CUDA blocks, and at the seams between shares."""
    parts = [part for part in suspect.parts if part.start < part.stop]  # a launch may have more blocks than KV steps
    if len(parts) < 2:
        return
    steps = np.arange(len(p)) // suspect.step
    member = np.array([np.isin(steps, range(part.start, part.stop, part.every)) for part in parts])

    def name(index: int) -> Cause:
        part = parts[index]
        where = f"block {part.block}, KV steps {part.start}..{part.stop - 1}"
        return Cause("one CUDA block's share of the tile", where, 0.0)

    yield Family(member @ pulls, _weighted(member @ p, name))
    seams = _seams(steps, parts)
    where = f"blocks {parts[0].block}..{parts[-1].block}"
    directions, weights = (np.array([part @ of for part in seams.values()]) for of in (pulls, p))
    yield Family(directions, _weighted(weights, lambda index: Cause(list(seams)[index], where, 0.0)), rarity=8.0)


def _seams(steps: npt.NDArray[np.intp], parts: Sequence[Part]) -> dict[str, npt.NDArray[np.bool_]]:
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


def _swaps(error: F64, p: F64, V: F64) -> Family:
    """Two rows of V swapped: the output moves by (p_a - p_b)(v_b - v_a)."""
    along = V @ error
    order = np.argsort(np.where(p > 0, along, 0.0))
    ends = np.unique(np.concatenate([order[:CANDIDATES], order[-CANDIDATES:]]))
    a, b = (ends[index] for index in np.triu_indices(len(ends), 1))
    directions = (p[a] - p[b])[:, None] * (V[b] - V[a])
    return Family(
        directions, lambda i, _: Cause("two rows of V are swapped", f"KV rows {a[i]} and {b[i]}", 0.0), fixed=True
    )


def _unmasked(row: AttentionRow, out: F64) -> Iterator[Family]:
    """One masked KV row is seen nevertheless."""
    hidden = np.flatnonzero(np.isneginf(row.mask))
    seen = np.flatnonzero(~np.isneginf(row.mask))
    if not len(hidden) or not len(seen):
        return
    logits = replace(row, mask=np.zeros_like(row.mask)).logits
    top = logits[seen].max() if row.sink is None else max(logits[seen].max(), row.sink)
    total = np.exp(logits[seen] - top).sum() + (0.0 if row.sink is None else np.exp(row.sink - top))
    r = np.exp(np.minimum(logits[hidden] - top, 300.0)) / total

    def say(index: int, _: float) -> Cause:
        after = hidden[index] == seen[-1] + 1
        words = "the KV row after the last visible one is seen" if after else "a KV row that the mask hides is seen"
        return Cause(words, f"KV row {hidden[index]}", 0.0)

    yield Family((r / (1 + r))[:, None] * (row.V[hidden] - out), say, fixed=True)


def _instead(row: AttentionRow, out: F64, others: Sequence[tuple[str, F64]]) -> Iterator[Family]:
    """Other outputs in place of the right one: of the op without one of its parts, or of another row."""
    nothing = np.zeros_like(row.mask)
    variants = [
        ("the mask is ignored", row.mask.any(), replace(row, mask=nothing)),
        ("the softcap is ignored", bool(row.softcap), replace(row, softcap=0.0)),
        ("the sink is ignored", row.sink is not None, replace(row, sink=None)),
        ("the mask's finite part is ignored", _finite(row.mask).any(), replace(row, mask=row.mask - _finite(row.mask))),
    ]
    made = [(words, other.output(other.logits)) for words, there_is, other in variants if there_is]
    made += [("the output is zero", np.zeros_like(out))]
    for words, answer in made:
        yield Family((answer - out)[None], lambda _, __, words=words: Cause(words, "", 0.0), fixed=True)  # type: ignore[misc]
    if others:
        names, answers = zip(*others, strict=True)
        kinds = "another row's answer stands there"
        yield Family(np.array(answers) - out, lambda i, _: Cause(kinds, str(names[i]), 0.0), fixed=True)


def _finite(mask: F64) -> F64:
    return np.where(np.isneginf(mask), 0.0, mask)
