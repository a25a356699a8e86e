"""The verdict on an output too large to check whole: some rows exactly, all of it for being finite and plausible."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fattn_probe.compare.metrics import F32, Coordinate, Tolerance, unwritten_elements
from fattn_probe.compare.verdict import Status, Verdict, judge
from fattn_probe.reference.sampled import Sample

Bools = npt.NDArray[np.bool_]
LISTED = 3


def judge_sample(dst: F32, sample: Sample, tolerance: Tolerance, fully_masked: Bools | None = None) -> Verdict:
    """Hold an output (n_seq, n_q, n_head, hsv) against a sample of its rows, and all of it against V's convex hull.

    `fully_masked` marks those of the sample's rows that see no KV row. The verdict's metrics are those of the sample,
    with the coordinates of the whole; its tolerance counts, since a sample tells of no tile as a whole. A row that is
    not sampled may lie outside of the hull by the kernel's own error, for which the tolerance stands.
    """
    rows = sample.of(dst)
    masked = None if fully_masked is None else fully_masked[:, None, None]

    def where(wrong: Bools) -> str:
        return f"wrong: {_listed(sample.rows[wrong.ravel()])} of {len(rows)} sampled"

    verdict = judge(rows[:, None, None], sample.reference[:, None, None], tolerance, masked, where=where)
    found = _placed(verdict, sample)
    slack = np.sqrt(tolerance.nmse) * np.maximum(np.abs(sample.low), np.abs(sample.high)).max(axis=2, keepdims=True)
    odd = sample.implausible(dst, slack)
    if not len(odd):
        return replace(found, reason=f"{found.reason}; sampled: {len(rows)} of {dst[..., 0].size} rows, all plausible")
    unwritten = int(unwritten_elements(dst).sum())
    words = f"{_listed(odd)} are not finite, or outside of V's convex hull"
    words += f"; {unwritten} elements never written" if unwritten else ""
    reason = f"{words}; {found.reason}" if found.status is Status.FAIL else words
    return replace(found, status=Status.FAIL, reason=reason)


def _listed(rows: npt.NDArray[np.int64]) -> str:
    places = ", ".join(str(tuple(int(index) for index in row)) for row in rows[:LISTED])
    more = ", ..." if len(rows) > LISTED else ""
    return f"{len(rows)} rows (sequence, query, head: {places}{more})"


def _placed(verdict: Verdict, sample: Sample) -> Verdict:
    """The verdict with its coordinates in the whole output; its deviation, which is of the sample, left out."""
    metrics = verdict.metrics
    if metrics is None:
        return verdict
    worst, first_bad = (_place(at, sample) for at in (metrics.worst, metrics.first_bad))
    reason = verdict.reason
    for before, after in ((metrics.worst, worst), (metrics.first_bad, first_bad)):
        reason = reason.replace(str(before), str(after)) if before else reason
    return replace(verdict, reason=reason, metrics=replace(metrics, worst=worst, first_bad=first_bad), deviation=None)


def _place(at: Coordinate | None, sample: Sample) -> Coordinate | None:
    if at is None:
        return None
    sequence, query, head = (int(index) for index in sample.rows[at.sequence])
    return Coordinate(sequence, query, head, at.d)
