"""Diagnose a wrong output: the wrong elements, what they have in common, their blocks, and the likely fault."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F32, F64, Bools
from fattn_probe.compare.diagnose.around import Around
from fattn_probe.compare.diagnose.attention_row import AttentionRow, Head
from fattn_probe.compare.diagnose.candidates import Candidate, Cause, Suspect
from fattn_probe.compare.diagnose.causes import (
    AGREED,
    Said,
    agreed,
    best_of,
    candidates_of,
    candidates_within,
    in_order,
)
from fattn_probe.compare.diagnose.coarse import WrongRow, coarse_causes
from fattn_probe.compare.diagnose.not_finite import (
    INVALID,
    OPERAND,
    Spoiled,
    from_fresh_memory,
    not_finite,
    with_bits,
)
from fattn_probe.compare.diagnose.patterns import Labelling, Pattern, find_patterns
from fattn_probe.compare.diagnose.properties import MaskFacts, labellings
from fattn_probe.compare.judge.metrics import Coordinate, Deviation, unwritten_elements
from fattn_probe.compare.judge.wrong_rows import ranges
from fattn_probe.launch.geometry import Geometry, Part
from fattn_probe.launch.tiles import Tile
from fattn_probe.op.ggml_types import is_quantized
from fattn_probe.scenario import Case
from fattn_probe.scenario.layout import View
from fattn_probe.truth.reference.adapter import stored_rows

WORST = 5
ROWS_TRIED = 8
OTHERS = 512
"""Number of other rows' answers that a row is compared with."""
NEAR, MOST_NEAR = 16, 48
"""Queries before and behind a row whose shares may be mixed up with its own, and the rows in all."""
MOST_MASK = 1 << 28
"""Largest mask, in entries, that is examined; larger masks are skipped."""
MOST_KV = 1 << 26
"""Largest K/V head, in values, for which a cause is sought."""
MOST_SPOILED, SPOILED_VALUES = 1024, 1 << 28
"""Rows that are examined if some are not finite, and the values of K and V that they may have in all."""
MOST_ROWS = 1 << 22
"""Most rows of an output whose properties are compared with the wrong elements."""
MOST_COLUMNS = 0.75
"""Share of columns, or rows, above which they are not a part."""
LEAST_ROWS, MOST_SHARED, LEAST_SPOILED = 4, 0.9, 0.1
"""Wrong rows, share of rows in shared tiles, and share of these that is wrong, for an error to be one of sharing."""
SEEN = 0.1
"""An error of so many times the kernel's own is seen in a row, though it may be too small to be wrong."""
ROUNDING = 2**-8
"""Relative error of a row up to which it may be a rounding."""
UNWRITTEN = Cause("unwritten", "elements are never written", "")
UNWRITTEN_READ = Cause("unwritten-read", "memory that nobody wrote is read", "--check names the place")
"""Causes that the bits of a NaN show, so that they are said of few rows too, if nothing explains the others."""
INVALID_NAN = Cause("invalid", "an operation without a result makes NaN", "0/0, inf - inf or 0 * inf")
OPERAND_NAN = Cause("operand-nan", "NaN in the memory around the operands is read", "")
"""What these bits show without saying why, if most wrong rows have them."""
ALIKE, F16_ULP = 0.9, 2**-10
"""Cosine of error and output from which on the error is that of a factor, and how far a rounded one may be off."""
RowIndex = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Evidence:
    """A run with a wrong output: the op with its bytes, the output, the right output, and the wrong elements.

    The deviation's base includes the kernel's own rounding if there is a model of it. `geometry` is None if the
    launches do not show the division of work. For a sample, `dst` and deviation hold the `rows` (sequence, query, head)
    as the queries of one head: (1, rows, 1, hsv).
    """

    case: Case
    inputs: Mapping[str, npt.NDArray[np.uint8]]
    dst: F32
    deviation: Deviation
    geometry: Geometry | None
    rows: npt.NDArray[np.int64] | None = None

    def place(self, row: RowIndex) -> RowIndex:
        """The (sequence, query, head) of a row of the arrays in the whole output."""
        if self.rows is None:
            return row
        sequence, query, head = self.rows[row[1]].tolist()
        return sequence, query, head

    def labellings(self) -> list[Labelling]:
        """The properties of the arrays' rows and columns."""
        case = self.case
        shape = (case.op.sizes.n_seq, case.op.sizes.n_q, case.op.sizes.n_head, case.op.sizes.hsv)
        if math.prod(shape[:3]) > MOST_ROWS:
            return []
        found, rows = labellings(shape, case.op.sizes.group, self.geometry, _mask(self)), self.rows
        if rows is None:
            return found
        at = tuple(rows.T)
        return [one if one.axis == "columns" else replace(one, labels=one.labels[at][None, :, None]) for one in found]

    @property
    def base(self) -> F64:
        """The right output."""
        return self.deviation.base

    @property
    def wrong(self) -> Bools:
        """The wrong elements."""
        return self.deviation.wrong


