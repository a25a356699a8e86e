"""Find the first NaN or infinity in an op: in an input, in a register of the kernel, or in the final division."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.cases.op.values import view_values
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.anchors import COMMON, MMA, matching, overlay_lines
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.procedures.warp import ANCHORS, LOGITS, SOFTMAX
from fattn_probe.daily.inspect.trace.checks import F16_MAX, TracedOperands, warp_inputs
from fattn_probe.daily.inspect.trace.fragments import Fragment, WarpFragments, numbers_of
from fattn_probe.daily.inspect.trace.stages import Row, Stage
from fattn_probe.llama.launch.tiles import BlockWork
from fattn_probe.verdict.truth.reference.adapter import Inputs

Document = Mapping[str, Any]
Reader = Callable[[BlockWork, int, int], Document]
"""A function that runs `trace_op` on (block, warp, number of tiles) up to the first NaN or infinity."""

LEFT = ("KQ_max", "KQ_rowsum", "VKQ_C", "KQ_C")
"""Variables in the order of computation: those from the previous step, then (MADE) those that this step computes."""
MADE = {SOFTMAX: ("KQ_max", "KQ_C", "KQ_max_scale", "KQ_rowsum")}
# The simulator's build rewrites divisions, but keeps them on the same line
DIVISIONS = ((MMA, r"^\s*dstk_val\.x .*\bKQ_rowsum_j;"), (COMMON, r"^\s*\*dst = dst_val\b.*\browsum;"))


@dataclass(frozen=True)
class FirstNotFinite:
    """The first NaN or infinity that was found.

    `at` contains coordinates by name; `thread` is (threadIdx.x, threadIdx.y), which is lane and warp; `kb0` is the step
    that computed it; `place` is the file:line where the program had stopped when the value was read.
    """

    tensor: str
    value: float
    at: Mapping[str, int]
    words: str
    block: int | None = None
    thread: tuple[int, int] | None = None
    kb0: int | None = None
    place: str = ""


def in_inputs(case: Case, inputs: Inputs) -> FirstNotFinite | None:
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
            words = f"{name}[{where}] of the inputs is {values[index]} (ggml's order), one of {bad.sum()} such values"
            return FirstNotFinite(name, float(values[index]), at, words)
    return None


def in_dst(dst: npt.NDArray[np.floating[Any]]) -> FirstNotFinite | None:
    """The first NaN or infinity in `dst`, whose shape is ggml's `ne` reversed; its origin is not yet known."""
    bad = np.argwhere(~np.isfinite(dst))
    if not len(bad):
        return None
    at = dict(zip(("sequence", "query", "head", "d"), map(int, bad[0]), strict=True))
    value = float(dst[tuple(bad[0])])
    return FirstNotFinite("dst", value, at, f"dst at {', '.join(f'{name} {i}' for name, i in at.items())} is {value}")


def in_stages(stages: Iterable[Stage], row: Row, block: int, warp: int) -> FirstNotFinite | None:
    """The first NaN or infinity of a row in a warp's stages, except for the -inf of masked logits.

    A warp works on several columns: the labels of a stage give the query and head of each value.
    """
    for stage in stages:
        bad = ~np.isfinite(stage.found) & ~((stage.quantity == "KQ") & np.isneginf(stage.found))
        for name, wanted in zip(("query", "head"), row[1:], strict=True):
            bad &= stage.labels[name] == wanted if name in stage.labels else True
        if bad.any():
            place = tuple(np.argwhere(bad)[0])
            labels = {name: int(np.broadcast_to(of, bad.shape)[place]) for name, of in stage.labels.items()}
            value, lane = float(stage.found[place]), labels.pop("lane", None)
            at = {"sequence": row[0], "query": row[1], "head": row[2]} | labels
            subject = ", ".join(f"{name} {index}" for name, index in at.items())
            thread = "" if lane is None else f", warp {warp}, lane {lane}"
            words = (
                f"{stage.quantity} of {subject} is {value}, {stage.where}: block {block}{thread}, seen at {stage.place}"
            )
            threads = None if lane is None else (lane, warp)
            return FirstNotFinite(stage.quantity, value, at, words, block, threads, stage.kb0, stage.place)
    return None


