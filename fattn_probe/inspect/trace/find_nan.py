"""Find the first NaN or infinity of an op: in an input, in a register of the kernel, or in the final division."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.arrays import Indices
from fattn_probe.inspect.anchors import COMMON, MMA, matching, overlay_lines
from fattn_probe.inspect.facts import Facts
from fattn_probe.inspect.procedures.warp import ACCUMULATED, ANCHORS, LOGITS, SOFTMAX
from fattn_probe.inspect.trace.fragments import Fragment, Places, WarpFragments
from fattn_probe.inspect.trace.inputs import TracedOperands, warp_inputs
from fattn_probe.launch.tiles import BlockWork, TileWork
from fattn_probe.op.values import view_values
from fattn_probe.scenario import Case
from fattn_probe.truth.reference.adapter import Inputs

Document = Mapping[str, Any]
Reader = Callable[[BlockWork, int, int], Document]
"""Runs `trace_op` on a warp of a block for a number of tiles, up to the first NaN or infinity."""

F16_MAX = 65504.0
LEFT = ("KQ_max", "KQ_rowsum", "VKQ_C", "KQ_C")
"""Variables in the order in which they are computed: those left by the previous step, then those of this step."""
MADE = {SOFTMAX: ("KQ_max", "KQ_C", "KQ_max_scale", "KQ_rowsum")}
# The simulator's build rewrites divisions, but keeps them on their line
DIVISIONS = ((MMA, r"^\s*dstk_val\.x .*\bKQ_rowsum_j;"), (COMMON, r"^\s*\*dst = dst_val\b.*\browsum;"))


@dataclass(frozen=True)
class NotFinite:
    """A NaN or infinity.

    `at` has coordinates by name; `thread` is (threadIdx.x, threadIdx.y), which is lane and warp; `kb0` is the step that
    computed it; `place` is the file:line where the program stood when it was read.
    """

    tensor: str
    value: float
    at: Mapping[str, int]
    words: str
    block: int | None = None
    thread: tuple[int, int] | None = None
    kb0: int | None = None
    place: str = ""


def in_inputs(case: Case, inputs: Inputs) -> NotFinite | None:
    """The first NaN or infinity in an input, in ggml's order of indices; -inf in the mask is allowed."""
    for name in ("Q", "K", "V", "sinks", "mask"):
        if name not in case.op.tensors:
            continue
        values = view_values(case.op.tensors[name], inputs)
        bad = ~np.isfinite(values)
        if name == "mask":
            bad &= ~np.isneginf(values)
        if bad.any():
            index = tuple(int(part) for part in np.argwhere(bad)[0])
            at = {f"i{axis}": part for axis, part in enumerate(reversed(index))}
            where = ", ".join(map(str, at.values()))
            words = f"{name}[{where}] of the inputs is {values[index]} (indices in ggml's order), one of {bad.sum()}"
            return NotFinite(name, float(values[index]), at, words)
    return None


@dataclass(frozen=True)
class OutputRow:
    """A row of dst."""

    sequence: int
    query: int
    head: int

    def __str__(self) -> str:
        return f"sequence {self.sequence}, query {self.query}, head {self.head}"


