"""Diagnose a wrong output: the wrong elements, what they have in common, their blocks, and the likely fault."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fattn_probe.base.arrays import F32, F64, I64, Bools, Bytes
from fattn_probe.base.figures import factor as factor_of
from fattn_probe.cases.op.op import is_quantized
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.layout import View
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.llama.launch.tiles import Tile, TileWork
from fattn_probe.verdict.diagnose.constants import (
    AGREED,
    BETTER,
    F16_ULP,
    FRESH,
    INVALID,
    LEAST,
    LEFT,
    MOST,
    NEAR_ONE,
    OPERAND,
    ROWS_TRIED,
    SIGMAS,
    WORK,
    WORST,
)
from fattn_probe.verdict.diagnose.faults import (
    Said,
    agreed,
    best_of,
    candidates_of,
    causes_by_algebra,
    in_order,
    not_finite,
)
from fattn_probe.verdict.diagnose.patterns import Labelling, Pattern, find_patterns, hidden_steps, labellings
from fattn_probe.verdict.diagnose.row import Around, AttentionRow, Candidate, Cause, Named, RowIndex, WrongRow, unlike
from fattn_probe.verdict.diagnose.score_faults import factors
from fattn_probe.verdict.measure.metrics import POISON, Coordinate, Deviation, unequal, worst_rows
from fattn_probe.verdict.measure.wrong_rows import ranges
from fattn_probe.verdict.truth.reference.adapter import stored_rows

UNSURE = {"rounding", "row-sum", "share", "weights", "kv-parts", "k-columns", "columns", "v-sum", "outside", "invalid"}
"""Kinds of causes that a race can imitate, because they do not predict the output."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """A run with a wrong output: the op with its bytes, the output, the correct output, and the wrong elements.

    The deviation's base includes the kernel's own rounding if there is a model of it. `geometry` is None if the
    launches do not show the division of work. For a sample, `dst` and the deviation contain the `rows` (sequence,
    query, head) as the queries of one head: (1, rows, 1, hsv).
    """

    case: Case
    inputs: Mapping[str, Bytes]
    dst: F32
    deviation: Deviation
    geometry: Geometry | None
    rows: I64 | None = None

    def place(self, row: RowIndex) -> RowIndex:
        """The position (sequence, query, head) in the whole output of a row of the arrays."""
        if self.rows is None:
            return row
        sequence, query, head = self.rows[row[1]].tolist()
        return sequence, query, head

    def rows_of(self, dst: F32) -> F32:
        """The rows of a whole output that are in the arrays."""
        found: F32 = dst if self.rows is None else dst[tuple(self.rows.T)][None, :, None]
        return found

    @property
    def base(self) -> F64:
        """The correct output."""
        return self.deviation.base

    @property
    def wrong(self) -> Bools:
        """The wrong elements."""
        return self.deviation.wrong

    @property
    def finite(self) -> Bools:
        """The rows without NaN and infinities, (n_seq, n_q, n_head)."""
        return np.asarray((np.isfinite(self.dst) & np.isfinite(self.base)).all(axis=3))

    def affords(self, times: int) -> int:
        """The number of rows for which a search can afford this many passes over K and V; 0 if they are very large."""
        sizes = self.case.op.sizes
        values = sizes.n_kv * (sizes.hsk + sizes.hsv)
        return WORK // (times * values) if 2 * values <= WORK else 0

    def labellings(self) -> list[Labelling]:
        """The properties of the arrays' rows and columns; none for an output with millions of rows."""
        sizes, geometry, view = self.case.op.sizes, self.geometry, self.case.op.tensors.get("mask")
        if 32 * sizes.n_seq * sizes.n_q * sizes.n_head > WORK:
            return []
        hidden = None
        # A row's label holds for all heads, so the mask must be shared by all heads.
        if view is not None and view.ne[2] == 1 and sizes.n_kv * sizes.n_q * sizes.n_seq <= 2 * WORK:
            stored = np.asarray(stored_rows(self.case.op.operands["mask"], self.inputs))
            hidden = hidden_steps(stored, sizes.n_seq, sizes.n_q, geometry.rows if geometry else sizes.n_kv)
        found = labellings((sizes.n_seq, sizes.n_q, sizes.n_head, sizes.hsv), sizes.group, geometry, hidden)
        if self.rows is None:
            return found
        at = tuple(self.rows.T)
        return [one if one.axis == "columns" else replace(one, labels=one.labels[at][None, :, None]) for one in found]

    def sample(self, wrong: Bools, number: int = ROWS_TRIED) -> list[RowIndex]:
        """Some wrong rows, chosen at random, so that their causes represent those of all wrong rows."""
        rows = np.argwhere(wrong.any(axis=3))
        chosen = np.random.default_rng(0).permutation(len(rows))[:number]
        return [(int(sequence), int(query), int(head)) for sequence, query, head in rows[np.sort(chosen)]]

    def parts(self, row: RowIndex) -> Mapping[int, TileWork]:
        """The work of the CUDA blocks that share a row's tile."""
        return {} if self.geometry is None else self.geometry.parts_of(self.geometry.tile_of(*self.place(row)))

    def row(self, row: RowIndex, heads: dict[tuple[int, int], tuple[F64, F64]] | None = None) -> WrongRow:
        """A wrong row with all data for the search; `heads` caches K and V for other rows."""
        around, geometry = Around(self.case, self.inputs, *self.place(row)), self.geometry
        at = around.sequence, around.kv_head
        kv = (heads or {}).get(at) or around.kv
        if heads is not None:
            heads[at] = kv
        step = 0 if geometry is None or geometry.kernel.sparse else geometry.rows
        return WrongRow(
            AttentionRow.of(around, kv),
            around,
            np.asarray(self.dst[row], np.float64),
            self.base[row],
            self.wrong[row],
            step,
            self.parts(row) if step else {},
            self._others(row) if heads is None else (),
            float(self.deviation.unit[row]),
            0.0 if geometry is None else geometry.kernel.max_offset,
            geometry is not None and geometry.kernel.scanned,
        )

    def _others(self, row: RowIndex) -> list[Named]:
        """The correct answers of neighbouring rows: other queries, heads and sequences."""
        (sequence, query, head), (n_seq, n_q, n_head, _) = row, self.base.shape
        near = range(max(0, query - 256), min(n_q, query + 256))
        places = [(sequence, q, head) for q in near if q != query]
        places += [(sequence, query, h) for h in range(n_head) if h != head]
        places += [(s, query, head) for s in range(n_seq) if s != sequence]
        return [
            (unlike(self.place(row), self.place(at)), self.base[at])
            for at in places
            if np.isfinite(self.base[at]).all()
        ]


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
    """The worst elements (one per row), the patterns (best first), and the causes (most rows explained first)."""

    wrong: int
    elements: int
    worst: tuple[Element, ...]
    patterns: tuple[Pattern, ...]
    causes: tuple[Said, ...]
    rows_tried: int


