"""Trace one warp of an inspected op in its own debugger session."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.errors import InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.anchors import COMMON
from fattn_probe.daily.inspect.facts import Facts, block_at
from fattn_probe.daily.inspect.inspector import Inspector
from fattn_probe.daily.inspect.trace.archive import Array, block_arrays
from fattn_probe.daily.inspect.trace.find_nan import Document, FirstNotFinite, NaNSearch, in_inputs
from fattn_probe.daily.inspect.trace.inputs import TracedOperands
from fattn_probe.daily.inspect.trace.reference import JudgedTrace, judge_trace
from fattn_probe.llama.build import RUNNER
from fattn_probe.llama.launch.constants import max_offset
from fattn_probe.llama.launch.tiles import BlockWork
from fattn_probe.llama.source.features import CUDA
from fattn_probe.verdict.truth.reference.adapter import Inputs

ABOUT = ("case", "source", "build_number", "device")
TRACE_OP = "fattn_probe.daily.inspect.procedures.warp:trace_op"


@dataclass(frozen=True)
class Tracer:
    """Traces warps of an inspected op on a target; `facts` are the op's, with its blocks."""

    inspector: Inspector
    case: Case
    inputs: Inputs
    target: Target
    facts: Facts

    def trace(self, block: int, warp: int, kb0: int | None = None) -> JudgedTrace:
        """Trace a warp of a block through all steps or one, and compare it with the reference."""
        chosen = self._block(block, warp, kb0)
        document = self._read(chosen, warp, {"tiles": len(chosen.tiles), "kb0": kb0, "until_not_finite": False})
        header = (self._cuda / COMMON).read_text(errors="replace")
        return judge_trace(
            document,
            self.case,
            self.inputs,
            block=chosen.blockIdx,
            warp=warp,
            tiles=chosen.tiles,
            offset=max_offset(header),
        )

    def arrays(self, block: int, kb0: int | None = None) -> dict[str, Array]:
        """The registers of all warps of a block, through all steps or one, by the keys of docs/guide/trace.md."""
        chosen = self._block(block, 0, kb0)
        plan = {"tiles": len(chosen.tiles), "kb0": kb0, "until_not_finite": False}
        nwarps = self.facts.launch["block_dim"][1]
        documents = {warp: self._read(chosen, warp, dict(plan)) for warp in range(nwarps)}
        first = documents[0]
        about: dict[str, Any] = {name: self.facts.about.get(name, "") for name in ABOUT}
        about |= {"kernel": first["function"], "template": first["template"], "places": first["places"]}
        about |= {"block": chosen.block, "blockIdx": chosen.blockIdx, "KQ": first["KQ"], "VKQ": first["VKQ"]}
        return block_arrays(documents, chosen.tiles, about)

    def find_not_finite(self, dst: npt.NDArray[np.floating[Any]]) -> FirstNotFinite | None:
        """The origin of the first NaN or infinity in the inputs or `dst` (`ne` reversed); None without one."""
        found = in_inputs(self.case, self.inputs)
        if found is not None:
            return found

        def read(block: BlockWork, warp: int, tiles: int) -> Document:
            return self._read(block, warp, {"tiles": tiles, "kb0": None, "until_not_finite": True})

        return NaNSearch(TracedOperands.of(self.case, self.inputs), self.facts, read, self._cuda).first(dst)

    @property
    def _cuda(self) -> Path:
        """ggml-cuda/ of the sources that were built."""
        inspector = self.inspector
        return inspector.source(inspector.session.build_for(self.target, RUNNER)) / CUDA

    def _read(self, block: BlockWork, warp: int, plan: dict[str, Any]) -> Document:
        plan |= {"block": list(block.blockIdx), "linear": block.block, "warp": warp}
        with self.inspector.place(self.case, self.inputs) as folder:
            document = self.inspector.procedure(TRACE_OP, plan, folder, self.target)
        if not isinstance(document, dict):
            raise LostError(
                f"case {self.case.name} ended under the debugger before its kernel was launched: {document}"
            )
        return document

    def _block(self, block: int, warp: int, kb0: int | None) -> BlockWork:
        """The block to trace; InputError if the block, warp or step does not exist."""
        choice = self.facts.choice
        where = f"case {self.case.name} on {self.target}: inspect.trace"
        if choice is None or choice.family != "mma_f16":
            kernel = "no kernel" if choice is None else choice.kernel
            raise InputError(f"{where}: only the kernel flash_attn_ext_f16 can be traced, but this op runs {kernel}")
        work = block_at(self.facts, block, warp, where)
        steps = [step for tile in work.tiles for step in range(tile.kb0_start, tile.kb0_stop)]
        if not steps:
            at_work = [item.block for item in self.facts.blocks if item.tiles]
            nearest = min(at_work, key=lambda other: abs(other - block), default=None)
            raise InputError(f"{where}.block: block {block} has no work; the nearest that has some is {nearest}")
        if kb0 is not None and kb0 not in steps:
            does = ", ".join(f"{tile.kb0_start} to {tile.kb0_stop - 1}" for tile in work.tiles)
            raise InputError(f"{where}.kb0: block {block} does not do step {kb0}, only {does}")
        return work
