"""A part of an op: the blocks that a simulated GPU runs, and the rows of dst that are read; its file."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from gguf import GGUFValueType

from fattn_probe.base.arrays import I64, Indices
from fattn_probe.cases.op import Sizes
from fattn_probe.cases.op.gguf_file import array, write_gguf
from fattn_probe.llama.launch.selection import Selection


@dataclass(frozen=True, eq=False)
class Part:
    """The blocks of an op to run: `selection`, on a simulated GPU (a real GPU runs all); and the `rows` of dst to read.

    `rows` are (sequence, query, head).
    """

    selection: Selection
    rows: I64

    @property
    def share(self) -> float:
        """The share of the attention kernel's blocks that run."""
        attention = self.selection.launches[self.selection.attention]
        return attention.number / attention.of


def write_part(part: Part, sizes: Sizes, path: Path) -> None:
    """Write the file: for each launch its grid, the number of ranges, and the ranges; for dst (offset, bytes)."""
    blocks = list[int]()
    for launch in part.selection.launches:
        blocks += [*launch.grid, len(launch.ranges), *chain(*launch.ranges)]
    sequence, query, head = part.rows.T
    places: Indices = np.unique((sequence * sizes.n_q + query) * sizes.n_head + head)
    row, dst = 4 * sizes.hsv, list[int]()
    for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
        dst += [int(run[0]) * row, len(run) * row]
    fields = {"fattn.selection.blocks": blocks, "fattn.selection.dst": dst}
    write_gguf(path, {key: array(GGUFValueType.UINT64, values) for key, values in fields.items()}, {})
