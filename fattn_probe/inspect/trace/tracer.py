"""Trace one warp of an inspected op in its own debugger session."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.build import RUNNER
from fattn_probe.device import Target
from fattn_probe.errors import InputError, LostError
from fattn_probe.inspect.anchors import COMMON
from fattn_probe.inspect.facts import Facts
from fattn_probe.inspect.inspector import Inspector
from fattn_probe.inspect.trace.archive import Array, block_arrays
from fattn_probe.inspect.trace.find_nan import Document, Hunt, NotFinite, in_inputs
from fattn_probe.inspect.trace.inputs import TracedOperands
from fattn_probe.inspect.trace.reference import JudgedTrace, judge_trace
from fattn_probe.launch.constants import max_offset
from fattn_probe.launch.tiles import BlockWork
from fattn_probe.scenario import Case
from fattn_probe.source.features import CUDA
from fattn_probe.truth.reference.adapter import Inputs

ABOUT = ("case", "source", "build_number", "device")
TRACE_OP = "fattn_probe.inspect.procedures.warp:trace_op"


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
        """The registers of all warps of a block, through all steps or one, by the keys of docs/trace.md."""
        chosen = self._block(block, 0, kb0)
        plan = {"tiles": len(chosen.tiles), "kb0": kb0, "until_not_finite": False}
        nwarps = self.facts.launch["block_dim"][1]
        documents = {warp: self._read(chosen, warp, dict(plan)) for warp in range(nwarps)}
        first = documents[0]
        about: dict[str, Any] = {
            name: self.facts.about.get(name, "") for name in ("case", "source", "build_number", "device")
        }
        about |= {"kernel": first["function"], "template": first["template"], "places": first["places"]}
        about |= {"block": chosen.block, "blockIdx": chosen.blockIdx, "KQ": first["KQ"], "VKQ": first["VKQ"]}
        return block_arrays(documents, chosen.tiles, about)

    def find_not_finite(self, dst: npt.NDArray[np.floating[Any]]) -> NotFinite | None:
        """The origin of the first NaN or infinity in the inputs or `dst` (`ne` reversed); None without one."""
        found = in_inputs(self.case, self.inputs)
        if found is not None:
            return found
        operands = TracedOperands.of(self.case, self.inputs)
        return Hunt(self.case, operands, self.facts, self._read_until_not_finite, self._cuda).first(dst)

    @property
    def _cuda(self) -> Path:
        """ggml-cuda/ of the sources that were built."""
        inspector = self.inspector
        return inspector.source(inspector.session.build_for(self.target, RUNNER)) / CUDA

    def _read_until_not_finite(self, block: BlockWork, warp: int, tiles: int) -> Document:
        return self._read(block, warp, {"tiles": tiles, "kb0": None, "until_not_finite": True})

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
        choice, blocks = self.facts.choice, {item.block: item for item in self.facts.blocks}
        where = f"case {self.case.name} on {self.target}: inspect.trace"
        if choice is None or choice.family != "mma_f16":
            kernel = "no kernel" if choice is None else choice.kernel
            raise InputError(f"{where}: only the kernel flash_attn_ext_f16 can be traced, but this op runs {kernel}")
        if block not in blocks:
            raise InputError(f"{where}.block: there is no block {block}, only 0 to {max(blocks, default=-1)}")
        nwarps = self.facts.launch["block_dim"][1]
        if warp >= nwarps:
            raise InputError(f"{where}.warp: there is no warp {warp}, only 0 to {nwarps - 1}")
        steps = [step for tile in blocks[block].tiles for step in range(tile.kb0_start, tile.kb0_stop)]
        if not steps:
            at_work = [item.block for item in blocks.values() if item.tiles]
            nearest = min(at_work, key=lambda other: abs(other - block), default=None)
            raise InputError(f"{where}.block: block {block} has no work; the nearest that has some is {nearest}")
        if kb0 is not None and kb0 not in steps:
            does = ", ".join(f"{tile.kb0_start} to {tile.kb0_stop - 1}" for tile in blocks[block].tiles)
            raise InputError(f"{where}.kb0: block {block} does not do step {kb0}, only {does}")
        return blocks[block]
