"""The memory around a row's operands: what a kernel reads with a wrong offset or stride."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fattn_probe.arrays import F64, Bytes
from fattn_probe.op import TensorView
from fattn_probe.op.ggml_types import block_size, row_size, type_size
from fattn_probe.op.values import row_bytes
from fattn_probe.scenario import Case
from fattn_probe.truth.reference.adapter import stored_rows

MOST_MASK_ROWS, MOST_MASK_ENTRIES = 256, 1 << 20
"""Other rows of the mask that are tried, and their entries."""
MOST_SHIFTED = 1 << 19
"""Largest K/V head, in values, that is read at other columns."""


@dataclass(frozen=True, eq=False)
class Around:
    """The operands of the row (sequence, query, head) as they lie in memory."""

    case: Case
    inputs: Mapping[str, Bytes]
    sequence: int
    query: int
    head: int

    @property
    def kv_head(self) -> int:
        """The head of K and V."""
        return self.head // self.case.op.sizes.group

    @cached_property
    def q(self) -> F64:
        """The row of Q."""
        return self._q(self.sequence, self.query, self.head)

    def _q(self, sequence: int, query: int, head: int) -> F64:
        rows = np.asarray(stored_rows(self.case.op.tensors["Q"], self.inputs))
        return np.asarray(rows[sequence, head, query], np.float64)

    def view(self, name: str) -> TensorView:
        """An operand."""
        return self.case.op.tensors[name]

    def raw(self, K: F64) -> F64:
        """The logits of some rows of K, before softcap and mask."""
        return np.asarray(K @ self.q * self.case.op.params.stored.scale)

    def rows(self, view: TensorView, sequence: int | None = None, kv_head: int | None = None) -> F64 | None:
        """The rows that a view has for this row; None if it reaches outside its allocation, or repeats."""
        sequence = self.sequence if sequence is None else sequence
        kv_head = self.kv_head if kv_head is None else kv_head
        if self.case.op.roots[view.root].period is not None:
            return None
        one = replace(view, ne=(*view.ne[:2], 1, 1), offset=view.offset + sequence * view.nb[3] + kv_head * view.nb[2])
        if one.offset < 0 or one.end > self.inputs[view.root].size:
            return None
        with np.errstate(all="ignore"):
            return np.asarray(stored_rows(one, self.inputs)[0, 0, slice(0, view.ne[1])], np.float64)

    def scales(self, name: str) -> F64 | None:
        """The f16 scales that the blocks of a quantised tensor begin with, (rows, blocks)."""
        view = self.view(name)
        if self.case.op.roots[view.root].period is not None:
            return None
        packed = row_bytes(view, self.inputs)[self.sequence, self.kv_head]
        blocks = np.ascontiguousarray(packed).reshape(len(packed), -1, type_size(view.type))
        return np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[..., 0].astype(np.float64)

    def behind(self, name: str, count: int) -> F64 | None:
        """The rows of K or V in memory behind the last one."""
        view = self.view(name)
        later = replace(view, ne=(view.ne[0], count, *view.ne[2:]), offset=view.offset + view.ne[1] * view.nb[1])
        return self.rows(later)

    def shifted(self, name: str) -> Iterator[tuple[int, F64]]:
        """A tensor read at other columns: the number of columns, and the rows.

        Columns move by whole blocks of a quantised type, otherwise by 8. None for a very large head.
        """
        view = self.view(name)
        if view.ne[0] * view.ne[1] > MOST_SHIFTED:
            return
        columns = max(8, block_size(view.type))
        unit = row_size(view.type, columns)
        first = view.offset + self.sequence * view.nb[3] + self.kv_head * view.nb[2]
        last = first + (view.ne[1] - 1) * view.nb[1] + row_size(view.type, view.ne[0])
        most = 2 * view.ne[0] // columns
        before = min(most, first // unit)
        behind = min(most, (self.inputs[view.root].size - last) // unit)
        wide = view.ne[0] + (before + behind) * columns
        rows = self.rows(replace(view, ne=(wide, *view.ne[1:]), offset=view.offset - before * unit))
        for shift in range(-before, behind + 1):
            if shift and rows is not None:
                start = (before + shift) * columns
                yield shift * columns, rows[:, start : start + view.ne[0]]

    def strides(self, name: str) -> Iterator[tuple[str, TensorView]]:
        """A tensor with one of its strides replaced: by another of K's or V's, or by that of a contiguous tensor."""
        view, op = self.view(name), self.case.op
        row = row_size(view.type, view.ne[0])
        contiguous = (view.nb[0], row, row * view.ne[1], row * view.ne[1] * view.ne[2])
        known = {
            f"the stride nb[{axis}] of {other}": op.tensors[other].nb[axis] for other in "KV" for axis in (1, 2, 3)
        }
        known |= {"the stride of a contiguous tensor": 0}
        for axis, of, index in ((1, "rows", 1), (2, "heads", self.kv_head), (3, "sequences", self.sequence)):
            for words, stride in known.items():
                nb = [*view.nb]
                nb[axis] = stride or contiguous[axis]
                if index and nb[axis] != view.nb[axis]:
                    yield f"its {of} by {words}", replace(view, nb=(nb[0], nb[1], nb[2], nb[3]))
        yield "as if it were contiguous", replace(view, nb=contiguous)

    @property
    def _mask_row(self) -> int:
        """The first element of this row's mask, counted from the mask's own; head h reads plane h % ne[2]."""
        view = self.view("mask")
        planes = self.sequence % view.ne[3] * view.nb[3] + self.head % view.ne[2] * view.nb[2]
        return (planes + self.query * view.nb[1]) // 2

    def masks(self) -> Iterator[tuple[str, F64]]:
        """Other rows of the mask, also those that only pad it, nearest first; and this row moved by some columns."""
        view, n_kv = self.view("mask"), self.case.op.sizes.n_kv
        if self.case.op.roots[view.root].period is not None:
            return
        flat = self.inputs[view.root][view.offset :].view(np.float16)
        stride = view.nb[1] // 2
        here = self._mask_row
        most = min(MOST_MASK_ROWS, MOST_MASK_ENTRIES // n_kv)
        first = range(here % stride, len(flat) - n_kv + 1, stride)
        for start in sorted(first, key=lambda start: abs(start - here))[: most + 1]:
            if start != here:
                sequence, rest = divmod(start, view.nb[3] // 2)
                head, rest = divmod(rest, view.nb[2] // 2) if view.ne[2] > 1 else (0, rest)
                plane = f", head {head}" if view.ne[2] > 1 else ""
                yield f"sequence {sequence}{plane}, row {rest // stride}", flat[start : start + n_kv].astype(np.float64)
        for columns in (1, 2, 4, 8, 16, 32, 64, 128, 256, -1, -2, -4, -8, -16, -32, -64, -128, -256):
            start = here + columns
            if 0 <= start <= len(flat) - n_kv:
                yield (
                    f"{abs(columns)} columns {'later' if columns > 0 else 'earlier'}",
                    flat[start : start + n_kv].astype(np.float64),
                )

    def mask_behind(self, count: int) -> F64 | None:
        """What follows this row of the mask in memory."""
        if "mask" not in self.case.op.tensors:
            return None
        view = self.view("mask")
        if self.case.op.roots[view.root].period is not None:
            return None
        flat = self.inputs[view.root][view.offset :].view(np.float16)
        start = self._mask_row + self.case.op.sizes.n_kv
        found = flat[start : start + count].astype(np.float64)
        return found if len(found) == count else None
