"""Two captures of one op: whether their bits are equal, and where not, by element, tile and CUDA block."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import F32, Bools
from fattn_probe.compare.diagnose.patterns import Pattern, find_patterns
from fattn_probe.compare.diagnose.properties import labellings
from fattn_probe.compare.judge.metrics import Coordinate, Likeness, liken, unequal
from fattn_probe.compare.judge.verdict import Status
from fattn_probe.errors import InputError
from fattn_probe.launch.architecture import arch_number
from fattn_probe.launch.geometry import Geometry, geometry_of
from fattn_probe.launch.tiles import Tile, tile_at
from fattn_probe.run.capture import Capture

WORST = 5
Names = tuple[str, str]


@dataclass(frozen=True)
class Side:
    """What one capture has of an element: its value, the output tile it is in and the CUDA blocks that made it."""

    value: float
    tile: Tile | None
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Apart:
    """An element that is not the same in both, the worst of its row."""

    at: Coordinate
    a: Side
    b: Side


@dataclass(frozen=True)
class Cut:
    """The output tiles, of so many, and the CUDA blocks of a capture in which bits differ, by its launches."""

    tiles: tuple[Tile, ...]
    of: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """Two captures of one op side by side; `changed` where a bit differs, which by itself is no failure.

    `cuts` are the tiles and blocks with differences, of each capture; None where its launches do not tell.
    """

    a: str
    b: str
    kernels_a: tuple[str, ...]
    kernels_b: tuple[str, ...]
    likeness: Likeness
    patterns: tuple[Pattern, ...] = ()
    cuts: tuple[Cut | None, Cut | None] = (None, None)
    worst: tuple[Apart, ...] = ()

    @property
    def status(self) -> Status:
        """`pass` where all bits are equal."""
        return Status.PASS if self.likeness.identical else Status.CHANGED

    @property
    def reason(self) -> str:
        """The finding in words."""
        like = self.likeness
        if like.identical:
            return f"all {like.elements} elements are equal to the last bit"
        words = f"{like.equal_bits} of {like.elements} elements ({100 * like.share:.2f} %) are equal to the last bit"
        largest = f", largest difference {like.max_abs:.3g} at {like.worst}" if like.worst else ""
        where = f"; the others: {'; and '.join(map(str, self.patterns))}" if self.patterns else ""
        return f"{words}, NMSE {like.nmse:.2e}{largest}{where}"


def compare_captures(a: Capture, b: Capture, names: Names = ("a", "b")) -> Difference:
    """Compare two captures; `names` are what to call them. Raises InputError where they are not of the same op."""
    if a.digest != b.digest:
        digests = f"{a.digest} and {b.digest}"
        raise InputError(f"{names[0]} and {names[1]} are of different ops or inputs: digests {digests}")
    likeness, wrong = liken(a.dst, b.dst), unequal(a.dst, b.dst)
    cut = [_geometry(capture) for capture in (a, b)]
    kernels = [tuple(launch.spelling for launch in capture.launches) for capture in (a, b)]
    return Difference(
        names[0],
        names[1],
        kernels[0],
        kernels[1],
        likeness,
        tuple(find_patterns(wrong, labellings(a.dst.shape, _group(a), cut[0] or cut[1], None))),
        (_cut(wrong, cut[0]), _cut(wrong, cut[1])),
        tuple(_worst(a.dst, b.dst, wrong, cut)),
    )


def _tensors(capture: Capture) -> Mapping[str, object]:
    return capture.op.tensors


def _group(capture: Capture) -> int:
    """How many heads of Q a K/V head has; 1 where the op does not tell."""
    return capture.op.sizes.group if {"Q", "K", "V"} <= set(_tensors(capture)) else 1


def _geometry(capture: Capture) -> Geometry | None:
    """How a capture's launches cut the output; None for ggml's CPU backend, or where the capture says too little."""
    arch = capture.provenance.get("arch", "")
    if not capture.launches or not arch or not {"Q", "K", "V"} <= set(_tensors(capture)):
        return None
    return geometry_of(capture.op, capture.launches, arch_number(arch))


def _cut(wrong: Bools, geometry: Geometry | None) -> Cut | None:
    if geometry is None or not wrong.any():
        return None
    found = np.unique(geometry.indices(wrong.shape[:3])[wrong.any(axis=3)])
    blocks = {part.block for index in found for part in geometry.parts[index]}
    tiles = tuple(tile_at(int(index), geometry.grid) for index in found)
    return Cut(tiles, len(geometry.parts), tuple(sorted(blocks)))


def _worst(a: F32, b: F32, wrong: Bools, cut: list[Geometry | None]) -> Iterator[Apart]:
    """The rows that differ most, the element of each that does; one that is finite in one output only before others."""
    with np.errstate(invalid="ignore"):
        off: npt.NDArray[np.float64] = np.abs(a.astype(np.float64) - b)
    off = np.where(wrong, np.where(np.isfinite(off), off, np.inf), -1.0)
    by_row = off.max(axis=3)
    number = min(WORST, int(wrong.any(axis=3).sum()))
    for index in np.argsort(-by_row, axis=None, kind="stable")[:number]:
        sequence, query, head = (int(i) for i in np.unravel_index(int(index), by_row.shape))
        row = sequence, query, head
        at = Coordinate(*row, int(off[row].argmax()))
        sides = [_side(dst, at, geometry) for dst, geometry in zip((a, b), cut, strict=True)]
        yield Apart(at, *sides)


def _side(dst: F32, at: Coordinate, geometry: Geometry | None) -> Side:
    row = at.sequence, at.query, at.head
    value = float(dst[(*row, at.d)])
    if geometry is None:
        return Side(value, None, ())
    tile = geometry.tile_of(*row)
    return Side(value, tile, tuple(part.block for part in geometry.parts_of(tile)))
