"""llama.cpp's stream-K: all KV steps of all output tiles in sequence, cut into equal shares, with a fixup at seams."""

# ruff: noqa: E741  (O and l are the papers' names)

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fattn_probe.base.documents import Document
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import MIB, read_text
from fattn_probe.cases.op import Sizes
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.lab.study.papers import attend
from fattn_probe.lab.study.problem import (
    Index,
    OpArrays,
    SlowMemory,
    StudyResult,
    Trace,
    exp_below,
    log_sum_exp,
    rows_divided,
    tiles,
)
from fattn_probe.llama.launch.geometry import grid_of, tile_rows
from fattn_probe.llama.launch.tiles import BlockPart, BlockWork, Grid, TileWork, in_grid, ntiles, stream_k_blocks


@dataclass(frozen=True)
class StudyLaunch:
    """The division of an op among `blocks`, in tiles of `ncols1` queries x `ncols2` heads."""

    shape: Sizes
    ncols1: int
    ncols2: int
    nbatch_fa: int
    blocks: tuple[BlockWork, ...]

    @cached_property
    def grid(self) -> Grid:
        """The tiles and their KV steps."""
        return grid_of(self.shape, self.ncols1, self.ncols2, self.nbatch_fa)

    @property
    def parts(self) -> tuple[BlockPart, ...]:
        """The work on the tiles that exist, block by block."""
        works = ((block.block, work) for block in self.blocks for work in block.tiles)
        return tuple((block, work) for block, work in works if in_grid(work.tile, self.grid))

    def rows(self, work: TileWork) -> tuple[slice, slice, slice]:
        """The heads, queries and KV rows of the tensors that a block computes, without padding."""
        queries, heads = tile_rows(work.tile, self.shape, self.ncols1, self.ncols2)
        start = work.kb0_start * self.nbatch_fa
        stop = max(start, min(work.kb0_stop * self.nbatch_fa, self.shape.n_kv))
        return slice(heads.start, heads.stop), slice(queries.start, queries.stop), slice(start, stop)


def divide(shape: Sizes, ncols1: int, nbatch_fa: int, most_blocks: int) -> StudyLaunch:
    """Divide an op as the kernel does: block b gets `range(b * steps / blocks, (b + 1) * steps / blocks)`.

    There are at most as many blocks as KV steps.
    """
    ncols2 = heads_of_tile(shape.group)
    grid = grid_of(shape, ncols1, ncols2, nbatch_fa)
    blocks = stream_k_blocks(grid, min(most_blocks, ntiles(grid) * grid.iter_k))
    return StudyLaunch(shape, ncols1, ncols2, nbatch_fa, blocks)


def heads_of_tile(group: int) -> int:
    """`ncols2` as upstream chooses it with GQA: 8 for more than 4 heads per K/V head, else 4, 2 or 1."""
    return min(8, 1 << (group - 1).bit_length())


def stream_k(op: OpArrays, launch: StudyLaunch, parts: Sequence[BlockPart] | None = None) -> StudyResult:
    """`flash_attn_ext_f16` and `flash_attn_stream_k_fixup_*` (ggml/src/ggml-cuda/fattn-mma-f16.cuh, fattn-common.cuh).

    Idea: Osama et al., "Stream-K", 2023, arXiv 2301.03598. `parts` belong to some output tiles; None for all.
    The result has all heads: out (n_seq, n_head, n_q, hsv), lse (n_seq, n_head, n_q), with NaN in the other tiles.
    llama.cpp does not save L; it is computed here and not counted.
    """
    parts = launch.parts if parts is None else parts
    hbm = _slow_memory(op, launch)
    trace = Trace(hbm)
    for part in parts:  # in parallel on a GPU
        process_tile(op, launch, part, hbm, trace)
    for block, work in parts:
        if work.needs_fixup:
            before = [(other, part) for other, part in parts if part.is_fixup and part.tile == work.tile]
            fixup(launch, (block, work), before, hbm, trace)
    return trace.result()


def process_tile(op: OpArrays, launch: StudyLaunch, part: BlockPart, hbm: SlowMemory, trace: Trace) -> None:
    """`flash_attn_ext_f16_process_tile`: FlashAttention-2 over a block's share of a tile, then the store.

    The block that reaches the end of a tile adds the sink and writes `dst`. If it also began the tile, it divides O by
    l; if not (`needs_fixup`), it stores O undivided, with m and l. A block that does not reach the end (`is_fixup`)
    stores O, m and l in its part of `dst_fixup`.
    """
    block, work = part
    heads, queries, kv = launch.rows(work)
    rule, here = op.rule(heads), hbm.at(**_places(op, work, heads))
    trace.heads = heads
    Q_i = here.load("Q", queries)
    state = rule.start(Q_i, op.shape.hsv, with_sink=False)
    steps = tiles(kv.stop, launch.nbatch_fa, kv.start)
    O, l, m = attend(rule, here, trace, Q_i, state, i=queries, kv_tiles=steps, worker=block)
    place = (block, slice(0, m.shape[0]), slice(0, m.shape[1]))
    if work.is_fixup:
        hbm.store("dst_fixup", O, *place)
        hbm.store("dst_fixup_meta", np.stack([m, l], axis=-1), IS_FIXUP, *place)
        trace.step("store part", queries, kv, worker=block)
        return
    m_new = np.maximum(m, rule.sink)
    old, new = exp_below(m, m_new), exp_below(np.broadcast_to(rule.sink, m.shape), m_new)
    O, l, m = old[..., None] * O, old * l + new, m_new
    here.store("O", O if work.needs_fixup else rows_divided(O, l), queries)
    if work.needs_fixup:
        hbm.store("dst_fixup_meta", np.stack([m, l], axis=-1), NEEDS_FIXUP, *place)
    hbm.array("L")[work.sequence, heads, queries] = log_sum_exp(m, l)
    trace.step("store O, m, l" if work.needs_fixup else "store O", queries, kv, worker=block)


