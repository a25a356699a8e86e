"""The table of faults, the search for those that explain a wrong row, and the agreement of the rows.

A row can have several candidates. A cause counts for every row that it explains, and the causes of an output are those
that explain at least half of the examined rows. A factor must be the same in all of these rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain

import numpy as np

from fattn_probe.base.arrays import Bools
from fattn_probe.base.figures import factor
from fattn_probe.verdict.diagnose import algebra
from fattn_probe.verdict.diagnose import kv_faults as kv
from fattn_probe.verdict.diagnose import read_faults as read
from fattn_probe.verdict.diagnose import score_faults as score
from fattn_probe.verdict.diagnose.constants import AGREED, ALIKE, FINE, NEAR_ONE, SIGMAS, UNLIKELY
from fattn_probe.verdict.diagnose.row import Candidate, Cause, Moves, Named, WrongRow, fitting

KINDS = {
    "kv-left-out": "KV rows that should count are left out",
    "kv-weight": "KV rows are counted with a wrong weight, for example twice",
    "kv-beyond": "memory after the last KV row is read, or counted as KV rows",
    "kv-hidden": "KV rows that the mask hides are counted",
    "share": "one block's part of a shared tile is lost, or combined wrongly",
    "kv-parts": "the parts of KV steps, or of warps' slices, have wrong weights",
    "weights": "KV rows have wrong weights, while V and its sum are correct",
    "mask-ignored": "the mask, or its finite part, is ignored",
    "mask-scale": "the finite part of the mask is scaled by a wrong factor, for example 2 if it is added twice",
    "mask-elsewhere": "the mask is read at the wrong row, column, head or sequence",
    "q-elsewhere": "Q is read from the wrong place: a different query, head or sequence",
    "k-elsewhere": "K is read from the wrong place: other rows, columns, heads or sequences",
    "v-elsewhere": "V is read from the wrong place, or something else is read in its place",
    "k-columns": "some columns of Q and K are multiplied wrongly, left out, or counted several times",
    "k-values": "the values of a quantised K are unpacked wrongly",
    "v-values": "some columns of V have wrong values",
    "v-sum": "the output is not a weighted sum of V's rows: V is read, summed or written wrongly",
    "columns": "only some columns are wrong: V's columns are read, summed, combined or written wrongly",
    "outside": "the output is not an average of V's rows: the weights do not add up to 1, or something else is summed",
    "tile-layout": "tiles of K and V are written in one layout and read in another",
    "row-elsewhere": "a different row's answer is written in its place",
    "sink": "the sink is counted the wrong number of times, or changed",
    "softcap": "the softcap is ignored or applied wrongly",
    "alibi": "the slope of ALiBi is wrong",
    "scale": "the logits are scaled by an extra factor",
    "output-scale": "the output is scaled by one factor",
    "row-sum": "each row is scaled by a different factor: the sum of its weights, or its rescaling, is wrong",
    "rounding": "values are rounded more than intended",
    "nondeterministic": "a second run gives different bits: a race, or unwritten memory",
    "overflow": "values exceed the range of f16",
    "masked-tile": "the running maximum of a fully masked KV step is used: NaN",
    "maximum": "the softmax subtracts a number that is not the maximum of the logits: exp underflows, or overflows",
    "zero": "the output, or some of its columns, is zero",
    "invalid": "an undefined operation, such as 0/0, produces NaN; simulated GPUs only",
    "operand-nan": "NaN in the memory around the operands is read; simulated GPUs only",
    "unwritten": "elements are never written",
    "unwritten-read": "unwritten memory is read; simulated GPUs only, whose fresh memory is NaN",
}

NONE = "none"
"""The label of a fault that a wrong output cannot show, such as a race."""


ROW_SUM = Cause("row-sum", "each row is scaled by a different factor: its sum of weights is wrong", "")


class Search(Enum):
    """The stages of the search; the next stage begins if no cause of the previous one explains most rows."""

    OUTPUT = "it predicts the errors of a row"
    COLUMNS = "it predicts the errors in the wrong columns, if some columns are correct everywhere"
    ALGEBRA = "it names the wrong part and how it is wrong; the most precise cause comes first"
    NAN = "it predicts which rows are not finite, from a rare property of the op; one row alone proves nothing"


@dataclass(frozen=True)
class RowFault:
    """A fault, and its effect on a row: errors (`Moves`), different outputs, or a certain cause.

    A cause without a kind or words of its own gets those of the fault. The name of an output becomes the detail.
    `constant`: the fault can be recognised even if V is constant, when many sets of weights give the same output.
    """

    kind: str
    words: str
    makes: Callable[[WrongRow], Iterable[Moves | Named | Cause]]
    search: Search = Search.OUTPUT
    rarity: float = 0.0
    constant: bool = False

    def candidates(self, wrong: WrongRow, columns: Bools | None = None) -> list[Candidate]:
        """The causes that explain a row, or its errors in some columns."""
        made = list(self.makes(wrong))
        moves = [one for one in made if isinstance(one, Moves)]
        if named := [one for one in made if isinstance(one, tuple)]:
            causes = [(Cause("", "" if self.words else name, name if self.words else ""), out) for name, out in named]
            moves.append(Moves.to(causes, wrong.row.out, self.rarity))
        error = wrong.error
        if columns is not None:
            error, moves = error[columns], [replace(one, errors=one.errors[:, columns]) for one in moves]
        found = fitting(error, moves, wrong.unit)
        return [replace(one, cause=self._named(one.cause)) for one in found]

    def certain(self, wrong: WrongRow) -> list[Cause]:
        """The causes that a row proves."""
        return [self._named(one) for one in self.makes(wrong) if isinstance(one, Cause)]

    def _named(self, cause: Cause) -> Cause:
        return replace(cause, kind=cause.kind or self.kind, words=cause.words or self.words)


FAULTS = (
    RowFault("kv-weight", "one KV row has a wrong weight", kv.one_row),
    RowFault("kv-left-out", "KV rows are left out", kv.ends),
    RowFault("kv-hidden", "KV rows that the mask hides are seen", kv.hidden),
    RowFault("kv-weight", "one KV tile has a wrong weight", kv.one_step),
    RowFault("kv-left-out", "KV steps are left out", kv.some_steps),
    RowFault("kv-left-out", "KV steps are left out", kv.steps_often),
    RowFault("share", "one block's share of the tile has a wrong weight", kv.one_share),
    RowFault("share", "the KV steps at the seams of blocks have a wrong weight", kv.seams),
    RowFault("kv-beyond", "the memory after the last KV row is counted", kv.beyond),
    RowFault("v-elsewhere", "two rows of V are swapped", read.swapped),
    RowFault("mask-ignored", "", read.no_mask),
    RowFault("mask-elsewhere", "the mask is read from the wrong place", read.next_steps),
    RowFault("v-elsewhere", "V is read from the wrong place", read.other_V, constant=True),
    RowFault("q-elsewhere", "Q is read from the wrong place", read.other_Q, rarity=4.0),  # like `others`
    RowFault("k-elsewhere", "K is read from the wrong place", read.other_K),
    RowFault("k-elsewhere", "K and V are read from the wrong place", read.other_K_and_V),
    RowFault("k-values", "K's values are unpacked wrongly", read.zero_points),
    RowFault("tile-layout", "", read.swizzled),
    RowFault("mask-elsewhere", "the mask is read from the wrong place", read.other_masks),
    RowFault("output-scale", "the output is scaled", score.output_scaled, constant=True),
    RowFault("sink", "the sink is ignored", score.no_sink),
    RowFault("sink", "a different head's sink is used", score.other_sinks),
    RowFault("sink", "the sink is treated as a logit", score.sink_as_logit),
    RowFault("sink", "the sink is counted the wrong number of times", score.sink_often),
    RowFault("scale", "the logits, the mask, the slope or the softcap are scaled by a wrong factor", score.searched),
    RowFault("softcap", "", score.softcaps),
    RowFault("rounding", "", score.rounded, rarity=2.0),
    # "All weights are lost" would also explain this output, but not better.
    RowFault("zero", "the output is zero", score.zeros, rarity=-UNLIKELY, constant=True),
    RowFault("row-elsewhere", "the output is a different row's answer", lambda wrong: wrong.others),
    RowFault("zero", "some columns of the output are zero", score.zeros, Search.COLUMNS, -UNLIKELY, constant=True),
    RowFault("v-elsewhere", "V is read from the wrong place", read.other_V, Search.COLUMNS, constant=True),
    RowFault("row-elsewhere", "the output is a different row's answer, scaled", algebra.other_answer, Search.ALGEBRA),
    RowFault("weights", "KV rows have the weights of other rows", algebra.other_rows, Search.ALGEBRA),
    RowFault(
        "k-columns", "columns of Q and K are counted the wrong number of times", algebra.column_gains, Search.ALGEBRA
    ),
    RowFault("kv-parts", "sets of KV rows have wrong weights", algebra.sets_of_rows, Search.ALGEBRA),
    RowFault("kv-parts", "rows of V are summed with the weights of other rows", algebra.other_weights, Search.ALGEBRA),
    RowFault("share", "a block's share of a different row is added", algebra.other_share, Search.ALGEBRA),
    RowFault("weights", "V is correct, the weights are wrong", algebra.single_rows, Search.ALGEBRA),
    RowFault(
        "columns", "only some columns are wrong, so Q K^T and the softmax are correct", algebra.columns, Search.ALGEBRA
    ),
    RowFault("v-sum", "the output is not a weighted sum of V's rows", algebra.no_sum, Search.ALGEBRA),
    RowFault("outside", "the output is not an average of V's rows", algebra.no_average, Search.ALGEBRA),
    RowFault("kv-beyond", "NaN after the last KV row is read", kv.nan_beyond, Search.NAN),
    RowFault(
        "maximum", "the softmax subtracts a number that is not the maximum of the logits", score.low_maximum, Search.NAN
    ),
    RowFault("mask-elsewhere", "the mask is read at a wrong row, which hides everything", read.hiding_mask, Search.NAN),
    RowFault("masked-tile", "a block's first KV step is fully masked", score.masked_step, Search.NAN),
    RowFault("overflow", "", score.overflows, Search.NAN),
)
"""Every fault that can explain a row; `algebra.other_columns` needs several rows."""


def candidates_of(wrong: WrongRow, columns: Bools | None = None) -> list[Candidate]:
    """The faults that explain a row's error, or its error in some columns, most likely first."""
    search = Search.OUTPUT if columns is None else Search.COLUMNS
    faults = (fault for fault in FAULTS if fault.search is search and (fault.constant or not wrong.constant))
    found = [one for fault in faults for one in fault.candidates(wrong, columns)]
    return sorted(found, key=lambda candidate: candidate.score)


