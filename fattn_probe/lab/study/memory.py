"""Slow memory (HBM) that counts every element loaded or stored."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from fattn_probe.base.arrays import F64

Index = int | slice


class SlowMemory:
    """Named arrays, with counts of the elements read and written.

    An algorithm reads its inputs only by `load` and writes its results only by `store`; values in between are on chip
    and free. `reads` and `writes` count elements, not bytes, by name of the array.
    """

    def __init__(self, **arrays: F64) -> None:
        self._arrays: dict[str, F64] = arrays
        self._at: Mapping[str, tuple[Index, ...]] = {}
        self.reads: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def allocate(self, name: str, *shape: int) -> None:
        """A new array filled with NaN, so that a read before the first write shows."""
        self._arrays[name] = np.full(shape, np.nan)

    def at(self, **indices: tuple[Index, ...]) -> "SlowMemory":
        """A view that shares memory and counts, with a leading index for the named arrays: one head's K."""
        part = SlowMemory()
        part._arrays, part._at, part.reads, part.writes = self._arrays, indices, self.reads, self.writes
        return part

    def load(self, name: str, *index: Index) -> F64:
        """Load a part of an array: a copy on chip."""
        found = self._arrays[name][(*self._at.get(name, ()), *index)]
        self.reads[name] += found.size
        return found.copy()

    def store(self, name: str, value: F64, *index: Index) -> None:
        """Store a part of an array."""
        place = self._arrays[name][(*self._at.get(name, ()), *index)]
        place[...] = value
        self.writes[name] += place.size

    def array(self, name: str) -> F64:
        """The whole array, not counted: for the caller of the algorithm."""
        return self._arrays[name]