def fixup(launch: StudyLaunch, last: BlockPart, before: Sequence[BlockPart], hbm: SlowMemory, trace: Trace) -> None:
    """`flash_attn_stream_k_fixup_*`: add the parts of earlier blocks to `dst`, last one first, and divide."""
    block, work = last
    heads, queries, kv = launch.rows(work)
    place = (work.sequence, heads, queries)
    trace.heads = heads
    rows = (slice(0, heads.stop - heads.start), slice(0, queries.stop - queries.start))
    O = hbm.load("O", *place)
    m, l = np.moveaxis(hbm.load("dst_fixup_meta", NEEDS_FIXUP, block, *rows), -1, 0)
    for other, part in reversed(before):
        O_p = hbm.load("dst_fixup", other, *rows)
        m_p, l_p = np.moveaxis(hbm.load("dst_fixup_meta", IS_FIXUP, other, *rows), -1, 0)
        m_old, m = m, np.maximum(m, m_p)
        old, new = exp_below(m_old, m), exp_below(m_p, m)
        O = old[..., None] * O + new[..., None] * O_p
        l = old * l + new * l_p
        visible = bool(np.isfinite(m_p).any())
        trace.step("combine", queries, launch.rows(part)[2], (m_old, m, l), worker=other, visible=visible)
    hbm.store("O", rows_divided(O, l), *place)
    hbm.array("L")[place] = log_sum_exp(m, l)
    trace.step("store O", queries, kv, worker=block)


NEEDS_FIXUP, IS_FIXUP = 0, 1  # the two halves of dst_fixup_meta


def _slow_memory(op: OpArrays, launch: StudyLaunch) -> SlowMemory:
    """The tensors, with one mask plane per head if there are several, and `dst_fixup` with its metadata."""
    shape = op.shape
    arrays = {"Q": op.Q, "K": op.K, "V": op.V}
    if op.mask is not None:
        planes = op.mask.shape[1]
        arrays["mask"] = op.mask if planes == 1 else op.mask[:, np.arange(shape.n_head) % planes]
    hbm = SlowMemory(**arrays)
    hbm.allocate("O", shape.n_seq, shape.n_head, shape.n_q, shape.hsv)
    hbm.allocate("L", shape.n_seq, shape.n_head, shape.n_q)
    parts = (len(launch.blocks), launch.ncols2, launch.ncols1)
    hbm.allocate("dst_fixup", *parts, shape.hsv)
    hbm.allocate("dst_fixup_meta", 2, *parts, 2)
    return hbm


def _places(op: OpArrays, work: TileWork, heads: slice) -> dict[str, tuple[Index, ...]]:
    """The index of a part's rows in each tensor."""
    sequence, kv_head = work.sequence, work.z_KV
    places: dict[str, tuple[Index, ...]] = {name: (sequence, kv_head) for name in "KV"}
    places |= {name: (sequence, heads) for name in "QO"}
    if op.mask is not None:
        one = op.mask.shape[1] == 1
        places["mask"] = (sequence % op.mask.shape[0], slice(0, 1) if one else heads)
    return places


MOST_JSON = 256 * MIB
"""Limit for the output of `inspect --json`, in bytes."""
FACTS = Document("the facts of an inspection", Facts)


def read_launch(path: Path, case: str, shape: Sizes) -> StudyLaunch:
    """The launch of a case in a file of `inspect --json`; InputError if it is missing or belongs to a different op."""
    text = read_text(path, "the inspection", most=MOST_JSON)
    try:
        found = {one["case"]: one["facts"] for one in json.loads(text)["inspections"] if one["facts"]}
        facts = FACTS.of({**found[case], "kernels": ()}) if case in found else None  # the JSON has origins as words
    except (InputError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is not the output of `fattn-probe inspect --json`: {error!r}") from error
    if facts is None:
        raise InputError(f"{path} has no facts of case {case}; it has {', '.join(found) or 'none'}")
    choice = facts.choice
    if facts.grid is None or choice is None or not facts.blocks or any(block.kbc is None for block in facts.blocks):
        kernel = choice.kernel if choice else "no kernel"
        raise InputError(f"{kernel} has no stream-K shares (kbc, kbc_stop); only flash_attn_ext_f16 has them")
    if choice.template.get("use_sparse"):
        raise InputError(f"{path}: the kernel of {case} gathers its KV rows (n_kv_max), which study does not support")
    sizes = (int(choice.template["ncols1"]), int(choice.template["ncols2"]), int(choice.config["nbatch_fa"]))
    launch = StudyLaunch(shape, *sizes, facts.blocks)
    if facts.grid != launch.grid:
        raise InputError(f"{path}: {facts.grid} does not fit {case}, which has {launch.grid}; inspect this case again")
    return launch