@dataclass(frozen=True)
class NaNSearch:
    """The search for the first NaN or infinity in an op; `facts` are the op's facts, including its blocks.

    `source` is ggml-cuda/ of the tree that was built. This class is for mma kernels, `in_stages` for other kernels.
    """

    operands: TracedOperands
    facts: Facts
    read: Reader
    source: Path

    def origin(self, last: FirstNotFinite) -> FirstNotFinite:
        """Find the origin of a NaN or infinity in dst."""
        sequence, query, head, _ = last.at.values()
        pieces, mask = self.pieces(sequence, query, head), self.operands.mask
        rows = None if mask is None else mask[sequence % mask.shape[0], head % mask.shape[1], query]
        masked = rows is not None and bool(np.isneginf(rows).all())
        for block, tile in pieces[-1:] if masked else pieces:
            found = self._in_block(query, head, block, tile)
            if found is not None:
                return found
        alone = len(pieces) == 1  # the accumulators are finite and dst is not, so the row's sum is 0
        file, pattern = DIVISIONS[0 if alone else 1]
        place = next((f"{file}:{line}" for line in matching(overlay_lines(self.source / file), pattern)), "")
        said = "its mask is -inf everywhere, " if masked else ""
        where = "at the end of the kernel" if alone else "in the fixup kernel"
        why = f"its accumulators are finite; {said}its KQ_rowsum is 0, and the row is divided by it {where}, {place}"
        return replace(last, words=f"{last.words}: {why}", block=pieces[-1][0].block if pieces else None, place=place)

    def pieces(self, sequence: int, query: int, head: int) -> list[tuple[BlockWork, int]]:
        """The blocks that work on a row's tile, and the tile's number in each, in the order of its KV steps."""
        ncols1, ncols2 = self._columns
        z_KV, in_group = divmod(head, self.operands.case.op.sizes.group)
        found = [
            (work.kb0_start, block.block, block, number)
            for block in self.facts.blocks
            for number, work in enumerate(block.tiles)
            if work.tile == (sequence, z_KV, in_group // ncols2, query // ncols1)
        ]
        return [(block, number) for _, _, block, number in sorted(found, key=lambda piece: piece[:2])]

    @property
    def _columns(self) -> tuple[int, int]:
        """The numbers of queries and heads in a tile."""
        assert self.facts.choice is not None
        return int(self.facts.choice.template["ncols1"]), int(self.facts.choice.template["ncols2"])

    def _in_block(self, query: int, head: int, block: BlockWork, tile: int) -> FirstNotFinite | None:
        """Trace the warps that compute the row's column; the first traced warp shows which warps these are."""

        def warps_of(fragments: WarpFragments) -> range:
            work, in_group = block.tiles[tile], head % self.operands.case.op.sizes.group
            ncols1, ncols2 = fragments.ncols1, fragments.ncols2
            column = (query - work.jt * ncols1) * ncols2 + in_group - work.zt_gqa * ncols2
            first = column // fragments.cols_per_warp * fragments.np
            return range(first, first + fragments.np)

        ncols1, ncols2 = self._columns
        guess = Fragment(16, 8 if ncols1 * ncols2 == 8 else 16, "float")  # a warp has 8 columns in a tile of 8, else 16
        nwarps = int(self.facts.launch["block_dim"][1])
        warps, seen = [warps_of(WarpFragments(guess, guess, ncols1, ncols2, nwarps, 0))[0]], set[int]()
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
            warps = [other for other in warps_of(fragments) if other not in seen]
        return None


@dataclass(frozen=True)
class InWarp:
    """The readings of one warp in one tile of its block."""

    document: Document
    fragments: WarpFragments
    operands: TracedOperands
    block: BlockWork
    tile: int

    def first(self) -> FirstNotFinite | None:
        """The first register with a NaN or infinity, ordered by step, anchor and lane."""
        inputs = warp_inputs(self.operands, self.block.tiles[self.tile], self.fragments)
        readings = [reading for reading in self.document["readings"] if reading["tile"] == self.tile]
        last = max((reading["kb0"] for reading in readings if reading["kb0"] is not None), default=0)

        def order(reading: Document) -> tuple[float, int, int]:
            kb0 = float("inf") if reading["kb0"] is None else reading["kb0"]
            return kb0, ANCHORS.index(reading["anchor"]), reading["lane"]

        for reading in sorted(readings, key=order):
            for name in MADE.get(reading["anchor"], LEFT):
                if name in reading["values"]:
                    values = numbers_of(name, reading["values"][name], self.fragments.VKQ)
                    places = self.fragments.places(name, len(values))
                    column = places.column[reading["lane"]] - self.fragments.first_column
                    bad = np.flatnonzero(~np.isfinite(values) & inputs.exists[column])
                    if len(bad):
                        number = int(bad[0])
                        at = {"query": int(inputs.query[column[number]]), "head": int(inputs.head[column[number]])}
                        at |= self._along(reading, name, int(places.along[reading["lane"], number]))
                        # a value found at the start of a step was computed in the previous step
                        kb0 = last if reading["kb0"] is None else int(reading["kb0"])
                        kb0 -= reading["anchor"] == LOGITS and name != "KQ_C"
                        return self._found(reading, (name, number, kb0), float(values[number]), at)
        return None

    def _along(self, reading: Document, name: str, along: int) -> dict[str, int]:
        if name == "VKQ_C":
            return {"d": along}
        if name != "KQ_C":
            return {}
        if "indices" in reading["values"]:
            return {"KV row": int(reading["values"]["indices"][along])}
        nbatch_fa = self.fragments.nbatch_fa(len(reading["values"]["KQ_C"]))
        return {"KV row": int(reading["kb0"]) * nbatch_fa + along}

    def _found(
        self, reading: Document, register: tuple[str, int, int], value: float, at: Mapping[str, int]
    ) -> FirstNotFinite:
        name, number, kb0 = register
        quantity = {"KQ_C": "KQ" if reading["anchor"] == LOGITS else "P", "VKQ_C": "VKQ"}.get(name, name)
        lane, warp, work = int(reading["lane"]), self.fragments.warp, self.block.tiles[self.tile]
        place = self.document["places"].get(reading["anchor"], "")
        z_KV = at["head"] // self.operands.case.op.sizes.group
        Q = np.abs(self.operands.Q[work.sequence, at["head"], at["query"]]).max()
        K, V = self.operands.K[work.sequence, z_KV], self.operands.V[work.sequence, z_KV]
        why = ""  # the kernel rounds Q to f16 and accumulates V in f16
        if quantity == "KQ" and F16_MAX < Q:
            why = f"; |Q| reaches {Q:.4g} in this row, more than f16 holds"
        elif quantity == "KQ" and not np.isfinite(K).all():
            why = "; K has values that f16 cannot hold"
        elif quantity == "VKQ" and "d" in at:
            why = f"; the accumulator is f16, up to {F16_MAX:g}, and |V| reaches {np.abs(V[:, at['d']]).max():.4g}"
        words = (
            f"{quantity} of {', '.join(f'{key} {index}' for key, index in at.items())} is {value} in step kb0 {kb0}:"
            f" block {self.block.block}, warp {warp}, lane {lane}, {name} number {number},"
            f" seen at {place}{why}"
        )
        at = {"sequence": work.sequence} | dict(at)
        return FirstNotFinite(quantity, value, at, words, self.block.block, (lane, warp), kb0, place)
