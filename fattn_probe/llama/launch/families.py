"""The families of attention kernels: names, template parameters, division of work.

`run`, `plan`, `inspect`, `build` and the history support every family here. CONTRIBUTING.md explains how to add one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fattn_probe.llama.source.features import KernelCase

if TYPE_CHECKING:
    from fattn_probe.llama.launch.constants import Constants

Sizes = tuple[int, int, int]
"""The triple (DKQ, DV, ncols1 * ncols2)."""


@dataclass(frozen=True)
class KernelMatrix:
    """How to show a family's instances as a matrix: axis titles, and the template arguments along rows and columns."""

    down: str
    across: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    joint: str = ", "


@dataclass(frozen=True)
class Family:
    """One family of kernels.

    `kernel` is the name of its `__global__` function, and `parameters` are its template parameters in order. Without an
    `ncols2` parameter, ncols2 is 1; with a `D` parameter, DKQ = DV = D. `case` is the family's name in build manifests
    (`mma 64,64,8,8`) and in template-instances/; `case_parameters` are the template parameters of the host function
    that upstream instantiates. `nbatch_fa` returns the KV rows per step for (DKQ, DV, ncols), an architecture, the
    source's constants and the threads of a block; None for sizes that the source lacks. With `stream_k`, the blocks
    share all KV steps of all tiles equally; otherwise `gridDim.y` blocks share each tile. `block_line` matches the line
    of `file` (in ggml-cuda/) where a block has computed its share of the work; it is empty for stream-K. At that line,
    the variable `head_name` holds the block's first head, and `step_name` the KV rows per step.
    """

    name: str
    kernel: str
    parameters: tuple[str, ...]
    case: str
    case_parameters: tuple[str, ...]
    file: str
    nbatch_fa: "Callable[[Sizes, int, Constants, int], int | None]"
    matrix: KernelMatrix
    stream_k: bool = False
    block_line: str = ""
    head_name: str = "head0"
    step_name: str = "nbatch_fa"

    def arguments(self, values: tuple[str, ...]) -> Mapping[str, str]:
        """Template arguments, keyed by parameter name."""
        return dict(zip(self.parameters, values, strict=False))

    def named(self, arguments: Sequence[tuple[str, str]]) -> Mapping[str, str]:
        """The (name, value) pairs of a launch by the source's names; a source may add parameters, or reorder them.

        If the source lacks these names for the sizes, the places of the values decide.
        """
        own = dict(arguments)
        return own if own.keys() >= {*self.parameters[:4]} else self.arguments(tuple(value for _, value in arguments))

    def case_arguments(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """The arguments of the host function that launches a kernel; () if `values` lacks some of them."""
        named = self.arguments(values)
        return tuple(named[name] for name in self.case_parameters) if named.keys() >= {*self.case_parameters} else ()


MMA_F16 = Family(
    name="mma_f16",
    kernel="flash_attn_ext_f16",
    parameters=("DKQ", "DV", "ncols1", "ncols2", "use_logit_softcap", "V_is_K_view", "use_sparse"),
    case="mma",
    case_parameters=("DKQ", "DV", "ncols1", "ncols2"),
    file="fattn-mma-f16.cuh",
    nbatch_fa=lambda sizes, arch, constants, nthreads: (constants.mma_of(sizes, arch) or (None,))[0],
    matrix=KernelMatrix("DKQ, DV", "ncols1 x ncols2", (0, 1), (2, 3), " x "),
    stream_k=True,
)
TILE = Family(
    name="tile",
    kernel="flash_attn_tile",
    parameters=("DKQ", "DV", "ncols1", "ncols2", "use_logit_softcap"),
    case="tile",
    case_parameters=("DKQ", "DV"),
    file="fattn-tile.cuh",
    nbatch_fa=lambda sizes, arch, constants, nthreads: (constants.tile_of(sizes, arch) or (None,))[0],
    matrix=KernelMatrix("DKQ, DV", "", (0, 1), ()),
    block_line=r"\bint k_VKQ_0 = blockIdx\.y\*nbatch_fa;",
)
VEC = Family(
    name="vec",
    kernel="flash_attn_ext_vec",
    parameters=("D", "ncols", "type_K", "type_V", "use_logit_softcap"),
    case="vec",
    case_parameters=("D", "type_K", "type_V"),
    file="fattn-vec.cuh",
    nbatch_fa=lambda sizes, arch, constants, nthreads: nthreads,
    matrix=KernelMatrix("D", "K, V", (0,), (1, 2)),
    block_line=r"^\s*for \(int k_VKQ_0 = blockIdx\.y\*nthreads;",
    head_name="head",
    step_name="nthreads",
)

FAMILIES = (MMA_F16, TILE, VEC)
BY_KERNEL: Mapping[str, Family] = {family.kernel: family for family in FAMILIES}
BY_NAME: Mapping[str, Family] = {family.name: family for family in FAMILIES}
BY_CASE: Mapping[str, Family] = {family.case: family for family in FAMILIES}


def renamed_kernel(kernel: str, arguments: Sequence[tuple[str, str]], names: Mapping[str, Sequence[str]] | None) -> str:
    """A family's kernel that a source has under another name, which is that of a launched kernel; otherwise empty.

    The launched kernel has exactly the template parameters of the family; `arguments` are (name, value) pairs. The
    source has no kernel of the original name; `names` are its kernels, None if they are unknown.
    """
    parameters, own = tuple(name for name, _ in arguments), names or BY_KERNEL
    if kernel in BY_KERNEL:
        return ""
    found = (family.kernel for family in FAMILIES if family.parameters == parameters and family.kernel not in own)
    return next(found, "")


def instance_of(family: Family, values: tuple[str, ...], cases: Mapping[str, KernelCase]) -> KernelCase | None:
    """The kernel with these template arguments; None if none of the tree's `cases` (by name) launches it."""
    case = cases.get(f"{family.case} {','.join(family.case_arguments(values))}")
    return case and replace(case, instance=values)


def kernel_named(name: str, cases: Mapping[str, KernelCase]) -> KernelCase | None:
    """The kernel case, or the single kernel, with this name; None if the tree's `cases` (by name) have no such case."""
    family, _, values = name.partition(" ")
    known = cases.get(name)
    return known or (instance_of(BY_CASE[family], tuple(values.split(",")), cases) if family in BY_CASE else None)
