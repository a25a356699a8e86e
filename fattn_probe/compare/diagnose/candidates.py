"""Candidates for the fault of a row: families of predicted errors, and how well each fits.

Each fault moves the output o in its own way. Leaving out KV row i moves it along v_i - o, leaving out a KV step along
the sum of p (v - o) over its rows, and so on: a `Line`, whose length says how much of it is left out. Other faults
predict the whole output: an `Answer`. A candidate fits if it leaves no more of the error than the kernel's rounding.
The most likely is the one that leaves least, given the number of alternatives (Schwarz' criterion, Annals of
Statistics 6, 1978).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fattn_probe.arrays import F64, Bools
from fattn_probe.compare.diagnose.around import Around
from fattn_probe.compare.diagnose.attention_row import AttentionRow
from fattn_probe.launch.geometry import Part

EXPLAINED = 0.9999
"""The share of a row's square error that a cause must explain, unless what it leaves is as small as rounding."""
LEAST = 0.9
"""The share that it must explain in any case."""
UNLIKELY = 30.0
"""How much worse than the best a candidate may score."""
ROUNDING = 3.0
"""What a cause leaves counts as rounding up to this factor of the kernel's predicted error."""


@dataclass(frozen=True)
class Cause:
    """A fault: its `kind` (see `KINDS`), in words, and `detail`, the part that differs from row to row.

    `explained` is the share of a row's square error, `step` the KV step, if it is one. `factor` is a number that must
    be the same in all rows, to within its standard error `doubt` by the kernel's rounding; `place` is a place.
    """

    kind: str
    words: str
    detail: str
    explained: float = 0.0
    step: int | None = None
    factor: float | None = None
    doubt: float = 0.0
    place: str = ""

    @property
    def name(self) -> tuple[str, str, str]:
        """What is the same in all rows."""
        return self.kind, self.words, self.place

    def __str__(self) -> str:
        return f"{self.words} ({self.detail})" if self.detail else self.words


@dataclass(frozen=True, eq=False)
class Family:
    """Faults of one kind: the errors (n, hsv) that they predict; with `free`, any multiple of them.

    `say` takes the number of a fault and its factor, and returns None for a factor that makes no sense. `rarity` is
    how much better a fault of this kind must fit than another, by Schwarz' criterion.
    """

    errors: F64
    say: Callable[[int, float], Cause | None]
    free: bool = False
    rarity: float = 0.0


@dataclass(frozen=True, eq=False)
class Suspect:
    """A wrong row, and what the search for its fault needs.

    `step` is the number of KV rows of a KV step, 0 if unknown; `parts` are the CUDA blocks' shares of the row's tile;
    `others` are the answers of other rows, by name, which may have been written to this row. `unit` is the kernel's
    predicted error of an element. `around` is the memory around the row's operands, None if it is not looked at.
    """

    row: AttentionRow
    step: int = 0
    parts: Sequence[Part] = ()
    others: Sequence[tuple[str, F64]] = ()
    unit: float = 0.0
    around: Around | None = field(default=None)


@dataclass(frozen=True)
class Candidate:
    """A cause that fits a row; the lowest score is the most likely."""

    cause: Cause
    score: float


def fitting(error: F64, families: Sequence[Family], unit: float = 0.0) -> list[Candidate]:
    """The best fault of each family that explains a row's error (hsv,), most likely first."""
    power, found = float(error @ error), list[Candidate]()
    rounding = (ROUNDING * unit) ** 2 * len(error)
    most = min(max((1 - EXPLAINED) * power, rounding), (1 - LEAST) * power)
    for family in families if power else ():
        if not len(family.errors):
            continue
        index, factor, left = _fit(error, family)
        if left > most or (cause := family.say(index, factor)) is None:
            continue
        freedom = 2 * np.log(len(family.errors)) + (4 if family.free else 0) + family.rarity
        score = len(error) * np.log(max(left, rounding / ROUNDING**2, 1e-9 * power) / power) + freedom
        doubt = unit / (float(np.linalg.norm(family.errors[index])) or np.inf) if family.free else 0.0
        found.append(Candidate(replace(cause, explained=1 - left / power, doubt=doubt), float(score)))
    return sorted(found, key=lambda candidate: candidate.score)


def within(families: Iterable[Family], columns: Bools) -> list[Family]:
    """The families' errors in some columns."""
    return [replace(family, errors=family.errors[:, columns]) for family in families]


def _fit(error: F64, family: Family) -> tuple[int, float, float]:
    """The number of the best fault, its factor, and the remaining square error."""
    u, power = np.where(np.isfinite(family.errors), family.errors, 0.0), float(error @ error)
    if not family.free:
        left = ((u - error) ** 2).sum(axis=1)
        index = int(left.argmin())
        return index, 1.0, float(left[index])
    along, length = u @ error, (u**2).sum(axis=1)
    # Not along**2 / length, whose square can exceed float64.
    gain = along * np.divide(along, length, out=np.zeros_like(along), where=length > 0)
    index = int(gain.argmax())
    return index, float(along[index] / length[index]) if length[index] else 0.0, max(power - float(gain[index]), 0.0)


def answers(
    kind: str, out: F64, named: Sequence[tuple[str, F64]], words: str = "", rarity: float = 0.0
) -> list[Family]:
    """A family of other outputs in place of `out`, those that are finite; each name is the detail of `words`.

    Without `words`, each name is the words.
    """
    known = [(name, value) for name, value in named if np.isfinite(value).all()]
    if not known:
        return []

    def say(index: int, _: float) -> Cause:
        name = known[index][0]
        return Cause(kind, words, name) if words else Cause(kind, name, "")

    return [Family(np.array([value for _, value in known]) - out, say, rarity=rarity)]