def diagnose(evidence: Evidence) -> Diagnosis:
    """Diagnose a wrong output."""
    wrong = evidence.wrong
    finite = wrong & evidence.finite[..., None]
    examined, error = evidence.sample(finite), np.where(wrong, evidence.deviation.of(evidence.dst), -1.0).max(axis=3)
    largest = list(worst_rows(error, min(WORST, int(wrong.any(axis=3).sum()))))
    candidates: dict[RowIndex, list[Candidate]] = {}
    for row in dict.fromkeys([*examined, *largest]):
        searched = finite[row].any() and evidence.affords(2)
        candidates[row] = candidates_of(evidence.row(row)) if searched else []
    causes = tuple(_causes(evidence, {row: candidates[row] for row in examined}))
    worst, geometry = list[Element](), evidence.geometry
    for row in largest:
        dst, base, cause = evidence.dst[row], evidence.base[row], best_of(candidates[row], causes)
        with np.errstate(invalid="ignore"):
            off = np.where(np.isfinite(dst), np.abs(dst - base), np.inf)
        d, parts = int(np.where(wrong[row], off, -1.0).argmax()), evidence.parts(row)
        blocks = tuple(parts)
        if cause is not None and cause.step is not None:  # only the blocks that processed the wrong KV step
            blocks = tuple(block for block, work in parts.items() if cause.step in work.steps) or blocks
        at = Coordinate(*evidence.place(row), d)
        tile = None if geometry is None else geometry.tile_of(*evidence.place(row))
        worst.append(Element(at, float(dst[d]), float(base[d]), tile, blocks, cause))
    patterns = tuple(find_patterns(wrong, evidence.labellings()))
    return Diagnosis(int(wrong.sum()), wrong.size, tuple(worst), patterns, causes, len(examined))


