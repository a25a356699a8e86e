"""The facts of one inspected op, named as in llama.cpp's source; `ne` and `nb` in ggml's order, grids in CUDA order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device.origin import UNKNOWN, Origin
from fattn_probe.llama.launch.architecture import AMD
from fattn_probe.llama.launch.tiles import BlockWork, Grid

Value = Any
"""A fact's value in JSON: bool, int, float, str, or a list of them."""


def cc_text(cc: int) -> str:
    """A GPU's architecture from ggml's `cc`: `900` for an NVIDIA GPU, `gfx906` for an AMD GPU."""
    return str(cc) if cc < AMD else f"gfx{cc - AMD:x}"


@dataclass(frozen=True)
class TensorFacts:
    """A `ggml_tensor`: `name` is its role (dst, Q, K, V, mask, sinks), `ggml_name` the program's name for it.

    `nb` and `view_offs` are bytes; `view_src` is the `ggml_name` of the viewed tensor, empty if this is not a view.
    """

    name: str
    type: str
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    ggml_name: str
    view_src: str
    view_offs: int
    contiguous: bool


@dataclass(frozen=True)
class Term:
    """A part of a condition, and its value as the debugger prints it; None if it cannot be evaluated."""

    text: str
    value: str | None


@dataclass(frozen=True)
class Decision:
    """A condition that the dispatch evaluated, as written in the source.

    `leads_to` is the consequence if it holds: `return BEST_FATTN_KERNEL_VEC`, `switch_ncols1<DKQ, DV, 8>`.
    """

    function: str
    file: str
    line: int
    condition: str
    held: bool
    leads_to: str
    terms: tuple[Term, ...] = ()


@dataclass(frozen=True)
class Choice:
    """The kernel that was chosen: `family` is mma_f16, tile or vec; template arguments and configuration by name."""

    family: str
    kernel: str
    template: Mapping[str, Value]
    config: Mapping[str, Value]
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel as it was launched; `shared` is dynamic shared memory in bytes.

    `origin` says where its register count, and therefore `max_blocks_per_sm`, comes from.
    """

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    origin: Origin = UNKNOWN


@dataclass(frozen=True)
class MissingFacts:
    """Facts that could not be read, and the reason (for example, a pattern no longer matches)."""

    facts: str
    why: str


@dataclass(frozen=True)
class Facts:
    """Everything that an inspection found; facts that were not requested or not found are None or empty.

    `fault` says how the kernel stopped early; later facts are then unknown. If a kernel scanned the mask, `mask_ends`
    has, from the mask itself, the end of the KV rows that each query of each sequence's mask sees.
    """

    about: Mapping[str, str]
    tensors: tuple[TensorFacts, ...] = ()
    op_params: Mapping[str, Value] = field(default_factory=dict)
    choice: Choice | None = None
    launch: Mapping[str, Value] = field(default_factory=dict)
    kernels: tuple[KernelLaunch, ...] = ()
    grid: Grid | None = None
    blocks: tuple[BlockWork, ...] = ()
    missing: tuple[MissingFacts, ...] = ()
    fault: str = ""
    mask_ends: tuple[tuple[int, ...], ...] = ()

    @property
    def occupancy(self) -> Origin:
        """The origin of the launch's `max_blocks_per_sm`, from the chosen kernel."""
        chosen = self.choice.kernel if self.choice else ""
        return next((launch.origin for launch in self.kernels if launch.kernel == chosen), UNKNOWN)

    def flat(self) -> dict[str, Value]:
        """Values under the names that a scenario's `expect:` uses: `ntiles_dst`, `blocks_num.x`, `K.ne`, `DKQ`."""
        found: dict[str, Value] = {}
        for tensor in self.tensors:
            for key in ("type", "ne", "nb", "view_src", "view_offs", "contiguous"):
                value = getattr(tensor, key)
                found[f"{tensor.name}.{key}"] = list(value) if isinstance(value, tuple) else value
        found |= self.op_params
        if self.choice is not None:
            found |= {"kernel": self.choice.kernel, "family": self.choice.family}
            found |= {**self.choice.template, **self.choice.config}
        found |= self.launch
        return found | {"kernels": [launch.kernel for launch in self.kernels], "blocks": len(self.blocks)}


def block_at(facts: Facts, block: int, warp: int, where: str) -> BlockWork:
    """The work of a block; raises InputError if there is no such block or warp. `where` begins the message."""
    blocks = {item.block: item for item in facts.blocks}
    if block not in blocks:
        known = f"there is no block {block}, only 0 to {max(blocks)}" if blocks else "no block's work is known"
        raise InputError(f"{where}.block: {known}")
    nwarps = facts.launch["block_dim"][1]
    if warp >= nwarps:
        raise InputError(f"{where}.warp: there is no warp {warp}, only 0 to {nwarps - 1}")
    return blocks[block]