@dataclass(frozen=True)
class Hunt:
    """The search for the first NaN or infinity of an op; `facts` are the op's, with its blocks.

    `source` is ggml-cuda/ of the tree that was built. Only the mma kernel's registers are traced; for other kernels the
    search names the place in dst.
    """

    case: Case
    operands: TracedOperands
    facts: Facts
    read: Reader
    source: Path

    def first(self, dst: npt.NDArray[np.floating[Any]]) -> NotFinite | None:
        """The origin of the first NaN or infinity in `dst`, whose shape is ggml's `ne` reversed."""
        bad = np.argwhere(~np.isfinite(dst))
        if not len(bad):
            return None
        sequence, query, head, d = (int(index) for index in bad[0])
        row, value = OutputRow(sequence, query, head), float(dst[sequence, query, head, d])
        if self.facts.choice is None or self.facts.choice.family != "mma_f16":
            return _in_dst(row, d, value, "the registers of this kernel are not traced", None)
        pieces = self.pieces(row)
        for block, tile in pieces[-1:] if self._masked(row) else pieces:
            found = self._in_block(row, block, tile)
            if found is not None:
                return found
        return self._in_division(row, d, value, [block for block, _ in pieces])

    def pieces(self, row: OutputRow) -> list[tuple[BlockWork, int]]:
        """The blocks that work on a row's tile, and the tile's number in each, from the tile's beginning on."""
        assert self.facts.choice is not None
        ncols1, ncols2 = (int(self.facts.choice.template[name]) for name in ("ncols1", "ncols2"))
        z_KV, in_group = divmod(row.head, self.group)
        tile = (row.sequence, z_KV, in_group // ncols2, row.query // ncols1)
        found = [
            (work.kb0_start, block.block, block, number)
            for block in self.facts.blocks
            for number, work in enumerate(block.tiles)
            if work.tile == tile
        ]
        return [(block, number) for _, _, block, number in sorted(found, key=lambda piece: piece[:2])]

    @property
    def group(self) -> int:
        """Heads that share a K/V head."""
        return self.case.op.sizes.group

    def _in_block(self, row: OutputRow, block: BlockWork, tile: int) -> NotFinite | None:
        """Trace the warps that hold the row's column; the first warp read shows which these are."""
        warps, seen = [self._guess(row, block.tiles[tile])], set[int]()
        while warps:
            warp = warps.pop(0)
            seen.add(warp)
            document = self.read(block, warp, tile + 1)
            if not document["readings"]:
                return None
            fragments = WarpFragments.of(document, warp)
            found = InWarp(document, fragments, self.operands, block, tile).first()
            if found is not None:
                return found
            warps = [other for other in self._warps(row, block.tiles[tile], fragments) if other not in seen]
        return None

    def _guess(self, row: OutputRow, work: TileWork) -> int:
        """The first warp of the row's column, assuming 8 columns per warp in a tile of 8 columns, else 16."""
        assert self.facts.choice is not None
        ncols1, ncols2 = (int(self.facts.choice.template[name]) for name in ("ncols1", "ncols2"))
        KQ = Fragment(16, 8 if ncols1 * ncols2 == 8 else 16, "float")
        nwarps = int(self.facts.launch["block_dim"][1])
        return self._warps(row, work, WarpFragments(KQ, KQ, ncols1, ncols2, nwarps, 0))[0]

    def _warps(self, row: OutputRow, work: TileWork, fragments: WarpFragments) -> range:
        in_group = row.head % self.group
        column = (row.query - work.jt * fragments.ncols1) * fragments.ncols2 + in_group - work.zt_gqa * fragments.ncols2
        first = column // fragments.cols_per_warp * fragments.np
        return range(first, first + fragments.np)

    def _in_division(self, row: OutputRow, d: int, value: float, blocks: Sequence[BlockWork]) -> NotFinite:
        """The finding if all accumulators are finite but dst is not: the row's sum is 0."""
        alone = len(blocks) == 1
        place = next(_lines(self.source, *DIVISIONS[0 if alone else 1]), "")
        masked = "its mask is -inf everywhere, " if self._masked(row) else ""
        where = "at the end of the kernel" if alone else "in the fixup kernel"
        why = f"its accumulators are finite; {masked}its KQ_rowsum is 0, and it is divided by that {where}, {place}"
        return _in_dst(row, d, value, why, blocks[-1].block if blocks else None, place)

    def _masked(self, row: OutputRow) -> bool:
        mask = self.operands.mask
        if mask is None:
            return False
        return bool(np.isneginf(mask[row.sequence % mask.shape[0], row.head % mask.shape[1], row.query]).all())


def _in_dst(row: OutputRow, d: int, value: float, why: str, block: int | None, place: str = "") -> NotFinite:  # noqa: PLR0917
    at = {"sequence": row.sequence, "query": row.query, "head": row.head, "d": d}
    return NotFinite("dst", value, at, f"dst of {row}, d {d} is {value}: {why}", block, place=place)


def _lines(source: Path, file: str, pattern: str) -> Iterator[str]:
    return (f"{file}:{number}" for number in matching(overlay_lines(source / file), pattern))


@dataclass(frozen=True)
class InWarp:
    """The readings of one warp on one tile of its block."""

    document: Document
    fragments: WarpFragments
    operands: TracedOperands
    block: BlockWork
    tile: int

    def first(self) -> NotFinite | None:
        """The first register with a NaN or infinity, ordered by step, anchor and lane."""
        inputs = warp_inputs(self.operands, self.block.tiles[self.tile], self.fragments)
        for reading in sorted(self._readings(), key=_order):
            for name, values in _numbers(reading):
                places = _places(self.fragments, name, len(values))
                column = places.column[reading["lane"]] - self.fragments.first_column
                bad = np.flatnonzero(~np.isfinite(values) & inputs.exists[column])
                if len(bad):
                    number = int(bad[0])
                    at = {"query": int(inputs.query[column[number]]), "head": int(inputs.head[column[number]])}
                    at |= self._along(reading, name, int(places.along[reading["lane"], number]))
                    return self._found(reading, name, number, float(values[number]), at)
        return None

    def _readings(self) -> list[Document]:
        return [reading for reading in self.document["readings"] if reading["tile"] == self.tile]

    def _along(self, reading: Document, name: str, along: int) -> dict[str, int]:
        if name == "VKQ_C":
            return {"d": along}
        if name != "KQ_C":
            return {}
        if "indices" in reading["values"]:
            return {"KV row": int(reading["values"]["indices"][along])}
        nbatch_fa = self.fragments.nbatch_fa(len(reading["values"]["KQ_C"]))
        return {"KV row": int(reading["kb0"]) * nbatch_fa + along}

    def _found(self, reading: Document, name: str, number: int, value: float, at: Mapping[str, int]) -> NotFinite:
        quantity = {"KQ_C": "KQ" if reading["anchor"] == LOGITS else "P", "VKQ_C": "VKQ"}.get(name, name)
        kb0, lane, warp = self._kb0(reading, name), int(reading["lane"]), self.fragments.warp
        place = self.document["places"].get(reading["anchor"], "")
        words = (
            f"{quantity} of {', '.join(f'{key} {index}' for key, index in at.items())} is {value} in step kb0 {kb0}:"
            f" block {self.block.block}, warp {warp}, lane {lane}, {name} number {number},"
            f" seen at {place}{self._why(quantity, at)}"
        )
        sequence = {"sequence": self.block.tiles[self.tile].sequence}
        return NotFinite(quantity, value, sequence | dict(at), words, self.block.block, (lane, warp), kb0, place)

    def _kb0(self, reading: Document, name: str) -> int:
        """The step that computed a value; a value found at the start of a step comes from the step before."""
        if reading["anchor"] == ACCUMULATED:
            return max((other["kb0"] for other in self._readings() if other["kb0"] is not None), default=0)
        return int(reading["kb0"]) - (reading["anchor"] == LOGITS and name != "KQ_C")

    def _why(self, quantity: str, at: Mapping[str, int]) -> str:
        """The role of f16: the kernel rounds Q to f16 and accumulates V in f16."""
        case, work = self.operands.case, self.block.tiles[self.tile]
        Q = np.abs(self.operands.Q[work.sequence, at["head"], at["query"]]).max()
        if quantity == "KQ" and F16_MAX < Q:
            return f"; |Q| reaches {Q:.4g} in this row, more than f16 holds"
        z_KV = at["head"] // (case.op.sizes.group)
        K, V = self.operands.K[work.sequence, z_KV], self.operands.V[work.sequence, z_KV]
        if quantity == "KQ" and not np.isfinite(K).all():
            return "; K has values that are more than f16 holds"
        if quantity == "VKQ" and "d" in at:
            return f"; the accumulator is f16, up to {F16_MAX:g}, and |V| reaches {np.abs(V[:, at['d']]).max():.4g}"
        return ""


def _order(reading: Document) -> tuple[float, int, int]:
    kb0 = reading["kb0"]
    return (float("inf") if kb0 is None else kb0), ANCHORS.index(reading["anchor"]), reading["lane"]


def _numbers(reading: Document) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
    """A lane's variables in the order in which they are computed; half2 bits as numbers."""
    values: Mapping[str, Sequence[float]] = reading["values"]
    for name in MADE.get(reading["anchor"], LEFT):
        if name in values:
            numbers = np.array(values[name], np.uint16).view(np.float16) if name == "VKQ_C" else values[name]
            yield name, np.asarray(numbers, np.float64)


def _places(fragments: WarpFragments, name: str, numbers: int) -> Places:
    if name == "KQ_C":
        return fragments.KQ_places(numbers)
    if name == "VKQ_C":
        return fragments.VKQ_places(numbers)
    columns: Indices = fragments.state_columns()
    return Places(columns, np.full_like(columns, -1))