def _causes(evidence: Evidence, candidates: Mapping[RowIndex, Sequence[Candidate]]) -> Sequence[Said]:
    """The causes of finite and of non-finite wrong rows; the one that explains the most rows comes first."""
    wrong, dst = evidence.wrong.any(axis=3), evidence.dst
    bad = wrong & ~evidence.finite
    number = int(wrong.sum())
    share = (number - int(bad.sum())) / number if number else 0.0

    def of_rows(kind: str, words: str, detail: str, rows: Bools) -> list[Said]:
        count = int(rows.sum())
        return [Said(Cause(kind, words, detail), count, number, count / number)] if count else []

    found = agreed(list(candidates.values()), share) if candidates else []
    never = bad & _with_bits(dst, POISON)
    fresh = bad & ~never & _with_bits(dst, FRESH, of=FRESH)
    # A NaN's bits prove these causes: if nothing explains the rest, the report names them even for only a few rows.
    certain = of_rows("unwritten", "elements are never written", "", never)
    if evidence.rows is None:  # a huge output starts as fresh memory, so it proves nothing
        certain += of_rows("unwritten-read", "unwritten memory is read", "--check shows where", fresh)
    if (computed := bad & ~never & ~fresh).any():  # compared with correct rows, or a sample of them
        most = min(1024, 2 * evidence.affords(1))
        chosen = np.sort(np.random.default_rng(0).permutation(np.flatnonzero(~(never | fresh)))[:most])
        heads: dict[tuple[int, int], tuple[F64, F64]] = {}
        places = (np.unravel_index(int(index), computed.shape) for index in chosen)
        compared = (evidence.row((int(s), int(q), int(h)), heads) for s, q, h in places)
        for cause in not_finite(compared, computed.ravel()[chosen]) if len(chosen) else ():
            found += of_rows(cause.kind, cause.words, "", computed)
    said = in_order(found + certain)
    if said and said[0].share >= MOST:
        return said
    placed = [one for one in _by_place(evidence, list(candidates), share) if one.share >= AGREED]
    if said:  # a wrong combination of shares that explains all wrong rows comes first
        return [*(one for one in placed if one.cause.kind == "share" and one.share == 1.0), *said]
    if placed:
        return placed
    rows = [evidence.row(row) for row in candidates] if evidence.affords(32) else []
    if algebra := causes_by_algebra(rows, share):
        return algebra
    # If most wrong rows contain one of these NaNs of a simulated GPU, its bits show where it comes from, but not why.
    layouts = (
        []
        if evidence.case.recorded
        else [getattr(evidence.case.recipe.layout, one, None) for one in evidence.case.op.tensors]
    )
    nan_around = any(isinstance(layout, View) and layout.outside == "nan" for layout in layouts)
    invalid, operand = (bad & _with_bits(dst, bits) for bits in (INVALID, OPERAND))
    shown = of_rows("invalid", "an undefined operation produces NaN", "0/0, inf - inf or 0 * inf", invalid)
    if nan_around:
        shown += of_rows("operand-nan", "NaN in the memory around the operands is read", "", operand)
    return certain or [one for one in shown if one.rows >= AGREED * number]


def _with_bits(dst: F32, bits: int, of: int = 0xFFFFFFFF) -> Bools:
    """The rows with an element that has these bits (within the mask `of`)."""
    return np.asarray((np.ascontiguousarray(dst).view(np.uint32) & np.uint32(of) == bits).any(axis=3))


def _by_place(evidence: Evidence, rows: Sequence[RowIndex], share: float) -> Iterator[Said]:
    """Causes that follow from the positions and sizes of the errors, if nothing explains the values."""
    wrong, geometry = np.asarray(evidence.wrong.any(axis=3)), evidence.geometry
    finite, searched = evidence.wrong[evidence.finite], evidence.affords(2)
    often = finite[finite.any(axis=1)].mean(axis=0) if finite.any() else np.zeros(finite.shape[1])
    columns = np.asarray(often > 0)  # the wrong columns; at least a quarter must be correct everywhere
    if rows and columns.any() and (often[columns] > AGREED).mean() > AGREED and columns.mean() <= MOST:
        yield from agreed([candidates_of(evidence.row(row), columns) if searched else [] for row in rows], share)
        if is_quantized(evidence.case.op.type_V) and wrong.mean() >= MOST:  # values of V affect all rows
            where = f"d {ranges(np.flatnonzero(columns).tolist())}"
            values = Cause("v-values", "V's values are unpacked wrongly in some columns", where)
            yield Said(values, len(rows), len(rows), share)
    number = int(wrong.sum())
    if geometry is not None and evidence.rows is None and number >= 4:
        several = np.array([sum(bool(work.steps) for work in parts.values()) > 1 for parts in geometry.parts])
        shared = several[geometry.indices(wrong.shape)]
        # All wrong rows are in tiles that several blocks share, many rows there are wrong, and other tiles exist.
        if shared.mean() <= LEAST and not (wrong & ~shared).any() and number >= LEFT * shared.sum():
            lost = "the parts of the blocks that share tiles are combined wrongly"
            detail = f"{number} rows, all of them in tiles that several blocks share"
            yield Said(Cause("share", lost, detail), number, number, 1.0)
    if rows and share == 1.0 and searched and (faint := _faint(evidence, rows)):
        yield Said(faint, len(rows), len(rows), 1.0)


