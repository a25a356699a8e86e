"""A run as lanes of steps: each CUDA block's steps in order, then those of the kernel that adds the parts.

Neither the simulator nor a GPU records when a block runs a step, so a lane shows only the order in its block. The lines
of llama.cpp's source that implement a step are found in a tree by their text."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.cases.op import Sizes
from fattn_probe.cases.op.op import row_size
from fattn_probe.cases.op.values import view_values
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.anchors import matching
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.replay.row_numbers import RowNumbers, visible_shares
from fattn_probe.llama.launch.families import Family
from fattn_probe.llama.launch.geometry import Geometry, tile_rows
from fattn_probe.llama.launch.tiles import Tile, TileWork, in_grid, index_of, tiles_in
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.patches import Patch
from fattn_probe.verdict.judge.origin import Code
from fattn_probe.verdict.truth.reference.adapter import Inputs

F32_BYTES, F16_BYTES, PAIR_BYTES = 4, 2, 8
Q, KV, STORE, PART, UNDIVIDED, TAKE, ADD, DIVIDE = range(8)


Traffic = tuple[tuple[str, int, int], ...]
"""(array, units read, units written)"""


@dataclass(frozen=True)
class SourceLine:
    """A source line that implements part of a step; `place` is file:line, empty if the line was not found."""

    what: str
    place: str
    text: str


@dataclass(frozen=True)
class StepKind:
    """A kind of step: name, symbol in pictures ("#" stands for its number), a sentence, and source lines."""

    name: str
    sign: str
    about: str = ""
    lines: tuple[SourceLine, ...] = ()


KINDS = (
    StepKind("load Q", "Q", "loads the queries of the tile, scaled"),
    StepKind("KV step", "#", "reads K and V of some rows: logits, softmax, VKQ"),
    StepKind("store dst", "dst", "divides VKQ by the row sum and writes it to dst"),
    StepKind("store part", "part", "the next block continues the tile: stores VKQ, maximum and row sum"),
    StepKind("store undivided", "dst+", "earlier blocks began the tile: writes VKQ to dst undivided"),
    StepKind("take", "=#", "begins with the part that this block stored"),
    StepKind("add part", "+#", "scales both parts to the larger maximum, and adds them"),
    StepKind("divide", "÷", "divides by the row sum, and writes dst"),
)
"""The kinds of steps in llama.cpp's kernels; a step refers to its kind by index."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps of the same kind, each with the same traffic; `tile` is the output tile's number, or -1.

    KV steps are `first`, `first + every`, ...; for other kinds, `first` is the block whose part is handled. `traffic`
    is (array, read, written) per step, in the replay's unit. `values` are the named numbers of a single step.
    """

    kind: int
    tile: int
    first: int
    count: int = 1
    every: int = 1
    traffic: Traffic = ()
    values: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Lane:
    """The steps of a block, in order; `start` is later for a kernel that runs after the others."""

    name: str
    link: str
    stretches: tuple[Stretch, ...]
    start: int = 0

    @property
    def stop(self) -> int:
        """The time after the last step, in steps."""
        return self.start + sum(stretch.count for stretch in self.stretches)


@dataclass(frozen=True)
class StepPlace:
    """A step of a lane: a KV step of a tile or, without a tile, the lane's last step."""

    lane: str
    tile: int = -1
    kb0: int | None = None


@dataclass(frozen=True)
class Traced:
    """The values read at a step: each quantity's largest value and error, and the number of deviating values."""

    place: StepPlace
    who: str
    quantities: tuple[tuple[str, float, float, int], ...]


@dataclass(frozen=True)
class Marked:
    """A marked step: the first deviation or the worst element in words, and its place."""

    words: str
    place: StepPlace


CAPTION = (
    "Each block's steps in order; a colour is an output tile, a number a KV step. Q loads the queries, part and"
    " dst+ store a part, =n takes and +n adds what block n stored, ÷ divides. Blocks run in parallel; their times"
    " were not recorded."
)


