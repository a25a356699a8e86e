"""Trace one warp of an inspected op in its own debugger session."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.errors import InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.schema import TracePlace
from fattn_probe.daily.inspect.anchors import COMMON
from fattn_probe.daily.inspect.facts import Facts, block_at
from fattn_probe.daily.inspect.inspector import Inspector
from fattn_probe.daily.inspect.trace.checks import TracedOperands
from fattn_probe.daily.inspect.trace.find_nan import Document, FirstNotFinite, NaNSearch, in_dst, in_inputs, in_stages
from fattn_probe.daily.inspect.trace.fragments import Array, block_arrays
from fattn_probe.daily.inspect.trace.lanes import WarpOfColumns
from fattn_probe.daily.inspect.trace.reference import JudgedTrace, judge_trace
from fattn_probe.daily.inspect.trace.stages import FINISHED, ModelledRows, Row, Stage, StoredRow
from fattn_probe.llama.build import RUNNER
from fattn_probe.llama.launch.architecture import CDNA2, arch_number
from fattn_probe.llama.launch.constants import known_constants, max_offset
from fattn_probe.llama.launch.families import MMA_F16
from fattn_probe.llama.launch.geometry import Geometry, geometry_of, tile_rows
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.llama.launch.tiles import BlockWork
from fattn_probe.llama.source.features import CUDA
from fattn_probe.machine.run.prepare import dry_launches
from fattn_probe.machine.run.session import arch_of
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.verdict import Status
from fattn_probe.verdict.truth.reference.adapter import Inputs

ABOUT = ("case", "source", "build_number", "device")
TRACE_OP = "fattn_probe.daily.inspect.procedures.warp:trace_op"
READ_LANES = "fattn_probe.daily.inspect.procedures.warp:read_lanes"
LEAST_OF_CDNA2 = 2.0**-14
"""The smallest magnitude of an operand that a matrix instruction of CDNA2 does not flush to 0."""
STAGES_A_PART = 3  # KQ_max, row sum and VKQ that a block stores


@dataclass(frozen=True)
class Tracer:
    """Traces warps of an inspected op on a target; `facts` are the op's facts, including its blocks."""

    inspector: Inspector
    case: Case
    inputs: Inputs
    target: Target
    facts: Facts

    def trace(self, block: int, warp: int, kb0: int | None = None) -> JudgedTrace:
        """Trace a warp of a block through all steps or only step `kb0`, and compare its values with the reference."""
        chosen = self._block(block, warp, kb0)
        document = self._read(chosen, warp, len(chosen.tiles), kb0)
        constants = known_constants(self.inspector.session.options.tree)  # from the source without patches
        header = (self._cuda / COMMON).read_text(errors="replace")
        return judge_trace(
            document,
            self.case,
            self.inputs,
            block=chosen.blockIdx,
            warp=warp,
            tiles=chosen.tiles,
            offset=max_offset(header) if constants is None else constants.max_offset,
            least=LEAST_OF_CDNA2 if arch_number(arch_of(self.target)) == CDNA2 else 0.0,
        )

    def follow(self, output: Judgement, place: TracePlace | None) -> JudgedTrace:
        """Trace a warp, and follow an output row through memory.

        Without a place, the row is the one with the largest error, and the warp is the first that deviates in it.
        """
        found, missing = self.model(output.launches)
        row = self._row(output, place, found)
        if found is None or row is None:
            start = place or TracePlace()
            return replace(self.trace(start.block, start.warp, start.kb0), missing=missing)
        stored = StoredRow(*found, row)
        stages, ended = self.in_memory(stored)
        kb0 = None if place is None else place.kb0
        if place is not None:
            candidates = [(place.block, place.warp)]
        else:
            first = next((number for number, stage in enumerate(stages) if stage.stored and stage.deviation), 0)
            block = [*stored.parts][first // STAGES_A_PART]
            fails = output.status is Status.FAIL or any(stage.deviation for stage in stages)
            candidates = [(block, warp) for warp in (stored.warps if fails else stored.warps[:1])]
        for block, warp in candidates:
            traced = self.warp(found, block, warp, kb0)
            if traced.deviation is not None or traced.stopped:
                break
        stopped = traced.stopped or ended
        rows, geometry = found
        assumed, followed = rows.assumed(geometry), (*traced.stages, *stages)
        traced = replace(traced, stages=followed, row=row, assumed=assumed, stopped=stopped)
        if traced.deviation is None and not stopped and output.status is Status.FAIL and output.diagnosis:
            for worst in output.diagnosis.worst[:1]:  # all values that were read are within their bounds
                at = {name: np.array(index) for name, index in asdict(worst.at).items()}
                value, expected = (np.array([number], np.float32) for number in (worst.value, worst.expected))
                place_of_dst = self._places[FINISHED]
                wrong = Stage("dst, according to the verdict", "output", value, expected, np.zeros(1), at, place_of_dst)
                traced = replace(traced, stages=(*traced.stages, wrong))
        return traced

    def warp(self, model: tuple[ModelledRows, Geometry], block: int, warp: int, kb0: int | None = None) -> JudgedTrace:
        """Trace a warp of any kernel, through all steps or only step `kb0`."""
        rows, geometry = model
        if geometry.kernel.family is MMA_F16:
            return self.trace(block, warp, kb0)
        work = geometry.blocks()[block]
        traced = WarpOfColumns(rows, work, warp)
        plan = {"block": list(work.blockIdx), "linear": work.block, "warp": warp}
        document = self._procedure(READ_LANES, plan | {"reads": traced.reads(self._locations)})
        places = self._places
        stages = [stage for stage in traced.stages(document, places) if kb0 is None or stage.kb0 in {kb0, None}]
        stopped = tuple(document["stopped"])
        return JudgedTrace(work.blockIdx, warp, traced.shared, None, places, (), stopped, tuple(stages))

    def in_memory(self, stored: StoredRow) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
        """The parts of a row that blocks store, and dst; and the reason if the program ended early."""
        document = self._procedure("fattn_probe.daily.inspect.procedures.warp:read_row", {"parts": stored.plan()})
        return tuple(stored.stages(document, self._places)), tuple(document["stopped"])

    def model(self, launches: Sequence[LaunchRecord] = ()) -> tuple[tuple[ModelledRows, Geometry] | None, str]:
        """The rounding model and geometry of the launches (default: of a dry run), or the reason for having none."""
        if self.target.engine != "sim":
            return None, "values after the last KV step are read only on simulated GPUs"
        session = self.inspector.session
        arch, constants = arch_number(arch_of(self.target)), known_constants(session.options.tree)
        choice = self.facts.choice
        if constants is not None and choice is not None and choice.config.keys() >= {"nbatch_fa", "nbatch_K2"}:
            DKQ, DV, ncols1, ncols2 = (int(choice.template[name]) for name in MMA_F16.case_parameters)
            loads = int(choice.config["nbatch_fa"]), 2 * int(choice.config["nbatch_K2"])  # as the host launches it
            constants = constants.with_mma((DKQ, DV, ncols1 * ncols2), arch, loads)
        launches = launches or dry_launches(session, self.case, self.target)
        geometry = None if constants is None else geometry_of(self.case.op, launches, arch, constants)
        if geometry is None or constants is None:
            return None, "the end of a trace needs a rounding model, and there is none for this kernel"
        return (ModelledRows(self.case, self.inputs, geometry.kernel, arch, constants), geometry), ""

    def _row(
        self, output: Judgement, place: TracePlace | None, found: tuple[ModelledRows, Geometry] | None
    ) -> Row | None:
        """The row to follow: the one with the largest error if the block works on it, else the block's first row."""
        worst = [element.at for element in output.diagnosis.worst] if output.diagnosis else []
        rows = [(at.sequence, at.query, at.head) for at in worst] or [(0, 0, 0)]
        if place is None or found is None:
            return rows[0]
        _, geometry = found
        work = self._block(place.block, place.warp, place.kb0)
        tiles = [tile.tile for tile in work.tiles]
        kernel = geometry.kernel
        queries, heads = tile_rows(tiles[0], self.case.op.sizes, kernel.ncols1, kernel.ncols2)
        first = (tiles[0][0], queries.start, heads.start)
        return next((row for row in rows if geometry.tile_of(*row) in tiles and worst), first)

    @property
    def _locations(self) -> Mapping[str, Sequence[str]]:
        """The gdb locations of each anchor."""
        return self.inspector.located(self.inspector.session.build_for(self.target, RUNNER)).locations

    @property
    def _places(self) -> Mapping[str, str]:
        """The first line (`file:line`) of each anchor."""
        return {name: found[0] for name, found in self._locations.items() if found}

    def arrays(self, block: int, kb0: int | None = None) -> dict[str, Array]:
        """The registers of all warps in a block, in all steps or only `kb0`, under the keys of docs/guide/trace.md."""
        chosen = self._block(block, 0, kb0)
        nwarps = self.facts.launch["block_dim"][1]
        documents = {warp: self._read(chosen, warp, len(chosen.tiles), kb0) for warp in range(nwarps)}
        first = documents[0]
        about: dict[str, Any] = {name: self.facts.about.get(name, "") for name in ABOUT}
        about |= {"kernel": first["function"], "template": first["template"], "places": first["places"]}
        about |= {"block": chosen.block, "blockIdx": chosen.blockIdx, "KQ": first["KQ"], "VKQ": first["VKQ"]}
        return block_arrays(documents, chosen.tiles, about)

    def find_not_finite(self, dst: npt.NDArray[np.floating[Any]]) -> FirstNotFinite | None:
        """Find the origin of the first NaN or infinity in inputs or `dst` (`ne` reversed); None if there is none."""
        found, last = in_inputs(self.case, self.inputs), in_dst(dst)
        if found is not None or last is None:
            return found
        if self.facts.choice is not None and self.facts.choice.family != MMA_F16.name:
            return self._origin_in_lanes(last)
        read = partial(self._read, until_not_finite=True)
        return NaNSearch(TracedOperands.of(self.case, self.inputs), self.facts, read, self._cuda).origin(last)

    def _origin_in_lanes(self, last: FirstNotFinite) -> FirstNotFinite:
        """Find the origin of a NaN or infinity in the `dst` of a tile or vec kernel."""
        sequence, query, head, _ = last.at.values()
        row = sequence, query, head
        model, why = self.model()
        if model is not None:
            stored = StoredRow(*model, row)
            for block in stored.parts:
                for warp in stored.warps:
                    found = in_stages(self.warp(model, block, warp).stages, row, block, warp)
                    if found is not None:
                        return found
            why = "everything before it is finite"
        return replace(last, words=f"{last.words}: {why}")

    @property
    def _cuda(self) -> Path:
        """ggml-cuda/ of the sources that were built."""
        inspector = self.inspector
        return inspector.source(inspector.session.build_for(self.target, RUNNER)) / CUDA

    def _read(
        self, block: BlockWork, warp: int, tiles: int, kb0: int | None = None, *, until_not_finite: bool = False
    ) -> Document:
        """Run `trace_op` on a warp; returns its document."""
        choice = self.facts.choice
        if choice is None or choice.family != MMA_F16.name:
            kernel = "no kernel" if choice is None else choice.kernel
            raise InputError(
                f"case {self.case.name} on {self.target}: only flash_attn_ext_f16 is traced on a real GPU or written by"
                f" --npz, but this op runs {kernel}"
            )
        plan = {"tiles": tiles, "kb0": kb0, "until_not_finite": until_not_finite}
        return self._procedure(TRACE_OP, plan | {"block": list(block.blockIdx), "linear": block.block, "warp": warp})

    def _procedure(self, name: str, plan: dict[str, Any]) -> Document:
        with self.inspector.place(self.case, self.inputs) as folder:
            document = self.inspector.procedure(name, plan, folder, self.target)
        if not isinstance(document, dict):
            raise LostError(
                f"case {self.case.name} ended under the debugger before its kernel was launched: {document}"
            )
        return document

    def _block(self, block: int, warp: int, kb0: int | None) -> BlockWork:
        """The block to trace; raises InputError if the block, warp or step does not exist."""
        where = f"case {self.case.name} on {self.target}: inspect.trace"
        work = block_at(self.facts, block, warp, where)
        steps = [step for tile in work.tiles for step in tile.steps]
        if not steps:
            at_work = [item.block for item in self.facts.blocks if item.tiles]
            nearest = min(at_work, key=lambda other: abs(other - block), default=None)
            raise InputError(f"{where}.block: block {block} has no work; the nearest block with work is {nearest}")
        if kb0 is not None and kb0 not in steps:
            does = ", ".join(f"{tile.kb0_start} to {tile.kb0_stop - 1}" for tile in work.tiles)
            raise InputError(f"{where}.kb0: block {block} does not compute step {kb0}, only {does}")
        return work