def _faint(evidence: Evidence, rows: Sequence[RowIndex]) -> Cause | None:
    """The cause of errors as small as the kernel's own: a factor close to 1, or, if they are uncorrelated, a rounding.

    A wrong factor causes an error proportional to the output; a rounded factor is off by at most one unit in the
    last place. Biased errors do not come from rounding: they show that a part is weighted a little too much.
    """
    # An error that is too small to count as wrong can still be detected if it is a tenth of the kernel's own error.
    seen = np.abs(evidence.dst - evidence.base) > LEFT * np.asarray(evidence.deviation.unit)[..., None]
    small = []
    for row in rows:
        base, error = evidence.base[row], evidence.dst[row] - evidence.base[row]
        size, off = float(np.linalg.norm(base)) or 1e-30, float(np.linalg.norm(error))
        along = abs(float(error @ base)) / (off * size) if off else 0.0
        own = SIGMAS * float(evidence.deviation.unit[row]) * len(error) ** 0.5
        small.append(off <= own and off / size <= (4 * F16_ULP if along < LEAST else F16_ULP))
    if seen.any(axis=3).mean() < MOST or np.mean(small) <= AGREED:
        return None
    number = max(ROWS_TRIED, min(8 * ROWS_TRIED, evidence.affords(8)))
    examined = evidence.sample(evidence.wrong & evidence.finite[..., None], number)
    together = [evidence.row(row) for row in examined]
    if not (leaning := list(lean(together))):
        return Cause("rounding", "the errors are as small as a rounding to f16", "")
    best = max(leaning, key=lambda cause: cause.explained or 0.0)
    own = sum(row.unit**2 * len(row.error) for row in together) / sum(row.off**2 for row in together)
    # Both roundings remain: the kernel's and its model's.
    left = 1 - (best.explained or 0.0)
    return best if left <= 2 * BETTER * own and abs((best.factor or 0) - 1) <= NEAR_ONE else None


def lean(wrong: Iterable[WrongRow]) -> Iterator[Cause]:
    """The factors whose effect the rows' errors resemble more than chance allows, fitted to all rows together.

    Uses Student's t, because the spread is estimated from the rows. The quantile of t that corresponds to SIGMAS of a
    normal variable comes from the Cornish-Fisher expansion, which is accurate for 5 or more degrees of freedom.
    """
    step, power = 1e-4, 0.0
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for row in wrong:
        power += row.off**2
        for factor in factors(row):
            change = (factor.answer(1 + step) - factor.answer(1 - step)) / (2 * step)
            along, size = float(change @ row.error), float(np.linalg.norm(change))
            cosine = along / (size * row.off) if size * row.off else 0.0
            found.setdefault((factor.kind, factor.words), []).append((cosine, along, size**2))
    z = SIGMAS
    terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    for (kind, words), numbers in found.items():
        cosines, along, squares = np.array(numbers).T
        spread = float(np.std(cosines, ddof=1)) if len(cosines) > 5 else 0.0
        quantile = sum(term / (len(cosines) - 1) ** degree for degree, term in enumerate(terms)) if spread else math.inf
        if spread and abs(float(np.mean(cosines))) * len(cosines) ** 0.5 > quantile * spread:
            value = 1 + float(along.sum() / squares.sum())
            explained = float(along.sum() ** 2 / squares.sum()) / power
            yield Cause(kind, words, f"by about {factor_of(value)}", explained, factor=value)


def needs_another(found: Diagnosis) -> bool:
    """Whether a second run is necessary, to show whether the output varies from run to run."""
    return not found.causes or found.causes[0].cause.kind in UNSURE


def with_another(found: Diagnosis, evidence: Evidence, dst: F32) -> Diagnosis:
    """The diagnosis after a second run: if most wrong rows differ between the runs, that is the only cause."""
    wrong, differs = evidence.wrong.any(axis=3), unequal(evidence.dst, dst)
    number, rows = int(wrong.sum()), int((wrong & differs.any(axis=3)).sum())
    if rows < AGREED * number:
        return found
    detail = f"{int(differs.sum())} of {differs.size} elements differ"
    cause = Cause("nondeterministic", "two runs give different bits: a race, or unwritten memory", detail)
    worst = tuple(replace(element, cause=cause) for element in found.worst)
    return replace(found, causes=(Said(cause, rows, number, rows / number),), worst=worst)
