"""A run as lanes of steps: what each CUDA block does, in order, and what the kernel after it adds up.

Neither the simulator nor a GPU records when a block does a step. A lane has the order within a block only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.cases.op.ggml_types import row_size
from fattn_probe.cases.op.values import view_values
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.replay.row_numbers import RowNumbers, visible_shares
from fattn_probe.llama.launch.families import MMA_F16
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.llama.launch.kernel import AttentionKernel
from fattn_probe.llama.launch.tiles import Tile, TileWork, in_grid, index_of, ntiles, tile_at
from fattn_probe.verdict.truth.reference.adapter import Inputs

F32_BYTES, F16_BYTES, PAIR_BYTES = 4, 2, 8
Q, KV, STORE, PART, UNDIVIDED, TAKE, ADD, DIVIDE = range(8)


@dataclass(frozen=True)
class SourceLine:
    """A line of the source that does a part of a step; `place` is file:line, empty if it was not found."""

    what: str
    place: str
    text: str


@dataclass(frozen=True)
class StepKind:
    """What a step does: its name, its sign in pictures ("#": its number), a sentence, and the lines of the source."""

    name: str
    sign: str
    about: str = ""
    lines: tuple[SourceLine, ...] = ()


KINDS = (
    StepKind("load Q", "Q", "loads the queries of the tile, scaled"),
    StepKind("KV step", "#", "reads K and V of some rows: logits, softmax, VKQ"),
    StepKind("store dst", "dst", "divides VKQ by the row sum and writes it to dst"),
    StepKind("store part", "part", "the next block goes on with the tile: stores VKQ, maximum and row sum"),
    StepKind("store undivided", "dst+", "earlier blocks began the tile: writes VKQ to dst undivided"),
    StepKind("take", "=#", "begins with what this block wrote"),
    StepKind("add part", "+#", "scales both parts to the larger maximum, and adds them"),
    StepKind("divide", "÷", "divides by the row sum, and writes dst"),
)
"""The kinds of steps of llama.cpp's kernels, by number."""


@dataclass(frozen=True)
class Stretch:
    """Some steps of the same kind in a row, each with the same traffic; `tile` is the output tile's number, or -1.

    KV steps are `first`, `first + every`, ...; for other kinds `first` is the block whose part is handled. Traffic is
    (array, read, written) of one step, in the replay's unit. `values` are its numbers, if it is a single step.
    """

    kind: int
    tile: int
    first: int
    count: int = 1
    every: int = 1
    traffic: tuple[tuple[str, int, int], ...] = ()
    values: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Lane:
    """The steps of a block in their order; those of a kernel that runs after the others begin at `start`."""

    name: str
    link: str
    stretches: tuple[Stretch, ...]
    start: int = 0

    @property
    def stop(self) -> int:
        """The time after the last step, if every step takes 1."""
        return self.start + sum(stretch.count for stretch in self.stretches)


@dataclass(frozen=True)
class Traced:
    """What the debugger read at a step of a lane: per quantity its numbers, largest error and how many deviate."""

    lane: str
    kb0: int | None
    who: str
    quantities: tuple[tuple[str, int, float, float, int], ...]


@dataclass(frozen=True)
class Marked:
    """The first deviation, in words, and the lane and KV step where it is; None if it is not in a step."""

    words: str
    lane: str = ""
    kb0: int | None = None


CAPTION = (
    "Steps in the order of each block; a colour is an output tile, a number a KV step. Q loads the queries, part and"
    " dst+ store a part, =n takes and +n adds what block n stored, ÷ divides. Blocks run side by side: no clock was"
    " recorded."
)


@dataclass(frozen=True)
class Replay:
    """A run to step through.

    `tiles` are the names of output tiles; `masks` has for each a digit per KV step, the share that is visible (9: all),
    or is empty. `errors` (n_head, n_q) are the largest errors of the sequence with the worst, in units of the
    expected error, None if not known. `rows` are those whose numbers the page has, the worst first,
    and `outputs` their rows of dst. `notes` say what is not known.
    """

    title: str
    about: Mapping[str, str]
    kinds: tuple[StepKind, ...]
    lanes: tuple[Lane, ...]
    facts: Facts
    step_rows: int
    n_kv: int
    tiles: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    rows: tuple[RowNumbers, ...] = ()
    outputs: Mapping[tuple[int, int, int], F64] = field(default_factory=dict)
    tile_errors: Mapping[int, float] = field(default_factory=dict)
    errors: F64 | None = None
    errors_sequence: int = 0
    geometry: Geometry | None = None
    traced: tuple[Traced, ...] = ()
    marked: Marked | None = None
    status: str = ""
    verdict: str = ""
    unit: str = "B"
    caption: str = CAPTION
    notes: tuple[str, ...] = ()

    @property
    def stop(self) -> int:
        """The time after the last step."""
        return max((lane.stop for lane in self.lanes), default=0)


def lanes_of(facts: Facts, case: Case, kernel: AttentionKernel, geometry: Geometry) -> tuple[Lane, ...]:
    """The blocks of the attention kernel, then the tiles whose parts a second kernel adds."""
    grid, found = geometry.grid, list[Lane]()
    whole = _Traffic(case, kernel, geometry)
    parts: dict[int, list[int]] = {}
    for block in facts.blocks:
        stretches: list[Stretch] = []
        for work in block.tiles:
            if in_grid(work.tile, grid):
                index = index_of(work.tile, grid)
                parts.setdefault(index, []).append(block.block)
                stretches += _tile_stretches(work, index, whole, block.block)
        found.append(Lane(f"block {block.block}", f"block={block.block}", tuple(stretches)))
    start = max((lane.stop for lane in found), default=0)
    for index in range(ntiles(grid)):
        blocks = parts.get(index, [])
        if len(blocks) > 1:
            last_first = kernel.family is MMA_F16
            order = blocks[::-1] if last_first else blocks
            stretches = [
                *(Stretch(ADD if at else TAKE, index, block, traffic=whole.part(index, at == 0 and last_first, True))
                  for at, block in enumerate(order)),
                Stretch(DIVIDE, index, order[0], traffic=whole.out(index)),
            ]  # fmt: skip
            found.append(Lane(f"tile {index}", f"tile={index}", tuple(stretches), start))
    return tuple(found)


