"""K and V generated row by row on access, with the same values as from `make_inputs`."""

import threading
from collections.abc import Callable

import numpy as np

from fattn_probe.base.arrays import F32, Floats, Numbers
from fattn_probe.cases.op.encoding import decode, encode, rounded
from fattn_probe.cases.op.ggml_types import row_size
from fattn_probe.cases.op.tensors import element_offset
from fattn_probe.cases.scenario.cases import Case
from fattn_probe.cases.scenario.draw import RUNS, SEVERAL_RUNS, STREAMS, Logits, Window, draw, stream

AT_ONCE = 2**16  # numbers generated at a time, so that they stay in the cache


class GeneratedRows:
    """The rows of K or V that the op sees, float (rows, head size) by [sequence, head, slice], rounded to their type.

    Uniform, constant and extreme data can start at any row. Data with normal numbers, which need a varying number of
    draws, are generated one head at a time, in order; the last `keep` heads stay in memory, and for an earlier head the
    stream restarts. Threads may share an object.
    """

    def __init__(self, case: Case, name: str, keep: int = 2) -> None:
        view = case.op.tensors[name]
        hs, rows, heads, sequences = view.ne
        self.shape = (sequences, heads, rows, hs)
        first = element_offset(view) - element_offset(case.op.tensors[view.root])
        self._columns = slice(first, first + hs)
        self._heads = heads
        data, _ = case.recipe.data_of(view.root)
        self._make = _anywhere(case, view.root) if data.kind in RUNS else _InOrder(case, view.root, keep).rows

    def __getitem__(self, at: tuple[int, int, slice]) -> Floats:
        sequence, head, rows = at
        return self._make(sequence * self._heads + head, rows)[:, self._columns]


Make = Callable[[int, slice], Floats]


def _anywhere(case: Case, name: str) -> Make:
    """Generate rows, starting anywhere, of a distribution that uses a fixed number of random numbers per element."""
    view = case.op.tensors[name]
    hs, n, *_ = view.ne
    data, seed = case.recipe.data_of(name)
    logits = Logits(case.op.params.scale, case.op.sizes.hsk)

    def make(place: int, rows: slice) -> F32:
        first = place * RUNS[data.kind]
        numbers = Window(seed, STREAMS[name], run=first, length=n * hs, first=rows.start * hs)
        shape = (rows.stop - rows.start, hs)
        return rounded(draw(data, name, shape, numbers, logits), view.type)  # type: ignore[arg-type] # no normal numbers

    return make


class _InOrder:
    """The heads of a tensor, generated one after the other; the last few stay in memory.

    They are stored in their type, except f16, which is stored as rounded float32: five times as fast as NumPy's f16.
    """

    def __init__(self, case: Case, name: str, keep: int) -> None:
        self._case, self._name, self._keep = case, name, keep
        self._view = case.op.tensors[name]
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._rng = stream(self._case.recipe.data_of(self._name)[1], STREAMS[self._name])
        self._next, self._made = 0, dict[int, Numbers]()

    def rows(self, place: int, rows: slice) -> Floats:
        """Rows of a head; `place` is its number, counted over all sequences."""
        view, made = self._view, self._made.get(place)
        if made is None:
            made = self._wait_for(place)
        if made.dtype == np.float32:
            return made[rows]
        packed = made[row_size(view.type, rows.start * view.ne[0]) : row_size(view.type, rows.stop * view.ne[0])]
        return decode(packed, view.type).reshape(-1, view.ne[0])

    def _wait_for(self, place: int) -> Numbers:
        with self._lock:
            if place not in self._made and place < self._next:
                self._begin()
            while place not in self._made:
                hs, n, *_ = self._view.ne
                data, _ = self._case.recipe.data_of(self._name)
                step, type_ = n if data.kind in SEVERAL_RUNS else max(1, AT_ONCE // hs), self._view.type
                made: Numbers = (
                    np.empty((n, hs), np.float32) if type_ == "f16" else np.empty(row_size(type_, n * hs), np.uint8)
                )
                logits = Logits(self._case.op.params.scale, hs)
                for first in range(0, n, step):
                    shape = (min(step, n - first), hs)
                    values = draw(data, self._name, shape, self._rng, logits)
                    if type_ == "f16":
                        made[first : first + step] = rounded(values, type_)
                    else:
                        piece = encode(values, type_)
                        made[row_size(type_, first * hs) :][: piece.size] = piece
                self._made[self._next] = made
                self._next += 1
                self._made.pop(self._next - 1 - self._keep, None)
            return self._made[place]
