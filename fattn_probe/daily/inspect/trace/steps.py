"""The readings of a trace as arrays, step by step."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F64
from fattn_probe.daily.inspect.procedures.warp import ACCUMULATED, LOGITS, RESCALED, SOFTMAX, SUNK
from fattn_probe.daily.inspect.trace.fragments import Fragment

Registers = Mapping[str, F64]


@dataclass(frozen=True)
class Step:
    """The registers of a warp in one step: variables as [lane][number].

    At the start of the step: `before.` KQ_C (before the mask), KQ_max, KQ_rowsum, VKQ_C. Then `softmax.` KQ_C (P),
    KQ_max, KQ_rowsum, KQ_max_scale, and `rescaled.` VKQ_C. At its end: `after.` KQ_max, KQ_rowsum, VKQ_C; after the
    last step, the sums over lanes and the sinks: the same under `sunk.`. A variable that could not be read in all lanes
    is missing. `indices` are the KV rows that a sparse kernel gathers.
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
    places = {key: _registers(lanes, VKQ) for key, lanes in found.items()}
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


def _registers(lanes: Mapping[int, Mapping[str, Sequence[float]]], VKQ: Fragment) -> Registers:
    """The variables that all lanes have, with equally many numbers, [lane][number]; half2 bits become numbers."""
    if len(lanes) != VKQ.lanes:
        return {}
    names = set.intersection(*(set(values) for values in lanes.values()))
    arrays = {name: [lanes[lane][name] for lane in range(VKQ.lanes)] for name in names}
    even = {name: rows for name, rows in arrays.items() if len({len(row) for row in rows}) == 1}
    return {name: numbers_of(name, rows, VKQ) for name, rows in even.items()}


def numbers_of(variable: str, values: Sequence[Any], VKQ: Fragment) -> F64:
    """A variable's numbers; those of VKQ_C are read as the bits of halves if its fragments have these."""
    half = variable == "VKQ_C" and VKQ.T == "half2"
    bits = np.array(values, np.uint16).view(np.float16) if half else values
    return np.asarray(bits, np.float64)
