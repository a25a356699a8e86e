"""Features of a case's launches, and the cases with a pair of features that no earlier case had."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from fattn_probe.cases.device import arch_name
from fattn_probe.cases.op import Op
from fattn_probe.cases.scenario import Case
from fattn_probe.lab.fuzz.run import Judged
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.constants import SHIPPED, known_constants
from fattn_probe.llama.launch.geometry import Geometry, geometry_of
from fattn_probe.llama.launch.tiles import ntiles, tile_at
from fattn_probe.llama.source import Tree
from fattn_probe.machine.run.session import arch_of
from fattn_probe.verdict.judge.judgement import ATTENTION_KERNEL, attention_kernel

MOST_TILES = 64
"""The number of tiles of a launch whose parts are counted."""


def features(judged: Judged, tree: Tree | None) -> tuple[str, ...]:
    """The features of a case that ran: its kernels, their division of work, and properties of the op."""
    op, launches = judged.drawn.case.op, judged.result.kernels
    arch = arch_of(judged.drawn.target)
    names = [launch.spelling for launch in launches]
    geometry = geometry_of(op, launches, arch_number(arch), known_constants(tree) or SHIPPED)
    found = [arch_name(arch), f"kernel {attention_kernel(names)}"]
    found += sorted({f"with {launch.kernel}" for launch in launches if not ATTENTION_KERNEL.search(launch.spelling)})
    return (*found, *(() if geometry is None else division(op, geometry)), *of_case(judged.drawn.case))


def division(op: Op, geometry: Geometry) -> Iterator[str]:
    """Features of the division of tiles among blocks, and of partial tiles."""
    tiles = [tile_at(index, geometry.grid) for index in range(min(ntiles(geometry.grid), MOST_TILES))]
    parts = [geometry.parts_of(tile) for tile in tiles]
    steps = max(len(range(part.start, part.stop, part.every)) for tile in parts for part in tile)
    yield f"{rough(steps)} KV steps in a block"
    yield f"{rough(max(map(len, parts)))} parts in a tile"
    if geometry.kernel.family.stream_k:
        yield f"{rough(-(-len(parts) // max(1, geometry.kernel.blocks[0])))} tiles in a block"
        yield "equal parts" if len({len(tile) for tile in parts}) == 1 else "unequal parts"
    elif 2 * geometry.kernel.blocks[1] > op.sizes.hsv:
        yield "more parallel blocks than half the head size"
    if op.sizes.n_kv % geometry.rows:
        yield "partial KV tile"
    if op.sizes.n_q % geometry.kernel.ncols1:
        yield "partial query tile"
    if op.sizes.group % geometry.kernel.ncols2:
        yield "partial group of heads"


def of_case(case: Case) -> Iterator[str]:
    """Features of the op and its data."""
    op = case.op
    yield f"K {op.type_K}"
    yield f"V {op.type_V}"
    yield f"mask {case.mask_kind}"
    yield from (f"{name} {getattr(case.recipe.layout, name).kind}" for name in ("Q", "K", "V"))
    yield from (f"{name} is {getattr(case.recipe.data, name).kind}" for name in ("Q", "K", "V"))
    flags = {
        "sinks": op.has_sinks,
        "softcap": op.params.logit_softcap,
        "ALiBi": op.params.max_bias,
        "sequences": op.sizes.n_seq > 1,
        "one mask for all sequences": op.has_mask and op.tensors["mask"].ne[3] < op.sizes.n_seq,
        "mask wider than K": op.has_mask and op.tensors["mask"].ne[0] > op.sizes.n_kv,
        "mask with padding": op.has_mask and op.tensors["mask"].ne[1] > op.sizes.n_q,
    }
    yield from (name for name, holds in flags.items() if holds)


def rough(number: int) -> str:
    """1, 2, 3-4, 5-8, 9-16, more."""
    for least, most in ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16)):
        if number <= most:
            return str(most) if least == most else f"{least}-{most}"
    return "more than 16"


@dataclass
class Kept:
    """The cases that had a new pair of features, and the pairs."""

    tree: Tree | None
    cases: list[Judged] = field(default_factory=list)
    pairs: set[tuple[str, str]] = field(default_factory=set)

    def see(self, judged: Judged) -> None:
        """Keep a passing case if it has a new pair."""
        if judged.result.status != "pass":
            return
        new = set(combinations(features(judged, self.tree), 2)) - self.pairs
        if new:
            self.pairs |= new
            self.cases.append(judged)
