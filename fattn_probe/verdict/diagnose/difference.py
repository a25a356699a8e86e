"""The difference of two captures of one op, by element, output tile and CUDA block."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, Bools
from fattn_probe.base.errors import InputError
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.geometry import Geometry, geometry_of
from fattn_probe.llama.launch.tiles import Tile, tile_at
from fattn_probe.machine.run.capture import Capture
from fattn_probe.verdict.diagnose.constants import WORST
from fattn_probe.verdict.diagnose.patterns import Pattern, find_patterns, labellings
from fattn_probe.verdict.measure.metrics import Coordinate, Likeness, liken, unequal, worst_rows
from fattn_probe.verdict.measure.verdict import Status


@dataclass(frozen=True)
class Side:
    """An element in one capture: its value, its output tile, and the CUDA blocks that computed it."""

    value: float
    tile: Tile | None
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Apart:
    """An element that differs, the worst in its row."""

    at: Coordinate
    a: Side
    b: Side


@dataclass(frozen=True)
class DifferenceCut:
    """The output tiles (out of `of`) and CUDA blocks in which bits differ, according to the launches of one capture."""

    tiles: tuple[Tile, ...]
    of: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """Two captures of one op; the status is `changed` if a bit differs, which is not a failure.

    `cuts` are the tiles and blocks with differences, for each capture; None if its launches do not show them.
    """

    a: str
    b: str
    kernels_a: tuple[str, ...]
    kernels_b: tuple[str, ...]
    likeness: Likeness
    patterns: tuple[Pattern, ...] = ()
    cuts: tuple[DifferenceCut | None, DifferenceCut | None] = (None, None)
    worst: tuple[Apart, ...] = ()

    @property
    def status(self) -> Status:
        """`pass` if all bits are the same, else `changed`."""
        return Status.PASS if self.likeness.identical else Status.CHANGED

    @property
    def reason(self) -> str:
        """The result in words."""
        like = self.likeness
        if like.identical:
            return f"all {like.elements} elements are identical in every bit"
        words = f"{like.equal_bits} of {like.elements} elements ({100 * like.share:.2f} %) are identical in every bit"
        largest = f", largest difference {like.max_abs:.3g} at {like.worst}" if like.worst else ""
        where = f"; the others: {'; and '.join(map(str, self.patterns))}" if self.patterns else ""
        return f"{words}, NMSE {like.nmse:.2e}{largest}{where}"


def compare_captures(a: Capture, b: Capture, names: tuple[str, str] = ("a", "b")) -> Difference:
    """Compare two captures, called `names` in messages; InputError if their op or inputs differ."""
    if a.digest != b.digest:
        digests = f"{a.digest} and {b.digest}"
        raise InputError(f"{names[0]} and {names[1]} have different ops or inputs: digests {digests}")
    likeness, wrong = liken(a.dst, b.dst), unequal(a.dst, b.dst)
    attention = {"Q", "K", "V"} <= {*a.op.tensors}
    cut_a, cut_b = (_geometry(capture) if attention else None for capture in (a, b))
    kernels_a, kernels_b = (tuple(launch.spelling for launch in capture.launches) for capture in (a, b))
    group = a.op.sizes.group if attention else 1
    return Difference(
        names[0],
        names[1],
        kernels_a,
        kernels_b,
        likeness,
        tuple(find_patterns(wrong, labellings(a.dst.shape, group, cut_a or cut_b, None))),
        (_cut(wrong, cut_a), _cut(wrong, cut_b)),
        tuple(_worst(a.dst, b.dst, wrong, (cut_a, cut_b))),
    )


def _geometry(capture: Capture) -> Geometry | None:
    """A capture's division of the output; None for ggml's CPU backend, or if the capture lacks the launches."""
    arch = capture.provenance.get("arch", "")
    return geometry_of(capture.op, capture.launches, arch_number(arch)) if capture.launches and arch else None


def _cut(wrong: Bools, geometry: Geometry | None) -> DifferenceCut | None:
    if geometry is None or not wrong.any():
        return None
    found = np.unique(geometry.indices(wrong.shape[:3])[wrong.any(axis=3)])
    blocks = {block for index in found for block in geometry.parts[index]}
    tiles = tuple(tile_at(int(index), geometry.grid) for index in found)
    return DifferenceCut(tiles, len(geometry.parts), tuple(sorted(blocks)))


def _worst(a: F32, b: F32, wrong: Bools, cut: Sequence[Geometry | None]) -> Iterator[Apart]:
    """The worst element in each of the most different rows; elements that are finite in only one output come first."""
    with np.errstate(invalid="ignore"):
        off: npt.NDArray[np.float64] = np.abs(a.astype(np.float64) - b)
    off = np.where(wrong, np.where(np.isfinite(off), off, np.inf), -1.0)
    for row in worst_rows(off.max(axis=3), min(WORST, int(wrong.any(axis=3).sum()))):
        d, sides = int(off[row].argmax()), []
        for dst, geometry in zip((a, b), cut, strict=True):
            tile = None if geometry is None else geometry.tile_of(*row)
            blocks = () if geometry is None or tile is None else tuple(geometry.parts_of(tile))
            sides.append(Side(float(dst[row][d]), tile, blocks))
        yield Apart(Coordinate(*row, d), *sides)
