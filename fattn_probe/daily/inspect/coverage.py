"""Coverage: the blocks must compute every KV step of every tile exactly once, and the fixup must add every part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.view.stream_k_map import step_rows
from fattn_probe.llama.launch.tiles import (
    BlockPart,
    BlockWork,
    Grid,
    Limits,
    Tile,
    TileWork,
    in_grid,
    index_of,
    limits_of,
    ntiles,
    parallel_blocks_of,
    share_of,
    tiles_in,
)

FIXUP, COMBINE = "flash_attn_stream_k_fixup", "flash_attn_combine_results"


@dataclass(frozen=True)
class CoverageFinding:
    """An error in the division of work. `kind` is gap, scan, overlap, seam, outside, fixup, share or launch.

    `steps` is the affected range [start, stop) of KV steps in `tile`; `blocks` are the CUDA blocks involved.
    """

    kind: str
    message: str
    tile: Tile | None = None
    steps: tuple[int, int] | None = None
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Coverage:
    """The result of the check; `skipped` counts the KV steps that blocks may skip because the mask hides them."""

    findings: tuple[CoverageFinding, ...]
    tiles: int
    steps: int
    skipped: int
    blocks: int

    @property
    def passes(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def check(facts: Facts) -> Coverage | None:
    """Check the blocks against the grid; None if the facts lack the grid or any of the blocks."""
    grid = facts.grid
    if grid is None or not facts.blocks or facts.fault:
        return None
    parts: dict[Tile, list[BlockPart]] = {}
    for block in facts.blocks:
        for work in block.tiles:
            parts.setdefault(work.tile, []).append((block.block, work))
    for found in parts.values():
        found.sort(key=lambda part: (part[1].kb0_start, part[0]))
    limits = limits_of(facts.blocks)
    tiles = tiles_in(grid)
    holes = [finding for tile in tiles for finding in _holes(tile, parts.get(tile, []), grid, facts.blocks)]
    hidden = sum(max(0, grid.iter_k - limits.get((tile[0], tile[3]), grid.iter_k)) for tile in tiles)
    findings = [
        *_launched(facts),
        *_scanned(facts, limits),
        *holes,
        *_outside(parts, grid),
        *_seams(facts.blocks, grid, holes),
        *_shares(facts.blocks, grid),
        *(finding for tile in sorted(parts) if in_grid(tile, grid) for finding in _handover(tile, parts[tile])),
    ]
    return Coverage(tuple(findings), len(tiles), len(tiles) * grid.iter_k, hidden, len(facts.blocks))


def spell(tile: Tile) -> str:
    """Describe a tile in words."""
    sequence, z_KV, zt_gqa, jt = tile
    return f"sequence {sequence}, KV head {z_KV}, head group {zt_gqa}, query tile {jt}"


def _holes(
    tile: Tile, parts: Sequence[BlockPart], grid: Grid, blocks: Sequence[BlockWork]
) -> Iterator[CoverageFinding]:
    """Find the KV steps of a tile that no block computes, or that several compute."""
    works = [work for _, work in parts]
    limits = [work.kb0_limit for work in works if work.kb0_limit is not None]
    if works and not limits and all(work.kb0_step == 1 for work in works):
        joined = all(a.kb0_stop == b.kb0_start for a, b in pairwise(works))
        if joined and (works[0].kb0_start, works[-1].kb0_stop) == (0, grid.iter_k):
            return  # consecutive parts cover the whole tile, so counting is unnecessary
    limit = max(limits, default=grid.iter_k)
    doers: list[tuple[int, ...]] = [()] * grid.iter_k
    for block, work in parts:
        for step in range(max(0, work.kb0_start), min(grid.iter_k, work.kb0_stop), work.kb0_step):
            doers[step] += (block,)
    wrong = [who if len(who) > 1 or (step < limit and not who) else None for step, who in enumerate(doers)]
    for who, run in groupby(range(grid.iter_k), key=wrong.__getitem__):
        start, *others = run
        stop = start + len(others) + 1
        which, verb = (f"KV steps {start} to {stop - 1}", "are") if others else (f"KV step {start}", "is")
        if who:
            message = f"{which} of {spell(tile)} {verb} computed {len(who)} times, by {_blocks(who)}"
            yield CoverageFinding("overlap", message, tile, (start, stop), who)
        elif who is not None and stop - start == grid.iter_k:
            yield CoverageFinding("gap", f"no block computes the tile at {spell(tile)}", tile, (start, stop))
        elif who is not None:
            first, cause, around = index_of(tile, grid) * grid.iter_k, "", tuple[int, ...]()
            for a, b in pairwise(blocks):  # for a gap between neighbouring stream-K blocks' shares, name both blocks
                if a.kbc_stop is not None and b.kbc is not None and a.kbc_stop <= first + start < first + stop <= b.kbc:
                    cause, around = f"{_meeting(a, b)}: ", (a.block, b.block)
                    break
            said = f"{cause}no block computes {which} of {spell(tile)}"
            yield CoverageFinding("gap", said, tile, (start, stop), around)


def _scanned(facts: Facts, limits: Limits) -> Iterator[CoverageFinding]:
    """Find KV steps that a kernel's scan of the mask hides, although a query sees some of their rows."""
    rows, template = step_rows(facts), facts.choice.template if facts.choice else {}
    ncols1 = template.get("ncols1", template.get("ncols"))
    if not facts.mask_ends or not rows or not ncols1 or template.get("use_sparse"):  # a sparse kernel gathers its rows
        return
    for (sequence, jt), limit in sorted(limits.items()):
        ends = facts.mask_ends[sequence % len(facts.mask_ends)][jt * ncols1 : (jt + 1) * ncols1]
        if (end := max(ends, default=0)) > limit * rows:
            query, steps = jt * ncols1 + ends.index(end), (limit, -(-end // rows))
            said = f"the scan of the mask gives KV_max {limit * rows} for sequence {sequence}, query tile {jt}"
            said += f", but query {query} sees KV row {end - 1}"
            yield CoverageFinding("scan", said, (sequence, 0, 0, jt), steps)


def _meeting(a: BlockWork, b: BlockWork) -> str:
    return f"block {a.block} stops at kbc {a.kbc_stop}, block {b.block} starts at {b.kbc}"


def _outside(parts: dict[Tile, list[BlockPart]], grid: Grid) -> Iterator[CoverageFinding]:
    """Find work on tiles outside the grid, or on KV steps beyond a tile's end."""
    for tile, found in sorted(parts.items()):
        for block, work in found:
            steps, who = (work.kb0_start, work.kb0_stop), f"block {block} works on {spell(tile)}"
            if not in_grid(tile, grid):
                yield CoverageFinding("outside", f"{who}: the grid has no such tile", tile, steps, (block,))
            elif work.kb0_start < 0 or work.kb0_stop > grid.iter_k or work.kb0_step < 1:
                said = f"{who}, KV steps {work.kb0_start} to {work.kb0_stop - 1}: the tile has {grid.iter_k} (iter_k)"
                yield CoverageFinding("outside", said, tile, steps, (block,))


def _seams(blocks: Sequence[BlockWork], grid: Grid, holes: Sequence[CoverageFinding]) -> Iterator[CoverageFinding]:
    """Find neighbouring shares that do not meet, unless a gap already reports them."""
    told = {frozenset(finding.blocks) for finding in holes}
    for a, b in pairwise(blocks):
        if a.kbc_stop is not None and a.kbc_stop != b.kbc and frozenset((a.block, b.block)) not in told:
            yield CoverageFinding("seam", _meeting(a, b), blocks=(a.block, b.block))
    total = ntiles(grid) * grid.iter_k
    first, last = blocks[0], blocks[-1]
    if first.kbc not in (None, 0):
        yield CoverageFinding(
            "seam", f"block {first.block}, the first, starts at kbc {first.kbc}, not 0", blocks=(first.block,)
        )
    if last.kbc_stop not in (None, total):
        said = f"block {last.block}, the last, stops at kbc {last.kbc_stop}, not {total}"
        yield CoverageFinding("seam", said, blocks=(last.block,))


def _shares(blocks: Sequence[BlockWork], grid: Grid) -> Iterator[CoverageFinding]:
    """Find blocks with tiles that differ from the share given by their `kbc` and `kbc_stop`, or by their index."""
    limits, turns = limits_of(tuple(blocks)), parallel_blocks_of(tuple(blocks))
    for block in blocks:
        expected = share_of(block, grid, turns, limits)
        if [_place(work) for work in block.tiles] == [_place(work) for work in expected]:
            continue
        share = f"blockIdx {block.blockIdx}" if block.kbc is None else f"kbc {block.kbc} to {block.kbc_stop}"
        said = f"block {block.block} ({share}) computes {_listed(block.tiles)}, but its share is {_listed(expected)}"
        yield CoverageFinding("share", said, blocks=(block.block,))


def _place(work: TileWork) -> tuple[int, ...]:
    """A key for comparing blocks' work: ignores flags, and treats all empty ranges as equal."""
    nothing = work.kb0_stop <= work.kb0_start
    return (*work.tile, work.kb0_start, *((work.kb0_start, 1) if nothing else (work.kb0_stop, work.kb0_step)))


def _listed(works: Sequence[TileWork]) -> str:
    words = [f"[{', '.join(map(str, work.tile))}] steps {work.kb0_start}:{work.kb0_stop}" for work in works]
    shown = words if len(words) <= 4 else [*words[:3], f"{len(words) - 3} more"]
    return " and ".join(shown) or "nothing"


def _handover(tile: Tile, parts: Sequence[BlockPart]) -> Iterator[CoverageFinding]:
    """Check that only the last block of a tile writes `dst`, and that it expects the other blocks' parts."""
    if any(work.kb0_step != 1 for _, work in parts):
        return
    where, blocks = spell(tile), tuple(block for block, _ in parts)
    writers, last = tuple(block for block, work in parts if not work.is_fixup), blocks[-1]
    if not writers:
        yield CoverageFinding(
            "fixup", f"{where}: no block writes dst (is_fixup in {_blocks(blocks)})", tile, blocks=blocks
        )
    elif len(writers) > 1:
        yield CoverageFinding(
            "fixup", f"{where}: {_blocks(writers)} write dst, but only the last block should", tile, blocks=writers
        )
    elif parts[-1][1].is_fixup:
        said = f"{where}: block {writers[0]} writes dst, but block {last} computes the last part"
        yield CoverageFinding("fixup", said, tile, blocks=(writers[0], last))
    for block, work in parts:
        writes, starts_late, said = not work.is_fixup, work.kb0_start > 0, ""
        if work.needs_fixup and not writes:
            said = "has needs_fixup, but does not write dst itself"
        elif work.needs_fixup and not starts_late:
            said = "has needs_fixup, but starts at the tile's beginning"
        elif work.needs_fixup and len(parts) == 1:
            said = "has needs_fixup, but no block starts the tile"
        elif writes and starts_late and not work.needs_fixup:
            said = f"starts at KV step {work.kb0_start} without needs_fixup: earlier steps are never added"
        if said:
            yield CoverageFinding("fixup", f"{where}: block {block} {said}", tile, blocks=(block,))


def _launched(facts: Facts) -> Iterator[CoverageFinding]:
    """Check that the launch has as many blocks as its grid, and that a kernel adds the parts."""
    names = [launch.kernel for launch in facts.kernels]
    chosen = facts.choice.kernel.partition("<")[0] if facts.choice else None
    main = next((launch for launch in facts.kernels if launch.kernel.partition("<")[0] == chosen), None)
    if main is not None and main.grid[0] * main.grid[1] * main.grid[2] != len(facts.blocks):
        grid = "x".join(map(str, main.grid))
        yield CoverageFinding("launch", f"the debugger saw {len(facts.blocks)} blocks of a grid of {grid}")
    works = [work for block in facts.blocks for work in block.tiles]
    seams = sum(work.needs_fixup for work in works)
    if names and seams and not any(FIXUP in name for name in names):
        yield CoverageFinding(
            "launch", f"{seams} tiles are divided among blocks, but no {FIXUP} was launched to add the parts"
        )
    if names and any(work.kb0_step > 1 for work in works) and not any(COMBINE in name for name in names):
        yield CoverageFinding(
            "launch", f"several blocks take turns on a tile, but no {COMBINE} was launched to add the parts"
        )


def _blocks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"block {numbers[0]}"
    return f"blocks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
