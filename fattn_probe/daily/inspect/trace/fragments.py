"""The registers of a warp, step by step, as arrays and in a file; and the layout of its fragments.

A layout maps (lane, register) to (column, KV row) or (column, d). Sources: PTX ISA, "Matrix Fragments for mma.m16n8k16"
and "for mma.m8n8k4", and AMD's matrix instruction calculator, as arranged in ggml_cuda_mma::tile. A column is one query
of one head: column jc = j*ncols2 + c of a block's tile is its query j and head c."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F64, Indices
from fattn_probe.base.files import writing
from fattn_probe.daily.inspect.procedures.warp import ACCUMULATED, LOGITS, RESCALED, SOFTMAX, SUNK
from fattn_probe.llama.launch.tiles import TILE, TileWork

LANES = 32

Place = Callable[[Indices, Indices], tuple[Indices, Indices]]

LAYOUTS: Mapping[tuple[int, int, str], Place] = {
    (8, 8, "half2"): lambda lane, at: (lane // 4, at * 4 + lane % 4),
    (16, 4, "half2"): lambda lane, at: (at * 8 + lane // 4, lane % 4),
    (16, 8, "half2"): lambda lane, at: (at % 2 * 8 + lane // 4, at // 2 * 4 + lane % 4),
    (32, 4, "half2"): lambda lane, at: (lane, at),
    (16, 8, "float"): lambda lane, at: (at // 2 * 8 + lane // 4, lane % 4 * 2 + at % 2),
    (16, 16, "float"): lambda lane, at: (at // 2 % 2 * 8 + lane // 4, at // 4 * 8 + lane % 4 * 2 + at % 2),
    (32, 8, "float"): lambda lane, at: ((at & 2) + (lane & ~2), (lane & 2) + (at & 5)),
}
"""(i, j) of element `at` of a lane, for a tile<I, J, T>; in half2 tiles, j counts pairs. Only Volta has I = 32."""

AMD_ROWS: Mapping[str, Callable[[Indices, Indices, int], Indices]] = {
    "mfma": lambda lane, at, ne: ne * (lane // 16) + at,
    "rdna3": lambda lane, at, ne: 2 * at + lane // 16,
    "rdna4": lambda lane, at, ne: ne * (lane // 16) + at,
}
"""For the sums of AMD's matrix instructions: j of a lane's element `at` (of `ne`); i is the lane modulo 16."""
SCRAMBLED = "rdna4 scrambled"
"""A layout with a tile's even d in the first half of a lane's registers, and the odd d in the second half."""


@dataclass(frozen=True)
class Fragment:
    """A tile<I, J, T> spread over the registers of a warp."""

    I: int  # noqa: E741 - as upstream has it
    J: int
    T: str
    lanes: int = LANES
    layout: str = ""
    """The layout on an AMD GPU: mfma, rdna3, rdna4; empty for NVIDIA."""

    @property
    def ne(self) -> int:
        """The number of registers per lane."""
        return self.I * self.J // self.lanes

    @property
    def known(self) -> bool:
        """Whether the layout is known."""
        return self.I == 16 if self.layout else (self.I, self.J, self.T) in LAYOUTS

    def place(self) -> tuple[Indices, Indices]:
        """The indices i and j, each as an array [lane][register]."""
        lane, register = np.meshgrid(np.arange(self.lanes), np.arange(self.ne), indexing="ij")
        if not self.layout:
            return LAYOUTS[self.I, self.J, self.T](lane, register)
        return lane % 16, AMD_ROWS[self.layout.split()[0]](lane, register, self.ne)

    def halves(self) -> tuple[Indices, Indices]:
        """The indices i and j of every value, each [lane][number]; a half2 register holds two values, x and y."""
        i, j = self.place()
        if self.T != "half2":
            return i, j
        i, j = (np.repeat(part, 2, axis=1) for part in (i, j))
        half = np.arange(i.shape[1]) % 2
        if self.layout == SCRAMBLED:
            at = np.arange(i.shape[1]) // 2
            lane = np.arange(self.lanes)[:, None]
            return i, 2 * (lane // 16 * self.ne + at % (self.ne // 2) * 2 + half) + at // (self.ne // 2)
        return i, 2 * j + half


@dataclass(frozen=True)
class Places:
    """The position of each value of a variable, [lane][number]: the block's column, and the KV row or d.

    KV rows are counted from the first row of the step. A half2 register holds two values, x and y.
    """

    column: Indices
    along: Indices


@dataclass(frozen=True)
class WarpFragments:
    """The layout of one warp's part of KQ and VKQ.

    With np > 1, several warps share the columns, and divide the KV rows of a step among themselves.
    """

    KQ: Fragment
    VKQ: Fragment
    ncols1: int
    ncols2: int
    nwarps: int
    warp: int

    @classmethod
    def of(cls, document: Mapping[str, Any], warp: int) -> "WarpFragments":
        """The layout, from the document of `read_trace`."""
        template = document["template"]
        KQ, VKQ = (Fragment(**document[name]) for name in ("KQ", "VKQ"))
        return cls(KQ, VKQ, template["ncols1"], template["ncols2"], template["nwarps"], warp)

    @property
    def upright(self) -> bool:
        """Whether KQ's rows are KV rows (8 columns per warp); otherwise they are columns (16 per warp, 32 on Volta)."""
        return (self.KQ.I, self.KQ.J) == (16, 8)

    @property
    def cols_per_warp(self) -> int:
        """The number of columns that a warp works on."""
        return self.KQ.J if self.upright else self.KQ.I

    @property
    def np(self) -> int:
        """The number of warps that share a column."""
        return max(1, self.nwarps * self.cols_per_warp // (self.ncols1 * self.ncols2))

    @property
    def first_column(self) -> int:
        """The warp's first column in the block's tile."""
        return self.warp // self.np * self.cols_per_warp

    @property
    def kv_per_tile(self) -> int:
        """The number of KV rows in a KQ fragment."""
        return self.KQ.I if self.upright else self.KQ.J

    @property
    def d_per_tile(self) -> int:
        """The number of rows of V's transpose in a VKQ fragment."""
        if self.upright:
            return self.VKQ.I
        return self.VKQ.J * (2 if self.VKQ.T == "half2" else 1)

    def nbatch_fa(self, numbers: int) -> int:
        """The number of KV rows in a step, from the number of KQ values per lane."""
        return numbers // self.KQ.ne * self.np * self.kv_per_tile

    def KQ_places(self, numbers: int) -> Places:
        """The positions of KQ_C's values, given how many a lane has."""
        i, j = self.KQ.place()
        rows, columns = (i, j) if self.upright else (j, i)
        tiles = np.arange(numbers // self.KQ.ne)
        start = (tiles * self.np + self.warp % self.np) * self.kv_per_tile
        return Places(self.first_column + _repeat(columns, 0 * start), _repeat(rows, start))

    def VKQ_places(self, numbers: int) -> Places:
        """The positions of VKQ_C's values along d, given how many a lane has."""
        i, j = self.VKQ.halves()
        d, columns = (i, j) if self.upright else (j, i)
        start = np.arange(numbers // i.shape[1]) * self.d_per_tile
        return Places(self.first_column + _repeat(columns, 0 * start), _repeat(d, start))

    def places(self, variable: str, numbers: int) -> Places:
        """The positions of a variable's values; `along` is -1 for values that have neither a KV row nor a d."""
        if variable == "KQ_C":
            return self.KQ_places(numbers)
        if variable == "VKQ_C":
            return self.VKQ_places(numbers)
        columns = self.state_columns()
        return Places(columns, np.full_like(columns, -1))

    def state_columns(self) -> Indices:
        """The column of each of a lane's KQ_max and KQ_rowsum, [lane][index]: AMD has one per lane, NVIDIA two."""
        i, j = self.KQ.place()
        columns = j[:, :2] if self.upright else i[:, [0]] if self.KQ.layout else i[:, [0, 2]]
        return self.first_column + columns


def _repeat(place: Indices, start: Indices) -> Indices:
    """The positions of consecutive fragments, [lane][number]."""
    return (start[None, :, None] + place[:, None, :]).reshape(len(place), -1)


Registers = Mapping[str, F64]


@dataclass(frozen=True)
class Step:
    """The registers of a warp in one step, each variable as [lane][number].

    Keys at the start of the step: `before.` KQ_C (before the mask), KQ_max, KQ_rowsum, VKQ_C. After the softmax:
    `softmax.` KQ_C (P), KQ_max, KQ_rowsum, KQ_max_scale, and `rescaled.` VKQ_C. At its end: `after.` KQ_max, KQ_rowsum,
    VKQ_C. After a tile's last step, `sunk.` has these three, summed over lanes, with the sinks added. A variable that
    was not read in every lane is missing. `indices` are the KV rows that a sparse kernel gathers.
    """

    tile: int
    kb0: int
    registers: Mapping[str, F64]
    indices: npt.NDArray[np.intp] | None = None

    def __getitem__(self, name: str) -> F64:
        """Registers by name: `before.KQ_max`."""
        return self.registers[name]


def steps_of(document: Mapping[str, Any]) -> list[Step]:
    """The complete steps of a `read_trace` document, in order; a step whose end was not read is left out."""
    found: defaultdict[tuple[int, int | None, str], dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for reading in document["readings"]:
        found[reading["tile"], reading["kb0"], reading["anchor"]][reading["lane"]] = reading["values"]
    VKQ = Fragment(**document["VKQ"])
    places = {key: _numbers(lanes, VKQ) for key, lanes in found.items()}
    steps = sorted({(tile, kb0) for tile, kb0, anchor in found if anchor == SOFTMAX and kb0 is not None})
    read = [_step(places, tile, kb0) for tile, kb0 in steps]
    return [step for step in read if step.registers.keys() >= {"before.KQ_C", "before.VKQ_C"}]


def _step(places: Mapping[tuple[int, int | None, str], Registers], tile: int, kb0: int) -> Step:
    none: Registers = {}
    before = places.get((tile, kb0, LOGITS), none)
    last = (tile, kb0 + 1, LOGITS) not in places
    phases = {
        "before": before,
        "softmax": places.get((tile, kb0, SOFTMAX), none),
        "rescaled": places.get((tile, kb0, RESCALED), none),
        "after": places.get((tile, kb0 + 1, LOGITS), places.get((tile, None, ACCUMULATED), none)),
        "sunk": places.get((tile, None, SUNK), none) if last else none,
    }
    registers = {f"{phase}.{name}": values for phase, found in phases.items() for name, values in found.items()}
    indices = before["indices"][0].astype(np.intp) if "indices" in before else None
    return Step(tile, kb0, registers, indices)


def _numbers(lanes: Mapping[int, Mapping[str, Sequence[float]]], VKQ: Fragment) -> Registers:
    """Variables that have the same number of values in all lanes, as [lane][number]; half2 bits become values."""
    if len(lanes) != VKQ.lanes:
        return {}
    names = set.intersection(*(set(values) for values in lanes.values()))
    arrays = {name: [lanes[lane][name] for lane in range(VKQ.lanes)] for name in names}
    even = {name: rows for name, rows in arrays.items() if len({len(row) for row in rows}) == 1}
    return {name: numbers_of(name, rows, VKQ) for name, rows in even.items()}


def numbers_of(variable: str, values: Sequence[Any], VKQ: Fragment) -> F64:
    """Convert a variable's readings to numbers; the readings of VKQ_C are bits of halves if its fragments are half2."""
    half = variable == "VKQ_C" and VKQ.T == "half2"
    bits = np.array(values, np.uint16).view(np.float16) if half else values
    return np.asarray(bits, np.float64)


Array = npt.NDArray[Any]
HALVES = "VKQ_C"  # the only registers that may be f16


def block_arrays(
    documents: Mapping[int, Mapping[str, Any]], tiles: Sequence[TileWork], about: Mapping[str, Any]
) -> dict[str, Array]:
    """The arrays of docs/guide/trace.md by key, from the `read_trace` document of each warp in a block.

    A register that was not read in a step is NaN.
    """
    read = {warp: {(step.tile, step.kb0): step for step in steps_of(document)} for warp, document in documents.items()}
    keys = sorted({key for steps in read.values() for key in steps})
    places = {"tile": [tile for tile, _ in keys], "kb0": [kb0 for _, kb0 in keys]}
    places |= {name: [getattr(tiles[tile], name) for tile, _ in keys] for name in TILE}
    arrays: dict[str, Array] = {name: np.array(values, np.int32) for name, values in places.items()}
    arrays["warp"] = np.array(sorted(documents), np.int32)
    arrays["about"] = np.array(json.dumps(about))
    table = [[read[warp].get(key) for warp in sorted(documents)] for key in keys]
    # The KV rows of each step, [step][row], for a kernel that gathers them.
    gathered = [next((step.indices for step in line if step and step.indices is not None), None) for line in table]
    if gathered and all(rows is not None for rows in gathered):
        arrays["indices"] = np.array(gathered, np.int64)
    half = all(document["VKQ"]["T"] == "half2" for document in documents.values())
    return arrays | _register_arrays(table, half=half) | _layout(documents, table)


def _register_arrays(table: Sequence[Sequence[Step | None]], *, half: bool) -> dict[str, Array]:
    """Registers, [step][warp][lane][register], by phase and variable."""
    steps = [step for line in table for step in line if step is not None]
    shapes = {name: values.shape for step in steps for name, values in step.registers.items() if "indices" not in name}
    arrays = {
        name: np.full(
            (len(table), len(table[0]), *shape), np.nan, np.float16 if half and HALVES in name else np.float32
        )
        for name, shape in shapes.items()
    }
    for at, line in enumerate(table):
        for warp, step in enumerate(line):
            for name in shapes.keys() & (step.registers.keys() if step else ()):
                assert step is not None
                arrays[name][at, warp] = step[name]
    return arrays


def _layout(documents: Mapping[int, Mapping[str, Any]], table: Sequence[Sequence[Step | None]]) -> dict[str, Array]:
    """Each register's column in the block's tile, and its KV row in the step or its d, [warp][lane][register]."""
    step = next((step for line in table for step in line if step is not None), None)
    if step is None:
        return {}
    fragments = [WarpFragments.of(documents[warp], warp) for warp in sorted(documents)]
    KQ = [one.KQ_places(step["before.KQ_C"].shape[1]) for one in fragments]
    VKQ = [one.VKQ_places(step["before.VKQ_C"].shape[1]) for one in fragments]
    found = {
        "KQ_C.column": [place.column for place in KQ],
        "KQ_C.kv_row": [place.along for place in KQ],
        "VKQ_C.column": [place.column for place in VKQ],
        "VKQ_C.d": [place.along for place in VKQ],
        "KQ_max.column": [one.state_columns() for one in fragments],
    }
    return {name: np.array(values, np.int32) for name, values in found.items()}


def write_arrays(arrays: Mapping[str, Any], path: Path) -> None:
    """Write a `.npz` file; raises MachineError if that fails."""
    with writing(path), path.open("wb") as file:
        np.savez_compressed(file, **arrays)