@dataclass(frozen=True)
class Element:
    """A wrong element, its output tile, and the CUDA blocks that computed it; None if unknown."""

    at: Coordinate
    value: float
    expected: float
    tile: Tile | None
    blocks: tuple[int, ...]
    cause: Cause | None


@dataclass(frozen=True)
class Diagnosis:
    """`worst` elements, one per row; `patterns`, best first; `causes`, the one that explains most rows first."""

    wrong: int
    elements: int
    worst: tuple[Element, ...]
    patterns: tuple[Pattern, ...]
    causes: tuple[Said, ...]
    rows_tried: int


def diagnose(evidence: Evidence) -> Diagnosis:
    """Diagnose a wrong output."""
    wrong = evidence.wrong
    found = tuple(find_patterns(wrong, evidence.labellings()))
    finite = wrong & _finite(evidence)[..., None]
    examined, worst_rows = _sample(finite), _worst_rows(evidence, wrong)
    candidates = {
        row: _candidates(evidence, row) for row in dict.fromkeys([*examined, *worst_rows]) if finite[row].any()
    }
    causes = tuple(all_causes(evidence, {row: candidates[row] for row in examined}))
    worst = tuple(_element(evidence, row, best_of(candidates.get(row, ()), causes)) for row in worst_rows)
    return Diagnosis(int(wrong.sum()), wrong.size, worst, found, causes, len(examined))


def all_causes(evidence: Evidence, candidates: Mapping[RowIndex, Sequence[Candidate]]) -> list[Said]:
    """The causes of the rows that are finite, and of those that are not, the one that explains most rows first."""
    wrong = evidence.wrong.any(axis=3)
    bad = wrong & ~_finite(evidence)
    number = int(wrong.sum())
    share = (number - int(bad.sum())) / number if number else 0.0
    found = agreed(list(candidates.values()), share) if candidates else []
    never = bad & unwritten_elements(evidence.dst).any(axis=3)
    fresh = bad & ~never & from_fresh_memory(evidence.dst).any(axis=3)
    certain = [*_of_rows(UNWRITTEN, never, number)]
    if evidence.rows is None:  # elements of a huge output are fresh memory themselves before a run
        certain += _of_rows(UNWRITTEN_READ, fresh, number)
    if (computed := bad & ~never & ~fresh).any():
        for cause in not_finite(_spoiled(evidence, computed, never | fresh)):
            found += _of_rows(cause, computed, number)
    if said := in_order(found + certain):
        return said
    if placed := [one for one in by_place(evidence, list(candidates), share) if one.share >= AGREED]:
        return placed
    wrong_rows = [_wrong_row(evidence, row) for row in candidates if _few_values(evidence)]
    return coarse_causes(wrong_rows, share) or certain or list(_by_bits(evidence, bad, number))


