"""Find the causes of a wrong output from its rows: what explains most of them is said first.

A row can have several candidates. A cause counts for every row that it explains, and the causes of an output are those
that explain at least half of the examined rows. A factor must be the same in all of these rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fattn_probe.arrays import F64, Bools
from fattn_probe.compare.diagnose.candidates import UNLIKELY, Candidate, Cause, Suspect, answers, fitting, within
from fattn_probe.compare.diagnose.kv_faults import kv_faults
from fattn_probe.compare.diagnose.read_faults import read_faults, v_faults
from fattn_probe.compare.diagnose.score_faults import score_faults
from fattn_probe.figures import factor

AGREED = 0.5
"""The share of the examined rows that a cause must explain."""
SAME_FACTOR, SAME_SCALE, NEAR_ONE, LEAST_APART = 0.02, 0.004, 0.08, 0.004
"""How far factors may be from their median, as a share of its distance from 1; more near 1, up to a limit."""
DOUBTS = 4.0
"""How many standard errors a row's scale of the output may be from the median."""
ROW_SUM = Cause("row-sum", "each row is scaled by a factor of its own: its sum of weights is wrong", "")


def candidates_of(error: F64, suspect: Suspect) -> list[Candidate]:
    """The faults that explain a row's error (hsv,), most likely first."""
    families = [*kv_faults(error, suspect), *read_faults(error, suspect), *score_faults(error, suspect)]
    return fitting(error, families, suspect.unit)


def candidates_within(error: F64, suspect: Suspect, columns: Bools) -> list[Candidate]:
    """The faults in V that explain a row's error in some columns, where the others are right."""
    out = suspect.row.output(suspect.row.logits)
    zero = answers("zero", out, [("some columns of the output are zero", np.zeros_like(out))], rarity=-UNLIKELY)
    return fitting(error[columns], within([*zero, *v_faults(suspect)], columns), suspect.unit)


@dataclass(frozen=True)
class Said:
    """A cause of an output: how many of some examined rows it explains, and the mean of its scores there.

    `share` is the share of all wrong rows that it explains, estimated from these.
    """

    cause: Cause
    rows: int
    of: int
    share: float
    score: float = 0.0


def agreed(rows: Sequence[Sequence[Candidate]], share: float = 1.0) -> list[Said]:
    """The causes that explain at least half of some rows, given each row's candidates; the most rows first.

    `share` is that of all wrong rows for which these rows stand.
    """
    by_words: dict[tuple[str, str, str], list[Candidate]] = {}
    for candidates in rows:
        best: dict[tuple[str, str, str], Candidate] = {}
        for candidate in likely(candidates):
            best.setdefault(candidate.cause.name, candidate)
        for key, candidate in best.items():
            by_words.setdefault(key, []).append(candidate)
    said = [_said(found, len(rows), share) for found in map(_consistent, by_words.values()) if found]
    return in_order(one for one in said if one.rows >= AGREED * len(rows))


def likely(candidates: Sequence[Candidate]) -> list[Candidate]:
    """A row's candidates without those that are much less likely than the best."""
    best = min((one.score for one in candidates), default=0.0)
    return [one for one in candidates if one.score <= best + UNLIKELY]


def _consistent(found: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates of a cause, if the rows agree on its factor; scales that differ by row become a wrong sum."""
    causes = [one.cause for one in found]
    if one_factor(causes):
        return found
    if causes[0].kind != "output-scale":
        return ()
    factors = [cause.factor for cause in causes if cause.factor is not None]
    detail = f"by {factor(min(factors))} to {factor(max(factors))}"
    return [replace(one, cause=replace(ROW_SUM, detail=detail, explained=one.cause.explained)) for one in found]


def in_order(causes: Iterable[Said]) -> list[Said]:
    """The causes that explain at least half of all wrong rows, those that explain most first."""
    return sorted((one for one in causes if one.share >= AGREED), key=lambda one: (-one.share, one.score))


def _said(found: Sequence[Candidate], of: int, share: float) -> Said:
    score = float(np.mean([one.score for one in found]))
    return Said(found[0].cause, len(found), of, share * len(found) / of, score)


def one_factor(causes: Sequence[Cause]) -> bool:
    """Whether rows agree on a cause's factor; true without one."""
    known = [(cause.factor, cause.doubt) for cause in causes if cause.factor is not None]
    if not known:
        return True
    factors, doubts = np.array(known).T
    middle = float(np.median(factors))
    apart = abs(middle - 1)
    exact = causes[0].kind == "output-scale" and apart > LEAST_APART  # the error is a multiple of the output
    allowed = SAME_SCALE * apart if exact else max(SAME_FACTOR * apart, min(NEAR_ONE * apart, LEAST_APART))
    return bool((np.abs(factors - middle) <= np.maximum(allowed, DOUBTS * doubts if exact else 0.0)).all())


def best_of(candidates: Sequence[Candidate], said: Sequence[Said]) -> Cause | None:
    """A row's cause: that of the output if it explains the row, else the row's most likely one."""
    known = {one.cause.name: number for number, one in enumerate(said)}
    for candidate in candidates:
        if candidate.cause.kind == "output-scale" and ROW_SUM.name in known:
            known[candidate.cause.name] = known[ROW_SUM.name]
    order = sorted(candidates, key=lambda one: known.get(one.cause.name, len(known)))
    return order[0].cause if order else None
