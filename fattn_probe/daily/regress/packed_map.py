"""The error map of a wrong output, small enough to store for every failure of every run."""

import zlib
from dataclasses import dataclass

import numpy as np

from fattn_probe.base.arrays import F64, Bytes
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.present.error_map import error_maps, shrunk

MOST = 64
LEAST, DECADES = 0.1, 6.0
NOT_FINITE = 255


@dataclass(frozen=True)
class PackedMap:
    """Head x query: the largest error at each place, in units of the expected error of its row.

    `packed` is zlib-compressed and has one byte per place, `rows` x `columns` of them: 0 is below `LEAST`, 255 is not
    finite, and the values between cover `DECADES` decades.
    """

    heads: int
    queries: int
    rows: int
    columns: int
    packed: bytes

    @property
    def levels(self) -> Bytes:
        """The bytes, (rows, columns)."""
        return np.frombuffer(zlib.decompress(self.packed), np.uint8).reshape(self.rows, self.columns)

    @property
    def values(self) -> F64:
        """The errors, to the precision of a byte; infinite where an error is not finite."""
        levels = self.levels.astype(np.float64)
        known = LEAST * 10 ** ((levels - 0.5) / 253 * DECADES)  # the middle of a step
        return np.where(levels == 0, 0.0, np.where(levels == NOT_FINITE, np.inf, known))


def packed_map_of(judgement: Judgement) -> PackedMap | None:
    """The map of a wrong output if all of it was checked; else None."""
    deviation = judgement.verdict.deviation
    if judgement.dst is None or deviation is None or judgement.verdict.status != "fail":
        return None
    found, _ = error_maps(judgement.dst, deviation)
    heads, queries = found.values.shape
    return packed(shrunk(found.values, MOST, MOST), heads, queries)


def packed(values: F64, heads: int, queries: int) -> PackedMap:
    """Pack a map into at most 64 x 64 places."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = 1 + np.floor(253 * np.log10(values / LEAST) / DECADES)
    levels = np.where(values < LEAST, 0, np.clip(steps, 1, NOT_FINITE - 1))
    levels = np.where(np.isfinite(values), levels, NOT_FINITE).astype(np.uint8)
    return PackedMap(heads, queries, len(levels), levels.shape[1], zlib.compress(levels.tobytes(), 9))
