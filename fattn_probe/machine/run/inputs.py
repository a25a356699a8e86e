"""The input of a run: the bytes of a case, in memory or in a case file, and the part of an op that is to run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from gguf import GGUFValueType

from fattn_probe.base.arrays import I64, Bytes, Indices
from fattn_probe.base.files import scratch
from fattn_probe.cases.op import Sizes
from fattn_probe.cases.op.case_file import case_fields, read_case
from fattn_probe.cases.op.gguf_file import allocate_gguf, array, write_gguf, write_hollow
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.inputs import fill_root, make_inputs
from fattn_probe.llama.launch.selection import Selection

LARGE = 1 << 30
"""Inputs of at least this many bytes are stored in a file."""


class FiledInputs(dict[str, Bytes]):
    """The bytes of a case's roots, mapped from its case file."""

    def __init__(self, file: Path, roots: Mapping[str, Bytes]) -> None:
        super().__init__(roots)
        self.file = file


def make_case_file(case: Case, path: Path) -> FiledInputs:
    """Write a case's inputs to a case file: generated one head at a time, or copied from the recorded case."""
    roots = {name: (root.type, root.stored.ne) for name, root in case.op.roots.items()}
    mapped = allocate_gguf(path, case_fields(case.name, case.digest, case.op), roots)
    recorded = make_inputs(case) if case.recorded else {}
    for name, memory in mapped.items():
        if case.recorded:
            memory[:] = recorded[name][: memory.size]
        else:
            fill_root(case, name, memory)
    return FiledInputs(path, read_case(path).inputs)


def make_dry_file(case: Case, path: Path) -> FiledInputs:
    """Write a case file without the bytes of its roots, for a dry run."""
    roots = {name: (root.type, root.stored.ne) for name, root in case.op.roots.items()}
    write_hollow(path, case_fields(case.name, case.digest, case.op), roots)
    return FiledInputs(path, {})


@contextmanager
def inputs_of(case: Case) -> Iterator[Mapping[str, Bytes]]:
    """The bytes of a case's roots; those of a large case are in a temporary case file."""
    if sum(root.stored.nbytes for root in case.op.roots.values()) < LARGE:
        yield make_inputs(case)
        return
    with scratch() as folder:
        yield make_case_file(case, folder / "case.gguf")


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