@dataclass(frozen=True)
class _Traffic:
    """The bytes of a tile's steps, each element once: what a kernel must move, not what it was measured to move."""

    case: Case
    kernel: AttentionKernel
    geometry: Geometry

    def columns(self, index: int) -> tuple[int, int]:
        """The queries and heads of a tile that exist."""
        _, _, zt_gqa, jt = tile_at(index, self.geometry.grid)
        sizes, kernel = self.case.op.sizes, self.kernel
        queries = min(kernel.ncols1, sizes.n_q - jt * kernel.ncols1)
        return queries, min(kernel.ncols2, sizes.group - zt_gqa * kernel.ncols2)

    def q(self, index: int) -> tuple[tuple[str, int, int], ...]:
        """Q of a tile."""
        queries, heads = self.columns(index)
        return (("Q", queries * heads * self.kernel.DKQ * F32_BYTES, 0),)

    def kv(self, index: int, rows: int) -> tuple[tuple[str, int, int], ...]:
        """K, V and mask of some KV rows."""
        kernel = self.kernel
        found = [("K", rows * row_size(kernel.type_K, kernel.DKQ), 0)]
        found.append(("V", rows * row_size(kernel.type_V, kernel.DV), 0))
        if self.case.op.has_mask:
            found.append(("mask", rows * self.columns(index)[0] * F16_BYTES, 0))
        return tuple(found)

    def part(self, index: int, in_dst: bool, read: bool) -> tuple[tuple[str, int, int], ...]:
        """A part's VKQ, and its maximum and row sum."""
        queries, heads = self.columns(index)
        sizes = (queries * heads * self.kernel.DV * F32_BYTES, queries * heads * PAIR_BYTES)
        names = ("dst" if in_dst else "part", "maximum, row sum")
        return tuple((name, size * read, size * (not read)) for name, size in zip(names, sizes, strict=True))

    def out(self, index: int) -> tuple[tuple[str, int, int], ...]:
        """A tile of dst."""
        queries, heads = self.columns(index)
        return (("dst", 0, queries * heads * self.kernel.DV * F32_BYTES),)


def _tile_stretches(work: TileWork, index: int, traffic: _Traffic, block: int) -> Iterator[Stretch]:
    """A block's steps on a tile."""
    geometry, kernel = traffic.geometry, traffic.kernel
    yield Stretch(Q, index, block, traffic=traffic.q(index))
    steps, total = range(work.kb0_start, work.kb0_stop, work.kb0_step), geometry.rows
    tail = geometry.n_kv - (geometry.grid.iter_k - 1) * total if not kernel.sparse else total
    full = [step for step in steps if step < geometry.grid.iter_k - 1 or tail == total]
    if full:
        yield Stretch(KV, index, full[0], len(full), work.kb0_step, traffic.kv(index, total))
    if len(full) < len(steps):
        yield Stretch(KV, index, steps[-1], 1, 1, traffic.kv(index, tail))
    divided = work.is_fixup or kernel.blocks[1] > 1
    if divided or work.needs_fixup:
        yield Stretch(PART if divided else UNDIVIDED, index, block, traffic=traffic.part(index, not divided, False))
    else:
        yield Stretch(STORE, index, block, traffic=traffic.out(index))


def names_of_tiles(case: Case, geometry: Geometry) -> tuple[str, ...]:
    """The queries and heads of each tile in words."""
    sizes, kernel, found = case.op.sizes, geometry.kernel, []
    for index in range(ntiles(geometry.grid)):
        sequence, z_KV, zt_gqa, jt = tile_at(index, geometry.grid)
        first = z_KV * sizes.group + zt_gqa * kernel.ncols2
        heads = _span(first, min(first + kernel.ncols2, (z_KV + 1) * sizes.group))
        queries = _span(jt * kernel.ncols1, min((jt + 1) * kernel.ncols1, sizes.n_q))
        at = f"sequence {sequence}, " if sizes.n_seq > 1 else ""
        found.append(f"{at}K/V head {z_KV}, head {heads}, query {queries}")
    return tuple(found)


def masks_of(case: Case, inputs: Inputs, geometry: Geometry) -> tuple[str, ...]:
    """For each tile the visible shares of its KV steps; empty without a mask, or if the kernel gathers its rows."""
    if not case.op.has_mask or geometry.kernel.sparse:
        return ()
    mask = view_values(case.op.operands["mask"], inputs)[:, 0, : case.op.sizes.n_q].astype(np.float32)
    shares = [
        visible_shares(one, geometry.n_kv, geometry.rows, geometry.kernel.ncols1, geometry.grid.iter_k) for one in mask
    ]
    tiles: Sequence[Tile] = [tile_at(index, geometry.grid) for index in range(ntiles(geometry.grid))]
    return tuple(shares[tile[0] % len(shares)][tile[3]] for tile in tiles)


def _span(first: int, stop: int) -> str:
    return str(first) if stop - first <= 1 else f"{first}-{stop - 1}"
