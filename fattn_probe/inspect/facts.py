"""The facts of one inspected op, under the source's own names; `ne`, `nb` and grids are in ggml's and CUDA's order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fattn_probe.launch.tiles import BlockWork, Grid

Value = Any
"""A fact's value in JSON: bool, int, float, str, or a list of them."""


@dataclass(frozen=True)
class TensorFacts:
    """A `ggml_tensor`: `name` is its role (dst, Q, K, V, mask, sinks), `ggml_name` the program's name for it.

    `nb` and `view_offs` are bytes; `view_src` is the `ggml_name` of the viewed tensor, empty if this is no view.
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
    """A condition that the dispatch evaluated, in the source's words.

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
class MissingFacts:
    """Facts that could not be read, and why (a pattern no longer matches, ...)."""

    facts: str
    why: str


@dataclass(frozen=True)
class Facts:
    """Everything that an inspection found; facts that were not requested or not found are None or empty.

    `fault` says how the kernel stopped early; later facts are then unknown.
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

    def flat(self) -> dict[str, Value]:
        """Values by name, with the names of a scenario's `expect:`: `ntiles_dst`, `blocks_num.x`, `K.ne`, `DKQ`."""
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
