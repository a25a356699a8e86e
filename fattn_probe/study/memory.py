"""Slow memory (HBM) that counts: every element that is loaded from it or stored into it."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from fattn_probe.arrays import F64

Index = int | slice


class SlowMemory:
    """Named arrays, and how many elements of each were read and written.

    An algorithm takes in what it works on by `load` and leaves what it made by `store`, and uses nothing else; what it
    holds in between is on chip, and free. `reads` and `writes` are elements, not bytes, by name of the array.
    """

    def __init__(self, **arrays: F64) -> None:
        self._arrays: dict[str, F64] = arrays
        self._at: Mapping[str, tuple[Index, ...]] = {}
        self.reads: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def allocate(self, name: str, *shape: int) -> None:
        """A new array, NaN everywhere: nobody may read what nobody wrote."""
        self._arrays[name] = np.full(shape, np.nan)

    def at(self, **indices: tuple[Index, ...]) -> "SlowMemory":
        """The same memory, the same counts; the named arrays are indexed by this first: one head's K, say."""
        part = SlowMemory()
        part._arrays, part._at, part.reads, part.writes = self._arrays, indices, self.reads, self.writes
        return part

    def load(self, name: str, *index: Index) -> F64:
        """A copy of a part of an array, on chip."""
        found = self._arrays[name][(*self._at.get(name, ()), *index)]
        self.reads[name] += found.size
        return found.copy()

    def store(self, name: str, value: F64, *index: Index) -> None:
        """Overwrite a part of an array."""
        place = self._arrays[name][(*self._at.get(name, ()), *index)]
        place[...] = value
        self.writes[name] += place.size

    def array(self, name: str) -> F64:
        """The whole array, uncounted: for who called the algorithm."""
        return self._arrays[name]
