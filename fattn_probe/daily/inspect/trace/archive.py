"""The registers of all warps of a block as NumPy arrays, in a file that can be read without fattn-probe."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.files import writing
from fattn_probe.daily.inspect.trace.fragments import WarpFragments
from fattn_probe.daily.inspect.trace.steps import Step, steps_of
from fattn_probe.llama.launch.tiles import TileWork

Array = npt.NDArray[Any]
TILE = ("sequence", "z_KV", "zt_gqa", "jt")
HALVES = "VKQ_C"  # the only registers that may be f16


def block_arrays(
    documents: Mapping[int, Mapping[str, Any]], tiles: Sequence[TileWork], about: Mapping[str, Any]
) -> dict[str, Array]:
    """The arrays of docs/guide/trace.md by key, from the `read_trace` document of each warp of a block.

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
    return arrays | _registers(table, half=half) | _layout(documents, table)


def _registers(table: Sequence[Sequence[Step | None]], *, half: bool) -> dict[str, Array]:
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
    """Write a `.npz` file; MachineError if the disk refuses."""
    with writing(path), path.open("wb") as file:
        np.savez_compressed(file, **arrays)