def causes_by_algebra(rows: Sequence[WrongRow], share: float) -> "list[Said]":
    """The first conclusion that holds in at least half of all wrong rows; `rows` represent this `share` of them."""
    large = [row for row in rows if algebra.is_large(row)]
    if not large or len(large) < AGREED * len(rows):
        return []
    others: list[list[Candidate]] = [[]] * (len(rows) - len(large))
    faults = ([fault.certain(row) for row in large] for fault in FAULTS if fault.search is Search.ALGEBRA)
    for causes in chain(faults, algebra.other_columns(large)):
        # If a row has several causes with the same words, the last counts.
        found = [[*{one.name: Candidate(one, 0.0) for one in row}.values()] for row in causes]
        if said := agreed([*found, *others], share):
            return said[:1]
    return []


def not_finite(rows: Iterable[WrongRow], spoiled: Bools) -> list[Cause]:
    """The faults that make exactly the `spoiled` rows non-finite."""
    shown: dict[Cause, Bools] = {}
    with np.errstate(all="ignore"):
        for number, row in enumerate(rows):
            for cause in (one for fault in FAULTS if fault.search is Search.NAN for one in fault.certain(row)):
                shown.setdefault(cause, np.zeros_like(spoiled))[number] = True
    found = [cause for cause, rows in shown.items() if (rows != spoiled).mean() <= ALIKE and (rows & spoiled).any()]
    return list(dict.fromkeys(replace(cause, detail="") for cause in found))