def _by_bits(evidence: Evidence, bad: Bools, number: int) -> Iterator[Said]:
    """What the bits of a simulated GPU's NaN show, if most of `number` wrong rows have some."""
    signs = [(INVALID, INVALID_NAN), *([(OPERAND, OPERAND_NAN)] if _nan_around(evidence.case) else [])]
    for bits, cause in signs:
        rows = bad & with_bits(evidence.dst, bits).any(axis=3)
        if (count := int(rows.sum())) >= AGREED * number:
            yield Said(cause, count, number, count / number)


def _nan_around(case: Case) -> bool:
    """Whether the memory outside an operand's view is NaN."""
    layouts = [] if case.recorded else [getattr(case.recipe.layout, name, None) for name in case.op.tensors]
    return any(isinstance(layout, View) and layout.outside == "nan" for layout in layouts)


def _of_rows(cause: Cause, rows: Bools, number: int) -> Iterator[Said]:
    """A cause of these of `number` wrong rows, if there are any."""
    if count := int(rows.sum()):
        yield Said(cause, count, number, count / number)


def by_place(evidence: Evidence, rows: Sequence[RowIndex], share: float) -> Iterator[Said]:
    """Causes that the places and the size of the errors show, if nothing explains the values."""
    wrong = np.asarray(evidence.wrong.any(axis=3))
    if rows and (columns := wrong_columns(evidence.wrong[_finite(evidence)])) is not None:
        found = [_candidates(evidence, row, columns) for row in rows]
        where = f"d {ranges(np.flatnonzero(columns).tolist())}"
        yield from agreed(found, share)
        if is_quantized(evidence.case.op.type_V) and wrong.mean() >= MOST_COLUMNS:  # V's values reach all rows
            values = Cause("v-values", "V's values are unpacked wrongly in some columns", where)
            yield Said(values, len(rows), len(rows), share)
    if (within := shared_only(wrong, evidence)) is not None:
        lost = "what the blocks of shared tiles contribute is combined wrongly"
        detail = f"{within} rows, all of them in tiles that several CUDA blocks share"
        yield Said(Cause("share", lost, detail), within, within, 1.0)
    if rows and share == 1.0 and is_rounding(evidence, rows):
        yield Said(Cause("rounding", "the errors are as small as a rounding to f16", ""), len(rows), len(rows), 1.0)


def wrong_columns(wrong: Bools) -> Bools | None:
    """The columns that are wrong in some rows (rows, hsv), if at least a quarter is right everywhere."""
    often = wrong[wrong.any(axis=1)].mean(axis=0) if wrong.any() else np.zeros(wrong.shape[1])
    columns = np.asarray(often > 0)
    return (
        columns
        if columns.any() and (often[columns] > AGREED).mean() > AGREED and columns.mean() <= MOST_COLUMNS
        else None
    )


def shared_only(wrong: Bools, evidence: Evidence) -> int | None:
    """The number of wrong rows, if all are in tiles that several blocks share and a good part of the others is not."""
    geometry = evidence.geometry
    if geometry is None or evidence.rows is not None or wrong.sum() < LEAST_ROWS:
        return None
    several = np.array([sum(part.start < part.stop for part in parts) > 1 for parts in geometry.parts])
    shared = several[geometry.indices(wrong.shape)]
    inside = bool(shared.mean() <= MOST_SHARED and not (wrong & ~shared).any())
    return int(wrong.sum()) if inside and wrong.sum() >= LEAST_SPOILED * shared.sum() else None


def is_rounding(evidence: Evidence, rows: Sequence[RowIndex]) -> bool:
    """Whether a rounding to f16 can make the errors: they are small, in most rows, and unlike the output.

    The error of a factor is a multiple of the output; a rounded factor is at most a unit in the last place off.
    """
    off = np.abs(evidence.dst - evidence.base) > SEEN * np.asarray(evidence.deviation.unit)[..., None]
    everywhere = bool(off.any(axis=3).mean() >= MOST_COLUMNS)
    return everywhere and float(np.mean([_is_small(evidence, row) for row in rows])) > AGREED