@dataclass(frozen=True)
class Replay:
    """A run that a page steps through.

    `tiles` are the names of output tiles. `masks` has a digit per KV step for each tile, the visible share (9: all), or
    is empty. `errors` (n_head, n_q) are the largest errors in the sequence with the worst error, in units of the
    expected error (None if unknown). `rows` are the output rows whose values are shown, worst first, and `outputs`
    their rows of dst. Warps that share a column take turns, `chunk` KV rows each. `notes` list what is unknown.
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
    sizes: Sizes | None = None
    chunk: int = 32
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
        """The time after the last step, in steps."""
        return max((lane.stop for lane in self.lanes), default=0)


def lanes_of(facts: Facts, case: Case, geometry: Geometry) -> tuple[Lane, ...]:
    """A lane for each block of the attention kernel, then a lane for each tile whose parts a second kernel adds."""
    grid, stream_k, found = geometry.grid, geometry.kernel.family.stream_k, list[Lane]()
    moved = [_traffic(case, geometry, tile) for tile in tiles_in(grid)]
    parts: list[list[int]] = [[] for _ in moved]
    for block in facts.blocks:
        stretches: list[Stretch] = []
        for work in block.tiles:
            if in_grid(work.tile, grid):
                index = index_of(work.tile, grid)
                parts[index].append(block.block)
                last = PART if not work.writes else UNDIVIDED if work.needs_fixup else STORE
                stretches += [
                    Stretch(Q, index, block.block, traffic=moved[index][Q]),
                    *_KV_stretches(work, index, case, geometry),
                    Stretch(last, index, block.block, traffic=moved[index][last]),
                ]
        found.append(Lane(f"block {block.block}", f"block={block.block}", tuple(stretches)))
    start = max((lane.stop for lane in found), default=0)
    for index, blocks in enumerate(parts):
        if len(blocks) > 1:
            order = blocks[::-1] if stream_k else blocks
            kinds = [(TAKE, order[0]), *((ADD, block) for block in order[1:]), (DIVIDE, order[0])]
            stretches = [Stretch(kind, index, block, traffic=moved[index][kind]) for kind, block in kinds]
            found.append(Lane(f"tile {index}", f"tile={index}", tuple(stretches), start))
    return tuple(found)


def _traffic(case: Case, geometry: Geometry, at: Tile) -> Mapping[int, Traffic]:
    """The traffic of a tile's steps by kind, in bytes: computed, not measured; counts each existing element once."""
    kernel = geometry.kernel
    queries, heads = tile_rows(at, case.op.sizes, kernel.ncols1, kernel.ncols2)
    rows = len(queries) * len(heads)
    out, pairs = rows * kernel.DV * F32_BYTES, ("maximum, row sum", rows * PAIR_BYTES)
    taken = "dst" if kernel.family.stream_k else "part"
    return {
        Q: (("Q", rows * kernel.DKQ * F32_BYTES, 0),),
        STORE: (("dst", 0, out),),
        PART: (("part", 0, out), (pairs[0], 0, pairs[1])),
        UNDIVIDED: (("dst", 0, out), (pairs[0], 0, pairs[1])),
        TAKE: ((taken, out, 0), (*pairs, 0)),
        ADD: (("part", out, 0), (*pairs, 0)),
        DIVIDE: (("dst", 0, out),),
    }


def _KV_stretches(work: TileWork, index: int, case: Case, geometry: Geometry) -> Iterator[Stretch]:
    """A block's KV steps on a tile; a step cut short by the end of K is separate."""
    kernel, K, V = geometry.kernel, case.op.tensors["K"], case.op.tensors["V"]
    last, short = geometry.grid.iter_k - 1, 0 if kernel.sparse else geometry.n_kv % geometry.rows
    sizes = {"K": row_size(kernel.type_K, kernel.DKQ), "V": row_size(kernel.type_V, kernel.DV)}
    if (V.root, V.offset) == (K.root, K.offset):
        del sizes["V"]  # V is a part of K's rows
    if case.op.has_mask:
        queries, _ = tile_rows(work.tile, case.op.sizes, kernel.ncols1, kernel.ncols2)
        sizes["mask"] = len(queries) * F16_BYTES
    for some, rows in (
        ([step for step in work.steps if step < last or not short], geometry.rows),
        ([step for step in work.steps if step == last and short], short),
    ):
        if some:
            traffic = tuple((name, rows * size, 0) for name, size in sizes.items())
            yield Stretch(KV, index, some[0], len(some), work.kb0_step, traffic)


def names_of_tiles(case: Case, geometry: Geometry) -> tuple[str, ...]:
    """The names of the tiles: their queries and heads, in words."""
    found, kernel = [], geometry.kernel
    for tile in tiles_in(geometry.grid):
        rows = tile_rows(tile, case.op.sizes, kernel.ncols1, kernel.ncols2)
        queries, heads = (f"{some[0]}-{some[-1]}" if len(some) > 1 else some[0] for some in rows)
        at = f"sequence {tile[0]}, " if case.op.sizes.n_seq > 1 else ""
        found.append(f"{at}K/V head {tile[1]}, head {heads}, query {queries}")
    return tuple(found)


def masks_of(case: Case, inputs: Inputs, geometry: Geometry) -> tuple[str, ...]:
    """The visible shares of each tile's KV steps; empty without a mask, or if the kernel gathers its rows."""
    if not case.op.has_mask or geometry.kernel.sparse:
        return ()
    mask = view_values(case.op.operands["mask"], inputs)[:, 0, : case.op.sizes.n_q].astype(np.float32)
    shares = [
        visible_shares(one, geometry.n_kv, geometry.rows, geometry.kernel.ncols1, geometry.grid.iter_k) for one in mask
    ]
    return tuple(shares[tile[0] % len(shares)][tile[3]] for tile in tiles_in(geometry.grid))


@cache
def line_patterns() -> tuple[tuple[str, ...], ...]:
    """The source lines of each step: family, kind, what, file, pattern. `what` is the step's name in the papers."""
    lines = (files("fattn_probe.daily.inspect.replay") / "source_lines.csv").read_text(encoding="utf-8").splitlines()
    return tuple(tuple(row) for row in csv.reader(lines[1:]))


def kinds_of(family: Family, tree: Tree | None, patches: Sequence[Patch] = ()) -> tuple[StepKind, ...]:
    """The kinds of steps in a family's kernels, with their source lines in the patched tree."""
    code = Code(tree.root, tuple(patches)) if tree else None
    lines: dict[str, list[SourceLine]] = {}
    for name, kind, what, file, pattern in line_patterns():
        if name == family.name:
            text = ((code and code.text(file)) or "").splitlines()
            at = next(matching(text, pattern), 0)
            found = SourceLine(what, f"{file}:{at}", text[at - 1].strip()) if at else SourceLine(what, "", "")
            lines.setdefault(kind, []).append(found)
    return tuple(replace(kind, lines=tuple(lines.get(kind.name, ()))) for kind in KINDS)