@dataclass(frozen=True)
class Said:
    """A cause of an output: the number of examined rows that it explains, and its mean score over these rows.

    `share` is the estimated share of all wrong rows that it explains.
    """

    cause: Cause
    rows: int
    of: int
    share: float
    score: float = 0.0


def agreed(rows: Sequence[Sequence[Candidate]], share: float = 1.0) -> list[Said]:
    """The causes that explain at least half of the rows, from each row's candidates; the one for most rows comes first.

    `share` is the share of all wrong rows that these rows represent. Candidates far below a row's best do not count.
    """
    by_name: dict[tuple[str, str, str], list[Candidate]] = {}
    for candidates in rows:
        best = min((one.score for one in candidates), default=0.0)
        likely: dict[tuple[str, str, str], Candidate] = {}
        for one in candidates:
            if one.score <= best + UNLIKELY:
                likely.setdefault(one.cause.name, one)
        for name, one in likely.items():
            by_name.setdefault(name, []).append(one)
    said = []
    for found in map(_consistent, by_name.values()):
        if found and len(found) >= AGREED * len(rows):
            score = float(np.mean([one.score for one in found]))
            said.append(Said(found[0].cause, len(found), len(rows), share * len(found) / len(rows), score))
    return in_order(said)


def in_order(causes: Iterable[Said]) -> list[Said]:
    """The causes that explain at least half of all wrong rows; the one that explains the most comes first."""
    return sorted((one for one in causes if one.share >= AGREED), key=lambda one: (-one.share, one.score))


def _consistent(found: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates of a cause, if the rows agree on its factor; scales that vary by row mean a wrong row sum."""
    known = [(one.cause.factor, one.cause.doubt) for one in found if one.cause.factor is not None]
    if not known:
        return found
    factors, doubts = np.array(known).T
    middle, scale = float(np.median(factors)), found[0].cause.kind == "output-scale"
    apart = abs(middle - 1)
    if scale and apart > FINE:  # the error is a multiple of the output, which shows the factor precisely
        allowed = np.maximum(FINE * apart, SIGMAS * doubts)
    else:
        allowed = np.maximum(ALIKE * apart, min(NEAR_ONE * apart, FINE))
    if (np.abs(factors - middle) <= allowed).all():
        return found
    own = replace(ROW_SUM, detail=f"by {factor(min(factors))} to {factor(max(factors))}")
    return [replace(one, cause=replace(own, explained=one.cause.explained)) for one in found] if scale else ()


def best_of(candidates: Sequence[Candidate], said: Sequence[Said]) -> Cause | None:
    """A row's cause: the output's cause if it explains the row, else the row's most likely one."""
    known = {one.cause.name: number for number, one in enumerate(said)}

    def place(one: Candidate) -> int:
        name = ROW_SUM.name if one.cause.kind == "output-scale" and ROW_SUM.name in known else one.cause.name
        return known.get(name, len(known))

    order = sorted(candidates, key=place)
    return order[0].cause if order else None
