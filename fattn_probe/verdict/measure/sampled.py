"""Judge a large output: a sample of rows is checked exactly; the other rows must be finite and plausible."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fattn_probe.base.arrays import F32, F64, I64, Bools
from fattn_probe.base.figures import first_of
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.llama.launch.geometry import Geometry, tile_rows
from fattn_probe.llama.launch.selection import Selection, rows_of_tiles
from fattn_probe.llama.launch.tiles import tile_at
from fattn_probe.machine.run.capture import Part
from fattn_probe.verdict.measure.expected import Expected
from fattn_probe.verdict.measure.metrics import Coordinate, unwritten_elements
from fattn_probe.verdict.measure.verdict import Status, Verdict, judge
from fattn_probe.verdict.truth.reference.sampled import MANY, Sample, choose_rows, fully_masked, spaced

LISTED = 3
AT_RANDOM = 8
"""Random rows per head in addition to the required ones, unless the user gives a number of rows."""
RNG = 78
IN_A_TILE = 2
"""Random rows per chosen tile, if only part of the output is computed or read."""
ZERO_AT_ONCE = 64
"""The number of zero rows outside the hull whose masks are checked at once."""


@dataclass(frozen=True)
class Sampled:
    """The extent of an exact check: `rows` out of `of` rows (sequence, query, head).

    On a simulated GPU, `blocks` of `of_blocks` blocks of the attention kernel ran, None if all did. They compute
    `complete` rows; None if all rows were computed and read.
    """

    rows: int
    of: int
    blocks: int | None = None
    of_blocks: int | None = None
    complete: int | None = None

    def __str__(self) -> str:
        exactly = f"checked {self.rows} of {self.of} rows exactly"
        if self.complete is None:
            return (
                f"{exactly}, including first and last rows, tile and stream-K seams and mask edges; the others were "
                "only checked to be finite and inside V's convex hull (--sample all checks everything)"
            )
        ran = "" if self.blocks is None else f"ran {self.blocks} of {self.of_blocks} blocks of the attention kernel, "
        return (
            f"{ran}{exactly}, in the first and the last output tile and in tiles all over the output; "
            f"{self.complete - self.rows} other rows of these tiles were only checked to be finite and inside "
            "V's convex hull (--sample all runs and checks everything)"
        )


def rows_of(case: Case, geometry: Geometry | None, number: int | None = None) -> I64:
    """The rows (sequence, query, head) to check: the required ones, and random ones up to `number` in total."""
    seams: list[int] = []  # the first queries of output tiles, or of a few tiles if there are many
    if geometry is not None:
        ncols1 = geometry.kernel.ncols1
        seams = [int(query) for query in spaced(np.arange(ncols1, case.op.sizes.n_q, ncols1), MANY)]
    rows = [] if geometry is None else list(_block_seams(case, geometry))
    if number is None:
        return choose_rows(case, seams=seams, rows=rows, random=AT_RANDOM)
    least = choose_rows(case, seams=seams, rows=rows, random=0)
    axes = (case.op.sizes.n_seq, case.op.sizes.n_q, case.op.sizes.n_head)
    others = np.delete(np.arange(np.prod(axes)), np.ravel_multi_index(tuple(least.T), axes))
    more = max(0, min(number - len(least), len(others)))
    chosen = np.random.default_rng((case.seed, RNG)).choice(others, more, replace=False)
    return np.stack(np.unravel_index(np.union1d(np.ravel_multi_index(tuple(least.T), axes), chosen), axes), axis=1)


def sampled_of(case: Case, rows: I64, part: Part | None, target: Target) -> Sampled:
    """The extent of a check, from the rows that were checked exactly."""
    sizes = case.op.sizes
    every = sizes.n_seq * sizes.n_q * sizes.n_head
    if part is None:
        return Sampled(len(rows), every)
    attention = part.selection.launches[part.selection.attention]
    if target.engine != "sim":
        return Sampled(len(rows), every, complete=len(part.rows))
    return Sampled(len(rows), every, attention.number, attention.of, len(part.rows))


def rows_of_selection(case: Case, geometry: Geometry, selection: Selection, number: int | None = None) -> I64:
    """The rows to check in a part of the output: the first and the last of each chosen tile, and random ones.

    These include a row of each head whose hull is known: only a checked row shows how far outside the hull a head's
    rows may lie. The random rows are a few per tile, or drawn from all tiles up to `number` rows in total.
    """
    rng = np.random.default_rng((case.seed, RNG))
    tiles = [rows_of_tiles(geometry, case.op.sizes, np.array([tile])) for tile in selection.tiles]
    chosen = [rows[[0, -1]] for rows in tiles]
    if number is None:
        chosen += [rows[rng.integers(0, len(rows), IN_A_TILE)] for rows in tiles]
    found, others = np.concatenate(chosen), rng.permutation(rows_of_tiles(geometry, case.op.sizes, selection.complete))
    n_q, n_head = case.op.sizes.n_q, case.op.sizes.n_head
    checked, heads = (rows @ (n_head, 0, 1) for rows in (found, others))  # numbered over all sequences
    without = np.isin(heads // geometry.group, checked // geometry.group) & ~np.isin(heads, checked)
    _, at = np.unique(heads[without], return_index=True)
    found = np.unique(np.concatenate([found, others[without][at]]), axis=0)
    if number is not None:
        taken, every = found @ (n_q * n_head, n_head, 1), rng.permutation(np.concatenate(tiles))
        left = every[~np.isin(every @ (n_q * n_head, n_head, 1), taken)]
        found = np.unique(np.concatenate([found, left[: max(0, number - len(found))]]), axis=0)
    return found.astype(np.int64)


def _block_seams(case: Case, geometry: Geometry) -> Iterator[tuple[int, int, int]]:
    """The first and the last row of output tiles that several CUDA blocks share; only a few tiles if there are many."""
    kernel = geometry.kernel
    shared = np.array([index for index, parts in enumerate(geometry.parts) if len(parts) > 1], np.intp)
    for index in spaced(shared, MANY):
        tile = tile_at(int(index), geometry.grid)
        queries, heads = tile_rows(tile, case.op.sizes, kernel.ncols1, kernel.ncols2)
        yield tile[0], queries[0], heads[0]
        yield tile[0], queries[-1], heads[-1]


def judge_sample(
    case: Case,
    dst: F32,
    sample: Sample,
    expected: Expected | None = None,
    tolerance: Tolerance | None = None,
    *,
    among: I64 | None = None,
) -> Verdict:
    """Check a sample of the rows of an output (n_seq, n_q, n_head, hsv) exactly, and all rows against V's convex hull.

    With `among`, only these rows were computed; the others are not read.

    `expected` and the verdict's deviation are for the sampled rows, as the queries of one head: (1, rows, 1, hsv). The
    metrics are those of the sample, with coordinates in the whole output. An unsampled row may lie outside the hull by
    the error bound of its head; without a prediction, the tolerance decides.
    """
    tolerance = case.tolerance if tolerance is None else tolerance
    rows, reference = sample.of(dst)[None, :, None], sample.reference[None, :, None]
    masked = fully_masked(case, sample.rows)[None, :, None]

    def describe(wrong: Bools) -> str:
        return f"wrong: {_listed(sample.rows[wrong.ravel()])} of {rows.shape[1]} sampled"

    def place(at: Coordinate) -> Coordinate:
        sequence, query, head = (int(index) for index in sample.rows[at.query])
        return Coordinate(sequence, query, head, at.d)

    found = judge(rows, reference, tolerance, masked, expected, describe=describe, place=place)
    odd, least = _odd(case, dst, sample, _slack(sample, expected, tolerance), among)
    if not len(odd):
        return replace(found, reason=f"{found.reason}; sampled: {rows.shape[1]} of {dst[..., 0].size} rows")
    unwritten = int(unwritten_elements(dst if among is None else dst[tuple(odd.T)]).sum())
    words = f"{least}{_listed(odd)} are not finite, or outside V's convex hull"
    words += f"; {unwritten} elements never written" if unwritten else ""
    reason = f"{words}; {found.reason}" if found.status is Status.FAIL else words
    return replace(found, status=Status.FAIL, reason=reason, only_masked_nan=False)


def _slack(sample: Sample, expected: Expected | None, tolerance: Tolerance) -> F64:
    """How far outside the hull an element may be, (n_seq, n_head, hsv).

    The tolerance decides if a head has no finite bound.
    """
    largest = np.maximum(-sample.low, sample.high).max(axis=2, keepdims=True)
    allowed = np.broadcast_to(np.sqrt(tolerance.nmse) * largest, sample.low.shape)
    if expected is None or expected.prediction is None:
        return allowed
    slack = np.full(sample.low.shape, np.nan)
    np.fmax.at(slack, (sample.rows[:, 0], sample.rows[:, 2]), expected.prediction.unsampled_bound[0, :, 0])
    return np.where(np.isfinite(slack), slack, allowed)


def _odd(case: Case, dst: F32, sample: Sample, slack: F64, among: I64 | None) -> tuple[I64, str]:
    """The implausible rows, and "at least " if there may be more; zeros are plausible in a fully masked row."""
    odd = sample.implausible(dst, slack, among)
    zero = np.flatnonzero((dst[tuple(odd.T)] == 0).all(axis=1))
    for first in range(0, len(zero), ZERO_AT_ONCE):
        some = zero[first : first + ZERO_AT_ONCE]
        masked = fully_masked(case, odd[some])
        if not masked.all():  # the output is wrong anyway; checking the masks of more rows would only take time
            rest = zero[first + ZERO_AT_ONCE :]
            found = np.delete(odd, np.concatenate([zero[:first], some[masked], rest]), axis=0)
            return found, "at least " if len(rest) else ""
    return np.delete(odd, zero, axis=0), ""


def _listed(rows: I64) -> str:
    places = first_of([tuple(row) for row in rows[: LISTED + 1].tolist()], LISTED, counted=False)
    return f"{len(rows)} rows (sequence, query, head: {places})"
