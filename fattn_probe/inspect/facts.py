"""The facts of one inspected op. Names are the source's own; `ne`, `nb` and grids are in ggml's and CUDA's order.

Only the standard library is imported here: the debugger's Python loads this module too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Value = Any
"""A fact's value as JSON has it: bool, int, float, str, or a list of them."""


@dataclass(frozen=True)
class TensorFacts:
    """A `ggml_tensor`: `name` is its role (dst, Q, K, V, mask, sinks), `ggml_name` what the program called it.

    `nb` and `view_offs` are bytes; `view_src` is the `ggml_name` of the tensor it is a view of, empty if it is none.
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
    """A condition that the dispatch asked, in the source's words.

    `leads_to` is what follows if it holds: `return BEST_FATTN_KERNEL_VEC`, `switch_ncols1<DKQ, DV, 8>`.
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
    """One kernel as it was launched; `shared` is dynamic shared memory in bytes."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int


@dataclass(frozen=True)
class TileWork:
    """What one block does of one output tile: KV steps `range(kb0_start, kb0_stop, kb0_step)` of `iter_k`.

    A step is `nbatch_fa` KV rows. The tile is `ncols1` queries from `jt * ncols1` on, of `ncols2` heads from
    `zt_gqa * ncols2` on among those of K/V head `z_KV`. `needs_fixup`: another block does the tile's beginning.
    `is_fixup`: another block does its end. `kb0_limit` is where the scanned mask says that nothing is left to see;
    None if it was not scanned. `read`: the running kernel said so; else it follows from the block's `kbc`.
    """

    sequence: int
    z_KV: int
    zt_gqa: int
    jt: int
    kb0_start: int
    kb0_stop: int
    kb0_step: int = 1
    needs_fixup: bool = False
    is_fixup: bool = False
    kb0_limit: int | None = None
    read: bool = field(default=True, compare=False)

    @property
    def tile(self) -> tuple[int, int, int, int]:
        """Which output tile it is: (sequence, z_KV, zt_gqa, jt)."""
        return self.sequence, self.z_KV, self.zt_gqa, self.jt


@dataclass(frozen=True)
class BlockFacts:
    """A CUDA block: its index in the grid and linearly, its part of the stream-K work, its tiles in order.

    `kbc` and `kbc_stop` are None for kernels that do not use stream-K. `sm` is None where nothing tells (simulator).
    """

    block: int
    blockIdx: tuple[int, int, int]
    kbc: int | None
    kbc_stop: int | None
    tiles: tuple[TileWork, ...]
    sm: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Grid:
    """The shape of the work: KV steps a tile (`iter_k`), and tiles along each axis.

    There are `ne03 * ne12 * iter_z_gqa * iter_j` output tiles: sequences, K/V heads, head groups, query tiles.
    """

    iter_k: int
    iter_j: int
    iter_z_gqa: int
    ne12: int
    ne03: int


@dataclass(frozen=True)
class Missing:
    """Facts that could not be had: which, and why (`pattern` of `file` no longer matches, ...)."""

    facts: str
    why: str


@dataclass(frozen=True)
class Facts:
    """Everything that an inspection found; what was not asked for or not found is None or empty.

    `fault` says how the kernel ended if it did before it was done: what came behind it is not known then.
    """

    about: Mapping[str, str]
    tensors: tuple[TensorFacts, ...] = ()
    op_params: Mapping[str, Value] = field(default_factory=dict)
    choice: Choice | None = None
    launch: Mapping[str, Value] = field(default_factory=dict)
    kernels: tuple[KernelLaunch, ...] = ()
    grid: Grid | None = None
    blocks: tuple[BlockFacts, ...] = ()
    missing: tuple[Missing, ...] = ()
    fault: str = ""

    def flat(self) -> dict[str, Value]:
        """Name to value, as `expect:` of a scenario spells names: `ntiles_dst`, `blocks_num.x`, `K.ne`, `DKQ`."""
        return dict(_flat(self))


def _flat(facts: Facts) -> Iterator[tuple[str, Value]]:
    for tensor in facts.tensors:
        for key in ("type", "ne", "nb", "view_src", "view_offs", "contiguous"):
            value = getattr(tensor, key)
            yield f"{tensor.name}.{key}", list(value) if isinstance(value, tuple) else value
    yield from facts.op_params.items()
    if facts.choice is not None:
        yield "kernel", facts.choice.kernel
        yield "family", facts.choice.family
        yield from facts.choice.template.items()
        yield from facts.choice.config.items()
    yield from facts.launch.items()
    yield "kernels", [launch.kernel for launch in facts.kernels]
    yield "blocks", len(facts.blocks)