def _is_small(evidence: Evidence, row: RowIndex) -> bool:
    base, error = evidence.base[row], evidence.dst[row] - evidence.base[row]
    size = float(np.linalg.norm(base)) or 1e-30
    off = float(np.linalg.norm(error))
    along = abs(float(error @ base)) / (off * size) if off else 0.0
    return off / size <= (ROUNDING if along < ALIKE else F16_ULP)


def _finite(evidence: Evidence) -> Bools:
    """The rows without NaN and infinities, (n_seq, n_q, n_head)."""
    return np.asarray((np.isfinite(evidence.dst) & np.isfinite(evidence.base)).all(axis=3))


def _spoiled(evidence: Evidence, bad: Bools, others: Bools) -> Spoiled:
    """Some rows of the arrays but `others`, drawn by chance, and which of them are bad; all, if there are few."""
    values = evidence.case.op.sizes.n_kv * (evidence.case.op.sizes.hsk + evidence.case.op.sizes.hsv)
    most = min(MOST_SPOILED, SPOILED_VALUES // values) if values <= MOST_KV else 0
    chosen = np.sort(np.random.default_rng(0).permutation(np.flatnonzero(~others))[:most])
    rows = [tuple(map(int, np.unravel_index(int(index), bad.shape))) for index in chosen]
    places = [evidence.place((sequence, query, head)) for sequence, query, head in rows]
    return Spoiled(evidence.case, evidence.inputs, evidence.geometry, places, bad.ravel()[chosen])


def _mask(evidence: Evidence) -> MaskFacts | None:
    case, geometry = evidence.case, evidence.geometry
    sizes, view = case.op.sizes, case.op.tensors.get("mask")
    if view is None or view.ne[2] > 1 or sizes.n_kv * sizes.n_q * sizes.n_seq > MOST_MASK:
        return None  # the properties of rows are those of all heads
    mask = np.asarray(stored_rows(case.op.operands["mask"], evidence.inputs))
    return MaskFacts.of(mask, sizes.n_seq, sizes.n_q, geometry.rows if geometry else sizes.n_kv)


def _sample(wrong: Bools) -> list[RowIndex]:
    """Some wrong rows, drawn by chance, so that their causes stand for those of all."""
    rows = np.argwhere(wrong.any(axis=3))
    chosen = np.random.default_rng(0).permutation(len(rows))[:ROWS_TRIED]
    return [(int(sequence), int(query), int(head)) for sequence, query, head in rows[np.sort(chosen)]]


def _worst_rows(evidence: Evidence, wrong: Bools) -> list[RowIndex]:
    """The rows with the largest errors."""
    error = np.where(wrong, evidence.deviation.of(evidence.dst), -1.0).max(axis=3)
    order = np.argsort(-error, axis=None, kind="stable")[: min(WORST, int(wrong.any(axis=3).sum()))]
    places = [np.unravel_index(int(index), error.shape) for index in order]
    return [(int(sequence), int(query), int(head)) for sequence, query, head in places]


def _element(evidence: Evidence, row: RowIndex, cause: Cause | None) -> Element:
    error = np.where(evidence.wrong[row], _off(evidence, row), -1.0)
    d, geometry = int(error.argmax()), evidence.geometry
    at = Coordinate(*evidence.place(row), d)
    tile = None if geometry is None else geometry.tile_of(*evidence.place(row))
    blocks = tuple(part.block for part in _blamed(_parts(evidence, row), cause))
    return Element(at, float(evidence.dst[row][d]), float(evidence.base[row][d]), tile, blocks, cause)


def _off(evidence: Evidence, row: RowIndex) -> F64:
    """The absolute errors of a row; infinite for NaN and infinity."""
    with np.errstate(invalid="ignore"):
        off = np.abs(evidence.dst[row] - evidence.base[row])
    return np.where(np.isfinite(evidence.dst[row]), off, np.inf)


def _parts(evidence: Evidence, row: RowIndex) -> Sequence[Part]:
    geometry = evidence.geometry
    return () if geometry is None else geometry.parts_of(geometry.tile_of(*evidence.place(row)))


def _blamed(parts: Sequence[Part], cause: Cause | None) -> Sequence[Part]:
    """The blocks that worked on a tile; only those of the wrong KV step, if it is known."""
    if cause is None or cause.step is None:
        return parts
    return [part for part in parts if cause.step in range(part.start, part.stop, part.every)] or parts


def _candidates(evidence: Evidence, row: RowIndex, columns: Bools | None = None) -> list[Candidate]:
    """The faults that explain a row, or its errors in some columns."""
    if not _few_values(evidence):
        return []
    suspect, error = _suspect(evidence, row), evidence.dst[row] - evidence.base[row]
    return candidates_of(error, suspect) if columns is None else candidates_within(error, suspect, columns)


def _few_values(evidence: Evidence) -> bool:
    sizes = evidence.case.op.sizes
    return sizes.n_kv * (sizes.hsk + sizes.hsv) <= MOST_KV


def _wrong_row(evidence: Evidence, row: RowIndex) -> WrongRow:
    out, base = np.asarray(evidence.dst[row], np.float64), evidence.base[row]
    return WrongRow(_suspect(evidence, row), out, base, evidence.wrong[row], _near(evidence, row))


def _near(evidence: Evidence, row: RowIndex) -> list[tuple[str, AttentionRow]]:
    """Rows of the same output tile, or its neighbours, if several blocks work on it."""
    if len(_parts(evidence, row)) < 2:
        return []
    (sequence, query, head), sizes = evidence.place(row), evidence.case.op.sizes
    kv = Head.of(evidence.case, evidence.inputs, sequence, head // sizes.group)
    queries = range(max(0, query - NEAR), min(sizes.n_q, query + NEAR + 1))
    first = head - head % sizes.group
    places = [(sequence, q, h) for h in range(first, first + sizes.group) for q in queries if (q, h) != (query, head)]
    return [(_unlike((sequence, query, head), place), AttentionRow.of(kv, *place[1:])) for place in places[:MOST_NEAR]]


def _suspect(evidence: Evidence, row: RowIndex) -> Suspect:
    """A row with all that is known of it."""
    (sequence, query, head), case, geometry = evidence.place(row), evidence.case, evidence.geometry
    kv = Head.of(case, evidence.inputs, sequence, head // case.op.sizes.group)
    step = 0 if geometry is None or geometry.kernel.sparse else geometry.rows
    return Suspect(
        AttentionRow.of(kv, query, head),
        step,
        _parts(evidence, row) if step else (),
        _other_rows(evidence, row),
        float(evidence.deviation.unit[row]),
        Around(case, evidence.inputs, sequence, query, head),
    )


def _other_rows(evidence: Evidence, row: RowIndex) -> list[tuple[str, F64]]:
    """The right answers of neighbouring rows: other queries, other heads, other sequences."""
    base = evidence.base
    sequence, query, head = row
    n_seq, n_q, n_head, _ = base.shape
    near = range(max(0, query - OTHERS // 2), min(n_q, query + OTHERS // 2))
    places = [(sequence, q, head) for q in near if q != query]
    places += [(sequence, query, h) for h in range(n_head) if h != head]
    places += [(s, query, head) for s in range(n_seq) if s != sequence]
    here = evidence.place(row)
    named = [(_unlike(here, evidence.place(place)), base[place]) for place in places]
    return [(words, values) for words, values in named if np.isfinite(values).all()]


def _unlike(here: RowIndex, other: RowIndex) -> str:
    """The name of another row: the coordinates that differ."""
    axes = zip(("sequence", "query", "head"), here, other, strict=True)
    return "that of " + ", ".join(f"{name} {there}" for name, own, there in axes if own != there)
