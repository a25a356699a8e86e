"""A warp of the tile or vec kernel: the value in each register, compared with the kernel's rounding model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.arrays import F32, Bools
from fattn_probe.daily.inspect.procedures.warp import LANES
from fattn_probe.daily.inspect.trace.checks import ULP_F32
from fattn_probe.daily.inspect.trace.stages import FLOAT, ModelledRows, Row, Stage
from fattn_probe.llama.launch.architecture import copy_bytes
from fattn_probe.llama.launch.families import TILE
from fattn_probe.llama.launch.tiles import BlockWork
from fattn_probe.verdict.truth.rounding_model.softmax import Parts, Turn
from fattn_probe.verdict.truth.rounding_model.tile import TileMachine
from fattn_probe.verdict.truth.rounding_model.vec import FLOATS, VecMachine

Lanes = Mapping[int, Mapping[str, Any]]
STATE = ("KQ_max", "KQ_sum", "VKQ")


@dataclass(frozen=True)
class WarpOfColumns:
    """A warp of a tile or vec kernel.

    In the tile kernel, `shared` warps (upstream's np) share a column and one maximum; in the vec kernel, all warps of a
    block share a column, each with its own maximum.
    """

    rows: ModelledRows
    work: BlockWork
    warp: int

    @property
    def is_tile(self) -> bool:
        """Whether this is the tile kernel, not the vec kernel."""
        return self.rows.kernel.family is TILE

    @property
    def shared(self) -> int:
        """The number of warps that share a column."""
        return self.rows.kernel.warps_per_column if self.is_tile else self.rows.kernel.warps

    @property
    def part(self) -> int:
        """The warp's number among the warps that share its columns."""
        return self.warp % self.shared

    @cached_property
    def columns(self) -> tuple[Row | None, ...]:
        """The output row of each column; None past the last query or head."""
        kernel, sizes, (tile,) = self.rows.kernel, self.rows.case.op.sizes, self.work.tiles
        number = max(1, kernel.ncols // kernel.warps) if self.is_tile else kernel.ncols
        first = self.warp // self.shared * number
        found: list[Row | None] = []
        for column in range(first, first + number):
            j, c = divmod(column, kernel.ncols2)
            query, in_group = tile.jt * kernel.ncols1 + j, tile.zt_gqa * kernel.ncols2 + c
            exists = query < sizes.n_q and in_group < sizes.group
            found.append((tile.sequence, query, tile.z_KV * sizes.group + in_group) if exists else None)
        return tuple(found)

    @cached_property
    def turns(self) -> Mapping[int, Sequence[Turn]]:
        """The rounding model's steps for each column that exists."""
        return {at: self.rows.turns(row) for at, row in enumerate(self.columns) if row is not None}

    @cached_property
    def d(self) -> npt.NDArray[np.intp]:
        """The d of each VKQ value of a column, [lane][number]; DV or more is padding."""
        DV, copied = self.rows.kernel.DV, copy_bytes(self.rows.arch) // FLOAT
        if self.is_tile:
            numbers, lanes = -(-DV // (2 * LANES)) * 2, LANES
            run = min(copied, numbers)  # consecutive elements of a lane
        else:
            lanes = self._vec.plan.threads_V
            numbers, run = DV // lanes, 2 * copied if self.rows.kernel.type_V in FLOATS else 4
        lane, number = np.ogrid[:LANES, :numbers]
        return np.asarray(number // run * run * lanes + lane % lanes * run + number % run)

    @property
    def _vec(self) -> VecMachine:
        assert isinstance(self.rows.machine, VecMachine)
        return self.rows.machine

    def reads(self, locations: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        """The `reads` of `read_lanes`: the lines, and the expressions to read there."""
        name, columns = self.rows.kernel.family.name, len(self.columns)
        state = {value: value for value in STATE}
        if self.is_tile:  # the iteration is a function that receives pointers to the state
            logits = {"KQ": "KQ_acc", "VKQ": f"*VKQ@{columns * self.d.shape[1] // 2}"}
            weights = {"KQ_max": f"*KQ_max@{columns}", "KQ_sum": f"*KQ_sum@{columns}"}
        else:
            logits, weights = {"KQ": "KQ_reg", "VKQ": "VKQ"}, {"P": "KQ_reg", "KQ_max": "KQ_max", "KQ_sum": "KQ_sum"}
        lines = [
            (f"{name}_logits", "k_VKQ_0", logits),
            (f"{name}_weights", "k_VKQ_0", weights),
            (f"{name}_last", "", {"VKQ": "VKQ"}),
            (f"{name}_sunk", "", state),
        ]
        if self.is_tile and self.part:
            lines.pop()  # only the first warp of a column continues
        return [
            {"anchor": anchor, "locations": list(locations[anchor]), "step": step, "values": values}
            for anchor, step, values in lines
        ]

    def stages(self, document: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[Stage]:
        """The stages in a document of `read_lanes`, in the kernel's order."""
        name, nbatch_fa, blocks = self.rows.kernel.family.name, self.rows.kernel.nbatch_fa, self.rows.kernel.blocks[1]
        found: dict[tuple[str, int | None], dict[int, Mapping[str, Any]]] = {}
        for reading in document["readings"]:
            kb0 = None if reading["step"] is None else reading["step"] // nbatch_fa
            found.setdefault((reading["anchor"], kb0), {})[reading["lane"]] = reading["values"]
        read = {place: lanes for place, lanes in found.items() if lanes.keys() == set(range(LANES))}
        if not self.turns:
            return
        first, number = self.work.blockIdx[1], len(next(iter(self.turns.values())))
        due = [first + turn * blocks for turn in range(number)]
        steps = sorted(kb0 for anchor, kb0 in read if kb0 is not None and anchor == f"{name}_logits")
        for at, kb0 in enumerate(steps):
            if kb0 not in due:
                one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
                place = places.get(f"{name}_logits", "")
                yield Stage(f"kb0 {kb0}", "steps done", one, zero, np.zeros(1), {}, place, kb0=kb0)
                continue
            state = {column: of[due.index(kb0)] for column, of in self.turns.items()}
            after = (f"{name}_logits", steps[at + 1]) if at + 1 < len(steps) else (f"{name}_last", None)
            for line, quantities in (
                ((f"{name}_logits", kb0), ("KQ",)),
                ((f"{name}_weights", kb0), ("KQ_max", "P", "KQ_sum")),
                (after, ("VKQ",)),
            ):
                for quantity in quantities:
                    if quantity in read.get(line, {0: {}})[0]:
                        values = self._values(quantity, read[line])
                        stage = self._stage(quantity, values, state, kb0, (f"kb0 {kb0}", places.get(line[0], "")))
                        yield replace(stage, kb0=kb0)
        if (f"{name}_last", None) in read:
            hidden = [all(not of[turn].P[0, first].any() for of in self.turns.values()) for turn in range(number)]
            done = np.array([kb0 in steps for kb0 in due], np.float32)
            wanted, label = np.where(hidden, done, np.float32(1)), {"kb0": np.array(due)}
            place = places.get(f"{name}_last", "")
            yield Stage("after the last step", "steps done", done, wanted, np.zeros(1), label, place)
        if (f"{name}_sunk", None) in read:
            state = {at: self._sunk(row, self.turns[at][-1]) for at, row in enumerate(self.columns) if row is not None}
            where = "after the sums over lanes and warps, and the sinks" if self.is_tile else "after the sinks"
            for quantity in STATE:
                values = self._values(quantity, read[f"{name}_sunk", None])
                yield self._stage(quantity, values, state, due[-1], (where, places.get(f"{name}_sunk", "")))

    def _sunk(self, row: Row, last: Turn) -> Turn:
        """The warp's values after the sinks, as a turn."""
        machine, (_, query, head) = self.rows.machine, row
        if isinstance(machine, TileMachine):
            parts = machine.parts(last, head)
            sums = np.repeat(parts.rowsum[:, :, None, None], LANES, axis=3)
            return Turn(last.KQ, last.P, parts.maximum, sums, parts.VKQ[:, :, None])
        return machine.sunk(last, slice(head, head + 1), np.array([query]))

    def _values(self, quantity: str, lanes: Lanes) -> F32:
        """A quantity's registers, [column][lane][number]: the columns are outermost in VKQ, innermost elsewhere."""
        numbers = np.array([lanes[lane][quantity] for lane in range(LANES)])
        if quantity != "VKQ":
            return np.moveaxis(numbers.astype(np.float32).reshape(LANES, -1, len(self.columns)), 2, 0)
        values = numbers.astype(np.uint16).view(np.float16) if self.rows.half else numbers
        return np.moveaxis(values.astype(np.float32).reshape(LANES, len(self.columns), -1), 1, 0)

    def _stage(self, quantity: str, values: F32, state: Mapping[int, Turn], kb0: int, where: tuple[str, str]) -> Stage:
        """A quantity's stage, for the columns that exist; `where` is the stage's name and its place."""
        at, lane = sorted(state), np.arange(LANES)[:, None]
        rows = np.array([self.columns[column] for column in at])[:, :, None, None]
        labels: dict[str, npt.NDArray[np.integer[Any]]] = {"query": rows[:, 1], "head": rows[:, 2]}
        found, exists = values[at], np.asarray(np.ones(values.shape[1:], np.bool_))
        if quantity in ("KQ", "P"):
            labels["KV row"] = self._along(values.shape[2]) + kb0 * self.rows.kernel.nbatch_fa
            exists = np.asarray(labels["KV row"] < self.rows.case.op.sizes.n_kv)
        elif quantity == "VKQ":
            labels["d"], exists = self.d, np.asarray(self.d < self.rows.kernel.DV)
        wanted = np.array([self._expected(quantity, state[column], exists) for column in at], np.float32)
        bounds = [self._bound(quantity, row, state[column], kb0) for column in at if (row := self.columns[column])]
        zero, (stage, place) = np.float32(0), where
        found, wanted = np.where(exists, found, zero), np.where(exists, wanted, zero)
        return Stage(stage, quantity, found, wanted, np.array(bounds)[:, None, None], labels | {"lane": lane}, place)

    def _along(self, numbers: int) -> npt.NDArray[np.intp]:
        """The KV row of each of a lane's logits, counted from the step's first row, [lane][number]."""
        lane, number = np.ogrid[:LANES, :numbers]
        return np.asarray((number * self.shared + self.part) * LANES + lane)

    def _expected(self, quantity: str, of: Turn, exists: Bools) -> F32:
        """The model's values for a column, [lane][number]."""
        turn, part = self.work.blockIdx[1], self.part
        if quantity in ("KQ", "P"):
            values = of.KQ if quantity == "KQ" else of.P
            return np.asarray(values[0, turn].reshape(-1)[self._along(exists.shape[1])])
        if quantity == "KQ_max":
            maximum = of.maximum[0, turn]
            return np.full(exists.shape, maximum if self.is_tile else maximum[part])
        if quantity == "KQ_sum":
            return np.asarray(of.sums[0, turn, part][:, None])
        VKQ = of.VKQ[0, turn, part]
        if not self.is_tile:  # each group of lanes has a separate sum
            VKQ = VKQ[np.arange(LANES) // self._vec.plan.threads_V]
            return np.asarray(np.take_along_axis(VKQ, self.d, axis=1))
        return np.asarray(VKQ[np.where(exists, self.d, 0)])

    def _bound(self, quantity: str, row: Row, of: Turn, kb0: int) -> float:
        """The bound on a quantity's error in a column, for the KV rows up to the end of the step."""
        turn, logits = self.work.blockIdx[1], self.rows.KQ_error(row)
        KV_rows = (kb0 // self.rows.kernel.blocks[1] + 1) * self.rows.kernel.nbatch_fa
        if quantity in ("KQ", "KQ_max"):
            return logits
        if quantity == "VKQ":
            rowsum = of.sums[:, turn].reshape(1, -1).sum(axis=1, keepdims=True)
            return float(self.rows.VKQ_error(row, Parts(of.VKQ[:, turn].reshape(1, 1, -1), rowsum, rowsum), KV_rows)[0])
        values = of.P if quantity == "P" else of.sums
        return float(np.abs(values[0, turn]).max()) * (2 * logits + KV_rows * ULP_F32)
