"""The inputs of cases: all bytes of a root, or rows of K and V generated on access, with the same values.

If a change alters the bytes, increase `cases.INPUTS_VERSION`.
"""

import threading
from collections.abc import Callable

import numpy as np

from fattn_probe.base.arrays import F32, Bytes, Floats, Numbers
from fattn_probe.cases.op import Root
from fattn_probe.cases.op.case_file import read_case, whole
from fattn_probe.cases.op.op import block_size, element_offset, row_size
from fattn_probe.cases.op.values import decode, encode, nan_block, rounded, strided
from fattn_probe.cases.scenario.cases import Case, Recording
from fattn_probe.cases.scenario.draw import (
    RUNS,
    SEVERAL_RUNS,
    STREAMS,
    UNUSED,
    Window,
    blocks,
    draw,
    queries_read,
    some_rows,
    stream,
)
from fattn_probe.cases.scenario.layout import View


def make_inputs(case: Case) -> dict[str, Bytes]:
    """The bytes (1-D uint8) of every root; they depend only on the case.

    The op's values depend on shapes, data and seed, not on the layout: a moved tensor keeps its values.
    """
    if isinstance(case.source, Recording):
        return dict(read_case(case.source.path).inputs)
    return {name: root_bytes(case, name) for name in case.op.roots}


def root_bytes(case: Case, name: str) -> Bytes:
    """The bytes of one root."""
    if isinstance(case.source, Recording):
        return read_case(case.source.path).inputs[name]
    root = case.op.roots[name]
    memory = np.zeros(root.stored.nbytes, np.uint8)
    fill_root(case, name, memory)
    return whole(root, memory)


def fill_root(case: Case, name: str, memory: Bytes) -> None:
    """Generate the stored bytes of a root in zero-filled `memory`, one head at a time if possible.

    Recorded cases are not allowed.
    """
    root, n_kv = case.op.roots[name], case.op.sizes.n_kv
    if name == "mask" and root.period is not None:
        rows, queries = memory.view(np.float16).reshape(-1, root.ne[0]), queries_read(case)
        rows[:, :n_kv], rows[:, n_kv:] = some_rows(case.recipe.mask, case.mask_shape, 0, queries), 0
    elif name == "mask":
        halves = memory.view(np.float16)
        halves[:] = -np.inf
        values = strided(halves, case.op.tensors["mask"])
        for sequence, first, rows in blocks(case.recipe.mask, case.mask_shape):
            own = values[sequence, 0, first : first + len(rows)]
            own[:, :n_kv], own[:, n_kv:] = rows, 0
    elif root.period is None:
        _fill_tensor(case, name, root, memory)
    else:
        # Rows in memory order, for any layout.
        values = _drawn(case, name, (root.stored.ne[1], root.stored.ne[0]), _stream(case, name))
        memory[:] = encode(values, root.stored.type)


def _stream(case: Case, name: str, *, beside: int = 0) -> np.random.Generator:
    """The random stream of a tensor, or one `beside` it."""
    return stream(case.recipe.data_of(name)[1], STREAMS[name] + beside)


def _drawn(case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> F32:
    data, _ = case.recipe.data_of(name)
    return draw(data, name, shape, rng, scale=case.op.params.scale, hsk=case.op.sizes.hsk)


def _fill_tensor(case: Case, name: str, root: Root, memory: Bytes) -> None:
    view, layout = case.op.tensors[name], getattr(case.recipe.layout, name, None)
    outside = layout.outside if isinstance(layout, View) else "zero"
    if outside != "zero" or (block_size(root.type) > 1 and view.ne != root.ne):
        memory[:] = _whole_tensor(case, name, root, outside)
        return
    packed = np.lib.stride_tricks.as_strided(
        memory[view.offset :], (*view.ne[:0:-1], row_size(view.type, view.ne[0])), (*view.nb[:0:-1], 1)
    )
    rng = _stream(case, name)
    for place_ in np.ndindex(packed.shape[:2]):
        values = _drawn(case, name, (view.ne[1], view.ne[0]), rng)
        packed[place_] = encode(values, view.type).reshape(packed.shape[2:])


def _whole_tensor(case: Case, name: str, root: Root, outside: str) -> Bytes:
    """The bytes of a root whose unused elements are not zero."""
    flat: F32 = np.zeros(root.ne[::-1], np.float32).reshape(-1)
    if outside == "random":
        flat = _drawn(case, name, flat.shape, _stream(case, name, beside=UNUSED))
    values, rng = strided(flat, case.op.tensors[name]), _stream(case, name)
    for place_ in np.ndindex(values.shape[:2]):
        values[place_] = _drawn(case, name, values.shape[2:], rng)
    packed = encode(flat.reshape(-1, root.ne[0]), root.type)
    if outside == "nan":  # fill every block outside the view
        touched = np.zeros(root.ne[::-1], bool).reshape(-1)
        strided(touched, case.op.tensors[name])[...] = True
        unused = ~touched.reshape(-1, block_size(root.type)).any(axis=1)
        packed.reshape(unused.size, -1)[unused] = nan_block(root.type)
    return packed


AT_ONCE = 2**16  # numbers generated at a time; few enough to stay in the CPU's cache


class GeneratedRows:
    """The rows of K or V that the op reads, rounded to their type: [sequence, head, slice] gives (rows, head size).

    Uniform, constant and extreme data can start at any row. Normally distributed numbers, which take a varying number
    of draws, are generated one head at a time, in order. The last `keep` heads stay in memory;
    reading an earlier one restarts the stream. Threads may share an object.
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
    """A function that generates any rows, for a distribution that needs a fixed count of random numbers per element."""
    view = case.op.tensors[name]
    hs, n, *_ = view.ne
    data, seed = case.recipe.data_of(name)

    def make(place: int, rows: slice) -> F32:
        first = place * RUNS[data.kind]
        numbers = Window(seed, STREAMS[name], run=first, length=n * hs, first=rows.start * hs)
        shape = (rows.stop - rows.start, hs)
        return rounded(_drawn(case, name, shape, numbers), view.type)  # type: ignore[arg-type] # no normal numbers

    return make


class _InOrder:
    """The heads of a tensor, generated in order; the last few stay in memory.

    They are stored in their type, except f16, which is stored as rounded float32: NumPy's f16 is five times as slow.
    """

    def __init__(self, case: Case, name: str, keep: int) -> None:
        self._case, self._name, self._keep = case, name, keep
        self._view = case.op.tensors[name]
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._rng = _stream(self._case, self._name)
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
                for first in range(0, n, step):
                    shape = (min(step, n - first), hs)
                    values = _drawn(self._case, self._name, shape, self._rng)
                    if type_ == "f16":
                        made[first : first + step] = rounded(values, type_)
                    else:
                        piece = encode(values, type_)
                        made[row_size(type_, first * hs) :][: piece.size] = piece
                self._made[self._next] = made
                self._next += 1
                self._made.pop(self._next - 1 - self._keep, None)
            return self._made[place]
